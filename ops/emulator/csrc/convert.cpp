// The loops below want unrolling and vectors, whatever the rest of the emulator is compiled with.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include "emu/convert.h"

#include <cmath>
#include <cstring>

namespace emu {
namespace {

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Nearest even, in integers alone so that loops over it become vector code.
uint16_t narrow_half(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Below 2^-14 the sum with 0.5 leaves the subnormal number in the low bits, rightly rounded.
  const uint32_t small = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13;
  uint32_t result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00 : result;
  result = magnitude > 0x7f800000u ? 0x7e00 : result;
  return static_cast<uint16_t>(sign | result);
}

uint16_t narrow_bf16(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? (bits >> 16 | 0x40) : rounded);
}

uint8_t narrow_byte(float value, int offset, bool to_signed) {
  if (std::isnan(value)) value = 0;
  const float low = to_signed ? -128 : 0;
  const float high = to_signed ? 127 : 255;
  const float sum = std::nearbyint(std::fmin(std::fmax(value, -1e6f), 1e6f)) + offset;
  return static_cast<uint8_t>(static_cast<int>(std::fmin(std::fmax(sum, low), high)));
}

template <class T>
T rectified(T value, bool relu) {
  return relu && value < 0 ? T{0} : value;
}

template <class T, class Fn>
void each(const FixRow& row, const std::byte* from, int count, const Fn& fn) {
  for (int i = 0; i < count; i++) {
    T value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    fn(i, rectified(value, row.relu));
  }
}

template <class T>
void convert(const FixRow& row, const std::byte* from, std::byte* to, int count,
             const uint64_t* parameters, int step) {
  const auto half_at = [to](int i, uint16_t value) { std::memcpy(to + i * 2, &value, 2); };
  switch (row.step) {
    case FixStep::Copy:
      if (!row.relu) std::memcpy(to, from, count * sizeof(T));
      else each<T>(row, from, count, [to](int i, T v) { std::memcpy(to + i * 4, &v, 4); });
      break;
    case FixStep::ToHalf:
      each<T>(row, from, count, [&](int i, T v) { half_at(i, narrow_half(v)); });
      break;
    case FixStep::ToBf16:
      each<T>(row, from, count, [&](int i, T v) { half_at(i, narrow_bf16(v)); });
      break;
    case FixStep::Dequant:
      each<T>(row, from, count, [&](int i, T v) {
        half_at(i, narrow_half(static_cast<float>(v) * fix_scale(parameters[i * step])));
      });
      break;
    case FixStep::ToByte:
      each<T>(row, from, count, [&](int i, T v) {
        const uint64_t p = parameters[i * step];
        to[i] = std::byte{
            narrow_byte(static_cast<float>(v) * fix_scale(p), fix_offset(p), row.to_signed)};
      });
      break;
  }
}

}  // namespace

float fix_scale(uint64_t parameter) {
  return bits_as<float>(static_cast<uint32_t>(parameter) & 0xffffe000u);
}

int fix_offset(uint64_t parameter) {
  const int bits = static_cast<int>(parameter >> 37 & 0x1ff);
  return bits < 256 ? bits : bits - 512;
}

void fix_convert(const FixRow& row, const std::byte* from, std::byte* to, int count,
                 const uint64_t* parameters, int step) {
  if (row.from_int) convert<int32_t>(row, from, to, count, parameters, step);
  else convert<float>(row, from, to, count, parameters, step);
}

}  // namespace emu
