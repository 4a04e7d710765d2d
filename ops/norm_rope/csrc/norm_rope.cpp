// RMS norm, layer norm and rotary embedding: one pass per row, each row by itself.
#include <cmath>
#include <type_traits>

#include "g5_formats.h"

using namespace g5;

namespace {

// Two-byte formats in F32, the others in F64. The nearest F32 to the exact value is worth having: the
// first layer norms embeddings of eight bits, so that a quantiser after it meets exact ties, and
// noise would decide these differently in every implementation.
template <class T>
void rms_row(const T* x, const T* weight, int64_t width, double eps, T* out) {
  using Wide = std::conditional_t<sizeof(T) == 2, float, double>;
  const Wide squares =
      lane_sum<Wide>(width, [&](int64_t i) { return Wide(wide(x[i])) * Wide(wide(x[i])); });
  const Wide factor = Wide(1) / std::sqrt(squares / Wide(width) + Wide(eps));
  // Rounded to a two-byte format before the weight, as the model's own code does; else once.
  for (int64_t i = 0; i < width; i++) {
    if constexpr (sizeof(T) == 2)
      narrow(rounded<T>(wide(x[i]) * factor) * wide(weight[i]), &out[i]);
    else
      out[i] = T(wide(x[i]) * factor * wide(weight[i]));
  }
}

template <class T, class Wide>
void layer_row(const T* x, const Wide* weight, const Wide* bias, int64_t width, double eps, T* out) {
  const Wide mean = lane_sum<Wide>(width, [&](int64_t i) { return wide(x[i]); }) / Wide(width);
  const Wide squares = lane_sum<Wide>(width, [&](int64_t i) {
    const Wide centred = wide(x[i]) - mean;
    return centred * centred;
  });
  const Wide factor = Wide(1) / std::sqrt(squares / Wide(width) + Wide(eps));
  for (int64_t i = 0; i < width; i++)
    narrow((wide(x[i]) - mean) * factor * weight[i] + bias[i], &out[i]);
}

// C is the format of the table: F32, and F64 where x is F64 too.
template <class T, class C>
void rotate(const T* x, const C* cos, const C* sin, int64_t pairs, T* out) {
  using Wide = decltype(wide(T{}));
  for (int64_t j = 0; j < pairs; j++) {
    const Wide even = wide(x[2 * j]), odd = wide(x[2 * j + 1]), c = Wide(cos[j]), s = Wide(sin[j]);
    narrow(even * c - odd * s, &out[2 * j]);
    narrow(odd * c + even * s, &out[2 * j + 1]);
  }
}

template <class T, class C>
int rotate_all(const T* x, int64_t tokens, int64_t heads, int64_t width, int64_t token_stride,
               int64_t head_stride, const C* cos, const C* sin, T* out) {
  parallel_for(tokens * heads, row_grain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t token = i / heads, head = i % heads, table = token * (width / 2);
      rotate(x + token * token_stride + head * head_stride, cos + table, sin + table, width / 2,
             out + i * width);
    }
  });
  return OK;
}

}  // namespace

// out [rows, width] = (x / sqrt(mean(x^2) + eps)) * weight, everything of one format; rows of x lie
// `stride` elements apart.
G5_EXPORT int g5_rms_norm(const void* x, int dtype, int64_t rows, int64_t width, int64_t stride,
                          const void* weight, double eps, void* out) {
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(rows, row_grain(width), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        rms_row(static_cast<const T*>(x) + r * stride, static_cast<const T*>(weight), width, eps,
                static_cast<T*>(out) + r * width);
    });
    return int(OK);
  });
}

// out [rows, width] = (x - mean) / sqrt(var + eps) * weight + bias; weight and bias F32, or F64 where
// x is F64.
G5_EXPORT int g5_layer_norm(const void* x, int dtype, int64_t rows, int64_t width, int64_t stride,
                            const void* weight, const void* bias, double eps, void* out) {
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    using Wide = decltype(wide(zero));
    parallel_for(rows, row_grain(width), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        layer_row(static_cast<const T*>(x) + r * stride, static_cast<const Wide*>(weight),
                  static_cast<const Wide*>(bias), width, eps, static_cast<T*>(out) + r * width);
    });
    return int(OK);
  });
}

// out [tokens, heads, width]: neighbouring pairs of x rotated by F32 or F64 tables cos and sin
// [tokens, width / 2]; an F64 table goes with F64 x.
G5_EXPORT int g5_rotary(const void* x, int dtype, int64_t tokens, int64_t heads, int64_t width,
                        int64_t token_stride, int64_t head_stride, const void* cos,
                        const void* sin, int table_dtype, void* out) {
  if (table_dtype == F64 && dtype == F64)
    return rotate_all(static_cast<const double*>(x), tokens, heads, width, token_stride,
                      head_stride, static_cast<const double*>(cos),
                      static_cast<const double*>(sin), static_cast<double*>(out));
  if (table_dtype != F32) return UNSUPPORTED;
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    return rotate_all(static_cast<const T*>(x), tokens, heads, width, token_stride, head_stride,
                      static_cast<const float*>(cos), static_cast<const float*>(sin),
                      static_cast<T*>(out));
  });
}
