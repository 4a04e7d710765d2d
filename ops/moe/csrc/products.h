// One linear layer of all experts: which weights it has, and a block of its products for some rows.
#pragma once

#include "g5_formats.h"
#include "g5_int8_tile.h"
#include "g5_vec.h"

namespace g5 {

enum Scheme : int { FLOAT = 0, W8A8 = 1, W4A8 = 2 };

struct Layer {
  const void* weight;  // [experts, outputs, terms]; W4A8: [experts, outputs / 2, terms] bytes
  int dtype;           // of float weights
  const void* scale;   // [experts, outputs]
  int scale_dtype;
  const float* bias;  // W4A8: [experts, outputs, bias_columns]
  int64_t bias_columns, outputs, terms;
};

constexpr int64_t COLUMNS = 64, ROWS = 32;  // of a block

// Sums of 1 to ROWS rows of codes and up to COLUMNS outputs, scaled:
// (sum * scale + bias) * x_scale, or sum * scale * x_scale without a bias.
template <class Format>
int integer_block(const Layer& layer, int64_t expert, int64_t column, int64_t columns,
                  const uint8_t* codes, const float* x_scale, int64_t rows, float* out) {
  alignas(64) int32_t sums[ROWS * COLUMNS];
  const int64_t stride = padded_terms(layer.terms), first = expert * layer.outputs + column;
  const auto* weight =
      static_cast<const int8_t*>(layer.weight) + first / Format::OUTPUTS * layer.terms;
  integer_tile<Format>({codes, stride, weight, layer.terms, layer.terms, sums, COLUMNS}, rows,
                       columns / Format::OUTPUTS);
  float scale_room[COLUMNS], bias[COLUMNS];
  const int64_t bytes = layer.scale_dtype == F32 ? 4 : layer.scale_dtype == F64 ? 8 : 2;
  const float* scale = as_f32(static_cast<const char*>(layer.scale) + first * bytes,
                              layer.scale_dtype, columns, scale_room);
  if (scale == nullptr) return UNSUPPORTED;
  if (layer.bias != nullptr) {
    for (int64_t c = 0; c < columns; c++) {
      // Partial sums of slices of the input axis; added in their order, as the reference does.
      const float* part = layer.bias + (first + c) * layer.bias_columns;
      float total = part[0];
      for (int64_t i = 1; i < layer.bias_columns; i++) total += part[i];
      bias[c] = total;
    }
  }
  for (int64_t r = 0; r < rows; r++) {
    float* to = out + r * layer.outputs + column;
    const int32_t* sum = sums + r * COLUMNS;
    const float factor = x_scale[r];
    if (layer.bias == nullptr)
      for (int64_t c = 0; c < columns; c++) to[c] = float(sum[c]) * scale[c] * factor;
    else
      for (int64_t c = 0; c < columns; c++) to[c] = (float(sum[c]) * scale[c] + bias[c]) * factor;
  }
  return OK;
}

// Sums of the lanes of four vectors. One vector alone goes through the same additions, beside zeros.
G5_INLINE void lane_sums(const F* v, float* out) {
#if G5_AVX512 || G5_AVX2
  __m256 half[4];
  unrolled<4>([&](auto c) G5_FORCE {
#if G5_AVX512
    struct Halves {
      __m256 low, high;
    };
    const Halves h = bit_cast<Halves>(v[c]);
    half[c] = _mm256_add_ps(h.low, h.high);
#else
    half[c] = v[c];
#endif
  });
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]),
                                    _mm256_hadd_ps(half[2], half[3]));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  for (int c = 0; c < 4; c++) out[c] = sum(v[c]);
#endif
}

// Dots of R rows of x with C rows of weights. Every sum runs over the terms in the lanes of one
// vector, whatever the block it belongs to.
template <class T, int R, int C>
G5_INLINE void float_dots(const float* x, const T* weight, int64_t terms, float* out,
                          int64_t stride) {
  F dot[R][4];
  unrolled<4 * R>([&](auto i) G5_FORCE { dot[i / 4][i % 4] = splat(0.0f); });
  int64_t k = 0;
  for (; k + W <= terms; k += W) {
    F w[C];
    unrolled<C>([&](auto c) G5_FORCE { w[c] = load(weight + c * terms + k); });
    unrolled<R>([&](auto r) G5_FORCE {
      const F a = load(x + r * terms + k);
      unrolled<C>([&](auto c) G5_FORCE { dot[r][c] = fma(a, w[c], dot[r][c]); });
    });
  }
  if (k < terms) {
    const int left = int(terms - k);
    unrolled<R>([&](auto r) G5_FORCE {
      const F a = load_part(x + r * terms + k, left);
      unrolled<C>([&](auto c) G5_FORCE {
        dot[r][c] = fma(a, load_part(weight + c * terms + k, left), dot[r][c]);
      });
    });
  }
  unrolled<R>([&](auto r) G5_FORCE {
    float sums[4];
    lane_sums(dot[r], sums);
    std::memcpy(out + r * stride, sums, C * sizeof(float));
  });
}

template <class T, int C>
void float_columns(const float* x, const T* weight, int64_t terms, int64_t rows, float* out,
                   int64_t stride) {
  for (; rows >= 4; rows -= 4, x += 4 * terms, out += 4 * stride)
    float_dots<T, 4, C>(x, weight, terms, out, stride);
  for (; rows > 0; rows--, x += terms, out += stride)
    float_dots<T, 1, C>(x, weight, terms, out, stride);
}

template <class T>
void float_block(const Layer& layer, int64_t expert, int64_t column, int64_t columns,
                 const float* x, int64_t rows, float* out) {
  const int64_t terms = layer.terms, stride = layer.outputs;
  const T* weight = static_cast<const T*>(layer.weight) + (expert * stride + column) * terms;
  out += column;
  int64_t c = 0;
  for (; c + 4 <= columns; c += 4)
    float_columns<T, 4>(x, weight + c * terms, terms, rows, out + c, stride);
  for (; c < columns; c++)
    float_columns<T, 1>(x, weight + c * terms, terms, rows, out + c, stride);
}

// F64 exists for comparisons; nothing here is fast.
inline void double_block(const Layer& layer, int64_t expert, int64_t column, int64_t columns,
                         const double* x, int64_t rows, double* out) {
  const double* weight = static_cast<const double*>(layer.weight) +
                         (expert * layer.outputs + column) * layer.terms;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      out[r * layer.outputs + column + c] = lane_sum<double>(layer.terms, [&](int64_t k) {
        return x[r * layer.terms + k] * weight[c * layer.terms + k];
      });
}

}  // namespace g5
