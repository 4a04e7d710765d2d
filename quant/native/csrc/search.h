// The scale of a row and its codes.
//
// int4: a coarse and then a fine logarithmic grid of steps, each judged with the least-squares
// scale of its codes (gain A^2 / C); from the best, scale and codes are fitted to each other in
// turn. int8: the scale must be a BF16 number, so BF16 numbers are judged, first far apart and then
// all around the best.
#pragma once

#include "steps.h"

namespace g5 {

// Rows whose largest step would be smaller are zero, with scale 1.
constexpr float SMALLEST_SCALE = 0x1p-100f;

// Reciprocal of a step of `size` units of w.
template <int BITS>
G5_INLINE int32_t reciprocal(double size) {
  const double r = double(1 << (15 + Format<BITS>::SHIFT)) / size;
  return r >= LARGEST_R ? LARGEST_R : r < 1 ? 1 : int32_t(r + 0.5);
}

// Squared error that scale A / C saves.
G5_INLINE double gain(const Fit& fit) {
  return fit.c == 0 ? 0 : double(fit.a) * double(fit.a) / double(fit.c);
}

// The best of several steps, by what its codes gain.
struct BestStep {
  const int16_t* w;
  int64_t n;
  double size = 0, scale = 0, most = -1;  // the step, the scale fitted to its codes, their gain

  // Judges `count` steps, a multiple of 4, from `first` on down by `ratio`.
  void judge(double first, double ratio, int count) {
    constexpr int AT_ONCE = 4;
    for (int i = 0; i < count; i += AT_ONCE) {
      double sizes[AT_ONCE];
      int32_t r[AT_ONCE];
      for (int j = 0; j < AT_ONCE; j++, first *= ratio) r[j] = reciprocal<4>(sizes[j] = first);
      Fit fit[AT_ONCE];
      measure<4, AT_ONCE>(w, n, r, fit);
      for (int j = 0; j < AT_ONCE; j++) keep(fit[j], sizes[j]);
    }
  }

  bool keep(const Fit& fit, double at) {
    if (!(gain(fit) > most)) return false;
    most = gain(fit);
    size = at;
    scale = double(fit.a) / double(fit.c);
    return true;
  }
};

// Best scale of a row for int4 codes, in units of w; `base` is the one that clips nothing.
inline double fitted_scale(const int16_t* w, int64_t n, double base) {
  // From 1.02 down to 0.11 of the base, which a single far outlier makes 0.2 of the best or less.
  constexpr double COARSE = 0.86, FINE = 0.985;
  constexpr int ROUNDS = 4;
  BestStep best{w, n};
  best.judge(base * 1.02, COARSE, 16);
  // Both neighbours of the coarse grid and what lies between.
  best.judge(best.size / COARSE, FINE, 20);
  for (int i = 0; i < ROUNDS; i++) {
    const int32_t r = reciprocal<4>(best.scale);
    Fit fit;
    measure<4, 1>(w, n, &r, &fit);
    if (!best.keep(fit, best.scale)) break;
  }
  return best.scale;
}

// Error beside the constant sum of w^2 of scale `size`.
G5_INLINE double error(const Fit& fit, double size) {
  return size * (size * double(fit.c) - 2 * double(fit.a));
}

// Best BF16 scale of a row for int8 codes; `unit` is the value of one unit of w, `base` the scale
// that clips nothing.
inline float fitted_bf16(const int16_t* w, int64_t n, double unit, float base) {
  constexpr int AT_ONCE = 4, STEPS = 16, APART = 7;
  const int32_t first = to_bf16(base).bits + 1;
  int32_t best = first;
  double best_error = 0;
  bool any = false;
  const auto judge = [&](int32_t begin, int32_t by) {
    int32_t r[AT_ONCE];
    double size[AT_ONCE];
    for (int j = 0; j < AT_ONCE; j++) {
      size[j] = double(to_f32(bf16{uint16_t(begin + j * by)})) / unit;
      r[j] = reciprocal<8>(size[j]);
    }
    Fit fit[AT_ONCE];
    measure<8, AT_ONCE>(w, n, r, fit);
    for (int j = 0; j < AT_ONCE; j++)
      if (!any || error(fit[j], size[j]) < best_error) {
        any = true;
        best_error = error(fit[j], size[j]);
        best = begin + j * by;
      }
  };
  for (int i = 0; i < STEPS; i += AT_ONCE) judge(first - i * APART, -APART);
  const int32_t middle = best;
  judge(middle - 4, 1);
  judge(middle + 1, 1);
  return to_f32(bf16{uint16_t(best)});
}

// w = round(x * 32767 / top), zeros up to the padding.
inline void to_words(const float* x, int64_t n, float top, int16_t* w) {
  const F by = splat(float(TOP) / top);
  for (int64_t i = 0; i < padded(n); i += W) {
    typedef int16_t Half __attribute__((vector_size(2 * W)));
    // Integers below 2^22 stand in the low bits after the addition.
    const I bits = I(load(x + i) * by + splat(12582912.0f));
    const Half half = __builtin_convertvector(bits, Half);
    std::memcpy(w + i, &half, sizeof half);
  }
}

// codes[i] = x[i] / scale, to nearest with ties to even, clipped.
template <int BITS>
void to_codes(const float* x, int64_t n, float scale, int8_t* codes) {
  const F by = splat(scale), low = splat(float(Format<BITS>::LOW)),
          high = splat(float(Format<BITS>::HIGH)), whole = splat(12582912.0f);
  for (int64_t i = 0; i < padded(n); i += W) {
    typedef int8_t Bytes __attribute__((vector_size(W)));
    const I bits = I(min(max(load(x + i) / by, low), high) + whole);
    const Bytes bytes = __builtin_convertvector(bits, Bytes);
    std::memcpy(codes + i, &bytes, sizeof bytes);
  }
}

// Scale and codes of x[n], which zeros follow up to the padding, as do the codes; `w` is room for
// as many words. A row that is not finite gets its largest magnitude as scale, and zeros.
template <int BITS>
float round_row(const float* x, int64_t n, bool search, int16_t* w, int8_t* codes) {
  F low{}, high{};
  I top{};
  for (int64_t i = 0; i < padded(n); i += W) {
    const F v = load(x + i);
    low = min(v, low);
    high = max(v, high);
    top = larger(top, I(v) & 0x7fffffff);
  }
  const int32_t bits = largest(top);
  const float magnitude = bit_cast<float>(bits);
  if (bits >= INFINITE) {
    std::memset(codes, 0, size_t(padded(n)));
    return magnitude;
  }
  const float above = max_of(high) / float(Format<BITS>::HIGH);
  const float below = max_of(-low) / float(-Format<BITS>::LOW);
  const float fits = above > below ? above : below;
  const float base = search ? fits : magnitude / float(Format<BITS>::HIGH);
  if (base <= SMALLEST_SCALE) {
    std::memset(codes, 0, size_t(padded(n)));
    return 1.0f;
  }
  float scale;
  if (search) {
    const double unit = double(magnitude) / TOP;
    to_words(x, n, magnitude, w);
    scale = BITS == 4 ? float(fitted_scale(w, padded(n), double(base) / unit) * unit)
                      : fitted_bf16(w, padded(n), unit, base);
  } else {
    scale = BITS == 8 ? to_f32(to_bf16(base)) : base;
  }
  to_codes<BITS>(x, n, scale, codes);
  return scale;
}

}  // namespace g5
