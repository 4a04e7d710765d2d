// Pieces of source rows as F32: BF16, F32, or FP8 (e4m3) with one F32 scale per block.
#pragma once

#include "exact.h"

namespace g5 {

constexpr int F8 = 5;

struct f8 {
  uint8_t bits;
};

// Exact, subnormals included: the exponent is moved by a multiplication with 2^120. NaN (0x7f and
// 0xff) becomes 480, which no number of the format is.
G5_INLINE float to_f32(f8 x) {
  const uint32_t sign = uint32_t(x.bits & 0x80) << 24;
  const float magnitude = bit_cast<float>(uint32_t(x.bits & 0x7f) << 20) * 0x1p120f;
  return bit_cast<float>(bit_cast<uint32_t>(magnitude) | sign);
}
G5_INLINE F load(const f8* p) {
  typedef uint8_t Bytes __attribute__((vector_size(W)));
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const I x = __builtin_convertvector(bytes, I);
  const F magnitude = F((x & 0x7f) << 20) * splat(0x1p120f);
  return F(I(magnitude) | (x & 0x80) << 24);
}

// 480 instead of infinity, for FP8.
template <class T>
constexpr int32_t FIRST_STRANGE = INFINITE;
template <>
constexpr int32_t FIRST_STRANGE<f8> = 0x43f00000;

struct Source {
  int dtype;
  const void* data;
  int64_t rows, columns;
  const float* scales;  // [ceil(rows / high)][ceil(columns / wide)], FP8 only
  int64_t high, wide;
};

// to[i] = x[i] * scale * factor[i]; no factors where null. False where x holds NaN or infinity.
template <class T>
bool widen(const T* x, int64_t n, const float* scale, const float* factor, float* to) {
  I top{};
  const auto one = [&](F raw, F by) {
    top = larger(top, I(raw) & 0x7fffffff);
    if (scale != nullptr) raw *= splat(*scale);
    return factor != nullptr ? raw * by : raw;
  };
  int64_t i = 0;
  for (; i + W <= n; i += W) store(to + i, one(load(x + i), factor ? load(factor + i) : F{}));
  if (i < n) {
    const int rest = int(n - i);
    store_part(to + i, one(load_part(x + i, rest), factor ? load_part(factor + i, rest) : F{}),
               rest);
  }
  return largest(top) < FIRST_STRANGE<T>;
}

// Columns [begin, end) of a row, times factor[begin ..]; false where they are not finite.
inline bool read_row(const Source& s, int64_t row, int64_t begin, int64_t end, const float* factor,
                     float* to) {
  const int64_t at = row * s.columns + begin;
  if (factor != nullptr) factor += begin;
  if (s.dtype == F32)
    return widen(static_cast<const float*>(s.data) + at, end - begin, nullptr, factor, to);
  if (s.dtype == BF16)
    return widen(static_cast<const bf16*>(s.data) + at, end - begin, nullptr, factor, to);
  const f8* x = static_cast<const f8*>(s.data) + at;
  const float* scales = s.scales + row / s.high * ((s.columns + s.wide - 1) / s.wide);
  bool finite = true;
  for (int64_t i = begin; i < end;) {
    const int64_t block = i / s.wide, next = (block + 1) * s.wide, stop = next < end ? next : end;
    finite &= widen(x + (i - begin), stop - i, scales + block,
                    factor == nullptr ? nullptr : factor + (i - begin), to + (i - begin));
    i = stop;
  }
  return finite;
}

}  // namespace g5
