// Entry point for paged keys that checks lengths and block table itself.
#include "choose.h"
#include "g5_paged.h"

extern "C" int g5_lightning_indexer(int dtype, const void* query, const void* key,
                                    int64_t key_stride, int weights_dtype, const void* weights,
                                    int64_t rows, int64_t heads, int64_t dim, int64_t n,
                                    const int64_t* requests, const int32_t* table,
                                    int64_t table_stride, int64_t block_size, int64_t count,
                                    int causal, int sorted, int32_t* indices, float* values);

namespace g5 {
namespace {

// Filled in by cpu_plan.py: what changes from call to call comes first.
struct PagedCall {
  const void *query, *key, *weights;
  int32_t* indices;
  Paged paged;
  int64_t dtype, weights_dtype, key_stride, heads, dim, count, causal, sorted;
};

}  // namespace
}  // namespace g5

G5_EXPORT int g5_lightning_indexer_paged(const g5::PagedCall* call) {
  using namespace g5;
  const Paged& paged = call->paged;
  const int64_t n = paged.requests;
  int64_t* spans = scratch<int64_t>(REQUESTS, size_t(4 * n));
  if (spans == nullptr) return NO_MEMORY;
  // The third number of four, the first key row, is not read where there is a block table.
  if (!read_requests(paged, 4, spans, spans + 1, spans + 3)) return REFUSED;
  for (int64_t b = 0; b < n; b++) spans[4 * b + 2] = 0;
  return g5_lightning_indexer(int(call->dtype), call->query, call->key, call->key_stride,
                              int(call->weights_dtype), call->weights, paged.rows, call->heads,
                              call->dim, n, spans, paged.table, paged.table_row,
                              paged.block_size, call->count, int(call->causal),
                              int(call->sorted), call->indices, nullptr);
}
