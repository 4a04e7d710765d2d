// Rotation of rows of 128 by Sylvester's Hadamard matrix, then int8 with one scale per row.
//
// The additions are those of the fast transform in the order of the reference (distances 1 to 64),
// so the bits are the same in every instruction set.
#include "g5_butterfly.h"

namespace g5 {
namespace {

constexpr int WIDTH = 128, VECTORS = WIDTH / W;

G5_INLINE void rotate(F* x) {
#pragma GCC unroll 4
  for (int distance = 1; distance < W; distance *= 2)
#pragma GCC unroll 32
    for (int v = 0; v < VECTORS; v++) x[v] = butterfly(x[v], distance);
#pragma GCC unroll 5
  for (int distance = 1; distance < VECTORS; distance *= 2)
#pragma GCC unroll 32
    for (int v = 0; v < VECTORS; v++) {
      if (v & distance) continue;
      const F a = x[v], b = x[v + distance];
      x[v] = a + b;
      x[v + distance] = a - b;
    }
  for (int v = 0; v < VECTORS; v++) x[v] *= splat(0.08838834764831845f);
}

// NaN if any value is NaN.
G5_INLINE float largest_magnitude(const F* x) {
  F top{}, strange{};
  for (int v = 0; v < VECTORS; v++) {
    const F magnitude = F(I(x[v]) & 0x7fffffff);
    top = max(magnitude, top);
    strange += magnitude * 0.0f;  // 0, or NaN from NaN and infinity
  }
  const float most = max_of(top);
  // An infinity without NaN is the largest; NaN hides from max.
  bool nan = false;
  if (sum(strange) != 0.0f)
    for (int v = 0; v < VECTORS; v++)
      for (int i = 0; i < W; i++) nan |= x[v][i] != x[v][i];
  return nan ? __builtin_nanf("") : most;
}

template <class T>
void row(const T* from, int8_t* codes, float* scale) {
  F x[VECTORS];
  for (int v = 0; v < VECTORS; v++) x[v] = load(from + v * W);
  rotate(x);
  *scale = largest_magnitude(x) / 127.0f;
  const F divisor = splat(*scale == 0.0f ? 1.0f : *scale);
  typedef int8_t Bytes __attribute__((vector_size(W)));
  for (int v = 0; v < VECTORS; v++) {
    const F q = x[v] / divisor;
    // A scale that was rounded to a subnormal number may be up to half too small.
    const F whole = rint(min(max(q == q ? q : F{}, splat(-127.0f)), splat(127.0f)));
    const Bytes bytes = __builtin_convertvector(__builtin_convertvector(whole, I), Bytes);
    std::memcpy(codes + v * W, &bytes, sizeof bytes);
  }
}

template <class T>
int run(const void* x, int64_t stride, int64_t rows, int8_t* codes, float* scale) {
  parallel_for(rows, 1024, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++)
      row(static_cast<const T*>(x) + i * stride, codes + i * WIDTH, scale + i);
  });
  return OK;
}

}  // namespace
}  // namespace g5

// codes [rows][128] and scale [rows] of x, rows of 128 that are `stride` elements apart.
G5_EXPORT int g5_hadamard_quant(int dtype, const void* x, int64_t stride, int64_t rows,
                                int8_t* codes, float* scale) {
  using namespace g5;
  switch (dtype) {
    case F32:
      return run<float>(x, stride, rows, codes, scale);
    case BF16:
      return run<bf16>(x, stride, rows, codes, scale);
    case F16:
      return run<f16>(x, stride, rows, codes, scale);
    default:
      return UNSUPPORTED;
  }
}
