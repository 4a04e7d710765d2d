// One query row and some of its heads: tiles of keys, scores, weights, outputs.
#pragma once

#include "kernel.h"
#include "pack.h"
#include "softmax.h"

namespace g5 {

// Units of the summed axis per pass over a tile: two panels of them fit into the first level.
constexpr int64_t BLOCK = 128;

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
    int64_t at = 0;
    const auto take = [&at, base](auto** to, int64_t n) {
      using Pointer = std::remove_reference_t<decltype(*to)>;
      *to = base == nullptr ? nullptr : reinterpret_cast<Pointer>(base + at);
      at += up(n * int64_t(sizeof **to), 64);
    };
    call = &c;
    panels = panel_count;
    units = 0;
    for (int64_t p = 0; p < c.parts; p++) units += c.query[p].width / E::PER_UNIT;
    // An odd number of registers: rows of the outputs shall not all fall into the same cache lines.
    stride = up(c.value.width, W) | W;
    copy_bytes = up(Source::bytes(c), 64) | 64;
    take(&query, panels * units * W);
    take(&weight, panels * TILE * W / E::PER_UNIT);
    take(&value, TILE * stride / E::PER_UNIT);
    take(&scores, panels * TILE * W);
    take(&out, panels * W * stride);
    take(&running, panels);
    take(&chosen, c.index_count * c.sparse_block);
    take(&keys, TILE);
    take(&copies, TILE * copy_bytes);
    take(&zeros, c.value.width * int64_t(sizeof(typename E::Number)));
    return size_t(at);
  }

  // Heads [head, head + panels * W) of query row `row`. False where an index leads outside.
  bool row(int64_t row, int64_t head, Sight sight) {
    count = choose(*call, row, sight, chosen);
    if (count < 0) return false;
    heads = call->heads - head < panels * W ? call->heads - head : panels * W;
    for (int64_t p = 0; p < panels; p += PANELS) {
      const int64_t lanes = (p + PANELS < panels ? PANELS : panels - p) * W;
      pack_query<E, T>(*call, row, head + p * W, lanes, query + p * units * W);
    }
    for (int64_t p = 0; p < panels; p++) {
      store(running[p].peak, splat(-__builtin_inff()));
      store(running[p].total, F{});
    }
    std::memset(out, 0, size_t(panels * W * stride) * sizeof *out);
    std::memset(zeros, 0, size_t(call->value.width) * sizeof(typename E::Number));
    const int64_t columns = (up(call->value.width, W) / W + COLUMNS - 1) / COLUMNS;
    const int64_t steps = columns * ((heads + HEADS - 1) / HEADS);
    pace = steps > 0 ? (TILE + steps - 1) / steps : 0;
    for (int64_t k = 0; k < count; k += TILE) tile(k, count - k < TILE ? count - k : TILE);
    for (int64_t h = 0; h < heads; h++) finish(row, head + h, h);
    return true;
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
    end = count - asked < TILE ? count : asked + TILE;
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

  void finish(int64_t row, int64_t head, int64_t lane) {
    const int64_t at = row * call->heads + head, width = call->value.width;
    const float total = running[lane / W].total[lane % W], peak = running[lane / W].peak[lane % W];
    const float factor = total == 0 ? 1 : 1 / total;
    const float* from = out + lane * stride;
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

  const Call* call;
  int64_t panels, heads, units, stride, copy_bytes;
  Unit *query, *weight, *value;
  float *scores, *out;
  Running* running;
  int64_t* chosen;
  Key* keys;
  char *copies, *zeros;
  int64_t count;       // chosen keys of the row
  int64_t asked, end;  // what has been asked for of the next tile, and where that ends
  int64_t pace;        // rows to ask for after each step of the outputs
};

}  // namespace g5
