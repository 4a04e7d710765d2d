// Launches of the kernels, defined in ops/<operator>/ascendc/<operator>.asc: each puts one kernel
// of `blocks` blocks (an AIC and two AIVs each) on `stream`, an aclrtStream. Addresses are those of
// device memory, null for what the kernel does not look at, in the order of its parameters.
#pragma once

#include <cstdint>

#include "../lightning_indexer/ascendc/tiling.h"
#include "../mlapo/ascendc/tiling.h"
#include "../sparse_flash_attention/ascendc/tiling.h"

#define GLM5_LAUNCH(kernel, space)                                                       \
  void launch_##kernel(uint32_t blocks, void* stream, const space::Addresses& addresses, \
                       const space::Tiling& tiling)

namespace lightning_indexer {

struct Addresses {
  uint8_t *query, *key, *weights, *query_scale, *key_scale, *query_lengths, *key_lengths, *table;
  uint8_t *indices, *products, *lists;
};

}  // namespace lightning_indexer

namespace sfa {

struct Addresses {
  uint8_t *query, *query_rope, *key, *key_rope, *indices, *requests, *block_table;
  uint8_t *out, *softmax_max, *softmax_sum, *workspace;
};

}  // namespace sfa

namespace mlapo {

struct Addresses {
  uint8_t *x, *x_scale, *x_point, *latent_point, *down, *down_scale, *down_bias;
  uint8_t *up, *up_scale, *up_bias, *absorb, *gamma_q, *gamma_kv, *cos, *sin, *slots;
  uint8_t *kv_cache, *kr_cache, *query, *query_scale, *query_rope, *latent, *latent_codes;
  uint8_t *latent_scale, *workspace;
};

}  // namespace mlapo

GLM5_LAUNCH(lightning_indexer_bf16, lightning_indexer);
GLM5_LAUNCH(lightning_indexer_f16, lightning_indexer);
GLM5_LAUNCH(lightning_indexer_int8, lightning_indexer);
GLM5_LAUNCH(sfa_bf16, sfa);
GLM5_LAUNCH(sfa_half, sfa);
GLM5_LAUNCH(sfa_packed, sfa);
GLM5_LAUNCH(mlapo_bf16, mlapo);
GLM5_LAUNCH(mlapo_bf16_up, mlapo);
GLM5_LAUNCH(mlapo_bf16_int8, mlapo);
GLM5_LAUNCH(mlapo_f16, mlapo);
GLM5_LAUNCH(mlapo_f16_up, mlapo);
GLM5_LAUNCH(mlapo_f16_int8, mlapo);

// Fill the second part of the tiling for a kernel; 0, or an mlapo::Refusal.
extern "C" int32_t mlapo_bf16_plan(mlapo::Tiling* tiling);
extern "C" int32_t mlapo_bf16_up_plan(mlapo::Tiling* tiling);
extern "C" int32_t mlapo_bf16_int8_plan(mlapo::Tiling* tiling);
extern "C" int32_t mlapo_f16_plan(mlapo::Tiling* tiling);
extern "C" int32_t mlapo_f16_up_plan(mlapo::Tiling* tiling);
extern "C" int32_t mlapo_f16_int8_plan(mlapo::Tiling* tiling);
