// Scores of query tokens against the keys of their request, a chunk of keys at a time.
#pragma once

#include "panel.h"

namespace g5 {

// Keys that stay in the first-level cache while all tokens of a group are scored against them: a
// whole number of tiles and of vectors in every instruction set.
constexpr int CHUNK = 48;
static_assert(CHUNK % KEYS == 0 && CHUNK % W == 0, "chunks are whole tiles and vectors");

// The sums of the W partial sums of W keys.
#if G5_AVX512
inline F reduce(const float* partial) {
  const auto halves = [&](int a, int b) {
    const F x = load(partial + a * W), y = load(partial + b * W);
    return _mm512_shuffle_f32x4(x, y, 0x44) + _mm512_shuffle_f32x4(x, y, 0xee);
  };
  const auto quarters = [&](int a) {
    const F x = halves(a, a + 4), y = halves(a + 8, a + 12);
    return _mm512_shuffle_f32x4(x, y, 0x88) + _mm512_shuffle_f32x4(x, y, 0xdd);
  };
  const auto pairs = [&](int a) {
    const F x = quarters(a), y = quarters(a + 1);
    return _mm512_castps_pd(_mm512_unpacklo_ps(x, y) + _mm512_unpackhi_ps(x, y));
  };
  const __m512d x = pairs(0), y = pairs(2);
  return _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)) + _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
}
#else
inline F reduce(const float* partial) {
  F total;
  for (int j = 0; j < W; j++) total[j] = sum(load(partial + j * W));
  return total;
}
#endif

// Factor of every key's score (int8 only): one number per key row.
struct KeyScales {
  const void* data;
  int dtype;
  int64_t stride;

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
  float* partial;  // [CHUNK][W]

  static size_t bytes(int64_t dim) {
    return CHUNK * (W * sizeof(float) + size_t(padded<Key>(dim)) * sizeof(Key));
  }
  Workspace(void* memory) : partial(static_cast<float*>(memory)) {
    copy = reinterpret_cast<Key*>(partial + CHUNK * W);
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

// scores[t][position ...] of every panel for the chunk of keys from `position` on, which is cut off
// at `end`. Rows of scores are `row` apart and hold whole chunks. A score of NaN is written as
// minus infinity.
template <class L, class Stored>
void score_chunk(const KeyRows& rows, const KeyScales* scales, const Panel* panels, int64_t tokens,
                 const PanelShape& shape, int64_t position, int64_t end, float* scores, int64_t row,
                 const Workspace<typename L::Key>& work) {
  using Key = typename L::Key;
  TileKeys<Key> tiles[CHUNK / KEYS + 1];
  int64_t used = 0;
  for (; used < CHUNK / KEYS && position + used * KEYS < end; used++) {
    const int64_t first = position + used * KEYS, present = std::min<int64_t>(KEYS, end - first);
    Key* copy = work.copy + used * KEYS * shape.width;
    tiles[used] = fetch<Key, Stored>(rows, first, present, KEYS, copy);
  }
  // What follows the last tile is most likely what follows it in memory.
  tiles[used] = tiles[used - 1];
  tiles[used].data += KEYS * tiles[used].stride;
  float factor[CHUNK] = {};
  if (scales != nullptr)
    for (int64_t j = 0, n; j < CHUNK && position + j < end; j += n) {
      n = std::min(CHUNK - j, std::min(end - position - j, rows.run(position + j)));
      scales->read(rows.row(position + j), n, factor + j);
    }
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t i = 0; i < used; i++)
      score_tile<L>(panels[t], tiles[i], shape.steps, work.partial + i * KEYS * W,
                    tiles[i + 1].data);
    float* out = scores + t * row + position;
    for (int64_t j = 0; j < CHUNK; j += W) {
      F total = reduce(work.partial + j * W);
      if (scales != nullptr) total *= load(factor + j);
      store(out + j, total == total ? total : splat(-__builtin_inff()));
    }
  }
}

}  // namespace g5
