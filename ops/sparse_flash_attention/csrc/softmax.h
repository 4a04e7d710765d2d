// Softmax over the keys of a tile, for W heads side by side, with a running maximum and sum.
#pragma once

#include "element.h"

namespace g5 {

// exp(x) for x <= 0 in F32: at most 0.99 units in the last place off (every 97th number was tried);
// 0 below -87.33, where the result would be subnormal; NaN stays NaN.
//
// x = n ln 2 + r. Adding 1.5 * 2^23 + 127 rounds x / ln 2 to the integer n and leaves n + 127, the
// exponent of 2^n, in the low bits. ln 2 is in two parts, so that n times the first is exact. The
// polynomial has the smallest relative error (3e-9) of its degree for |r| <= ln 2 / 2.
G5_INLINE F exp_nonpositive(F x) {
  const F low = splat(-87.33f), shift = splat(12583039.0f);
  const F clamped = max(low, x);
  const F shifted = fma(clamped, splat(1.44269504f), shift);
  const F n = shifted - shift;
  const F r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clamped));
  F p = fma(r, splat(1.38145e-3f), splat(8.36875e-3f));
  p = fma(p, r, splat(4.166839e-2f));
  p = fma(p, r, splat(1.666652e-1f));
  p = fma(p, r, splat(0.49999993f));
  p = fma(p * r, r, r) + 1.0f;
  return x < low ? F{} : p * F(I(shifted) << 23);
}

// What one panel of W heads keeps from tile to tile.
struct Running {
  float peak[W];   // largest score so far
  float total[W];  // sum of exp(score - peak)
  float keep[W];   // what the tile before counts for, now that the peak has moved
};

// Turns `count` rows of raw scores [key][lane] into weights exp(scale * score - peak) in E's units.
template <class E>
void weigh(const float* scores, int64_t count, float scale, Running* running, Unit* weight) {
  const F before = load(running->peak);
  F peak = before;
  for (int64_t k = 0; k < count; k++) peak = max(peak, load(scores + k * W) * scale);
  // Without a finite score yet nothing is subtracted, since inf - inf is NaN.
  const F base = peak == -__builtin_inff() ? F{} : peak;
  const auto one = [=](int64_t k) { return exp_nonpositive(load(scores + k * W) * scale - base); };
  F sum = {};
  for (int64_t k = 0; k < count; k += E::PER_UNIT, weight += W) {
    const F a = one(k);
    const F b = E::PER_UNIT > 1 && k + 1 < count ? one(k + 1) : F{};
    sum += E::PER_UNIT > 1 ? a + b : a;
    store_units(weight, E::join(a, b));
  }
  const F keep = exp_nonpositive(before - base);
  store(running->peak, peak);
  store(running->keep, keep);
  store(running->total, fma(load(running->total), keep, sum));
}

}  // namespace g5
