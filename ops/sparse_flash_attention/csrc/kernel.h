// The two products of attention with their accumulators in registers.
//
// Scores: lanes are heads, every step multiplies one unit of several keys with one or two panels of
// heads. Outputs: lanes are columns of the latent, every step multiplies one unit of several heads'
// weights with some registers of value columns.
#pragma once

#include "element.h"

namespace g5 {

// Tiles of accumulators: AVX-512 and NEON have 32 vector registers, AVX2 and SSE have 16. On NEON
// the keys of a step take registers too.
constexpr int PANELS = 2;
constexpr int KEYS = G5_AVX512 ? 12 : G5_NEON ? 8 : 6;
constexpr int HEADS = G5_AVX512 ? 8 : 4;  // divides W
constexpr int COLUMNS = G5_NEON ? 4 : 3;

// One unit: sum[key][panel] += query[panel] * key.
template <class E, int N>
G5_INLINE void score_unit(const char* const* keys, int64_t at, const Unit* query, F (*sum)[N]) {
  I q[N];
#pragma GCC unroll 2
  for (int n = 0; n < N; n++) q[n] = load_units(query + n * W);
#pragma GCC unroll 12
  for (int k = 0; k < KEYS; k++) {
    Unit unit;
    std::memcpy(&unit, keys[k] + at * int64_t(sizeof unit), sizeof unit);
    const I word = splat(unit);
#pragma GCC unroll 2
    for (int n = 0; n < N; n++) sum[k][n] = E::dot(sum[k][n], q[n], word);
  }
}

#if G5_NEON
// One of the W units in every register of `words`.
template <int LANE, int N>
G5_INLINE void score_lane(const float32x4_t* words, const Unit* query, F (*sum)[N]) {
#pragma GCC unroll 2
  for (int n = 0; n < N; n++) {
    const float32x4_t q = float32x4_t(load_units(query + (LANE * N + n) * W));
#pragma GCC unroll 8
    for (int k = 0; k < KEYS; k++) {
      sum[k][n] = F(vfmaq_laneq_f32(float32x4_t(sum[k][n]), q, words[k], LANE));
    }
  }
}

// W units at once: NEON multiplies with a lane of a register, but not with a number in memory.
template <int N>
G5_INLINE void score_lanes(const char* const* keys, int64_t at, const Unit* query, F (*sum)[N]) {
  float32x4_t words[KEYS];
#pragma GCC unroll 8
  for (int k = 0; k < KEYS; k++) {
    words[k] = float32x4_t(load_units(keys[k] + at * int64_t(sizeof(Unit))));
  }
  score_lane<0>(words, query, sum);
  score_lane<1>(words, query, sum);
  score_lane<2>(words, query, sum);
  score_lane<3>(words, query, sum);
}
#endif

// scores[panel][key][lane] (+)= sum over units of query[unit][panel][lane] * key[unit].
// `scores` advances by `stride` numbers from panel to panel.
template <class E, int N>
void score(const char* const* keys, int64_t units, const Unit* query, float* scores, int64_t stride,
           bool add) {
  F sum[KEYS][N] = {};
  // Counted up to zero: with twelve keys every general register is in use.
  const char* end[KEYS];
#pragma GCC unroll 12
  for (int k = 0; k < KEYS; k++) end[k] = keys[k] + units * sizeof(Unit);
  int64_t u = -units;
#if G5_NEON
  for (; u + W <= 0; u += W, query += N * W * W) score_lanes(end, u, query, sum);
#endif
  for (; u < 0; u++, query += N * W) score_unit<E, N>(end, u, query, sum);
#pragma GCC unroll 12
  for (int k = 0; k < KEYS; k++) {
#pragma GCC unroll 2
    for (int n = 0; n < N; n++) {
      float* to = scores + n * stride + k * W;
      store(to, add ? load(to) + sum[k][n] : sum[k][n]);
    }
  }
}

// One unit: sum[head][column] += weight[head] * value[column].
template <class E, int N>
G5_INLINE void combine_unit(const Unit* weight, const Unit* value, F (*sum)[N]) {
  I v[N];
#pragma GCC unroll 4
  for (int n = 0; n < N; n++) v[n] = load_units(value + n * W);
#if G5_NEON
  const I weights = load_units(weight);
#endif
#pragma GCC unroll 8
  for (int h = 0; h < HEADS; h++) {
#if G5_NEON
    const I w = splat(weights[h]);
#else
    const I w = splat(weight[h]);
#endif
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) sum[h][n] = E::dot(sum[h][n], v[n], w);
  }
}

// out[head][column] = out * keep[head] + sum over units of weight[unit][head] * value[unit][column]
// with W heads in a unit of `weight`, N registers in one of `value`, and `stride` of out.
template <class E, int N>
void combine(const Unit* weight, const Unit* value, int64_t units, const float* keep, float* out,
             int64_t stride) {
  F sum[HEADS][N] = {};
  for (int64_t u = 0; u < units; u++) {
    combine_unit<E, N>(weight + u * W, value + u * N * W, sum);
  }
#pragma GCC unroll 8
  for (int h = 0; h < HEADS; h++) {
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
      float* to = out + h * stride + n * W;
      store(to, fma(load(to), splat(keep[h]), sum[h][n]));
    }
  }
}

}  // namespace g5
