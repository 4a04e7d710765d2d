// Scores of query tokens against the keys of their request, a chunk of keys at a time.
#pragma once

#include "panel.h"

namespace g5 {

// Keys that stay in the first-level cache while all tokens of a group are scored against them: a
// whole number of tiles and of vectors in every instruction set.
constexpr int CHUNK = 48;
static_assert(CHUNK % KEYS == 0 && CHUNK % W == 0, "chunks are whole tiles and vectors");

// Factor of every key's score (int8 only): one number per key row.
struct KeyScales {
  const void* data;
  int dtype;
  int64_t stride;

  // Asks for the factors of a row and of the last of a tile that begins there.
  void ask(int64_t row, int64_t keys) const {
    const int64_t size = dtype == F32 ? 4 : 2;
    const char* from = static_cast<const char*>(data) + row * stride * size;
    __builtin_prefetch(from);
    __builtin_prefetch(from + (std::min<int64_t>(keys, KEYS) - 1) * stride * size);
  }

  // Factors of n neighbouring rows.
  void read(int64_t row, int64_t n, float* out) const {
    switch (dtype) {
      case F32:
        return read(static_cast<const float*>(data) + row * stride, n, out);
      case BF16:
        return read(static_cast<const bf16*>(data) + row * stride, n, out);
      default:
        return read(static_cast<const f16*>(data) + row * stride, n, out);
    }
  }

 private:
  template <class T>
  void read(const T* from, int64_t n, float* out) const {
    if (stride == 1) return convert(from, out, n);
    for (int64_t i = 0; i < n; i++) out[i] = to_f32(from[i * stride]);
  }
};

// Memory of one thread while it scores.
template <class Key>
struct Workspace {
  Key* copy;       // [CHUNK][padded(dim)]
  float* partial;  // [CHUNK / W][SUMMANDS][W]

  static size_t bytes(int64_t dim) {
    return CHUNK * (SUMMANDS * sizeof(float) + size_t(padded<Key>(dim)) * sizeof(Key));
  }
  Workspace(void* memory) : partial(static_cast<float*>(memory)) {
    copy = reinterpret_cast<Key*>(partial + CHUNK * SUMMANDS);
  }
};

template <class L>
G5_INLINE void score_tile(const Panel& panel, const TileKeys<typename L::Key>& keys, int64_t steps,
                          float* partial, const void* ahead) {
  bool first = true;
  for (const Group& g : panel.wide()) {
    tile<L, VECTORS>(g, keys.data, keys.stride, steps, first, partial, ahead);
    first = false;
  }
  for (const Group& g : panel.narrow()) {
    tile<L, 1>(g, keys.data, keys.stride, steps, first, partial, ahead);
    first = false;
  }
}

// How many tiles before they are needed keys are asked for. Memory answers within the time of one
// or two tiles; all that is asked for has to stay in the first-level cache.
constexpr int64_t AHEAD = 4;

// Scores a range of chunks. `scores` [tokens][row] holds whole chunks, of which the keys from `end`
// on do not exist. A score of NaN is written as minus infinity.
template <class L, class Stored>
class Scorer {
 public:
  using Key = typename L::Key;

  Scorer(const KeyRows& rows, const KeyScales* scales, const std::vector<Panel>& panels,
         const PanelShape& shape, int64_t end, float* scores, int64_t row, void* memory)
      : rows_(rows), here_(rows), ahead_(rows), scales_(scales), panels_(panels), shape_(shape),
        end_(end), scores_(scores), row_(row), work_(memory) {}

  // The chunk of keys from `position` on.
  void chunk(int64_t position) {
    TileKeys<Key> tiles[CHUNK / KEYS];
    int64_t used = 0;
    for (int64_t at = position; used < CHUNK / KEYS && at < end_; used++, at += KEYS)
      tiles[used] = fetch<Key, Stored>(rows_, here_, at, std::min<int64_t>(KEYS, end_ - at), KEYS,
                                       work_.copy + used * KEYS * shape_.width);
    float factor[CHUNK] = {};
    if (scales_ != nullptr)
      for (int64_t j = 0, n; j < CHUNK && position + j < end_; j += n) {
        const int64_t row = here_.row(position + j);
        n = std::min({CHUNK - j, end_ - position - j, here_.left(position + j)});
        scales_->read(row, n, factor + j);
      }
    for (size_t t = 0; t < panels_.size(); t++) {
      for (int64_t i = 0; i < used; i++) {
        const bool last = t + 1 == panels_.size();
        const void* ahead = last ? ask(position + (i + AHEAD) * KEYS, tiles[i]) : tiles[i].data;
        float* partial = work_.partial + i * KEYS * SUMMANDS;
        score_tile<L>(panels_[t], tiles[i], shape_.steps, partial, ahead);
      }
      float* out = scores_ + int64_t(t) * row_ + position;
      for (int64_t j = 0; j < CHUNK; j += W) {
        F total = reduce(work_.partial + j * SUMMANDS);
        if (scales_ != nullptr) total *= load(factor + j);
        store(out + j, total == total ? total : splat(-__builtin_inff()));
      }
    }
  }

 private:
  // Where the tile of keys from `position` on begins in memory, for the kernel to ask for it as it
  // goes. Asks at once for keys that do not follow there, and for scales.
  const void* ask(int64_t position, const TileKeys<Key>& now) {
    if (position + KEYS > end_) return now.data;
    const int64_t row = ahead_.row(position), n = ahead_.left(position);
    const char* begin = rows_.base + row * rows_.stride * int64_t(sizeof(Stored));
    if (scales_ != nullptr) scales_->ask(row, n);
    for (int64_t j = n; j < KEYS; j++) ask_key(ahead_.row(position + j), j == n);
    return begin;
  }

  void ask_key(int64_t row, bool first) {
    constexpr int64_t size = sizeof(Stored), LINE = 64;
    const char* key = rows_.base + row * rows_.stride * size;
    for (int64_t i = 0; i < rows_.dim * size; i += LINE) __builtin_prefetch(key + i);
    if (first && scales_ != nullptr) scales_->ask(row, KEYS);
  }

  const KeyRows& rows_;
  Walk here_, ahead_;
  const KeyScales* scales_;
  const std::vector<Panel>& panels_;
  const PanelShape& shape_;
  const int64_t end_;
  float* const scores_;
  const int64_t row_;
  const Workspace<Key> work_;
};

}  // namespace g5
