// Host side of sparse flash attention: sizes, split, outputs, workspace, launch.
#pragma once

#include <tuple>

#include "host.h"
#include "launch.h"

namespace sfa {

// Tile and latent of the production kernels of kernels.cpp; slots of a part at least.
constexpr int32_t TILE = PRODUCTION_TILE, LATENT = 512, ROTATED = 64, LEAST = 64;
constexpr int64_t PACKED_BYTES = 656;

struct Inputs {
  const at::Tensor& query;
  const glm5::Optional& query_rope;
  const at::Tensor& key;
  const glm5::Optional& key_rope;
  const at::Tensor& indices;
  const at::Tensor& requests;
  const glm5::Optional& table;
  bool packed() const { return key.scalar_type() == at::kChar; }
};

inline void check(const Inputs& in, int64_t page) {
  TORCH_CHECK(in.query.dim() == 3 && in.key.dim() == 2 && in.indices.dim() == 2 &&
                  in.requests.dim() == 2,
              "query must be [rows, H, width], key [rows, width], indices [rows, K], requests "
              "[B, 4]");
  const auto dtype = in.query.scalar_type();
  const int64_t rows = in.query.size(0), heads = in.query.size(1);
  TORCH_CHECK(dtype == at::kBFloat16 || (dtype == at::kHalf && !in.packed()),
              "query must be bfloat16 (or float16 over unpacked rows), not ", dtype);
  TORCH_CHECK(heads >= 1 && heads <= 128, "the kernel takes 1 to 128 heads, not ", heads);
  TORCH_CHECK((page > 0) == in.table.has_value(), "page and block_table go together");
  TORCH_CHECK(in.query_rope.has_value() == in.key_rope.has_value() &&
                  !(in.packed() && in.key_rope.has_value()),
              "query_rope and key_rope go together, and not with packed rows");
  glm5::check("query", in.query, dtype, {rows, heads, in.packed() ? LATENT + ROTATED : LATENT},
              in.query);
  glm5::check("key", in.key, in.packed() ? at::kChar : dtype,
              {in.key.size(0), in.packed() ? PACKED_BYTES : LATENT}, in.query);
  glm5::check("query_rope", in.query_rope, dtype, {rows, heads, ROTATED}, in.query);
  glm5::check("key_rope", in.key_rope, dtype, {in.key.size(0), ROTATED}, in.query);
  glm5::check("indices", in.indices, at::kInt, {rows, in.indices.size(1)}, in.query);
  glm5::check("requests", in.requests, at::kInt, {in.requests.size(0), REQUEST_WORDS}, in.query);
  if (in.table.has_value())
    glm5::check("block_table", in.table, at::kInt, {in.requests.size(0), in.table->size(1)},
                in.query);
}

inline Tiling tiling_of(const Inputs& in, double scale, int64_t sparse_block, int64_t page,
                        bool causal) {
  const bool packed = in.packed(), rotated = packed || in.query_rope.has_value();
  const auto heads = int32_t(in.query.size(1)), width = int32_t(in.query.size(2));
  Tiling t{};
  t.rows = int32_t(in.query.size(0));
  t.heads = heads;
  t.slots = int32_t(in.indices.size(1));
  t.sparse_block = int32_t(sparse_block);
  t.requests = int32_t(in.requests.size(0));
  t.causal = causal;
  t.page_size = int32_t(page);
  t.table_stride = in.table.has_value() ? int32_t(in.table->size(1)) : 0;
  t.width = rotated ? LATENT + ROTATED : LATENT;
  t.query_row = heads * width;
  t.query_head = width;
  t.rope_head = packed ? width : ROTATED;
  t.rope_row = heads * t.rope_head;
  t.key_row = int32_t(in.key.size(1));
  t.key_rope_row = int32_t(in.key_rope.has_value() ? in.key_rope->size(1) : in.key.size(1));
  t.key_rows = int32_t(in.key.size(0));
  t.scale = float(scale);
  return t;
}

// (out [rows, H, 512], maxima and sums F32 [rows, H]): see binding.cpp.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> attend(
    const at::Tensor& query, const glm5::Optional& query_rope, const at::Tensor& key,
    const glm5::Optional& key_rope, const at::Tensor& indices, const at::Tensor& requests,
    const glm5::Optional& table, double scale, int64_t sparse_block, int64_t page, bool causal) {
  const Inputs in{query, query_rope, key, key_rope, indices, requests, table};
  check(in, page);
  const int64_t rows = query.size(0), heads = query.size(1);
  at::Tensor out = at::empty({rows, heads, LATENT}, query.options());
  at::Tensor peak = at::empty({rows, heads}, query.options().dtype(at::kFloat));
  at::Tensor total = at::empty_like(peak);
  const int32_t cores = glm5::cube_cores();
  if (rows == 0) return {out, peak, total};
  Tiling tiling = tiling_of(in, scale, sparse_block, page, causal);
  const auto bytes = int64_t(split_work(tiling, cores, LEAST, TILE, LATENT, in.packed()));
  at::Tensor room = glm5::workspace(bytes, query);
  const Addresses addresses{
      glm5::address(query),    glm5::address(query_rope), glm5::address(key),
      glm5::address(key_rope), glm5::address(indices),    glm5::address(requests),
      glm5::address(table),    glm5::address(out),        glm5::address(peak),
      glm5::address(total),    glm5::address(room)};
  auto* const launch = in.packed()                           ? launch_sfa_packed
                       : query.scalar_type() == at::kHalf    ? launch_sfa_half
                                                             : launch_sfa_bf16;
  std::vector<at::Tensor> keep{query, key, indices, requests, room};
  for (const auto& each : {query_rope, key_rope, table})
    if (each.has_value()) keep.push_back(*each);
  glm5::enqueue("glm5_sparse_flash_attention", std::move(keep), [=](void* stream) {
    launch(uint32_t(tiling.blocks), stream, addresses, tiling);
  });
  return {out, peak, total};
}

}  // namespace sfa
