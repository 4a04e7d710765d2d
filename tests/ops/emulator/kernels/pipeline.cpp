// Small kernels in which every synchronisation is needed: test_mutants.py drops each in turn.
#include "common.h"

namespace {

constexpr int TILES = 3;
constexpr uint16_t FILLED = 0, EMPTIED = 1;

}  // namespace

// The AIVs copy rows to a workspace, from where the AIC takes two at a time to the output.
CHECK_KERNEL(pipeline) {
  (void)fault;
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
  TBuf<TPosition::A1> buffer;
  if ASCEND_IS_AIV {
    pipe.InitBuffer(queue, 1, N * 4);
    const int64_t row = GetBlockIdx();
    for (int tile = 0; tile < TILES; ++tile) {
      LocalTensor<float> x = queue.AllocTensor<float>();
      DataCopy(x, floats(in)[(row * TILES + tile) * N], N);
      queue.EnQue(x);
      x = queue.DeQue<float>();
      if (tile > 0) CrossCoreWaitFlag(EMPTIED);
      DataCopy(floats(work)[row * N], x, N);
      CrossCoreSetFlag<2, PIPE_MTE3>(FILLED);
      queue.FreeTensor(x);
    }
  } else {
    pipe.InitBuffer(buffer, 2 * N * 4);
    LocalTensor<float> x = buffer.Get<float>();
    const int64_t row = 2 * GetBlockIdx();
    for (int tile = 0; tile < TILES; ++tile) {
      if (tile > 0) WaitFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
      CrossCoreWaitFlag(FILLED);
      DataCopy(x, floats(work)[row * N], 2 * N);
      if (tile + 1 < TILES) CrossCoreSetFlag<2, PIPE_MTE2>(EMPTIED);
      SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
      WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
      DataCopy(floats(out)[(GetBlockIdx() * TILES + tile) * 2 * N], x, 2 * N);
      if (tile + 1 < TILES) SetFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
    }
  }
}

// out = 2 * in, with one buffer on each side.
CHECK_KERNEL(tiles) {
  (void)fault, (void)work;
  TPipe pipe;
  TBuf<> in_buffer, out_buffer;
  pipe.InitBuffer(in_buffer, N * 4);
  pipe.InitBuffer(out_buffer, N * 4);
  LocalTensor<float> x = in_buffer.Get<float>(), z = out_buffer.Get<float>();
  for (int tile = 0; tile < TILES; ++tile) {
    const int64_t first = (GetBlockIdx() * TILES + tile) * N;
    if (tile > 0) WaitFlag<HardEvent::V_MTE2>(EVENT_ID1);
    DataCopy(x, floats(in)[first], N);
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
    if (tile > 0) WaitFlag<HardEvent::MTE3_V>(EVENT_ID1);
    Adds(z, x, 0.0f, N);
    if (tile + 1 < TILES) SetFlag<HardEvent::V_MTE2>(EVENT_ID1);
    PipeBarrier<PIPE_V>();
    Add(z, z, z, N);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    DataCopy(floats(out)[first], z, N);
    if (tile + 1 < TILES) SetFlag<HardEvent::MTE3_V>(EVENT_ID1);
  }
}

// Each AIV gives a row to its neighbour.
CHECK_KERNEL(exchange) {
  (void)fault;
  TPipe pipe;
  TBuf<> buffer;
  LocalTensor<float> x;
  const int64_t row = GetBlockIdx();
  if ASCEND_IS_AIV {
    pipe.InitBuffer(buffer, N * 4);
    x = buffer.Get<float>();
    DataCopy(x, floats(in)[row * N], N);
    PipeBarrier<PIPE_ALL>();
    DataCopy(floats(work)[row * N], x, N);
  }
  SyncAll<false>();
  if ASCEND_IS_AIV {
    DataCopy(x, floats(work)[(row ^ 1) * N], N);
    SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    DataCopy(floats(out)[row * N], x, N);
  }
}
