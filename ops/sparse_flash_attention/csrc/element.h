// The two arithmetics of a tile. Both work on units of four bytes, so that one set of loops serves:
// a unit is an F32 number, or two BF16 numbers that follow each other along the summed axis.
#pragma once

#include "g5_vec.h"

namespace g5 {

typedef int32_t Unit;

G5_INLINE I load_units(const void* p) {
  I x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
G5_INLINE void store_units(Unit* p, I x) { std::memcpy(p, &x, sizeof x); }

struct Single {
  using Number = float;
  static constexpr int PER_UNIT = 1;
  static G5_INLINE F dot(F sum, I a, I b) { return fma(F(a), F(b), sum); }
  // W units from one row; there is no second one.
  static G5_INLINE I join(const float* a, const float*) { return I(load(a)); }
  static G5_INLINE I join(F a, F) { return I(a); }
  // Rounded to BF16.
  static G5_INLINE void store_rounded(float* to, F x) {
    bf16 rounded[W];
    store(rounded, x);
    store(to, load(rounded));
  }
};

#if G5_AVX512
// Exact products; F32 sums, rounded to nearest; subnormal BF16 numbers count as zero (the
// instructions' own rule).
struct Pair {
  using Number = bf16;
  static constexpr int PER_UNIT = 2;
  static G5_INLINE F dot(F sum, I a, I b) {
    return F(_mm512_dpbf16_ps(__m512(sum), (__m512bh)a, (__m512bh)b));
  }
  // W units from two rows: `a` in the low halves.
  static G5_INLINE I join(const bf16* a, const bf16* b) { return join(half(a), half(b)); }
  // Rounded to nearest, ties to even.
  static G5_INLINE I join(F a, F b) {
    return join((__m256i)_mm512_cvtneps_pbh(__m512(a)), (__m256i)_mm512_cvtneps_pbh(__m512(b)));
  }
  static G5_INLINE void store_rounded(bf16* to, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(__m512(x)));
  }

 private:
  static G5_INLINE __m256i half(const bf16* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static G5_INLINE I join(__m256i a, __m256i b) {
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16);
    return I(_mm512_or_si512(_mm512_cvtepu16_epi32(a), high));
  }
};
#endif

}  // namespace g5
