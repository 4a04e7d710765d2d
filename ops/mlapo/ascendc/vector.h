// The AIVs: codes of x, norms and cache rows, and queries between the products.
#pragma once

#include "latents.h"
#include "queries.h"

namespace mlapo {

template <class T, class A, class B, class Tiles>
class Vector {
 public:
  __aicore__ inline void init(TPipe& pipe, const Arguments& arguments, const Tiling& tiling) {
    w_.init(pipe, arguments, tiling);
  }

  // Codes of x are two groups ahead; queries are one group behind the norms.
  __aicore__ inline void run() {
    for (int32_t group = 0; group < 2 && group < w_.groups; group++) codes(group);
    for (int32_t step = 0; step <= w_.groups + w_.t.int8_query; step++) {
      if (step < w_.groups) {
        if (step == 0) warm(w_, 0, 1);
        CrossCoreWaitFlag(DOWN_READY);
        CrossCoreSetFlag<0, PIPE_MTE2>(DOWN_ALL);
        CrossCoreWaitFlag(DOWN_ALL);
        query_latents(w_, step);
        CrossCoreSetFlag<0, PIPE_MTE3>(LATENT_ALL);
        CrossCoreWaitFlag(LATENT_ALL);
        CrossCoreSetFlag<2, PIPE_MTE3>(LATENT_READY);
        if (w_.t.down_waves > 1) {
          CrossCoreWaitFlag(DOWN_READY);
          CrossCoreSetFlag<0, PIPE_MTE2>(DOWN_ALL);
          CrossCoreWaitFlag(DOWN_ALL);
        }
        cache_rows(w_, step);
        if (step == 0) warm(w_, 1, 4);
        if (step + 2 < w_.groups) codes(step + 2);
      }
      const bool behind = step > 0 && step <= w_.groups;
      for (int32_t wave = 0; behind && wave < w_.t.nope_waves; wave++) {
        if (wave % (w_.t.nope_waves / w_.t.up_waves) == 0) {
          CrossCoreWaitFlag(UP_READY);
          CrossCoreSetFlag<0, PIPE_MTE2>(UP_ALL);
          CrossCoreWaitFlag(UP_ALL);
        }
        queries(w_, step - 1, wave);
        CrossCoreSetFlag<0, PIPE_MTE3>(NOPE_ALL);
        CrossCoreWaitFlag(NOPE_ALL);
        CrossCoreSetFlag<2, PIPE_MTE3>(NOPE_READY);
      }
      if (w_.t.int8_query && step > 1) {
        CrossCoreWaitFlag(QUERY_READY);
        CrossCoreSetFlag<0, PIPE_MTE2>(NOPE_ALL);
        CrossCoreWaitFlag(NOPE_ALL);
        quantise_queries(w_, step - 2);
      }
    }
  }

 private:
  __aicore__ inline void codes(int32_t group) {
    if (w_.t.quantise_x) quantise_x(w_, group);
  }

  Worker<T, A, B, Tiles> w_;
};

}  // namespace mlapo
