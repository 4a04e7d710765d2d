// MLA pre-processing in one kernel: see README.md, section "AscendC kernel".
#pragma once

#include "cube.h"
#include "vector.h"

namespace mlapo {

// T: half or bfloat16_t. A, B: T or int8_t, elements of the first two weights.
template <class T, class A, class B, class Tiles>
__aicore__ inline void preprocess(const Arguments& arguments, const Tiling& tiling) {
  AscendC::TPipe pipe;
  if ASCEND_IS_AIC {
    Cube<T, A, B, Tiles> cube;
    cube.init(pipe, arguments, tiling);
    cube.run();
  } else {
    Vector<T, A, B, Tiles> vector;
    vector.init(pipe, arguments, tiling);
    vector.run();
  }
}

}  // namespace mlapo
