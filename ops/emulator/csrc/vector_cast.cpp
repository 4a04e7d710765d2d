// The loops want vectors, whatever the rest of the emulator is compiled with.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include "vector_cast.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vector_formats.h"

namespace emu::vec {
namespace {

template <int Mode>
float integral(float x) {
  if constexpr (Mode == FLOOR)
    return std::floor(x);
  else if constexpr (Mode == CEIL)
    return std::ceil(x);
  else if constexpr (Mode == TRUNC)
    return std::trunc(x);
  else if constexpr (Mode == ROUND) {
    const float whole = std::trunc(x);
    return std::fabs(x - whole) >= 0.5f ? whole + std::copysign(1.0f, x) : whole;
  } else {
    return std::nearbyint(x);
  }
}

// Saturating; NaN becomes 0.
template <class T, int Mode>
T saturated(float x) {
  constexpr float low = static_cast<float>(std::numeric_limits<T>::min());
  constexpr float beyond = static_cast<float>(std::numeric_limits<T>::max() / 2 + 1) * 2.0f;
  const float whole = integral<Mode>(x);
  if (whole != whole) return 0;
  if (whole >= beyond) return std::numeric_limits<T>::max();
  return whole <= low ? std::numeric_limits<T>::min() : static_cast<T>(whole);
}

// Half bits of x for the modes other than RINT: the neighbour towards zero, then the choice.
template <int Mode>
uint16_t half_rounded(float x) {
  const uint16_t nearest = half_bits(x);
  const float size = std::fabs(x);
  if (x != x || half_value(nearest) == x) return nearest;
  const uint16_t sign = nearest & 0x8000;
  uint16_t inner = nearest & 0x7fff;
  if (half_value(inner) > size) inner--;
  const bool positive = sign == 0;
  bool outward = false;
  if constexpr (Mode == FLOOR)
    outward = !positive;
  else if constexpr (Mode == CEIL)
    outward = positive;
  else if constexpr (Mode == ODD)
    outward = (inner & 1) == 0;
  else if constexpr (Mode == ROUND) {
    const double next = inner == 0x7bff ? 65536.0 : half_value(static_cast<uint16_t>(inner + 1));
    outward = size - static_cast<double>(half_value(inner)) >= next - size;
  }
  return static_cast<uint16_t>(sign | (inner + outward));
}

template <int Mode>
uint16_t bf16_rounded(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), rest = bits & 0xffff;
  const bool negative = bits >> 31, special = (bits & 0x7fffffff) > 0x7f800000;
  uint32_t up = 0;
  if constexpr (Mode == FLOOR)
    up = negative && rest;
  else if constexpr (Mode == CEIL)
    up = !negative && rest;
  else if constexpr (Mode == ROUND)
    up = rest >= 0x8000;
  else if constexpr (Mode != TRUNC)
    up = rest + (bits >> 16 & 1) > 0x8000;
  return static_cast<uint16_t>(special ? bits >> 16 | 0x40 : (bits >> 16) + up);
}

// Float of an integer that float may not hold.
template <int Mode, class T>
float float_rounded(T x) {
  const float nearest = static_cast<float>(x);
  if constexpr (Mode == RINT || Mode == NONE) return nearest;
  const __int128 exact = x, have = static_cast<__int128>(nearest);
  if (have == exact) return nearest;
  const bool above = have > exact;
  const float other = std::nextafter(nearest, above ? -INFINITY : INFINITY);
  const float low = above ? other : nearest, high = above ? nearest : other;
  if constexpr (Mode == FLOOR) return low;
  if constexpr (Mode == CEIL) return high;
  if constexpr (Mode == TRUNC) return x > 0 ? low : high;
  const __int128 down = exact - static_cast<__int128>(low),
                 rise = static_cast<__int128>(high) - exact;
  if (down == rise) return x > 0 ? high : low;
  return nearest;
}

int nibble(const std::byte* from, std::size_t i) {
  const int value = static_cast<int>(from[i / 2]) >> (i % 2 * 4) & 15;
  return value >= 8 ? value - 16 : value;
}

template <class T>
void load(const std::byte* from, float* to, std::size_t start, std::size_t n) {
  const T* x = reinterpret_cast<const T*>(from) + start;
  for (std::size_t i = 0; i < n; i++) to[i] = static_cast<float>(x[i]);
}

// Elements [start, start + n) of a type whose values float holds exactly.
void load_exact(const std::byte* from, Elem source, float* to, std::size_t start, std::size_t n) {
  const uint16_t* words = reinterpret_cast<const uint16_t*>(from) + start;
  switch (source) {
    case Elem::F32: return load<float>(from, to, start, n);
    case Elem::F16: return widen(words, to, n);
    case Elem::BF16:
      for (std::size_t i = 0; i < n; i++) to[i] = bf16_value(words[i]);
      return;
    case Elem::S8: return load<int8_t>(from, to, start, n);
    case Elem::U8: return load<uint8_t>(from, to, start, n);
    case Elem::S16: return load<int16_t>(from, to, start, n);
    default:
      for (std::size_t i = 0; i < n; i++) to[i] = static_cast<float>(nibble(from, start + i));
  }
}

template <class T, class Fn>
void store(std::byte* to, std::size_t start, const float* x, std::size_t n, const Fn& fn) {
  T* out = reinterpret_cast<T*>(to) + start;
  for (std::size_t i = 0; i < n; i++) out[i] = fn(x[i]);
}

template <int Mode>
void store_rounded(std::byte* to, Elem target, std::size_t start, const float* x, std::size_t n) {
  switch (target) {
    case Elem::F32:
      if constexpr (Mode == NONE)
        return store<float>(to, start, x, n, [](float v) { return v; });
      else
        return store<float>(to, start, x, n, integral<Mode>);
    case Elem::F16:
      if constexpr (Mode == NONE || Mode == RINT)
        return narrow(x, reinterpret_cast<uint16_t*>(to) + start, n);
      else
        return store<uint16_t>(to, start, x, n, half_rounded<Mode>);
    case Elem::BF16: return store<uint16_t>(to, start, x, n, bf16_rounded<Mode>);
    case Elem::S8: return store<int8_t>(to, start, x, n, saturated<int8_t, Mode>);
    case Elem::U8: return store<uint8_t>(to, start, x, n, saturated<uint8_t, Mode>);
    case Elem::S16: return store<int16_t>(to, start, x, n, saturated<int16_t, Mode>);
    case Elem::S32: return store<int32_t>(to, start, x, n, saturated<int32_t, Mode>);
    case Elem::S64: return store<int64_t>(to, start, x, n, saturated<int64_t, Mode>);
    default: break;
  }
  for (std::size_t i = 0; i < n; i += 2) {
    int pair[2];
    for (std::size_t k = 0; k < 2; k++)
      pair[k] = std::clamp<int>(saturated<int8_t, Mode>(x[i + k]), -8, 7);
    to[(start + i) / 2] = static_cast<std::byte>((pair[0] & 15) | (pair[1] & 15) << 4);
  }
}

template <class T, int Mode>
void from_wide(std::byte* to, Elem target, const std::byte* from, float scale, std::size_t n) {
  const T* x = reinterpret_cast<const T*>(from);
  const auto each = [&]<class To>(To*, auto fn) {
    for (std::size_t i = 0; i < n; i++) reinterpret_cast<To*>(to)[i] = fn(x[i]);
  };
  if (target == Elem::F32) return each(static_cast<float*>(nullptr), float_rounded<Mode, T>);
  if (target == Elem::S64)
    return each(static_cast<int64_t*>(nullptr), [](T v) { return int64_t(v); });
  if (target == Elem::S32)
    return each(static_cast<int32_t*>(nullptr),
                [](T v) { return int32_t(std::clamp<int64_t>(v, INT32_MIN, INT32_MAX)); });
  if (target == Elem::S16)
    return each(static_cast<int16_t*>(nullptr),
                [](T v) { return int16_t(std::clamp<T>(v, -32768, 32767)); });
  each(static_cast<uint16_t*>(nullptr),
       [&](T v) { return half_bits(static_cast<float>(v) * scale); });
}

template <int Mode>
void convert_as(std::byte* to, Elem target, const std::byte* from, Elem source, float scale,
                std::size_t n) {
  if (source == Elem::S32) return from_wide<int32_t, Mode>(to, target, from, scale, n);
  if (source == Elem::S64) return from_wide<int64_t, Mode>(to, target, from, scale, n);
  float chunk[CHUNK];
  for (std::size_t start = 0; start < n; start += CHUNK) {
    const std::size_t part = std::min(CHUNK, n - start);
    load_exact(from, source, chunk, start, part);
    store_rounded<Mode>(to, target, start, chunk, part);
  }
}

}  // namespace

void convert(std::byte* to, Elem target, const std::byte* from, Elem source, int rounding,
             float scale, std::size_t n) {
  switch (rounding) {
    case NONE: return convert_as<NONE>(to, target, from, source, scale, n);
    case RINT: return convert_as<RINT>(to, target, from, source, scale, n);
    case FLOOR: return convert_as<FLOOR>(to, target, from, source, scale, n);
    case CEIL: return convert_as<CEIL>(to, target, from, source, scale, n);
    case ROUND: return convert_as<ROUND>(to, target, from, source, scale, n);
    case TRUNC: return convert_as<TRUNC>(to, target, from, source, scale, n);
    default: return convert_as<ODD>(to, target, from, source, scale, n);
  }
}

}  // namespace emu::vec
