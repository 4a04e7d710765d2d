// Int8 linear layers: rows are quantised, multiplied in exact int32 and scaled.
#include "g5_int8_tile.h"
#include "g5_quant.h"
#include "scaling.h"

using namespace g5;

namespace {

constexpr int64_t COLUMNS = 64, ROWS = 32;  // of the int32 tile between product and scaling
constexpr int64_t PRODUCTS = 1 << 18;       // below that another thread does not pay

struct Weight {
  const int8_t* codes;  // [outputs, terms]
  int64_t outputs, terms;
};

// out [rows, outputs] of stored rows of codes, tile by tile.
template <class T, class Scaling>
void products(const uint8_t* codes, int64_t rows, const Weight& w, const Scaling& scaling, T* out) {
  const int64_t blocks = (w.outputs + COLUMNS - 1) / COLUMNS;
  const int64_t each = rows * w.terms * COLUMNS, stride = padded_terms(w.terms);
  parallel_for(blocks, PRODUCTS / (each + 1) + 1, [&](int64_t begin, int64_t end, int) {
    alignas(64) int32_t sums[ROWS * COLUMNS];
    for (int64_t b = begin; b < end; b++) {
      const int64_t column = b * COLUMNS;
      const int64_t columns = w.outputs - column < COLUMNS ? w.outputs - column : COLUMNS;
      for (int64_t row = 0; row < rows; row += ROWS) {
        const int64_t count = rows - row < ROWS ? rows - row : ROWS;
        integer_tile<Bytes>({codes + row * stride, stride, w.codes + column * w.terms, w.terms,
                             w.terms, sums, COLUMNS},
                            count, columns);
        for (int64_t r = row; r < row + count; r++)
          scaling.row(sums + (r - row) * COLUMNS, r, column, columns,
                      out + r * w.outputs + column);
      }
    }
  });
}

template <class T, class Scaling>
void scale_rows(const int32_t* sums, int64_t rows, int64_t outputs, const Scaling& scaling,
                T* out) {
  parallel_for(rows, row_grain(outputs), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++)
      scaling.row(sums + r * outputs, r, 0, outputs, out + r * outputs);
  });
}

// F32 weight scales and bias of a dynamic layer in `room` [2 * outputs]; false for unknown formats.
bool read_scales(const void* weight_scale, int scale_dtype, const void* bias, int bias_dtype,
                 int64_t outputs, float* room, DynamicScaling* out) {
  out->weight_scale = as_f32(weight_scale, scale_dtype, outputs, room);
  out->bias = bias == nullptr ? nullptr : as_f32(bias, bias_dtype, outputs, room + outputs);
  return out->weight_scale != nullptr && (bias == nullptr || out->bias != nullptr);
}

}  // namespace

// codes int8 [rows, terms] and scale F32 [rows] of x [rows, terms], rows `stride` elements apart.
G5_EXPORT int g5_dynamic_quant(const void* x, int dtype, int64_t rows, int64_t terms,
                               int64_t stride, int8_t* codes, float* scale) {
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(rows, row_grain(terms), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        scale[r] = quantise_row(static_cast<const T*>(x) + r * stride, terms, 0,
                                reinterpret_cast<uint8_t*>(codes + r * terms));
    });
    return int(OK);
  });
}

// codes int8 [rows, terms] of x with one stored scale and offset.
G5_EXPORT int g5_static_quant(const void* x, int dtype, int64_t rows, int64_t terms,
                              int64_t stride, const void* input_scale, int scale_dtype,
                              const void* input_offset, int offset_dtype, int8_t* codes) {
  float room[2];
  const float* scale = as_f32(input_scale, scale_dtype, 1, room);
  const float* offset = as_f32(input_offset, offset_dtype, 1, room + 1);
  if (scale == nullptr || offset == nullptr) return UNSUPPORTED;
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(rows, row_grain(terms), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        quantise_row_static(static_cast<const T*>(x) + r * stride, terms, *scale, *offset, 0,
                            reinterpret_cast<uint8_t*>(codes + r * terms));
    });
    return int(OK);
  });
}

// out [rows, outputs] in format `dtype` of int32 sums [rows, outputs]; bias may be null.
G5_EXPORT int g5_scale_dynamic(const int32_t* sums, int64_t rows, int64_t outputs,
                               const float* x_scale, const void* weight_scale, int scale_dtype,
                               const void* bias, int bias_dtype, int dtype, void* out) {
  float* room = scratch<float>(1, 2 * outputs);
  if (room == nullptr) return NO_MEMORY;
  DynamicScaling scaling{x_scale, nullptr, nullptr};
  if (!read_scales(weight_scale, scale_dtype, bias, bias_dtype, outputs, room, &scaling))
    return UNSUPPORTED;
  return with_format(dtype, [&](auto zero) {
    scale_rows(sums, rows, outputs, scaling, static_cast<decltype(zero)*>(out));
    return int(OK);
  });
}

// out [rows, outputs] in format `dtype` of int32 sums [rows, outputs].
G5_EXPORT int g5_scale_static(const int32_t* sums, int64_t rows, int64_t outputs,
                              const int32_t* quant_bias, const float* deq_scale, int dtype,
                              void* out) {
  return with_format(dtype, [&](auto zero) {
    scale_rows(sums, rows, outputs, StaticScaling{quant_bias, deq_scale},
               static_cast<decltype(zero)*>(out));
    return int(OK);
  });
}

// out [rows, outputs] in x's format = sum * weight_scale * x_scale + bias; bias may be null.
G5_EXPORT int g5_linear_dynamic(const void* x, int dtype, int64_t rows, int64_t terms,
                                int64_t stride, const int8_t* weight, int64_t outputs,
                                const void* weight_scale, int scale_dtype, const void* bias,
                                int bias_dtype, void* out) {
  uint8_t* codes = scratch<uint8_t>(0, rows * padded_terms(terms));
  float* room = scratch<float>(1, rows + 2 * outputs);
  if (codes == nullptr || room == nullptr) return NO_MEMORY;
  DynamicScaling scaling{room, nullptr, nullptr};
  if (!read_scales(weight_scale, scale_dtype, bias, bias_dtype, outputs, room + rows, &scaling))
    return UNSUPPORTED;
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(rows, row_grain(terms), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        room[r] = quantise_row(static_cast<const T*>(x) + r * stride, terms, Bytes::OFFSET,
                               codes + r * padded_terms(terms));
    });
    products(codes, rows, {weight, outputs, terms}, scaling, static_cast<T*>(out));
    return int(OK);
  });
}

// out [rows, outputs] in x's format = (sum + quant_bias) * deq_scale.
G5_EXPORT int g5_linear_static(const void* x, int dtype, int64_t rows, int64_t terms,
                               int64_t stride, const int8_t* weight, int64_t outputs,
                               const void* input_scale, int scale_dtype, const void* input_offset,
                               int offset_dtype, const int32_t* quant_bias,
                               const float* deq_scale, void* out) {
  uint8_t* codes = scratch<uint8_t>(0, rows * padded_terms(terms));
  if (codes == nullptr) return NO_MEMORY;
  float room[2];
  const float* scale = as_f32(input_scale, scale_dtype, 1, room);
  const float* offset = as_f32(input_offset, offset_dtype, 1, room + 1);
  if (scale == nullptr || offset == nullptr) return UNSUPPORTED;
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel_for(rows, row_grain(terms), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        quantise_row_static(static_cast<const T*>(x) + r * stride, terms, *scale, *offset,
                            Bytes::OFFSET, codes + r * padded_terms(terms));
    });
    products(codes, rows, {weight, outputs, terms}, StaticScaling{quant_bias, deq_scale},
             static_cast<T*>(out));
    return int(OK);
  });
}
