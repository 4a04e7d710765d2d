// Host side of the lightning indexer: sizes, outputs, workspace, launch.
#pragma once

#include "host.h"
#include "launch.h"

namespace lightning_indexer {

inline int32_t number(const char* name, const glm5::Optional& tensor) {
  if (!tensor.has_value()) return FLOAT32;
  switch (tensor->scalar_type()) {
    case at::kFloat: return FLOAT32;
    case at::kHalf: return FLOAT16;
    case at::kBFloat16: return BFLOAT16;
    default: TORCH_CHECK(false, name, " must be float32, float16 or bfloat16"); return FLOAT32;
  }
}

// int32 [rows, count]: see binding.cpp. Forms are LengthForm.
inline at::Tensor select(const at::Tensor& query, const at::Tensor& key, const at::Tensor& weights,
                         const glm5::Optional& query_scale, const glm5::Optional& key_scale,
                         const at::Tensor& query_lengths, const at::Tensor& key_lengths,
                         const glm5::Optional& table, int64_t query_form, int64_t query_tokens,
                         int64_t key_form, int64_t key_tokens, int64_t page, int64_t count,
                         bool causal, bool by_score) {
  TORCH_CHECK(query.dim() == 3 && key.dim() == 2, "query must be [rows, H, 128], key [rows, 128]");
  const int64_t rows = query.size(0), heads = query.size(1), requests = key_lengths.size(0);
  const auto dtype = query.scalar_type();
  const bool quantised = dtype == at::kChar;
  TORCH_CHECK(dtype == at::kBFloat16 || dtype == at::kHalf || quantised,
              "query must be bfloat16, float16 or int8, not ", dtype);
  TORCH_CHECK(heads == 16 || heads == 32 || heads == 48 || heads == 64,
              "the kernel takes 16, 32, 48 or 64 heads, not ", heads);
  TORCH_CHECK(count >= 1 && count <= Production::TOP, "the kernel keeps 1 to ", Production::TOP,
              " positions, not ", count);
  TORCH_CHECK(quantised == query_scale.has_value() && quantised == key_scale.has_value(),
              "scales go with int8");
  TORCH_CHECK((page > 0) == table.has_value(), "page and block_table go together");
  glm5::check("query", query, dtype, {rows, heads, 128}, query);
  glm5::check("key", key, dtype, {key.size(0), 128}, query);
  glm5::check("weights", weights, weights.scalar_type(), {rows, heads}, query);
  if (quantised) {
    glm5::check("query_scale", query_scale, query_scale->scalar_type(), {rows, heads}, query);
    glm5::check("key_scale", key_scale, key_scale->scalar_type(), {key.size(0)}, query);
  }
  glm5::check("query_lengths", query_lengths, at::kInt, {requests}, query);
  glm5::check("key_lengths", key_lengths, at::kInt, {requests}, query);
  if (table.has_value())
    glm5::check("block_table", table, at::kInt, {requests, table->size(1)}, query);

  Tiling tiling{};
  tiling.requests = int32_t(requests);
  tiling.heads = int32_t(heads);
  tiling.group = group_rows(tiling.heads);
  tiling.rows = int32_t(rows);
  tiling.count = int32_t(count);
  tiling.query_form = int32_t(query_form);
  tiling.query_tokens = int32_t(query_tokens);
  tiling.key_form = int32_t(key_form);
  tiling.key_tokens = int32_t(key_tokens);
  tiling.page = int32_t(page);
  tiling.table_stride = table.has_value() ? int32_t(table->size(1)) : 0;
  tiling.causal = causal;
  tiling.by_score = by_score;
  tiling.weights_type = number("weights", weights);
  tiling.query_scale_type = number("query_scale", query_scale);
  tiling.key_scale_type = number("key_scale", key_scale);

  const int32_t blocks = glm5::cube_cores();
  at::Tensor indices = at::empty({rows, count}, query.options().dtype(at::kInt));
  if (rows == 0) return indices;
  at::Tensor products = glm5::workspace(Production::scores_bytes(blocks), query);
  at::Tensor lists = glm5::workspace(Production::lists_bytes(blocks), query);
  const Addresses addresses{
      glm5::address(query),         glm5::address(key),         glm5::address(weights),
      glm5::address(query_scale),   glm5::address(key_scale),   glm5::address(query_lengths),
      glm5::address(key_lengths),   glm5::address(table),       glm5::address(indices),
      glm5::address(products),      glm5::address(lists)};
  auto* const launch = quantised               ? launch_lightning_indexer_int8
                       : dtype == at::kHalf    ? launch_lightning_indexer_f16
                                               : launch_lightning_indexer_bf16;
  std::vector<at::Tensor> keep{query, key, weights, query_lengths, key_lengths, products, lists};
  for (const auto& each : {query_scale, key_scale, table})
    if (each.has_value()) keep.push_back(*each);
  glm5::enqueue("glm5_lightning_indexer", std::move(keep),
                [=](void* stream) { launch(uint32_t(blocks), stream, addresses, tiling); });
  return indices;
}

}  // namespace lightning_indexer
