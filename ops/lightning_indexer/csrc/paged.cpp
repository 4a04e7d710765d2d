// Entry point for paged keys that checks lengths and block table itself.
#include "choose.h"
#include "g5_paged.h"

extern "C" int g5_lightning_indexer(int dtype, const void* query, const void* key,
                                    int64_t key_stride, int weights_dtype, const void* weights,
                                    int64_t rows, int64_t heads, int64_t dim, int64_t n,
                                    const int64_t* requests, const int32_t* table,
                                    int64_t table_stride, int64_t block_size, int64_t count,
                                    int causal, int sorted, int32_t* indices, float* values);

extern "C" int g5_lightning_indexer_quant(
    const void* query, const void* key, int64_t key_stride, int weights_dtype, const void* weights,
    int query_scale_dtype, const void* query_scale, int key_scale_dtype, const void* key_scale,
    int64_t key_scale_stride, int64_t rows, int64_t heads, int64_t dim, int64_t n,
    const int64_t* requests, const int32_t* table, int64_t table_stride, int64_t block_size,
    int64_t count, int causal, int sorted, int32_t* indices);

namespace g5 {
namespace {

// Filled in by cpu_plan.py: what changes from call to call comes first.
struct PagedCall {
  const void *query, *key, *weights;
  int32_t* indices;
  Paged paged;
  int64_t dtype, weights_dtype, key_stride, heads, dim, count, causal, sorted;
};
struct PagedQuantCall {
  const void *query, *key, *weights, *query_scale, *key_scale;
  int32_t* indices;
  Paged paged;
  int64_t weights_dtype, query_scale_dtype, key_scale_dtype, key_stride, key_scale_stride, heads,
      dim, count, causal, sorted;
};

// The requests of a call as the other entry points take them: OK, and `spans` [requests][4].
Error read(const Paged& paged, int64_t** spans) {
  const int64_t n = paged.requests;
  int64_t* to = *spans = scratch<int64_t>(REQUESTS, size_t(4 * n));
  if (to == nullptr) return NO_MEMORY;
  if (!read_requests(paged, 4, to, to + 1, to + 3)) return Error(REFUSED);
  // The first key row is not read where there is a block table.
  for (int64_t b = 0; b < n; b++) to[4 * b + 2] = 0;
  return OK;
}

}  // namespace
}  // namespace g5

G5_EXPORT int g5_lightning_indexer_paged(const g5::PagedCall* call) {
  using namespace g5;
  const Paged& paged = call->paged;
  int64_t* spans;
  if (const Error error = read(paged, &spans)) return error;
  return g5_lightning_indexer(int(call->dtype), call->query, call->key, call->key_stride,
                              int(call->weights_dtype), call->weights, paged.rows, call->heads,
                              call->dim, paged.requests, spans, paged.table, paged.table_row,
                              paged.block_size, call->count, int(call->causal),
                              int(call->sorted), call->indices, nullptr);
}

G5_EXPORT int g5_lightning_indexer_quant_paged(const g5::PagedQuantCall* call) {
  using namespace g5;
  const Paged& paged = call->paged;
  int64_t* spans;
  if (const Error error = read(paged, &spans)) return error;
  return g5_lightning_indexer_quant(
      call->query, call->key, call->key_stride, int(call->weights_dtype), call->weights,
      int(call->query_scale_dtype), call->query_scale, int(call->key_scale_dtype),
      call->key_scale, call->key_scale_stride, paged.rows, call->heads, call->dim,
      paged.requests, spans, paged.table, paged.table_row, paged.block_size, call->count,
      int(call->causal), int(call->sorted), call->indices);
}
