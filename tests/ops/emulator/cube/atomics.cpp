// Cores that write the same place in GM.
#include "kernel_operator.h"

using namespace AscendC;

// Every core adds its number + 1 to 8 floats; without `atomic` it stores.
extern "C" __global__ __aicore__ void same_place(GM_ADDR out, int32_t atomic) {
  const auto values = LocalTensor<float>(TPosition::VECCALC, 0, 8);
  for (int i = 0; i < 8; i++) values.SetValue(i, float(GetBlockIdx() + 1));
  SetFlag<HardEvent::S_MTE3>(0);
  WaitFlag<HardEvent::S_MTE3>(0);
  GlobalTensor<float> to;
  to.SetGlobalBuffer(reinterpret_cast<float*>(out));
  if (atomic) SetAtomicAdd<float>();
  DataCopy(to, values, 8);
  SetAtomicNone();
}
