// Vectors of F32 with the width of the instruction set: one kernel source serves all of them.
//
// F and I are GCC vector types, so + - * / & | == < and m ? a : b work on them. What follows is
// what the language does not have. `max` and `min` give b where a or b is NaN.
#pragma once

#include "g5.h"

#if G5_AVX512 || G5_AVX2
#include <immintrin.h>
#elif G5_NEON
#include <arm_neon.h>
#endif

namespace g5 {

constexpr int W = G5_AVX512 ? 16 : G5_AVX2 ? 8 : 4;  // F32 lanes

typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));

// Not F{} + x: an addition, and it would make +0 of -0.
#if G5_AVX512
G5_INLINE F splat(float x) { return _mm512_set1_ps(x); }
#elif G5_AVX2
G5_INLINE F splat(float x) { return _mm256_set1_ps(x); }
#else
G5_INLINE F splat(float x) { return F{x, x, x, x}; }
#endif
G5_INLINE I splat(int32_t x) { return I{} + x; }

G5_INLINE F load(const float* p) {
  F x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
G5_INLINE void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }

#if G5_AVX512
G5_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
G5_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
G5_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
G5_INLINE F sqrt(F a) { return _mm512_sqrt_ps(a); }
G5_INLINE F rint(F a) { return _mm512_roundscale_ps(a, 8); }
G5_INLINE F load(const bf16* p) {
  const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return F(_mm512_slli_epi32(x, 16));
}
G5_INLINE F load(const f16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
G5_INLINE void store(f16* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, 8));
}
#elif G5_AVX2
G5_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
G5_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
G5_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
G5_INLINE F sqrt(F a) { return _mm256_sqrt_ps(a); }
G5_INLINE F rint(F a) { return _mm256_round_ps(a, 8); }
G5_INLINE F load(const bf16* p) {
  const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return F(_mm256_slli_epi32(x, 16));
}
G5_INLINE F load(const f16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
G5_INLINE void store(f16* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, 8));
}
#else
G5_INLINE F max(F a, F b) { return a > b ? a : b; }
G5_INLINE F min(F a, F b) { return a < b ? a : b; }
#if G5_NEON
G5_INLINE F fma(F a, F b, F c) {
  return F(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
}
G5_INLINE F sqrt(F a) { return F(vsqrtq_f32(float32x4_t(a))); }
G5_INLINE F rint(F a) { return F(vrndnq_f32(float32x4_t(a))); }
G5_INLINE F load(const bf16* p) {
  return F(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
}
G5_INLINE F load(const f16* p) {
  return F(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)))));
}
G5_INLINE void store(f16* p, F x) {
  vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(float32x4_t(x))));
}
#else
// Without an instruction for it: rounded after the product too.
G5_INLINE F fma(F a, F b, F c) { return a * b + c; }
G5_INLINE F sqrt(F a) {
  for (int i = 0; i < W; i++) a[i] = __builtin_sqrtf(a[i]);
  return a;
}
G5_INLINE F rint(F a) {
  for (int i = 0; i < W; i++) a[i] = __builtin_rintf(a[i]);
  return a;
}
G5_INLINE F load(const bf16* p) {
  F x;
  for (int i = 0; i < W; i++) x[i] = to_f32(p[i]);
  return x;
}
G5_INLINE F load(const f16* p) {
  F x;
  for (int i = 0; i < W; i++) x[i] = to_f32(p[i]);
  return x;
}
G5_INLINE void store(f16* p, F x) {
  for (int i = 0; i < W; i++) p[i] = to_f16(x[i]);
}
#endif
#endif

// Nearest, ties to even; NaN stays NaN. vcvtneps2bf16 would flush subnormals.
G5_INLINE void store(bf16* p, F x) {
  const I bits = I(x);
  const I rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const I result = ((x == x) ? rounded : (bits | 0x400000)) >> 16;
  typedef int16_t Half __attribute__((vector_size(2 * W)));
  const Half half = __builtin_convertvector(result, Half);
  std::memcpy(p, &half, sizeof half);
}

// The first n < W lanes; the others load as 0 and are not stored.
template <class T>
G5_INLINE F load_part(const T* p, int n) {
  T buffer[W] = {};
  std::memcpy(buffer, p, size_t(n) * sizeof(T));
  return load(buffer);
}
template <class T>
G5_INLINE void store_part(T* p, F x, int n) {
  T buffer[W];
  store(buffer, x);
  std::memcpy(p, buffer, size_t(n) * sizeof(T));
}

// Halves are folded upon each other, so the order of additions is a fixed tree.
G5_INLINE float sum(F x) {
  float lane[W];
  store(lane, x);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lane[i] += lane[i + half];
  return lane[0];
}
G5_INLINE float max_of(F x) {
  float lane[W];
  store(lane, x);
  for (int i = 1; i < W; i++) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
  return lane[0];
}

// e^x, relative error below 2e-7; 0 below -87, infinity above 88.72, NaN for NaN.
G5_INLINE F exp(F x) {
  const F n = rint(min(max(x, splat(-87.0f)), splat(88.72f)) * splat(1.44269504f));
  // ln 2 in two parts: n times the first is exact.
  F r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  F p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  const I exponent = __builtin_convertvector(n, I) << 23;
  F result = F(I(p) + exponent);
  result = x < splat(-87.0f) ? F{} : result;
  result = x > splat(88.72f) ? splat(__builtin_inff()) : result;
  return x == x ? result : x;
}

}  // namespace g5
