// Rows of accumulators on their way between two products: scaled, rounded to the activations'
// format T, normed, quantised. Every operation is rounded by itself and sums have one order, so the
// bits are those of the separate operators (ops/norm_rope, ops/quant_linear), whatever the
// instruction set and the number of threads.
#pragma once

#include <atomic>
#include <cmath>
#include <type_traits>

#include "g5_quant.h"

namespace g5 {

// Kinds of accumulators: sums of int8 products as integers or as whole F32 numbers, or activations.
enum Kind : int { PLAIN = 0, INTEGERS = 1, WHOLE_F32 = 2 };

template <class T>
using Wide = decltype(wide(T{}));

// What a product left, and what turns it into activations.
struct Product {
  const void* data;  // [rows, width] without gaps
  int kind;
  const float* scale;  // [width] per channel
  const int32_t* bias;  // [width], added to the integer; null: `row_scale` multiplies instead
  const float* row_scale;  // [rows]; null with bias
  int64_t width;
};

template <class T, class A>
void activate(const Product& p, int64_t row, int64_t first, int64_t count, float* out) {
  const A* sum = static_cast<const A*>(p.data) + row * p.width + first;
  const float* scale = p.scale + first;
  if (p.bias != nullptr) {
    const int32_t* bias = p.bias + first;
    for (int64_t i = 0; i < count; i++) {
      // Wraps like torch's int32 addition.
      const uint32_t total = uint32_t(int32_t(sum[i])) + uint32_t(bias[i]);
      out[i] = rounded<T>(float(int32_t(total)) * scale[i]);
    }
  } else {
    const float by_row = p.row_scale[row];
    for (int64_t i = 0; i < count; i++)
      out[i] = rounded<T>(float(sum[i]) * scale[i] * by_row);
  }
}

// out[0 .. count) = columns first .. of row `row`, rounded to T.
template <class T>
void activations(const Product& p, int64_t row, int64_t first, int64_t count, Wide<T>* out) {
  if constexpr (sizeof(Wide<T>) == sizeof(float)) {
    if (p.kind == INTEGERS) return activate<T, int32_t>(p, row, first, count, out);
    if (p.kind == WHOLE_F32) return activate<T, float>(p, row, first, count, out);
  }
  const T* x = static_cast<const T*>(p.data) + row * p.width + first;
  for (int64_t i = 0; i < count; i++) out[i] = wide(x[i]);
}

template <class T, class To>
G5_INLINE void narrow_row(const T* x, int64_t n, To* out) {
  for (int64_t i = 0; i < n; i++) narrow(x[i], &out[i]);
}

// x = x / sqrt(mean(x^2) + eps) * gamma, rounded to T, in F64 for F32 and F64; a two-byte format in
// F32, and rounded to it before gamma too.
template <class T>
void rms_norm(Wide<T>* x, const T* gamma, int64_t n, double eps) {
  using W = std::conditional_t<sizeof(T) == 2, float, double>;
  const W squares = lane_sum<W>(n, [&](int64_t i) { return W(x[i]) * W(x[i]); });
  const W factor = W(1) / std::sqrt(squares / W(n) + W(eps));
  for (int64_t i = 0; i < n; i++) {
    if constexpr (sizeof(T) == 2)
      x[i] = rounded<T>(rounded<T>(x[i] * factor) * wide(gamma[i]));
    else
      x[i] = T(x[i] * factor * gamma[i]);
  }
}

// out = pairs of x rotated by one row of cos and sin; out may not be x.
template <class T>
void rotate(const Wide<T>* x, const Wide<T>* cos, const Wide<T>* sin, int64_t pairs, T* out) {
  for (int64_t j = 0; j < pairs; j++) {
    const Wide<T> even = x[2 * j], odd = x[2 * j + 1];
    narrow(even * cos[j] - odd * sin[j], &out[2 * j]);
    narrow(odd * cos[j] + even * sin[j], &out[2 * j + 1]);
  }
}

// Where codes go, and with which scale; no codes are wanted where `codes` is null.
struct Codes {
  int8_t* codes;  // [rows, width]
  float* row_scale;  // [rows], written unless `fixed`
  const float* fixed;  // scale and offset of all rows, or null
};

template <class T>
G5_INLINE void quantise(const T* x, int64_t row, int64_t n, const Codes& to) {
  if (to.codes == nullptr) return;
  uint8_t* codes = reinterpret_cast<uint8_t*>(to.codes + row * n);
  if (to.fixed == nullptr)
    to.row_scale[row] = quantise_row(x, n, 0, codes);
  else
    quantise_row_static(x, n, to.fixed[0], to.fixed[1], 0, codes);
}

}  // namespace g5
