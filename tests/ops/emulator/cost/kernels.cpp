// Kernels whose time a formula gives.
#include "kernel_operator.h"

using namespace AscendC;

namespace {

GlobalTensor<float> floats(GM_ADDR address) {
  GlobalTensor<float> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(address));
  return tensor;
}

LocalTensor<float> unified(uint32_t address, uint32_t elements) {
  return LocalTensor<float>::at(TPosition::VECCALC, address, elements * 4);
}

}  // namespace

// Each AIV reads `tiles` pieces of `elements` floats, the first one `extra` more; all the same ones
// if `shared`.
extern "C" __global__ __aicore__ void reads(GM_ADDR in, int32_t tiles, int32_t extra,
                                            int32_t elements, int32_t shared) {
  const LocalTensor<float> x = unified(0, elements);
  const int64_t own = shared ? 0 : GetBlockIdx() * (tiles + extra);
  for (int32_t i = 0; i < tiles + (GetBlockIdx() == 0 ? extra : 0); ++i) {
    DataCopy(x, floats(in)[(shared ? 0 : own + i) * elements], elements);
    PipeBarrier<PIPE_MTE2>();
  }
}

// Each AIV writes one piece `tiles` times to the same place.
extern "C" __global__ __aicore__ void writes(GM_ADDR out, int32_t tiles, int32_t elements) {
  const LocalTensor<float> x = unified(0, elements);
  Duplicate(x, 1.0f, elements);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  for (int32_t i = 0; i < tiles; ++i) {
    DataCopy(floats(out)[GetBlockIdx() * elements], x, elements);
    PipeBarrier<PIPE_MTE3>();
  }
}

// `tiles` pieces are read and then used by `steps` vector instructions, through `buffers` buffers.
extern "C" __global__ __aicore__ void stages(GM_ADDR in, int32_t tiles, int32_t elements,
                                             int32_t steps, int32_t buffers) {
  for (int32_t i = 0; i < buffers; ++i) SetFlag<HardEvent::V_MTE2>(i);
  for (int32_t i = 0; i < tiles; ++i) {
    const int32_t buffer = i % buffers;
    const LocalTensor<float> x = unified(buffer * elements * 4, elements);
    WaitFlag<HardEvent::V_MTE2>(buffer);
    DataCopy(x, floats(in)[i * elements], elements);
    SetFlag<HardEvent::MTE2_V>(buffer);
    WaitFlag<HardEvent::MTE2_V>(buffer);
    for (int32_t step = 0; step < steps; ++step) {
      Adds(x, x, 1.0f, elements);
      PipeBarrier<PIPE_V>();
    }
    SetFlag<HardEvent::V_MTE2>(buffer);
  }
  for (int32_t i = 0; i < buffers; ++i) WaitFlag<HardEvent::V_MTE2>(i);
}

// The same through a queue.
extern "C" __global__ __aicore__ void queued(GM_ADDR in, int32_t tiles, int32_t elements,
                                             int32_t steps, int32_t buffers) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, buffers, elements * 4);
  for (int32_t i = 0; i < tiles; ++i) {
    LocalTensor<float> x = queue.AllocTensor<float>();
    DataCopy(x, floats(in)[i * elements], elements);
    queue.EnQue(x);
    x = queue.DeQue<float>();
    for (int32_t step = 0; step < steps; ++step) {
      Adds(x, x, 1.0f, elements);
      PipeBarrier<PIPE_V>();
    }
    queue.FreeTensor(x);
  }
}

// `count` products of m x n x k, each on its own part of the pipe.
extern "C" __global__ __aicore__ void products(int32_t count, int32_t m, int32_t n, int32_t k) {
  const auto a = LocalTensor<half>::at(TPosition::A2, 0, 65536);
  const auto b = LocalTensor<half>::at(TPosition::B2, 0, 65536);
  const auto c = LocalTensor<float>::at(TPosition::CO1, 0, 131072);
  for (int32_t i = 0; i < count; ++i) {
    Mmad(c, a, b, MmadParams(m, n, k, 0, false, true));
    PipeBarrier<PIPE_M>();
  }
}

// Block i works for i + 1 steps, all meet, and it works for blocks - i steps. `how`: 0 SyncAll,
// 1 a flag of all AIVs, 2 nothing.
extern "C" __global__ __aicore__ void phases(int32_t elements, int32_t how) {
  const LocalTensor<float> x = unified(0, elements);
  const int32_t own = GetBlockIdx(), all = GetBlockNum();
  for (int32_t i = 0; i < own + 1; ++i) {
    Duplicate(x, 1.0f, elements);
    PipeBarrier<PIPE_V>();
  }
  if (how == 0) SyncAll<true>();
  if (how == 1) {
    CrossCoreSetFlag<0, PIPE_V>(0);
    CrossCoreWaitFlag(0);
  }
  for (int32_t i = 0; i < all - own; ++i) {
    Duplicate(x, 1.0f, elements);
    PipeBarrier<PIPE_V>();
  }
}

// S waits for V before it issues a copy; `barrier`: by PipeBarrier<PIPE_ALL>.
extern "C" __global__ __aicore__ void scalar_wait(GM_ADDR in, int32_t elements, int32_t barrier) {
  const LocalTensor<float> x = unified(0, elements), y = unified(elements * 4, elements);
  Duplicate(x, 1.0f, elements);
  if (barrier) {
    PipeBarrier<PIPE_ALL>();
  } else {
    SetFlag<HardEvent::V_S>(EVENT_ID0);
    WaitFlag<HardEvent::V_S>(EVENT_ID0);
  }
  DataCopy(y, floats(in), elements);
}
