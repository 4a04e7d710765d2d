// Operators torch.ops.glm5_ascend_npu.*: one launch each, without reading anything back, so that
// they can be captured into a graph. Tensors have no gaps; rows are flattened.
#include <torch/library.h>

#include "lightning_indexer.h"
#include "mlapo.h"
#include "sparse_flash_attention.h"

#ifndef GLM5_SOURCES
#error "GLM5_SOURCES: digest of the sources (glm5_ascend.ops.ascendc.library.digest)"
#endif
#ifndef GLM5_DISPATCH_KEY
#define GLM5_DISPATCH_KEY PrivateUse1  // tests of the host side register it for the CPU
#endif

namespace {

std::string sources() { return GLM5_SOURCES; }

}  // namespace

// query [rows, H, 128], key [flat rows, 128], weights [rows, H]; with int8 query_scale [rows, H] and
// key_scale [flat rows]. Lengths int32 [requests] in a form: 1 per request, `*_tokens` rows apart,
// 2 prefix sums. block_table int32 [requests, pages] with page > 0. Result int32 [rows, count].
//
// query [rows, H, 512], query_rope [rows, H, 64], key [flat rows, 512], key_rope [flat rows, 64];
// or query [rows, H, 576] and packed int8 key [flat rows, 656]. indices [rows, K]. requests int32
// [B, 4]: first query row, query rows, first key row, keys.
//
// Weights of mlapo in the kernel's NZ layout [K / C0, N, C0], C0 elements being 32 bytes: down of
// q_lora, kv_lora and rope columns in this order, absorb [heads, nope / 16, kv_lora, 16]. *_point:
// scale and offset. Caches [blocks, block_size, width]; without kr_cache kv_cache holds packed int8
// rows of 656 bytes. Results: query, query_scale, query_rope, latent, latent_codes, latent_scale;
// those that were not asked for are empty or undefined.
TORCH_LIBRARY(glm5_ascend_npu, m) {
  m.def("sources() -> str", &sources);
  m.def(
      "lightning_indexer(Tensor query, Tensor key, Tensor weights, Tensor? query_scale, "
      "Tensor? key_scale, Tensor query_lengths, Tensor key_lengths, Tensor? block_table, *, "
      "int query_form, int query_tokens, int key_form, int key_tokens, int page, int count, "
      "bool causal, bool by_score) -> Tensor");
  m.def(
      "sparse_flash_attention(Tensor query, Tensor? query_rope, Tensor key, Tensor? key_rope, "
      "Tensor indices, Tensor requests, Tensor? block_table, *, float scale, int sparse_block, "
      "int page, bool causal) -> (Tensor, Tensor, Tensor)");
  m.def(
      "mlapo(Tensor x, Tensor? x_scale, Tensor? x_point, Tensor? latent_point, Tensor down, "
      "Tensor? down_scale, Tensor? down_bias, Tensor up, Tensor? up_scale, Tensor? up_bias, "
      "Tensor absorb, Tensor gamma_q, Tensor gamma_kv, Tensor cos, Tensor sin, Tensor slots, "
      "Tensor(a!) kv_cache, Tensor(b!)? kr_cache, *, float eps_q, float eps_kv, bool keep_latent, "
      "bool int8_query) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(glm5_ascend_npu, GLM5_DISPATCH_KEY, m) {
  m.impl("lightning_indexer", &lightning_indexer::select);
  m.impl("sparse_flash_attention", &sfa::attend);
  m.impl("mlapo", &mlapo::preprocess);
}
