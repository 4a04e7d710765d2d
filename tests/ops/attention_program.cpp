// Makes one call of sparse flash attention that a file describes, where an emulator can run it.
//
// Input, all numbers int64: threads, dtype, rows, heads, latent, rope, cache rows, count, block,
// requests, block size, table row; the scale as F64; then query [rows][heads][latent + rope], cache
// [cache rows][latent + rope], and, as int64 each, starts and lengths of the queries and lengths of
// the keys; as int32 indices and block table. Output: out, max, sum.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "call.h"

extern "C" void g5_set_threads(int count);
extern "C" int g5_sparse_flash_attention(const g5::Call* call);

static FILE* input;

template <class T>
static std::vector<T> numbers(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count + 1));  // never without an address
  if (std::fread(values.data(), sizeof(T), size_t(count), input) != size_t(count)) std::exit(2);
  return values;
}

int main(int, char** arguments) {
  input = std::fopen(arguments[1], "rb");
  const auto head = numbers<int64_t>(12);
  const double scale = numbers<double>(1)[0];
  const int64_t size = head[1] == g5::F32 ? 4 : 2, rows = head[2], heads = head[3];
  const int64_t latent = head[4], width = latent + head[5], requests = head[9];
  const auto query = numbers<char>(rows * heads * width * size);
  const auto cache = numbers<char>(head[6] * width * size);
  const auto starts = numbers<int64_t>(requests), lengths = numbers<int64_t>(requests);
  const auto keys = numbers<int64_t>(requests);
  const auto indices = numbers<int32_t>(rows * head[7]);
  const auto table = numbers<int32_t>(requests * head[11]);
  std::vector<char> out(size_t(rows * heads * latent * size));
  std::vector<float> peak(size_t(rows * heads)), total(size_t(rows * heads));

  const int64_t step = width * size, rope = latent * size;
  g5::Call call{};
  call.query[0] = {query.data(), heads * step, step, latent};
  call.query[1] = {query.data() + rope, heads * step, step, head[5]};
  call.key[0] = {cache.data(), step, 0, latent};
  call.key[1] = {cache.data() + rope, step, 0, head[5]};
  call.value = call.key[0];
  call.parts = head[5] > 0 ? 2 : 1;
  call.dtype = head[1];
  call.packed_rope = -1;
  call.rows = rows;
  call.heads = heads;
  call.cache_rows = head[6];
  call.indices = indices.data();
  call.index_row = call.index_count = head[7];
  call.sparse_block = head[8];
  call.causal = 1;
  call.requests = requests;
  call.query_start = starts.data();
  call.query_length = lengths.data();
  call.key_length = keys.data();
  call.block_table = table.data();
  call.table_row = head[11];
  call.block_size = head[10];
  call.scale = scale;
  call.out = out.data();
  call.peak = peak.data();
  call.total = total.data();
  g5_set_threads(int(head[0]));
  if (const int error = g5_sparse_flash_attention(&call)) return error;

  FILE* output = std::fopen(arguments[2], "wb");
  std::fwrite(out.data(), 1, out.size(), output);
  std::fwrite(peak.data(), sizeof(float), peak.size(), output);
  std::fwrite(total.data(), sizeof(float), total.size(), output);
  return std::fclose(output);
}
