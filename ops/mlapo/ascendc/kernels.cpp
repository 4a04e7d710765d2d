// The kernel in every type and with two sets of tiles, as the emulator compiles it; with
// MLAPO_REDUCED the reduced tiles alone.
#include "mlapo.h"

namespace mlapo {

// Those of GLM-5's sizes, with every type of weight.
using LargeTiles = Tiles<128, 4, 63 << 10, 256 << 10, 32 << 10, 64 << 10, 7168, 2048, 2688, 2048, 128>;
// The same pipeline with every loop run several times at small sizes.
using SmallTiles = Tiles<16, 3, 4 << 10, 4 << 10, 2 << 10, 4 << 10, 512, 512, 1152, 512, 64>;

}  // namespace mlapo

#define MLAPO_KERNEL(name, T, A, B, TILES)                                                        \
  extern "C" __global__ __aicore__ __mix__(1, 2) void name(                                       \
      GM_ADDR x, GM_ADDR x_scale, GM_ADDR x_point, GM_ADDR latent_point, GM_ADDR down,            \
      GM_ADDR down_scale, GM_ADDR down_bias, GM_ADDR up, GM_ADDR up_scale, GM_ADDR up_bias,       \
      GM_ADDR absorb, GM_ADDR gamma_q, GM_ADDR gamma_kv, GM_ADDR cos, GM_ADDR sin, GM_ADDR slots, \
      GM_ADDR kv_cache, GM_ADDR kr_cache, GM_ADDR query, GM_ADDR query_scale, GM_ADDR query_rope, \
      GM_ADDR latent, GM_ADDR latent_codes, GM_ADDR latent_scale, GM_ADDR workspace, mlapo::Tiling tiling) {      \
    mlapo::preprocess<T, A, B, mlapo::TILES>(                                                     \
        {x,     x_scale,  x_point,  latent_point, down,     down_scale, down_bias,  up,           \
         up_scale, up_bias, absorb, gamma_q,      gamma_kv, cos,        sin,        slots,        \
         kv_cache, kr_cache, query, query_scale, query_rope, latent, latent_codes, latent_scale,   \
         workspace}, \
        tiling);                                                                                  \
  }                                                                                               \
  extern "C" __attribute__((visibility("default"))) int32_t name##_plan(mlapo::Tiling* tiling) {                                         \
    return mlapo::plan(*tiling, mlapo::TILES::limits(), sizeof(A), sizeof(B));                    \
  }

#ifndef MLAPO_REDUCED
MLAPO_KERNEL(mlapo_bf16, bfloat16_t, bfloat16_t, bfloat16_t, LargeTiles)
MLAPO_KERNEL(mlapo_bf16_up, bfloat16_t, bfloat16_t, int8_t, LargeTiles)
MLAPO_KERNEL(mlapo_bf16_int8, bfloat16_t, int8_t, int8_t, LargeTiles)
MLAPO_KERNEL(mlapo_f16, half, half, half, LargeTiles)
MLAPO_KERNEL(mlapo_f16_up, half, half, int8_t, LargeTiles)
MLAPO_KERNEL(mlapo_f16_int8, half, int8_t, int8_t, LargeTiles)
#endif
MLAPO_KERNEL(mlapo_bf16_small, bfloat16_t, bfloat16_t, bfloat16_t, SmallTiles)
MLAPO_KERNEL(mlapo_bf16_up_small, bfloat16_t, bfloat16_t, int8_t, SmallTiles)
MLAPO_KERNEL(mlapo_bf16_int8_small, bfloat16_t, int8_t, int8_t, SmallTiles)
MLAPO_KERNEL(mlapo_f16_small, half, half, half, SmallTiles)
MLAPO_KERNEL(mlapo_f16_up_small, half, half, int8_t, SmallTiles)
MLAPO_KERNEL(mlapo_f16_int8_small, half, int8_t, int8_t, SmallTiles)
