// Before and between the first products: quantisation of rows, norms, rotation of the key, and the
// rows of the caches (README.md).
#include "rows.h"

using namespace g5;

namespace {

struct Sizes {
  int64_t rows, q_lora, kv_lora, rope;
  int64_t latent_stride, key_stride;  // of the caches' rows
};

struct Latents {
  Sizes sizes;
  Product q, kv;
  const void *gamma_q, *gamma_kv;
  const double* eps;
  const void *cos, *sin;
  const int64_t* slots;
  void *latent_cache, *key_cache, *q_latent;
  Codes codes;
};

template <class T>
void latent_row(const Latents& a, int64_t row, Wide<T>* work) {
  const Sizes& n = a.sizes;
  const int64_t pairs = n.rope / 2, slot = a.slots[row];
  activations<T>(a.q, row, 0, n.q_lora, work);
  rms_norm(work, static_cast<const T*>(a.gamma_q), n.q_lora, a.eps[0]);
  narrow_row(work, n.q_lora, static_cast<T*>(a.q_latent) + row * n.q_lora);
  quantise(work, row, n.q_lora, a.codes);
  if (slot < 0) return;
  activations<T>(a.kv, row, 0, n.kv_lora + n.rope, work);
  rms_norm(work, static_cast<const T*>(a.gamma_kv), n.kv_lora, a.eps[1]);
  narrow_row(work, n.kv_lora, static_cast<T*>(a.latent_cache) + slot * n.latent_stride);
  rotate(work + n.kv_lora, static_cast<const Wide<T>*>(a.cos) + row * pairs,
         static_cast<const Wide<T>*>(a.sin) + row * pairs, pairs,
         static_cast<T*>(a.key_cache) + slot * n.key_stride);
}

}  // namespace

// codes int8 [rows, width] of x, whose rows lie `stride` apart: with the scale and offset that
// `fixed` points to, or, where it is null, with the scales that are written to row_scale [rows].
G5_EXPORT int g5_mlapo_quantise(const void* x, int dtype, int64_t rows, int64_t width,
                                int64_t stride, const float* fixed, int8_t* codes,
                                float* row_scale) {
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    const Codes to{codes, row_scale, fixed};
    parallel_for(rows, row_grain(width), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        quantise(static_cast<const T*>(x) + r * stride, r, width, to);
    });
    return int(OK);
  });
}

// From the two down projections of every token: normalised q latent [rows, q_lora] and, unless
// `codes` is null, its codes, as g5_mlapo_quantise; and the rows of the caches. Products as of
// `struct Product`; eps of q's norm and of the other; cos and sin [rows, rope / 2] F32 (F64 for
// F64); slots are -1 or rows of both caches.
G5_EXPORT int g5_mlapo_latents(int dtype, const Sizes* sizes, const void* q, int q_kind,
                               const float* q_scale, const int32_t* q_bias, const void* kv,
                               int kv_kind, const float* kv_scale, const int32_t* kv_bias,
                               const float* row_scale, const void* gamma_q, const void* gamma_kv,
                               const double* eps, const void* cos, const void* sin,
                               const int64_t* slots, void* latent_cache, void* key_cache,
                               void* q_latent, const float* fixed, int8_t* codes,
                               float* code_scale) {
  const Sizes& n = *sizes;
  const int64_t kv_width = n.kv_lora + n.rope;
  const Latents a{n,
                  {q, q_kind, q_scale, q_bias, row_scale, n.q_lora},
                  {kv, kv_kind, kv_scale, kv_bias, row_scale, kv_width},
                  gamma_q,
                  gamma_kv,
                  eps,
                  cos,
                  sin,
                  slots,
                  latent_cache,
                  key_cache,
                  q_latent,
                  {codes, code_scale, fixed}};
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t need = n.q_lora > kv_width ? n.q_lora : kv_width;
    std::atomic<bool> enough{true};
    parallel_for(n.rows, row_grain(need), [&](int64_t begin, int64_t end, int) {
      auto* work = scratch<Wide<T>>(0, size_t(need));
      if (work == nullptr) return void(enough = false);
      for (int64_t row = begin; row < end; row++) latent_row<T>(a, row, work);
    });
    return int(enough ? OK : NO_MEMORY);
  });
}
