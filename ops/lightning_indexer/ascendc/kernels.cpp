// Entry points: a type of query and key, with production tiles or, if the
// macro says so, reduced ones for tests.
#include "lightning_indexer.h"

#define LIGHTNING_INDEXER(name, T, Score, Tiles)                                              \
  extern "C" __global__ __aicore__ __mix__(1, 2) void name(                                   \
      GM_ADDR query, GM_ADDR key, GM_ADDR weights, GM_ADDR query_scale, GM_ADDR key_scale,    \
      GM_ADDR query_lengths, GM_ADDR key_lengths, GM_ADDR table, GM_ADDR indices,             \
      GM_ADDR products, GM_ADDR lists, lightning_indexer::Tiling tiling) {                    \
    lightning_indexer::run<T, Score, lightning_indexer::Tiles>(                               \
        query, key, weights, query_scale, key_scale, query_lengths, key_lengths, table,       \
        indices, products, lists, tiling);                                                    \
  }

#ifdef LIGHTNING_INDEXER_REDUCED
LIGHTNING_INDEXER(lightning_indexer_bf16_reduced, bfloat16_t, float, Reduced)
LIGHTNING_INDEXER(lightning_indexer_f16_reduced, half, float, Reduced)
LIGHTNING_INDEXER(lightning_indexer_int8_reduced, int8_t, int32_t, Reduced)
#else
LIGHTNING_INDEXER(lightning_indexer_bf16, bfloat16_t, float, Production)
LIGHTNING_INDEXER(lightning_indexer_f16, half, float, Production)
LIGHTNING_INDEXER(lightning_indexer_int8, int8_t, int32_t, Production)
#endif
