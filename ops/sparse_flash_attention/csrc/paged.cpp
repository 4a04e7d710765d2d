// Entry point for paged keys that checks lengths, block table and indices itself.
#include "call.h"
#include "g5_paged.h"

extern "C" int g5_sparse_flash_attention(const g5::Call* call);

namespace g5 {
namespace {

// Filled in by cpu_plan.py: what changes from call to call comes first.
struct PagedCall {
  const char *query[PARTS], *key[PARTS], *value;
  const int32_t* indices;
  void* out;
  Paged paged;
  Call form;  // all that the other fields do not say
};

// Whether indices of rows of a request are -1 or name a block of its keys.
bool indices_fit(const Call& call) {
  for (int64_t b = 0; b < call.requests; b++) {
    // One is added to both sides, so that one comparison refuses what is below -1 too.
    const int64_t blocks = (call.key_length[b] + call.sparse_block - 1) / call.sparse_block;
    const uint32_t most = uint32_t(blocks < INT32_MAX ? blocks : INT32_MAX);
    for (int64_t r = 0; r < call.query_length[b]; r++) {
      const int32_t* row = call.indices + (call.query_start[b] + r) * call.index_row;
      int wrong = 0;
      for (int64_t i = 0; i < call.index_count; i++) wrong |= uint32_t(row[i]) + 1 > most;
      if (wrong) return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace g5

G5_EXPORT int g5_sparse_flash_attention_paged(const g5::PagedCall* given) {
  using namespace g5;
  const int64_t n = given->paged.requests;
  int64_t* spans = scratch<int64_t>(2, size_t(3 * n));
  if (spans == nullptr) return NO_MEMORY;
  if (!read_requests(given->paged, 1, spans, spans + n, spans + 2 * n)) return REFUSED;
  Call call = given->form;
  for (int p = 0; p < PARTS; p++) {
    call.query[p].data = given->query[p];
    call.key[p].data = given->key[p];
  }
  call.value.data = given->value;
  call.indices = given->indices;
  call.requests = n;
  call.query_start = spans;
  call.query_length = spans + n;
  call.key_length = spans + 2 * n;
  call.block_table = given->paged.table;
  call.table_row = given->paged.table_row;
  call.block_size = given->paged.block_size;
  call.out = given->out;
  return indices_fit(call) ? g5_sparse_flash_attention(&call) : int(REFUSED);
}
