// 1 / (1 + exp(-x)) as separate F32 operations with a correctly rounded exponential.
#pragma once

#include <cmath>

#include "g5_formats.h"

namespace g5 {

// e^x rounded to F32 from an F64 value whose error is below 2^-47, so that it is the nearest F32 but
// for one argument in a million; 0, infinity and NaN where F32 has them. No branches: loops over it
// become vectors.
//
// x = n ln 2 + r with |r| < 0.35; 1.5 * 2^52 rounds x / ln 2 to n and leaves n in the low bits.
G5_INLINE float exp_f32(float argument) {
  double x = argument;
  x = x < -110.0 ? -110.0 : x;
  x = x > 100.0 ? 100.0 : x;
  constexpr double MAGIC = 6755399441055744.0;
  const double shifted = x * 1.4426950408889634 + MAGIC, n = shifted - MAGIC;
  // ln 2 in two parts; n times the first is exact.
  const double r = x - n * 0.6931471803691238 - n * 1.9082149292705877e-10;
  double sum = 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  return float(sum * bit_cast<double>((bit_cast<uint64_t>(shifted) + 1023) << 52));
}

G5_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }
G5_INLINE double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace g5
