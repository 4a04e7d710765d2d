// The selection of the lightning indexer without its scores.
#include "choose.h"

// positions [k], ascending, of the k largest of scores [n].
G5_EXPORT int g5_bench_top_k(const float* scores, int64_t n, int64_t k, int32_t* positions) {
  return g5::choose(scores, n, {k, false}, positions, nullptr);
}
