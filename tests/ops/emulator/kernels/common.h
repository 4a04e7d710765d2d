// What the kernels of the checks share. Every kernel takes two arrays of 4096 floats, a workspace of
// as many, and the number of the fault that it shall have; with 0 it has none. A comment
// `// finds KERNEL FAULT CLASS` stands on the line where the emulator has to see the fault.
#pragma once

#include "kernel_operator.h"

using namespace AscendC;

constexpr uint32_t N = 256;

#define CHECK_KERNEL(name) \
  extern "C" __global__ __aicore__ void name(GM_ADDR in, GM_ADDR out, GM_ADDR work, int32_t fault)

inline GlobalTensor<float> floats(GM_ADDR address) {
  GlobalTensor<float> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(address));
  return tensor;
}
