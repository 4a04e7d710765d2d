// After the up product: rotation of the rotated part, and the product of the other with W_UK.
#include "absorb.h"

using namespace g5;

namespace {

// Rows of a head that are multiplied at a time; their queries stay in the second cache.
constexpr int64_t CHUNK = 128;
// Multiplications below which another thread does not pay.
constexpr int64_t WORTH = 1 << 18;

struct Heads {
  Product product;
  int64_t rows, heads, nope, rope, kv_lora;
  const void *cos, *sin, *w_uk;
  int64_t head_stride, row_stride;
  void *query, *query_rope;
};

// Rows begin .. end of one head; q and room as `absorb` wants them.
template <class T>
void one_head(const Heads& a, int64_t head, int64_t begin, int64_t end, Wide<T>* work, Query<T>* q,
              Operand<T>* room) {
  const int64_t width = a.nope + a.rope, pairs = a.rope / 2, stride = query_stride<T>(a.nope);
  for (int64_t row = begin; row < end; row++) {
    activations<T>(a.product, row, head * width, width, work);
    Query<T>* to = q + (row - begin) * stride;
    narrow_row(work, a.nope, to);
    for (int64_t k = a.nope; k < stride; k++) to[k] = Query<T>{};
    rotate(work + a.nope, static_cast<const Wide<T>*>(a.cos) + row * pairs,
           static_cast<const Wide<T>*>(a.sin) + row * pairs, pairs,
           static_cast<T*>(a.query_rope) + (row * a.heads + head) * a.rope);
  }
  const int64_t out_stride = a.heads * a.kv_lora;
  absorb<T>({q, static_cast<const T*>(a.w_uk) + head * a.head_stride, a.row_stride, a.nope,
             a.kv_lora, static_cast<T*>(a.query) + begin * out_stride + head * a.kv_lora,
             out_stride},
            end - begin, room);
}

template <class T>
int all_heads(const Heads& a) {
  const int64_t chunks = (a.rows + CHUNK - 1) / CHUNK, most = std::min(a.rows, CHUNK);
  const int64_t each = most * a.nope * a.kv_lora;
  std::atomic<bool> enough{true};
  // Chunks of one head follow each other, so that its weights are read from memory once.
  parallel_for(a.heads * chunks, WORTH / (each + 1) + 1, [&](int64_t begin, int64_t end, int) {
    auto* work = scratch<Wide<T>>(0, size_t(a.nope + a.rope));
    auto* q = scratch<Query<T>>(1, size_t(most * query_stride<T>(a.nope)));
    auto* room = scratch<Operand<T>>(2, size_t(steps<T>(a.nope)));
    if (work == nullptr || q == nullptr || room == nullptr) return void(enough = false);
    for (int64_t i = begin; i < end; i++) {
      const int64_t first = i % chunks * CHUNK;
      one_head<T>(a, i / chunks, first, std::min(first + CHUNK, a.rows), work, q, room);
    }
  });
  return enough ? OK : NO_MEMORY;
}

}  // namespace

// query [rows, heads, kv_lora] and rotated query_rope [rows, heads, rope] of the up projection
// [rows, heads * (nope + rope)], a product as of `struct Product`. w_uk [heads, nope, kv_lora] has
// a dense last axis; cos and sin [rows, rope / 2] are F32 (F64 for F64).
G5_EXPORT int g5_mlapo_heads(int dtype, int64_t rows, int64_t heads, int64_t nope, int64_t rope,
                             int64_t kv_lora, const void* product, int kind, const float* scale,
                             const int32_t* bias, const float* row_scale, const void* cos,
                             const void* sin, const void* w_uk, int64_t head_stride,
                             int64_t row_stride, void* query, void* query_rope) {
  const int64_t width = heads * (nope + rope);
  const Heads a{{product, kind, scale, bias, row_scale, width},
                rows,
                heads,
                nope,
                rope,
                kv_lora,
                cos,
                sin,
                w_uk,
                head_stride,
                row_stride,
                query,
                query_rope};
  return with_format(dtype, [&](auto zero) { return all_heads<decltype(zero)>(a); });
}
