// Loops over rows of any float format: conversions without branches, and arithmetic that is rounded
// operation by operation, so that all instruction sets give the bits of torch's separate operations.
#pragma once

#include "g5.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

namespace g5 {

// Numbers of formats beside DType, for operators that take them too.
constexpr int F64 = 3, I8 = 4;

G5_INLINE float wide(float x) { return x; }
G5_INLINE float wide(bf16 x) { return to_f32(x); }
G5_INLINE float wide(f16 x) { return to_f32(x); }
G5_INLINE double wide(double x) { return x; }

G5_INLINE void narrow(float x, float* to) { *to = x; }
G5_INLINE void narrow(float x, f16* to) { *to = to_f16(x); }
G5_INLINE void narrow(double x, double* to) { *to = x; }
G5_INLINE void narrow(float x, bf16* to) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to->bits = uint16_t((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

// x rounded to the format T, as a wide number.
template <class T, class Wide>
G5_INLINE Wide rounded(Wide x) {
  T stored;
  narrow(x, &stored);
  return wide(stored);
}

// call(T{}) for the float format that `dtype` numbers.
template <class Fn>
int with_format(int dtype, const Fn& call) {
  switch (dtype) {
    case F32: return call(float{});
    case BF16: return call(bf16{});
    case F16: return call(f16{});
    case F64: return call(double{});
    default: return UNSUPPORTED;
  }
}

// F32 values of `count` numbers: the numbers themselves where they are F32, else a copy in `room`;
// null where the format is unknown.
inline const float* as_f32(const void* from, int dtype, int64_t count, float* room) {
  if (dtype == F32) return static_cast<const float*>(from);
  if (dtype == I8) {
    for (int64_t i = 0; i < count; i++) room[i] = static_cast<const int8_t*>(from)[i];
    return room;
  }
  const int code = with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < count; i++) room[i] = float(wide(static_cast<const T*>(from)[i]));
    return int(OK);
  });
  return code == OK ? room : nullptr;
}

// Sum of term(i) over [0, n): 16 partial sums whatever the instruction set, then a tree.
template <class Wide, class Fn>
G5_INLINE Wide lane_sum(int64_t n, const Fn& term) {
  constexpr int LANES = 16;
  Wide lanes[LANES] = {};
  const int64_t whole = n / LANES * LANES;
  for (int64_t i = 0; i < whole; i += LANES)
    for (int l = 0; l < LANES; l++) lanes[l] += term(i + l);
  for (int64_t i = whole; i < n; i++) lanes[i - whole] += term(i);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
  return lanes[0];
}

// Rows for one thread: below about 2^15 values another one does not pay.
inline int64_t row_grain(int64_t width) { return width < (1 << 15) ? (1 << 15) / (width + 1) + 1 : 1; }

}  // namespace g5
