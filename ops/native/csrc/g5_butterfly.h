// One step of a fast Hadamard transform within a vector.
#pragma once
#include "g5_vec.h"

namespace g5 {

// Lanes i and i ^ distance exchanged.
G5_INLINE F exchanged(F x, int distance) {
#if defined(__clang__)
  F y;
  for (int i = 0; i < W; i++) y[i] = x[i ^ distance];
  return y;
#else
  I from{};
  for (int i = 0; i < W; i++) from[i] = i ^ distance;
  return __builtin_shuffle(x, from);
#endif
}

// a + b in the lower lane of a pair, a - b in the upper one.
G5_INLINE F butterfly(F x, int distance) {
  I upper{};
  for (int i = 0; i < W; i++) upper[i] = i & distance ? INT32_MIN : 0;
  return exchanged(x, distance) + F(I(x) ^ upper);
}

}  // namespace g5
