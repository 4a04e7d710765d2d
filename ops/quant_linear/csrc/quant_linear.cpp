// Int8 linear layers: rows are quantised, multiplied in exact int32, and scaled in F32 in the order
// of reference.py, so that results are equal to it bit by bit.
#include "g5_int8_tile.h"
#include "g5_quant.h"

using namespace g5;

namespace {

constexpr int64_t COLUMNS = 64, ROWS = 32;  // of the int32 tile between product and scaling
constexpr int64_t PRODUCTS = 1 << 18;       // below that another thread does not pay

struct Input {
  const void* x;
  int dtype;
  int64_t rows, terms, stride;
};

struct Weight {
  const int8_t* codes;
  int64_t outputs, stride;
};

// Sums of all rows and outputs in tiles: scaled(row, column, columns, int32 sums of that row).
template <class Fn>
void products(const uint8_t* codes, const Input& in, const Weight& w, const Fn& scaled) {
  const int64_t blocks = (w.outputs + COLUMNS - 1) / COLUMNS;
  const int64_t each = in.rows * in.terms * COLUMNS;
  const int64_t grain = each < PRODUCTS ? PRODUCTS / (each + 1) + 1 : 1;
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end, int) {
    alignas(64) int32_t sums[ROWS * COLUMNS];
    for (int64_t b = begin; b < end; b++) {
      const int64_t column = b * COLUMNS;
      const int64_t columns = w.outputs - column < COLUMNS ? w.outputs - column : COLUMNS;
      for (int64_t row = 0; row < in.rows; row += ROWS) {
        const int64_t rows = in.rows - row < ROWS ? in.rows - row : ROWS;
        const int64_t stride = padded_terms(in.terms);
        integer_tile<Bytes>({codes + row * stride, stride, w.codes + column * w.stride, w.stride,
                             in.terms, sums, COLUMNS},
                            rows, columns);
        for (int64_t r = 0; r < rows; r++) scaled(row + r, column, columns, sums + r * COLUMNS);
      }
    }
  });
}

// Codes of all rows for `Bytes`, and their scales.
template <class T>
void quantise(const Input& in, uint8_t* codes, float* scales) {
  parallel_for(in.rows, row_grain(in.terms), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++)
      scales[r] = quantise_row(static_cast<const T*>(in.x) + r * in.stride, in.terms,
                               Bytes::OFFSET, codes + r * padded_terms(in.terms));
  });
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

// out [rows, outputs] in x's format = sum * weight_scale * x_scale + bias; bias may be null.
G5_EXPORT int g5_linear_dynamic(const void* x, int dtype, int64_t rows, int64_t terms,
                                int64_t stride, const int8_t* weight, int64_t outputs,
                                int64_t weight_stride, const void* weight_scale, int scale_dtype,
                                const void* bias, int bias_dtype, void* out) {
  const Input in{x, dtype, rows, terms, stride};
  uint8_t* codes = scratch<uint8_t>(0, rows * padded_terms(terms));
  float* room = scratch<float>(1, rows + 2 * outputs);
  if (codes == nullptr || room == nullptr) return NO_MEMORY;
  const float* scales = as_f32(weight_scale, scale_dtype, outputs, room + rows);
  const float* biases =
      bias == nullptr ? nullptr : as_f32(bias, bias_dtype, outputs, room + rows + outputs);
  if (scales == nullptr || (bias != nullptr && biases == nullptr)) return UNSUPPORTED;
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    quantise<T>(in, codes, room);
    products(codes, in, {weight, outputs, weight_stride},
             [&](int64_t row, int64_t column, int64_t columns, const int32_t* sums) {
               T* to = static_cast<T*>(out) + row * outputs + column;
               const float x_scale = room[row];
               const float* s = scales + column;
               if (biases == nullptr)
                 for (int64_t c = 0; c < columns; c++) narrow(float(sums[c]) * s[c] * x_scale, &to[c]);
               else
                 for (int64_t c = 0; c < columns; c++)
                   narrow(float(sums[c]) * s[c] * x_scale + biases[column + c], &to[c]);
             });
    return int(OK);
  });
}

// out [rows, outputs] in x's format = (sum + quant_bias) * deq_scale.
G5_EXPORT int g5_linear_static(const void* x, int dtype, int64_t rows, int64_t terms,
                               int64_t stride, const int8_t* weight, int64_t outputs,
                               int64_t weight_stride, const void* input_scale, int scale_dtype,
                               const void* input_offset, int offset_dtype,
                               const int32_t* quant_bias, const float* deq_scale, void* out) {
  const Input in{x, dtype, rows, terms, stride};
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
    products(codes, in, {weight, outputs, weight_stride},
             [&](int64_t row, int64_t column, int64_t columns, const int32_t* sums) {
               T* to = static_cast<T*>(out) + row * outputs + column;
               for (int64_t c = 0; c < columns; c++) {
                 // Wraps like torch's int32 addition.
                 const uint32_t sum = uint32_t(sums[c]) + uint32_t(quant_bias[column + c]);
                 narrow(float(int32_t(sum)) * deq_scale[column + c], &to[c]);
               }
             });
    return int(OK);
  });
}
