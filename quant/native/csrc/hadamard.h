// Products with H ⊗ S, Sylvester's S by butterflies at distances 1, 2, 4 ..., then Paley's H of
// order 12 or 20. Every result is the same tree of additions, along a row or down a column.
#pragma once

#include "exact.h"
#include "g5_butterfly.h"

namespace g5 {

// --- Paley's matrix of order K: first row (1, -1 ...), first column 1, otherwise 1 on the diagonal
// and -chi(j - i) off it, with chi the quadratic character modulo K - 1.
template <int K>
struct Paley {
  bool minus[K][K] = {};
  constexpr Paley() {
    bool square[K] = {};
    for (int i = 1; i < K - 1; i++) square[i * i % (K - 1)] = true;
    for (int j = 1; j < K; j++) minus[0][j] = true;
    for (int i = 1; i < K; i++)
      for (int j = 1; j < K; j++) minus[i][j] = i != j && square[(j - i + K - 1) % (K - 1)];
  }
};

// y = H x. Sums and differences of neighbours first: each row needs one of both of every pair.
template <int K, class V>
G5_INLINE void paley(const V* x, V* y) {
  static constexpr Paley<K> H;
  V sum[K / 2], difference[K / 2];
#pragma GCC unroll 10
  for (int m = 0; m < K / 2; m++) {
    sum[m] = x[2 * m] + x[2 * m + 1];
    difference[m] = x[2 * m] - x[2 * m + 1];
  }
#pragma GCC unroll 20
  for (int i = 0; i < K; i++) {
    V total = H.minus[i][1] ? difference[0] : sum[0];
#pragma GCC unroll 10
    for (int m = 1; m < K / 2; m++) {
      const V& pair = H.minus[i][2 * m] == H.minus[i][2 * m + 1] ? sum[m] : difference[m];
      total = H.minus[i][2 * m] ? total - pair : total + pair;
    }
    y[i] = total;
  }
}

// --- Along a row.

template <class V>
G5_INLINE void butterfly(V& a, V& b) {
  const V sum = a + b;
  b = a - b;
  a = sum;
}

// All distances below N * W within N vectors.
template <int N>
G5_INLINE void nearest(float* p) {
  F x[N];
#pragma GCC unroll 8
  for (int v = 0; v < N; v++) x[v] = load(p + v * W);
#pragma GCC unroll 4
  for (int distance = 1; distance < W; distance *= 2)
#pragma GCC unroll 8
    for (int v = 0; v < N; v++) x[v] = butterfly(x[v], distance);
#pragma GCC unroll 3
  for (int distance = 1; distance < N; distance *= 2)
#pragma GCC unroll 8
    for (int v = 0; v < N; v++)
      if (!(v & distance)) butterfly(x[v], x[v + distance]);
#pragma GCC unroll 8
  for (int v = 0; v < N; v++) store(p + v * W, x[v]);
}

// Distances `step`, 2 `step` ... N/2 `step` in one pass over a row of n.
template <int N>
void far(float* p, int64_t n, int64_t step) {
  for (int64_t block = 0; block < n; block += N * step)
    for (int64_t i = block; i < block + step; i += W) {
      F x[N];
#pragma GCC unroll 8
      for (int v = 0; v < N; v++) x[v] = load(p + i + v * step);
#pragma GCC unroll 3
      for (int distance = 1; distance < N; distance *= 2)
#pragma GCC unroll 8
        for (int v = 0; v < N; v++)
          if (!(v & distance)) butterfly(x[v], x[v + distance]);
#pragma GCC unroll 8
      for (int v = 0; v < N; v++) store(p + i + v * step, x[v]);
    }
}

template <int N>
void all_distances(float* p, int64_t n) {
  for (int64_t i = 0; i < n; i += N * W) nearest<N>(p + i);
  int64_t step = N * W;
  for (; 8 * step <= n; step *= 8) far<8>(p, n, step);
  if (4 * step == n) far<4>(p, n, step);
  if (2 * step == n) far<2>(p, n, step);
}

// Product of a row of n, a power of two, with S.
inline void sylvester(float* p, int64_t n) {
  if (n >= 8 * W) return all_distances<8>(p, n);
  if (n == 4 * W) return nearest<4>(p);
  if (n == 2 * W) return nearest<2>(p);
  if (n == W) return nearest<1>(p);
  for (int64_t distance = 1; distance < n; distance *= 2)
    for (int64_t i = 0; i < n; i++)
      if (!(i & distance)) butterfly(p[i], p[i + distance]);
}

template <int K>
void across(float* p, int64_t step) {
  int64_t i = 0;
  for (; i + W <= step; i += W) {
    F x[K], y[K];
    for (int k = 0; k < K; k++) x[k] = load(p + k * step + i);
    paley<K>(x, y);
    for (int k = 0; k < K; k++) store(p + k * step + i, y[k]);
  }
  for (; i < step; i++) {
    float x[K], y[K];
    for (int k = 0; k < K; k++) x[k] = p[k * step + i];
    paley<K>(x, y);
    for (int k = 0; k < K; k++) p[k * step + i] = y[k];
  }
}

// A row of order * n times H^T ⊗ S.
inline void kronecker(float* p, int order, int64_t n) {
  for (int k = 0; k < order; k++) sylvester(p + k * n, n);
  if (order == 12) across<12>(p, n);
  if (order == 20) across<20>(p, n);
}

// --- Down columns: strips of STRIP columns, n rows, one line of memory per row.

constexpr int STRIP = 16;

template <int N>
void far_down(float* p, int64_t n, int64_t step) {
  for (int64_t block = 0; block < n; block += N * step)
    for (int64_t row = block; row < block + step; row++)
      for (int lane = 0; lane < STRIP; lane += W) {
        float* q = p + row * STRIP + lane;
        F x[N];
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) x[v] = load(q + v * step * STRIP);
#pragma GCC unroll 3
        for (int distance = 1; distance < N; distance *= 2)
#pragma GCC unroll 8
          for (int v = 0; v < N; v++)
            if (!(v & distance)) butterfly(x[v], x[v + distance]);
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) store(q + v * step * STRIP, x[v]);
      }
}

// S times a strip of n rows.
inline void sylvester_down(float* p, int64_t n) {
  int64_t step = 1;
  for (; 8 * step <= n; step *= 8) far_down<8>(p, n, step);
  if (4 * step == n) far_down<4>(p, n, step);
  if (2 * step == n) far_down<2>(p, n, step);
}

}  // namespace g5
