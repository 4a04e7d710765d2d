// Vectors whose results are the same bits in every instruction set: each operation is rounded by
// itself, nothing is fused, and sums are either exact integers or of a fixed order.
#pragma once

#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "g5_vec.h"

namespace g5 {

// A row in memory is padded with zeros to a multiple of this.
constexpr int64_t PAD = 64;

G5_INLINE int64_t padded(int64_t n) { return (n + PAD - 1) / PAD * PAD; }

// Magnitudes as integers: positive floats compare like their bits, NaN above infinity.
constexpr int32_t INFINITE = 0x7f800000;

G5_INLINE I larger(I a, I b) {
#if G5_AVX512
  return I(_mm512_max_epi32(__m512i(a), __m512i(b)));
#elif G5_AVX2
  return I(_mm256_max_epi32(__m256i(a), __m256i(b)));
#else
  return a > b ? a : b;
#endif
}

G5_INLINE int32_t largest(I x) {
  int32_t top = x[0];
  for (int i = 1; i < W; i++) top = x[i] > top ? x[i] : top;
  return top;
}

}  // namespace g5
