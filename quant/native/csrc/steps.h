// How well a step fits a row, in whole numbers: exact, so that neither instruction set nor order
// matters.
//
// The row is given as w = round(x * 32767 / max|x|). A step is named by its reciprocal r, a 15-bit
// number: t = (w * r + 2^14) >> 15 counts 2^-SHIFT of a step, and t rounded to steps and clipped is
// the code q. With A = sum of w q and C = sum of q^2 the squared error of any scale s for these
// codes is (sum of w^2) - 2 s A + s^2 C, least at s = A / C.
#pragma once

#include "exact.h"

#if G5_NEON
#include <arm_neon.h>
#endif

namespace g5 {

constexpr int32_t TOP = 32767;
// Larger reciprocals could overflow where half a step is added.
constexpr int32_t LARGEST_R = 32000;

template <int BITS>
struct Format;
template <>
struct Format<4> {
  static constexpr int LOW = -8, HIGH = 7, SHIFT = 8;
};
template <>
struct Format<8> {
  static constexpr int LOW = -128, HIGH = 127, SHIFT = 7;
};

struct Fit {
  int64_t a, c;  // sums of w q and of q^2
};

// Sums of a piece fit into 32 bits: 2^15 * 2^7 per term, at most 2^9 terms in a lane.
constexpr int64_t PIECE = 1024;

#if G5_AVX512
struct Words {
  static constexpr int N = 32;
  __m512i v;
  static G5_INLINE Words at(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
  static G5_INLINE Words all(int x) { return {_mm512_set1_epi16(int16_t(x))}; }
  template <int BITS>
  G5_INLINE Words codes(Words r) const {
    using Q = Format<BITS>;
    const __m512i t = _mm512_mulhrs_epi16(v, r.v);
    const __m512i q = _mm512_srai_epi16(_mm512_add_epi16(t, all(1 << (Q::SHIFT - 1)).v), Q::SHIFT);
    return {_mm512_max_epi16(_mm512_min_epi16(q, all(Q::HIGH).v), all(Q::LOW).v)};
  }
};
struct Total {
  __m512i v = _mm512_setzero_si512();
  G5_INLINE void add(Words a, Words b) { v = _mm512_dpwssd_epi32(v, a.v, b.v); }
  G5_INLINE int64_t value() const { return _mm512_reduce_add_epi32(v); }
};
#elif G5_AVX2
struct Words {
  static constexpr int N = 16;
  __m256i v;
  static G5_INLINE Words at(const int16_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  static G5_INLINE Words all(int x) { return {_mm256_set1_epi16(int16_t(x))}; }
  template <int BITS>
  G5_INLINE Words codes(Words r) const {
    using Q = Format<BITS>;
    const __m256i t = _mm256_mulhrs_epi16(v, r.v);
    const __m256i q = _mm256_srai_epi16(_mm256_add_epi16(t, all(1 << (Q::SHIFT - 1)).v), Q::SHIFT);
    return {_mm256_max_epi16(_mm256_min_epi16(q, all(Q::HIGH).v), all(Q::LOW).v)};
  }
};
struct Total {
  __m256i v = _mm256_setzero_si256();
  G5_INLINE void add(Words a, Words b) { v = _mm256_add_epi32(v, _mm256_madd_epi16(a.v, b.v)); }
  G5_INLINE int64_t value() const {
    int32_t lane[8];
    std::memcpy(lane, &v, sizeof lane);
    int64_t sum = 0;
    for (int32_t x : lane) sum += x;
    return sum;
  }
};
#elif G5_NEON
struct Words {
  static constexpr int N = 8;
  int16x8_t v;
  static G5_INLINE Words at(const int16_t* p) { return {vld1q_s16(p)}; }
  static G5_INLINE Words all(int x) { return {vdupq_n_s16(int16_t(x))}; }
  template <int BITS>
  G5_INLINE Words codes(Words r) const {
    using Q = Format<BITS>;
    const int16x8_t t = vqrdmulhq_s16(v, r.v);
    const int16x8_t q = vrshrq_n_s16(t, Q::SHIFT);
    return {vmaxq_s16(vminq_s16(q, all(Q::HIGH).v), all(Q::LOW).v)};
  }
};
struct Total {
  int32x4_t v = vdupq_n_s32(0);
  G5_INLINE void add(Words a, Words b) {
    v = vmlal_s16(v, vget_low_s16(a.v), vget_low_s16(b.v));
    v = vmlal_high_s16(v, a.v, b.v);
  }
  G5_INLINE int64_t value() const { return vaddlvq_s32(v); }
};
#else
struct Words {
  static constexpr int N = 8;
  int16_t v[N];
  static G5_INLINE Words at(const int16_t* p) {
    Words x;
    std::memcpy(x.v, p, sizeof x.v);
    return x;
  }
  static G5_INLINE Words all(int x) {
    Words all;
    for (int16_t& lane : all.v) lane = int16_t(x);
    return all;
  }
  template <int BITS>
  G5_INLINE Words codes(Words r) const {
    using Q = Format<BITS>;
    Words q;
    for (int i = 0; i < N; i++) {
      const int32_t t = (v[i] * r.v[i] + (1 << 14)) >> 15;
      const int32_t code = (t + (1 << (Q::SHIFT - 1))) >> Q::SHIFT;
      q.v[i] = int16_t(code > Q::HIGH ? Q::HIGH : code < Q::LOW ? Q::LOW : code);
    }
    return q;
  }
};
struct Total {
  int32_t v[8] = {};
  G5_INLINE void add(Words a, Words b) {
    for (int i = 0; i < 8; i++) v[i] += a.v[i] * b.v[i];
  }
  G5_INLINE int64_t value() const {
    int64_t sum = 0;
    for (int32_t x : v) sum += x;
    return sum;
  }
};
#endif

// Fits of `COUNT` reciprocals to w[n], n a multiple of PAD.
template <int BITS, int COUNT>
void measure(const int16_t* w, int64_t n, const int32_t* r, Fit* fit) {
  Words by[COUNT];
  for (int j = 0; j < COUNT; j++) {
    by[j] = Words::all(r[j]);
    fit[j] = {0, 0};
  }
  for (int64_t begin = 0; begin < n; begin += PIECE) {
    const int64_t end = begin + PIECE < n ? begin + PIECE : n;
    Total a[COUNT], c[COUNT];
    for (int64_t i = begin; i < end; i += Words::N) {
      const Words x = Words::at(w + i);
#pragma GCC unroll 4
      for (int j = 0; j < COUNT; j++) {
        const Words q = x.template codes<BITS>(by[j]);
        a[j].add(x, q);
        c[j].add(q, q);
      }
    }
    for (int j = 0; j < COUNT; j++) {
      fit[j].a += a[j].value();
      fit[j].c += c[j].value();
    }
  }
}

}  // namespace g5
