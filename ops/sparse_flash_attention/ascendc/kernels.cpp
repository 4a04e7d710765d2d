// Kernels that the emulator compiles: tiles for the NPU, and small ones for tests.
#include "cube_side.h"
#include "merge.h"

using namespace AscendC;

namespace sfa {

template <class T, class S>
__aicore__ inline void attend(const Arguments& a, const Tiling& t) {
  if ASCEND_IS_AIC {
    CubeSide<T, S>(a, t).run();
  } else {
    VectorSide<T, S>(a, t).run();
    if (t.parts > 1) {
      SyncAll<true>();
      Merge<T, S>(a, t).run();
    }
  }
}

}  // namespace sfa

#define SFA_KERNEL(name, T, ...)                                                                 \
  extern "C" __global__ __aicore__ __mix__(1, 2) void name(                                      \
      GM_ADDR query, GM_ADDR query_rope, GM_ADDR key, GM_ADDR key_rope, GM_ADDR indices,         \
      GM_ADDR requests, GM_ADDR block_table, GM_ADDR out, GM_ADDR softmax_max,                   \
      GM_ADDR softmax_sum, GM_ADDR workspace, sfa::Tiling tiling) {                              \
    sfa::attend<T, sfa::Shape<__VA_ARGS__>>({query, query_rope, key, key_rope, indices, requests, \
                                             block_table, out, softmax_max, softmax_sum,         \
                                             workspace},                                         \
                                            tiling);                                             \
  }

#ifndef SFA_SMALL
SFA_KERNEL(sfa_bf16, bfloat16_t, 512, sfa::PRODUCTION_TILE, 1, 3, 128)
SFA_KERNEL(sfa_half, half, 512, sfa::PRODUCTION_TILE, 1, 3, 128)
SFA_KERNEL(sfa_packed, bfloat16_t, 512, sfa::PRODUCTION_TILE, 1, 3, 128, true)
#endif
SFA_KERNEL(sfa_small_bf16, bfloat16_t, 256, 16, 2, 5, 64)
SFA_KERNEL(sfa_small_half, half, 256, 16, 2, 5, 64)
SFA_KERNEL(sfa_small_packed, bfloat16_t, 512, 16, 2, 5, 64, true)

// For the host side of the emulator.
extern "C" __attribute__((visibility("default"))) uint64_t sfa_split(
    sfa::Tiling* tiling, int32_t cores, int32_t least, int32_t tile, int32_t latent,
    int32_t packed) {
  return sfa::split_work(*tiling, cores, least, tile, latent, packed != 0);
}
