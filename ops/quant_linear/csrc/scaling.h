// From exact int32 sums to results, in the order of the reference's F32 operations.
#pragma once

#include "g5_formats.h"

namespace g5 {

// sum * weight_scale * x_scale + bias
struct DynamicScaling {
  const float *x_scale, *weight_scale, *bias;  // [rows], [outputs], [outputs] or null

  template <class T>
  G5_INLINE void row(const int32_t* sums, int64_t row, int64_t column, int64_t columns,
                     T* out) const {
    const float factor = x_scale[row];
    const float* scale = weight_scale + column;
    if (bias == nullptr)
      for (int64_t c = 0; c < columns; c++) narrow(float(sums[c]) * scale[c] * factor, &out[c]);
    else
      for (int64_t c = 0; c < columns; c++)
        narrow(float(sums[c]) * scale[c] * factor + bias[column + c], &out[c]);
  }
};

// (sum + quant_bias) * deq_scale
struct StaticScaling {
  const int32_t* quant_bias;
  const float* deq_scale;

  template <class T>
  G5_INLINE void row(const int32_t* sums, int64_t, int64_t column, int64_t columns,
                     T* out) const {
    for (int64_t c = 0; c < columns; c++) {
      // Wraps like torch's int32 addition.
      const uint32_t sum = uint32_t(sums[c]) + uint32_t(quant_bias[column + c]);
      narrow(float(int32_t(sum)) * deq_scale[column + c], &out[c]);
    }
  }
};

}  // namespace g5
