// One query row and some of its heads: tiles of keys, scores, weights, outputs.
#pragma once

#include "kernel.h"
#include "pack.h"
#include "softmax.h"

namespace g5 {

// Units of the summed axis per pass over a tile: two panels of them fit into the first level.
constexpr int64_t BLOCK = 128;

// Keys whose outputs are summed up in one go. The chosen keys of a row are cut into parts of this
// size at most, which threads share, and their results are folded one after the other: the number
// of chosen keys alone says where the cuts are.
constexpr int64_t PART = 1152;
// Cuts lie at whole groups of keys in every instruction set.
constexpr int64_t CUT = 24;
static_assert(CUT % KEYS == 0, "parts are whole groups of keys");

constexpr int64_t parts_of(int64_t count) { return count > PART ? (count + PART - 1) / PART : 1; }

// What a part gives: outputs [panels * W][stride] that are not divided yet, and the softmax so far.
struct Result {
  float* out;
  Running* running;
};

// E is the arithmetic, T the dtype of query and out, Source says where keys come from. Memory of
// one thread for `panels` panels of W heads; the same heads give the same bits in any panel.
template <class E, class T, class Source>
class Attend {
 public:
  // Keys of a tile: its keys and values, the outputs of 64 heads and the queries fit into 1 MiB of
  // second-level cache.
  static constexpr int64_t TILE = 96 * E::PER_UNIT;

  // Sets all pointers into `base`, or none where it is null. Returns the size that is needed.
  size_t lay_out(const Call& c, int64_t panel_count, char* base) {
    call = &c;
    panels = panel_count;
    units = 0;
    for (int64_t p = 0; p < c.parts; p++) units += c.query[p].width / E::PER_UNIT;
    // An odd number of registers: rows of the outputs shall not all fall into the same cache lines.
    stride = up(c.value.width, W) | W;
    copy_bytes = up(Source::bytes(c), 64) | 64;
    int64_t at = 0;
    take(base, at, &query, panels * units * W);
    take(base, at, &weight, panels * TILE * W / E::PER_UNIT);
    take(base, at, &value, TILE * stride / E::PER_UNIT);
    take(base, at, &scores, panels * TILE * W);
    take(base, at, &chosen, c.index_count * c.sparse_block);
    take(base, at, &keys, TILE);
    take(base, at, &copies, TILE * copy_bytes);
    take(base, at, &zeros, c.value.width * int64_t(sizeof(typename E::Number)));
    for (Result& result : own) place(base, at, &result);
    return size_t(at);
  }

  // The i-th of some results that lie one after the other, once this is laid out.
  Result result(char* base, int64_t i) const {
    Result found;
    int64_t at = i * int64_t(result_bytes());
    place(base, at, &found);
    return found;
  }
  size_t result_bytes() const {
    Result unused;
    int64_t at = 0;
    place(nullptr, at, &unused);
    return size_t(at);
  }

  // Heads [head, head + panels * W) of query row `row`. False where an index leads outside.
  bool row(int64_t row, int64_t head, Sight sight) {
    if (!begin(row, head, sight)) return false;
    part(0, own[0]);
    for (int64_t p = 1; p < parts(); p++) {
      part(p, own[1]);
      fold(own[0], own[1]);
    }
    finish(row, head, own[0]);
    return true;
  }

  // Parts of the row that was begun.
  int64_t parts() const { return parts_of(count); }

  // Chooses the keys of these heads and packs their queries.
  bool begin(int64_t row, int64_t head, Sight sight) {
    count = choose(*call, row, sight, chosen);
    if (count < 0) return false;
    heads = call->heads - head < panels * W ? call->heads - head : panels * W;
    for (int64_t p = 0; p < panels; p += PANELS) {
      const int64_t lanes = (p + PANELS < panels ? PANELS : panels - p) * W;
      pack_query<E, T>(*call, row, head + p * W, lanes, query + p * units * W);
    }
    std::memset(zeros, 0, size_t(call->value.width) * sizeof(typename E::Number));
    const int64_t columns = (up(call->value.width, W) / W + COLUMNS - 1) / COLUMNS;
    const int64_t steps = columns * ((heads + HEADS - 1) / HEADS);
    pace = steps > 0 ? (TILE + steps - 1) / steps : 0;
    return true;
  }

  // What the keys of part `p` give.
  void part(int64_t p, Result to) {
    out = to.out;
    running = to.running;
    for (int64_t i = 0; i < panels; i++) {
      store(running[i].peak, splat(-__builtin_inff()));
      store(running[i].total, F{});
    }
    std::memset(out, 0, size_t(panels * W * stride) * sizeof *out);
    const int64_t each = up((count + parts() - 1) / parts(), CUT);
    last = (p + 1) * each < count ? (p + 1) * each : count;
    for (int64_t k = p * each; k < last; k += TILE) tile(k, last - k < TILE ? last - k : TILE);
  }

  // Adds a part's result to that of the parts before.
  void fold(Result to, Result next) const {
    for (int64_t p = 0; p < panels; p++) {
      Running &a = to.running[p], &b = next.running[p];
      const F before = load(a.peak), after = load(b.peak), peak = max(before, after);
      // As in weigh().
      const F base = peak == -__builtin_inff() ? F{} : peak;
      store(a.keep, exp_nonpositive(before - base));
      store(b.keep, exp_nonpositive(after - base));
      store(a.peak, peak);
      store(a.total, fma(load(a.total), load(a.keep), load(b.total) * load(b.keep)));
      for (int64_t h = 0; h < W && p * W + h < heads; h++) {
        float* x = to.out + (p * W + h) * stride;
        const float* y = next.out + (p * W + h) * stride;
        const F keep = splat(a.keep[h]), join = splat(b.keep[h]);
        for (int64_t i = 0; i < call->value.width; i += W)
          store(x + i, fma(load(x + i), keep, load(y + i) * join));
      }
    }
  }

  void finish(int64_t row, int64_t head, Result from) const {
    for (int64_t h = 0; h < heads; h++) finish_head(row, head + h, h, from);
  }

 private:
  void tile(int64_t first, int64_t n) {
    for (int64_t k = 0; k < n; k++) {
      Source::fetch(*call, chosen[first + k], copies + k * copy_bytes, keys + k);
    }
    // Groups of KEYS are always full; what the last one computes beyond n is not read.
    for (int64_t k = n; k < up(n, KEYS); k++) keys[k] = keys[0];
    for (int64_t p = 0; p < panels; p += PANELS) {
      with_constant<PANELS>(panels - p, [&](auto panels) { all_scores<panels>(p, n); });
    }
    for (int64_t p = 0; p < panels; p++) {
      weigh<E>(scores + p * TILE * W, n, float(call->scale), running + p,
               weight + p * TILE * W / E::PER_UNIT);
    }
    pack_values<E>(keys, n, call->value.width, zeros, value);
    asked = first + n;
    end = last - asked < TILE ? last : asked + TILE;
    outputs((n + E::PER_UNIT - 1) / E::PER_UNIT);
  }

  // A few rows of the next tile at a time, and all of them while the outputs are computed: copying
  // scattered rows waits for little else.
  void ask_ahead() {
    for (int64_t i = 0; i < pace && asked < end; i++) Source::ahead(*call, chosen[asked++]);
  }

  template <int N>
  void all_scores(int64_t panel, int64_t n) {
    const Unit* q = query + panel * units * W;
    bool add = false;
    for (int64_t p = 0; p < call->parts; p++) {
      const int64_t part = call->query[p].width / E::PER_UNIT;
      for (int64_t u = 0; u < part; u += BLOCK, add = true) {
        const int64_t block = part - u < BLOCK ? part - u : BLOCK;
        for (int64_t k = 0; k < n; k += KEYS) {
          const char* group[KEYS];
          for (int i = 0; i < KEYS; i++) group[i] = keys[k + i].part[p] + u * sizeof(Unit);
          score<E, N>(group, block, q + u * N * W, scores + (panel * TILE + k) * W, TILE * W, add);
        }
      }
      q += part * N * W;
    }
  }

  void outputs(int64_t key_units) {
    const int64_t registers = up(call->value.width, W) / W;
    const Unit* v = value;
    for (int64_t r = 0; r < registers; r += COLUMNS) {
      const int64_t n = registers - r < COLUMNS ? registers - r : COLUMNS;
      with_constant<COLUMNS>(n, [&](auto constant) { columns<constant>(v, key_units, r); });
      v += key_units * n * W;
    }
  }

  template <int N>
  void columns(const Unit* v, int64_t key_units, int64_t first) {
    for (int64_t p = 0; p < panels; p++) {
      for (int h = 0; h < W && p * W + h < heads; h += HEADS) {
        combine<E, N>(weight + p * TILE * W / E::PER_UNIT + h, v, key_units, running[p].keep + h,
                      out + (p * W + h) * stride + first * W, stride);
        ask_ahead();
      }
    }
  }

  void finish_head(int64_t row, int64_t head, int64_t lane, Result result) const {
    const int64_t at = row * call->heads + head, width = call->value.width;
    const Running& softmax = result.running[lane / W];
    const float total = softmax.total[lane % W], peak = softmax.peak[lane % W];
    const float factor = total == 0 ? 1 : 1 / total;
    const float* from = result.out + lane * stride;
    T* to = static_cast<T*>(call->out) + at * width;
    int64_t i = 0;
    for (; i + W <= width; i += W) store(to + i, load(from + i) * factor);
    if (i < width) store_part(to + i, load(from + i) * factor, int(width - i));
    if (call->total == nullptr) return;
    call->total[at] = total;
    // The running maximum passes over NaN, the sum does not.
    const bool nan = total != total && peak != __builtin_inff();
    call->peak[at] = nan ? __builtin_nanf("") : peak;
  }

  template <class Pointer>
  static void take(char* base, int64_t& at, Pointer** to, int64_t n) {
    *to = base == nullptr ? nullptr : reinterpret_cast<Pointer*>(base + at);
    at += up(n * int64_t(sizeof **to), 64);
  }
  void place(char* base, int64_t& at, Result* result) const {
    take(base, at, &result->out, panels * W * stride);
    take(base, at, &result->running, panels);
  }

  const Call* call;
  int64_t panels, heads, units, stride, copy_bytes;
  Unit *query, *weight, *value;
  float *scores, *out;
  Running* running;
  Result own[2];
  int64_t* chosen;
  Key* keys;
  char *copies, *zeros;
  int64_t count;       // chosen keys of the row
  int64_t last;        // where those of the part end
  int64_t asked, end;  // what has been asked for of the next tile, and where that ends
  int64_t pace;        // rows to ask for after each step of the outputs
};

}  // namespace g5
