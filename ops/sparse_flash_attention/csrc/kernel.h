// The two products of attention with their accumulators in registers.
//
// Scores: lanes are heads, every step multiplies one unit of several keys with one or two panels of
// heads. Outputs: lanes are columns of the latent, every step multiplies one unit of several heads'
// weights with up to three registers of value columns.
#pragma once

#include "element.h"

namespace g5 {

// AVX-512 and NEON have 32 vector registers, AVX2 and SSE 16.
#if G5_AVX512 || G5_NEON || defined(__aarch64__)
constexpr int KEYS = 12, HEADS = 8;
#else
constexpr int KEYS = 6, HEADS = 4;
#endif
constexpr int PANELS = 2, COLUMNS = 3;

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
  for (int64_t u = -units; u < 0; u++, query += N * W) {
    I q[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; n++) q[n] = load_units(query + n * W);
#pragma GCC unroll 12
    for (int k = 0; k < KEYS; k++) {
      Unit unit;
      std::memcpy(&unit, end[k] + u * int64_t(sizeof unit), sizeof unit);
      const I word = splat(unit);
#pragma GCC unroll 2
      for (int n = 0; n < N; n++) sum[k][n] = E::dot(sum[k][n], q[n], word);
    }
  }
#pragma GCC unroll 12
  for (int k = 0; k < KEYS; k++) {
#pragma GCC unroll 2
    for (int n = 0; n < N; n++) {
      float* to = scores + n * stride + k * W;
      store(to, add ? load(to) + sum[k][n] : sum[k][n]);
    }
  }
}

// out[head][column] = out * keep[head] + sum over units of weight[unit][head] * value[unit][column].
// A unit of `weight` holds W heads; `value` holds N registers per unit; `stride` is out's.
template <class E, int H, int N>
void combine(const Unit* weight, const Unit* value, int64_t units, const float* keep, float* out,
             int64_t stride) {
  F sum[H][N] = {};
  for (int64_t u = 0; u < units; u++) {
    I v[N];
#pragma GCC unroll 3
    for (int n = 0; n < N; n++) v[n] = load_units(value + (u * N + n) * W);
#pragma GCC unroll 8
    for (int h = 0; h < H; h++) {
      const I w = splat(weight[u * W + h]);
#pragma GCC unroll 3
      for (int n = 0; n < N; n++) sum[h][n] = E::dot(sum[h][n], v[n], w);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; h++) {
#pragma GCC unroll 3
    for (int n = 0; n < N; n++) {
      float* to = out + h * stride + n * W;
      store(to, fma(load(to), splat(keep[h]), sum[h][n]));
    }
  }
}

}  // namespace g5
