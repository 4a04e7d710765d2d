// Arrays of half and bfloat16_t as float and back, eight at a time where the processor can.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

// Before a loop: an element is read and written at the same index, or not at all.
#if defined(__clang__)
#define EMU_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define EMU_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace emu::vec {

// Elements that a loop widens at a time: they stay in the first-level cache.
constexpr std::size_t CHUNK = 512;

// The value of half bits: the exponent is moved by a multiplication, subnormals included.
inline float half_value(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, rest = uint32_t(half & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(rest) * 0x1p112f;
  const bool special = (half & 0x7c00u) == 0x7c00u;
  return std::bit_cast<float>(sign |
                              (special ? rest | 0x7f800000u : std::bit_cast<uint32_t>(scaled)));
}

inline uint16_t half_bits(float x) { return std::bit_cast<uint16_t>(static_cast<_Float16>(x)); }

inline float bf16_value(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

inline void widen(const uint16_t* from, float* to, std::size_t n) {
  std::size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i block = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(block));
  }
#endif
  for (; i < n; i++) to[i] = half_value(from[i]);
}

// Round to nearest, ties to even; beyond the range infinity.
inline void narrow(const float* from, uint16_t* to, std::size_t n) {
  std::size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i block = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), block);
  }
#endif
  for (; i < n; i++) to[i] = half_bits(from[i]);
}

}  // namespace emu::vec
