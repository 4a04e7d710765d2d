// Lightning indexer for Atlas A2 and A3: the `count` best keys of every query token.
#pragma once

#include "cube.h"
#include "vector.h"

namespace lightning_indexer {

// T: of query and key; Score: what Mmad makes of it.
template <class T, class Score, class Tiles>
__aicore__ inline void run(GM_ADDR query, GM_ADDR key, GM_ADDR weights, GM_ADDR query_scale,
                           GM_ADDR key_scale, GM_ADDR query_lengths, GM_ADDR key_lengths,
                           GM_ADDR table, GM_ADDR indices, GM_ADDR products, GM_ADDR lists,
                           const Tiling& tiling) {
  const Work work(tiling, query_lengths, key_lengths, Tiles::UNIT);
  const Shares shares(work);
  if ASCEND_IS_AIC {
    CubeSide<T, Score, Tiles> cube(work, shares, {query, key, table, products});
    cube.run();
  } else {
    VectorSide<T, Score, Tiles> vector(work, shares, {query, key, table, products},
                                    {weights, query_scale, key_scale, table, products}, lists,
                                    indices);
    vector.run();
  }
}

}  // namespace lightning_indexer
