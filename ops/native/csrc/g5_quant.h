// Rows of int8 codes: scale and rounding of activations, in the arithmetic of
// ops/quant_linear/reference.py.
#pragma once

#include "g5_formats.h"

namespace g5 {

// Integer in the low byte of x + 1.5 * 2^23, ties to even; |x| must be below 2^22. NaN gives 0.
G5_INLINE uint8_t rounded_code(float x) { return uint8_t(bit_cast<uint32_t>(x + 12582912.0f)); }

G5_INLINE float clamped(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// codes[k] = round(x[k] / scale) + offset for scale = max|x| / 127, which is returned; a NaN in the
// row makes the scale NaN.
template <class T>
G5_INLINE float quantise_row(const T* x, int64_t terms, int offset, uint8_t* codes) {
  // The bits of positive floats compare like the floats, NaN above infinity.
  int32_t largest = 0;
  for (int64_t k = 0; k < terms; k++) {
    const int32_t bits = bit_cast<int32_t>(float(wide(x[k]))) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  const float scale = bit_cast<float>(largest) / 127.0f, divisor = scale == 0 ? 1 : scale;
  for (int64_t k = 0; k < terms; k++)
    codes[k] = uint8_t(rounded_code(clamped(float(wide(x[k])) / divisor, -127, 127)) + offset);
  return scale;
}

// codes[k] = clip(round(x[k] / scale + zero)) + offset.
template <class T>
G5_INLINE void quantise_row_static(const T* x, int64_t terms, float scale, float zero, int offset,
                                   uint8_t* codes) {
  for (int64_t k = 0; k < terms; k++) {
    const float shifted = float(wide(x[k])) / scale + zero;
    codes[k] = uint8_t(rounded_code(clamped(shifted, -128, 127)) + offset);
  }
}

}  // namespace g5
