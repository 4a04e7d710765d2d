// Products of one tile of keys with the heads of one query token, ReLU and weighted sum.
//
// Heads lie in vector lanes; a key's numbers are broadcast, so keys are read as they are stored. A
// lane holds 32 bits: one F32, two bf16, two int16 or four int8, which are multiplied and added
// together. What a tile writes are W partial sums per key; a key's sum depends on nothing else in
// the tile.
#pragma once

#include "g5_vec.h"

namespace g5 {

// One group of heads of a query token, V vectors wide.
struct Group {
  const void* query;     // [steps][V][W] lanes
  const float* weights;  // [V][W]; 0 where there is no head
  const int32_t* start;  // unused here
  const int32_t* valid;  // [V][W]; -1 where there is a head, 0 elsewhere
};

// Arithmetic of one lane type: how a key is stored for the tile, broadcast and multiplied.
struct F32Lanes {
  using Key = float;
  using Sum = F;
  static G5_INLINE F broadcast(const float* k) { return splat(*k); }
  static G5_INLINE F dot(F sum, F q, F k) { return fma(q, k, sum); }
  // NaN stays NaN.
  static G5_INLINE F relu(F x) { return x < F{} ? F{} : x; }
};

struct IntegerLanes {
  using Sum = I;
  template <class T>
  static G5_INLINE I broadcast(const T* k) {
    int32_t bits;
    std::memcpy(&bits, k, sizeof bits);
    return splat(bits);
  }
  static G5_INLINE F relu(I x) { return __builtin_convertvector(x > 0 ? x : I{}, F); }
};

#if G5_AVX2
struct IntLanes : IntegerLanes {
  using Key = int16_t;
  static G5_INLINE I dot(I sum, I q, I k) {
    return sum + I(_mm256_madd_epi16(__m256i(q), __m256i(k)));
  }
};
constexpr int KEYS = 6, VECTORS = 2;
#elif G5_NEON
struct IntLanes : IntegerLanes {
  using Key = int8_t;
  static G5_INLINE I dot(I sum, I q, I k) {
    return I(vdotq_s32(int32x4_t(sum), int8x16_t(q), int8x16_t(k)));
  }
};
constexpr int KEYS = 6, VECTORS = 4;
#elif G5_PORTABLE
// Products of int8 are exact in F32 while their sum is below 2^24: up to 1023 dimensions.
using IntLanes = F32Lanes;
constexpr int KEYS = 4, VECTORS = 2;
#endif

// The vectors that tile() leaves for W keys, to be added across their lanes.
constexpr int SUMMANDS = W;

G5_INLINE F reduce(const float* partial) {
  F total;
  for (int j = 0; j < W; j++) total[j] = sum(load(partial + j * W));
  return total;
}

// partial[j] = (first ? 0 : partial[j]) + sum_v weights[v] * relu(query[v] . key[j]) for KEYS keys,
// `stride` Keys apart. `ahead` is where a later tile lies in memory.
template <class L, int V>
void tile(const Group& g, const typename L::Key* key, int64_t stride, int64_t steps, bool first,
          float* partial, const void* ahead) {
  constexpr int EACH = 4 / sizeof(typename L::Key);
  using Sum = typename L::Sum;
  const float* query = static_cast<const float*>(g.query);
  Sum sums[KEYS][V];
#pragma GCC unroll 8
  for (int j = 0; j < KEYS; j++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sums[j][v] = Sum{};
  for (int64_t s = 0; s < steps; s++) {
    // A line of 64 bytes per key lasts for sixteen steps.
    if (s % 16 == 0)
      for (int j = 0; j < KEYS; j++)
        __builtin_prefetch(static_cast<const char*>(ahead) + (s / 16 * KEYS + j) * 64);
    Sum q[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) q[v] = Sum(load(query + (s * V + v) * W));
#pragma GCC unroll 8
    for (int j = 0; j < KEYS; j++) {
      const Sum k = L::broadcast(key + j * stride + s * EACH);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sums[j][v] = L::dot(sums[j][v], q[v], k);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < KEYS; j++) {
    F total = first ? F{} : load(partial + j * W);
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      const F x = L::relu(sums[j][v]);
      I valid;
      std::memcpy(&valid, g.valid + v * W, sizeof valid);
      total = fma(F(I(x) & valid), load(g.weights + v * W), total);
    }
    store(partial + j * W, total);
  }
}

}  // namespace g5
