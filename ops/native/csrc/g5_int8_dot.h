// Dot products of int8 activations with int8 or packed int4 weights, in exact int32.
//
// Two weight formats per instruction set. `Bytes` reads one output row of int8 codes, `Nibbles` one
// stored row with two outputs (low nibble: even row, two's complement). Each has
//   STEP        codes that one operand holds
//   OFFSET      what is added to activation codes before they are stored: VNNI multiplies unsigned
//               by signed bytes. finish() takes it out again through the weights' own sum
//   OUTPUTS     output rows per stored row
//   ROWS        activation rows that share a loaded operand: 4, or 1 without vector registers
// Nibbles give the NPU's sum (x - 8) w; see ops/moe/README.md.
#pragma once

#include "g5.h"

#if G5_AVX512 || G5_AVX2
#include <immintrin.h>
#elif G5_NEON
#include <arm_neon.h>
#endif

namespace g5 {

#if G5_AVX512 || G5_AVX2
G5_INLINE __m128i folded(__m256i sum) {
  return _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
}
G5_INLINE int32_t total256(__m256i sum) {
  __m128i s = folded(sum);
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
// The totals of four vectors side by side.
G5_INLINE void total256x4(__m256i a, __m256i b, __m256i c, __m256i d, int32_t* out) {
  const __m256i ab = _mm256_hadd_epi32(a, b), cd = _mm256_hadd_epi32(c, d);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), folded(_mm256_hadd_epi32(ab, cd)));
}
#endif

// int4 arithmetic of the NPU: activations are used less this.
constexpr int32_t NPU_OFFSET = 8;

#if G5_AVX512

struct Dot {
  using Sum = __m512i;
  static constexpr int ROWS = 4;
  using Operand = __m512i;
  static constexpr int64_t STEP = 64;
  static constexpr int32_t OFFSET = 128;

  static G5_INLINE Sum zero() { return _mm512_setzero_si512(); }
  static G5_INLINE Operand activations(const uint8_t* x) { return _mm512_loadu_si512(x); }
  static G5_INLINE Operand raw(const int8_t* w) { return _mm512_loadu_si512(w); }
  static G5_INLINE Operand raw(const int8_t* w, int64_t count) {
    return _mm512_maskz_loadu_epi8(~__mmask64(0) >> (64 - count), w);
  }
  // Written out since GCC 12 keeps the intrinsic's accumulators in memory.
  static G5_INLINE void add(Sum& sum, Operand x, Operand w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
  }
  static G5_INLINE void add_weights(Sum& sum, Operand w) { add(sum, _mm512_set1_epi8(1), w); }
  static G5_INLINE __m256i folded512(Sum sum) {
    struct Halves {
      __m256i low, high;
    };
    const Halves h = bit_cast<Halves>(sum);
    return _mm256_add_epi32(h.low, h.high);
  }
  static G5_INLINE int32_t total(Sum sum) { return total256(folded512(sum)); }
  static G5_INLINE void total4(const Sum* s, int32_t* out) {
    total256x4(folded512(s[0]), folded512(s[1]), folded512(s[2]), folded512(s[3]), out);
  }
};

struct Bytes : Dot {
  static constexpr int OUTPUTS = 1;
  static constexpr bool NEEDS_WEIGHT_SUM = true;
  static G5_INLINE void unpack(Operand raw, Operand* w) { w[0] = raw; }
  static G5_INLINE int32_t finish(int32_t dot, int32_t weights) { return dot - OFFSET * weights; }
};

struct Nibbles : Dot {
  static constexpr int OUTPUTS = 2;
  static constexpr bool NEEDS_WEIGHT_SUM = true;
  static G5_INLINE void unpack(Operand raw, Operand* w) {
    const __m512i low = _mm512_set1_epi8(0xf), sign = _mm512_set1_epi8(8);
    const __m512i even = _mm512_and_si512(raw, low);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(raw, 4), low);
    w[0] = _mm512_sub_epi8(_mm512_xor_si512(even, sign), sign);
    w[1] = _mm512_sub_epi8(_mm512_xor_si512(odd, sign), sign);
  }
  static G5_INLINE int32_t finish(int32_t dot, int32_t weights) {
    return dot - (OFFSET + NPU_OFFSET) * weights;
  }
};

#elif G5_AVX2

struct Dot {
  using Sum = __m256i;
  static constexpr int ROWS = 4;
  static G5_INLINE Sum zero() { return _mm256_setzero_si256(); }
  static G5_INLINE int32_t total(Sum sum) { return total256(sum); }
  static G5_INLINE void total4(const Sum* s, int32_t* out) {
    total256x4(s[0], s[1], s[2], s[3], out);
  }
};

// Products of int8 pairs may pass 16 bits, so both sides are widened first.
struct Bytes : Dot {
  using Operand = __m256i;
  static constexpr int64_t STEP = 16;
  static constexpr int32_t OFFSET = 0;
  static constexpr int OUTPUTS = 1;
  static constexpr bool NEEDS_WEIGHT_SUM = false;

  static G5_INLINE Operand widened(const void* x) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(x)));
  }
  static G5_INLINE Operand activations(const uint8_t* x) { return widened(x); }
  static G5_INLINE Operand raw(const int8_t* w) { return widened(w); }
  static G5_INLINE Operand raw(const int8_t* w, int64_t count) {
    int8_t padded[STEP] = {};
    std::memcpy(padded, w, count);
    return widened(padded);
  }
  static G5_INLINE void unpack(Operand raw, Operand* w) { w[0] = raw; }
  static G5_INLINE void add(Sum& sum, Operand x, Operand w) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, w));
  }
  static G5_INLINE void add_weights(Sum&, Operand) {}
  static G5_INLINE int32_t finish(int32_t dot, int32_t) { return dot; }
};

// Pairs of products stay below 2 * 255 * 8 and fit 16 bits.
struct Nibbles : Dot {
  using Operand = __m256i;
  static constexpr int64_t STEP = 32;
  static constexpr int32_t OFFSET = 128;
  static constexpr int OUTPUTS = 2;
  static constexpr bool NEEDS_WEIGHT_SUM = true;

  static G5_INLINE Operand load(const void* x) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(x));
  }
  static G5_INLINE Operand activations(const uint8_t* x) { return load(x); }
  static G5_INLINE Operand raw(const int8_t* w) { return load(w); }
  static G5_INLINE Operand raw(const int8_t* w, int64_t count) {
    int8_t padded[STEP] = {};
    std::memcpy(padded, w, count);
    return load(padded);
  }
  static G5_INLINE void unpack(Operand raw, Operand* w) {
    const __m256i low = _mm256_set1_epi8(0xf), sign = _mm256_set1_epi8(8);
    const __m256i even = _mm256_and_si256(raw, low);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(raw, 4), low);
    w[0] = _mm256_sub_epi8(_mm256_xor_si256(even, sign), sign);
    w[1] = _mm256_sub_epi8(_mm256_xor_si256(odd, sign), sign);
  }
  static G5_INLINE void add(Sum& sum, Operand x, Operand w) {
    const __m256i pairs = _mm256_maddubs_epi16(x, w);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static G5_INLINE void add_weights(Sum& sum, Operand w) { add(sum, _mm256_set1_epi8(1), w); }
  static G5_INLINE int32_t finish(int32_t dot, int32_t weights) {
    return dot - (OFFSET + NPU_OFFSET) * weights;
  }
};

#elif G5_NEON

struct Dot {
  using Sum = int32x4_t;
  static constexpr int ROWS = 4;
  using Operand = int8x16_t;
  static constexpr int64_t STEP = 16;
  static constexpr int32_t OFFSET = 0;

  static G5_INLINE Sum zero() { return vdupq_n_s32(0); }
  static G5_INLINE Operand activations(const uint8_t* x) {
    return vld1q_s8(reinterpret_cast<const int8_t*>(x));
  }
  static G5_INLINE Operand raw(const int8_t* w) { return vld1q_s8(w); }
  static G5_INLINE Operand raw(const int8_t* w, int64_t count) {
    int8_t padded[STEP] = {};
    std::memcpy(padded, w, count);
    return vld1q_s8(padded);
  }
  static G5_INLINE void add(Sum& sum, Operand x, Operand w) { sum = vdotq_s32(sum, x, w); }
  static G5_INLINE void add_weights(Sum& sum, Operand w) { add(sum, vdupq_n_s8(1), w); }
  static G5_INLINE int32_t total(Sum sum) { return vaddvq_s32(sum); }
  static G5_INLINE void total4(const Sum* s, int32_t* out) {
    vst1q_s32(out, vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])));
  }
};

struct Bytes : Dot {
  static constexpr int OUTPUTS = 1;
  static constexpr bool NEEDS_WEIGHT_SUM = false;
  static G5_INLINE void unpack(Operand raw, Operand* w) { w[0] = raw; }
  static G5_INLINE int32_t finish(int32_t dot, int32_t) { return dot; }
};

struct Nibbles : Dot {
  static constexpr int OUTPUTS = 2;
  static constexpr bool NEEDS_WEIGHT_SUM = true;
  static G5_INLINE void unpack(Operand raw, Operand* w) {
    w[0] = vshrq_n_s8(vshlq_n_s8(raw, 4), 4);
    w[1] = vshrq_n_s8(raw, 4);
  }
  static G5_INLINE int32_t finish(int32_t dot, int32_t weights) {
    return dot - NPU_OFFSET * weights;
  }
};

#else

// Plain loops over a few codes, which any compiler turns into what it has.
struct Dot {
  using Sum = int32_t;
  static constexpr int ROWS = 1;
  struct Operand {
    int16_t code[16];
  };
  static constexpr int64_t STEP = 16;
  static constexpr int32_t OFFSET = 0;

  static G5_INLINE Sum zero() { return 0; }
  static G5_INLINE Operand widened(const int8_t* x, int64_t count) {
    Operand o = {};
    for (int64_t i = 0; i < count; i++) o.code[i] = x[i];
    return o;
  }
  static G5_INLINE Operand activations(const uint8_t* x) {
    return widened(reinterpret_cast<const int8_t*>(x), STEP);
  }
  static G5_INLINE Operand raw(const int8_t* w) { return widened(w, STEP); }
  static G5_INLINE Operand raw(const int8_t* w, int64_t count) { return widened(w, count); }
  static G5_INLINE void add(Sum& sum, const Operand& x, const Operand& w) {
    for (int i = 0; i < STEP; i++) sum += int32_t(x.code[i]) * w.code[i];
  }
  static G5_INLINE void add_weights(Sum& sum, const Operand& w) {
    for (int i = 0; i < STEP; i++) sum += w.code[i];
  }
  static G5_INLINE int32_t total(Sum sum) { return sum; }
  static G5_INLINE void total4(const Sum* s, int32_t* out) {
    for (int c = 0; c < 4; c++) out[c] = s[c];
  }
};

struct Bytes : Dot {
  static constexpr int OUTPUTS = 1;
  static constexpr bool NEEDS_WEIGHT_SUM = false;
  static G5_INLINE void unpack(const Operand& raw, Operand* w) { w[0] = raw; }
  static G5_INLINE int32_t finish(int32_t dot, int32_t) { return dot; }
};

struct Nibbles : Dot {
  static constexpr int OUTPUTS = 2;
  static constexpr bool NEEDS_WEIGHT_SUM = true;
  static G5_INLINE void unpack(const Operand& raw, Operand* w) {
    for (int i = 0; i < STEP; i++) {
      w[0].code[i] = int16_t(((raw.code[i] & 0xf) ^ 8) - 8);
      w[1].code[i] = int16_t(raw.code[i] >> 4);
    }
  }
  static G5_INLINE int32_t finish(int32_t dot, int32_t weights) {
    return dot - NPU_OFFSET * weights;
  }
};

#endif

}  // namespace g5
