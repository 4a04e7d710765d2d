// Appending the lanes that pass a test, packed, to a growing list.
//
// Every function writes a whole vector at `out` and returns how many lanes of it count, so lists
// need W elements of slack. On Zen 4 the compress instruction with a memory operand takes over a
// hundred cycles; with a register operand two.
#pragma once

#include "g5_vec.h"

namespace g5 {

enum Test { ABOVE, EQUAL, BELOW };

G5_INLINE void store(int32_t* p, I x) { std::memcpy(p, &x, sizeof x); }
G5_INLINE I load(const int32_t* p) {
  I x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

#if G5_AVX512

template <Test T>
G5_INLINE unsigned mask(F x, F y) {
  return _mm512_cmp_ps_mask(x, y, T == ABOVE ? _CMP_GT_OQ : T == EQUAL ? _CMP_EQ_OQ : _CMP_LT_OQ);
}
G5_INLINE int pack(float* out, F x, unsigned m) {
  store(out, F(_mm512_maskz_compress_ps(__mmask16(m), x)));
  return __builtin_popcount(m);
}
G5_INLINE int pack(int32_t* out, I x, unsigned m) {
  store(out, I(_mm512_maskz_compress_epi32(__mmask16(m), __m512i(x))));
  return __builtin_popcount(m);
}

#elif G5_AVX2

// lanes[m]: the numbers of the set bits of m, one per byte, lowest first.
struct Lanes {
  uint64_t lanes[256];
  constexpr Lanes() : lanes() {
    for (int m = 0; m < 256; m++) {
      int count = 0;
      for (int bit = 0; bit < 8; bit++)
        if (m >> bit & 1) lanes[m] |= uint64_t(bit) << 8 * count++;
    }
  }
};
constexpr Lanes LANES;

template <Test T>
G5_INLINE unsigned mask(F x, F y) {
  constexpr int test = T == ABOVE ? _CMP_GT_OQ : T == EQUAL ? _CMP_EQ_OQ : _CMP_LT_OQ;
  return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(x, y, test)));
}
G5_INLINE int pack(int32_t* out, I x, unsigned m) {
  const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(LANES.lanes[m])));
  store(out, I(_mm256_permutevar8x32_epi32(__m256i(x), order)));
  return __builtin_popcount(m);
}
G5_INLINE int pack(float* out, F x, unsigned m) {
  return pack(reinterpret_cast<int32_t*>(out), I(x), m);
}

#else

template <Test T>
G5_INLINE unsigned mask(F x, F y) {
  const I hit = T == ABOVE ? x > y : T == EQUAL ? x == y : x < y;
  const I bits = hit & I{1, 2, 4, 8};
  return unsigned(bits[0] | bits[1] | bits[2] | bits[3]);
}
// No branch on the data: each lane is written where the next one that counts will be.
template <class T, class V>
G5_INLINE int pack_lanes(T* out, V x, unsigned m) {
  int count = 0;
  for (int i = 0; i < W; i++) {
    out[count] = x[i];
    count += m >> i & 1;
  }
  return count;
}
G5_INLINE int pack(int32_t* out, I x, unsigned m) { return pack_lanes(out, x, m); }
G5_INLINE int pack(float* out, F x, unsigned m) { return pack_lanes(out, x, m); }

#endif

// The lowest `room` set bits of m.
G5_INLINE unsigned lowest(unsigned m, int64_t room) {
  while (__builtin_popcount(m) > room) m &= ~(1u << (31 - __builtin_clz(m)));
  return m;
}

// How many of x[0 .. n) pass the test against y.
template <Test T>
int64_t count(const float* x, int64_t n, float y) {
  const F limit = splat(y);
  int64_t total = 0;
  int64_t i = 0;
  for (; i + W <= n; i += W) total += __builtin_popcount(mask<T>(load(x + i), limit));
  if (i < n) {
    const unsigned rest = (1u << (n - i)) - 1;
    total += __builtin_popcount(mask<T>(load_part(x + i, int(n - i)), limit) & rest);
  }
  return total;
}

}  // namespace g5
