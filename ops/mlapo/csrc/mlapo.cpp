// The passes between the products of MLA pre-processing (README.md).
#include "rows.h"

using namespace g5;

namespace {

// Slot s of a cache is row s % block_size of block s / block_size; strides in elements.
struct Cache {
  void* data;
  int64_t row_stride;
};

template <class T>
T* row_of(const Cache& cache, int64_t row) {
  return static_cast<T*>(cache.data) + row * cache.row_stride;
}

// The angles of a token in the format that T is computed in.
template <class T>
void load_angles(const void* table, int dtype, int64_t first, int64_t count, Wide<T>* out) {
  if (dtype == F64) {
    const double* from = static_cast<const double*>(table) + first;
    for (int64_t i = 0; i < count; i++) out[i] = Wide<T>(from[i]);
  } else {
    const float* from = static_cast<const float*>(table) + first;
    for (int64_t i = 0; i < count; i++) out[i] = Wide<T>(from[i]);
  }
}

struct Angles {
  const void *cos, *sin;  // [rows, rope / 2]
  int dtype;  // F32 or F64
};

struct Latents {
  Product q, kv;
  const void *gamma_q, *gamma_kv;
  double eps_q, eps_kv;
  int64_t kv_lora, rope;
  Angles angles;
  const int64_t* slots;
  Cache latent, key;
  void* q_latent;  // [rows, q_lora] or null
  Codes codes;
};

template <class T>
void latent_row(const Latents& a, int64_t row, Wide<T>* work) {
  const int64_t width = a.q.width, pairs = a.rope / 2;
  activations<T>(a.q, row, 0, width, work);
  rms_norm(work, static_cast<const T*>(a.gamma_q), width, a.eps_q);
  if (a.q_latent != nullptr) {
    T* out = static_cast<T*>(a.q_latent) + row * width;
    for (int64_t i = 0; i < width; i++) narrow(work[i], &out[i]);
  }
  quantise(work, row, width, a.codes);
  if (a.slots[row] < 0) return;
  Wide<T>* cos = work + a.kv.width;
  Wide<T>* sin = cos + pairs;
  load_angles<T>(a.angles.cos, a.angles.dtype, row * pairs, pairs, cos);
  load_angles<T>(a.angles.sin, a.angles.dtype, row * pairs, pairs, sin);
  activations<T>(a.kv, row, 0, a.kv.width, work);
  rms_norm(work, static_cast<const T*>(a.gamma_kv), a.kv_lora, a.eps_kv);
  T* latent = row_of<T>(a.latent, a.slots[row]);
  for (int64_t i = 0; i < a.kv_lora; i++) narrow(work[i], &latent[i]);
  rotate(work + a.kv_lora, cos, sin, pairs, row_of<T>(a.key, a.slots[row]));
}

struct Heads {
  Product product;
  int64_t rows, heads, nope_width, rope_width;
  Angles angles;
  void* nope;  // [heads, rows, nope_width]
  void* rope;  // [rows, heads, rope_width]
};

// Heads begin .. end, counted through all rows.
template <class T>
void split_heads(const Heads& a, int64_t begin, int64_t end, Wide<T>* work) {
  const int64_t width = a.nope_width + a.rope_width, pairs = a.rope_width / 2;
  Wide<T>* cos = work + width;
  Wide<T>* sin = cos + pairs;
  int64_t token = -1;
  for (int64_t i = begin; i < end; i++) {
    const int64_t row = i / a.heads, head = i % a.heads;
    if (row != token) {
      token = row;
      load_angles<T>(a.angles.cos, a.angles.dtype, row * pairs, pairs, cos);
      load_angles<T>(a.angles.sin, a.angles.dtype, row * pairs, pairs, sin);
    }
    activations<T>(a.product, row, head * width, width, work);
    T* nope = static_cast<T*>(a.nope) + (head * a.rows + row) * a.nope_width;
    for (int64_t k = 0; k < a.nope_width; k++) narrow(work[k], &nope[k]);
    rotate(work + a.nope_width, cos, sin, pairs, static_cast<T*>(a.rope) + i * a.rope_width);
  }
}

}  // namespace

// codes int8 [rows, width] of x, whose rows lie `stride` apart: with the scales that it writes to
// row_scale [rows], or with `scale` and `offset` where row_scale is null.
G5_EXPORT int g5_mlapo_quantise(const void* x, int dtype, int64_t rows, int64_t width,
                                int64_t stride, double scale, double offset, int8_t* codes,
                                float* row_scale) {
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    const Codes to{codes, row_scale, float(scale), float(offset)};
    parallel_for(rows, row_grain(width), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++)
        quantise(static_cast<const T*>(x) + r * stride, r, width, to);
    });
    return int(OK);
  });
}

// From the two down projections of every token: normalised q latent and its codes, and the rows of
// the caches. Products as of `struct Product`; slots are -1 or rows of both caches.
G5_EXPORT int g5_mlapo_latents(
    int dtype, int64_t rows, const void* q, int q_kind, const float* q_scale,
    const int32_t* q_bias, int64_t q_lora, const void* kv, int kv_kind, const float* kv_scale,
    const int32_t* kv_bias, int64_t kv_lora, int64_t rope, const float* row_scale,
    const void* gamma_q, double eps_q, const void* gamma_kv, double eps_kv, const void* cos,
    const void* sin, int angle_dtype, const int64_t* slots, void* latent_cache,
    int64_t latent_stride, void* key_cache, int64_t key_stride, void* q_latent, int8_t* codes,
    float* code_scale, double static_scale, double static_offset) {
  if (angle_dtype != F32 && angle_dtype != F64) return UNSUPPORTED;
  const Latents a{{q, q_kind, q_scale, q_bias, row_scale, q_lora},
                  {kv, kv_kind, kv_scale, kv_bias, row_scale, kv_lora + rope},
                  gamma_q, gamma_kv, eps_q, eps_kv, kv_lora, rope,
                  {cos, sin, angle_dtype},
                  slots, {latent_cache, latent_stride}, {key_cache, key_stride},
                  q_latent, {codes, code_scale, float(static_scale), float(static_offset)}};
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t need = (q_lora > kv_lora + rope ? q_lora : kv_lora + rope) + 2 * rope;
    bool enough = true;
    parallel_for(rows, row_grain(q_lora + kv_lora + rope), [&](int64_t begin, int64_t end, int) {
      auto* work = scratch<Wide<T>>(0, size_t(need));
      if (work == nullptr) return void(enough = false);
      for (int64_t row = begin; row < end; row++) latent_row<T>(a, row, work);
    });
    return enough ? int(OK) : int(NO_MEMORY);
  });
}

// From the up projection of every token: nope [heads, rows, nope_width] for the product with W_UK,
// and rotated rope [rows, heads, rope_width].
G5_EXPORT int g5_mlapo_heads(int dtype, int64_t rows, int64_t heads, int64_t nope_width,
                             int64_t rope_width, const void* product, int kind,
                             const float* scale, const int32_t* bias, const float* row_scale,
                             const void* cos, const void* sin, int angle_dtype, void* nope,
                             void* rope) {
  if (angle_dtype != F32 && angle_dtype != F64) return UNSUPPORTED;
  const int64_t width = nope_width + rope_width;
  const Heads a{{product, kind, scale, bias, row_scale, heads * width},
                rows, heads, nope_width, rope_width, {cos, sin, angle_dtype}, nope, rope};
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    bool enough = true;
    parallel_for(rows * heads, row_grain(width), [&](int64_t begin, int64_t end, int) {
      auto* work = scratch<Wide<T>>(0, size_t(width + rope_width));
      if (work == nullptr) return void(enough = false);
      split_heads<T>(a, begin, end, work);
    });
    return enough ? int(OK) : int(NO_MEMORY);
  });
}
