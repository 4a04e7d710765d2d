// Synchronisation between cores, and GM that several of them touch.
#include "common.h"

namespace {

// Scratch of one core: a row in UB or L1.
struct Row {
  TPipe pipe;
  TBuf<TPosition::VECCALC> vector_buffer;
  TBuf<TPosition::A1> cube_buffer;
  LocalTensor<float> data;

  Row() {
    if ASCEND_IS_AIV {
      pipe.InitBuffer(vector_buffer, N * 4);
      data = vector_buffer.Get<float>();
    } else {
      pipe.InitBuffer(cube_buffer, N * 4);
      data = cube_buffer.Get<float>();
    }
  }
};

}  // namespace

// The AIVs write a row each, the AIC reads both, and says so before they write again.
CHECK_KERNEL(cross) {
  (void)out;
  Row row;
  const int64_t block = ASCEND_IS_AIV ? GetBlockIdx() / 2 : GetBlockIdx();
  GlobalTensor<float> rows = floats(work)[block * 2 * N];
  if (fault == 7 && GetBlockNum() > 0) SyncAll<false>();
  if ASCEND_IS_AIV {
    DataCopy(row.data, floats(in), N);
    SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    for (int tile = 0; tile < 3; ++tile) {
      if (tile > 0 && fault != 2) CrossCoreWaitFlag(4);
      PipeBarrier<PIPE_MTE3>();
      DataCopy(rows[GetSubBlockIdx() * N], row.data, N);  // finds cross 2 GM-RACE
      if (fault == 3 && GetSubBlockIdx() == 1) continue;
      CrossCoreSetFlag<2, PIPE_MTE3>(3);
    }
    if (fault == 4) CrossCoreSetFlag<2, PIPE_MTE3>(5);  // finds cross 4 XFLAG
    if (fault == 5) CrossCoreSetFlag<2, PIPE_S>(6);  // finds cross 5 XFLAG
    if (fault == 6) CrossCoreSetFlag<2, PIPE_MTE3>(16);  // finds cross 6 XFLAG
    if (fault == 7) CrossCoreSetFlag<2, PIPE_MTE3>(12);  // finds cross 7 XFLAG
    if (fault == 8) {
      for (int i = 0; i < 16; ++i) CrossCoreSetFlag<1, PIPE_MTE3>(1);  // finds cross 8 XFLAG
    }
    if (fault == 9 && GetSubBlockIdx() == 0) CrossCoreSetFlag<2, PIPE_MTE3>(5);  // finds cross 9 XFLAG
  } else {
    for (int tile = 0; tile < 3; ++tile) {
      if (fault != 1) CrossCoreWaitFlag(3);  // finds cross 3 DEADLOCK
      PipeBarrier<PIPE_MTE2>();
      DataCopy(row.data, rows, N);  // finds cross 1 GM-RACE
      if (fault != 2 && tile < 2) CrossCoreSetFlag<2, PIPE_MTE2>(4);
      PipeBarrier<PIPE_MTE2>();
    }
    if (fault == 7) CrossCoreWaitFlag(12);
  }
}

// Every AIV writes a row, waits for all, and reads its neighbour's.
CHECK_KERNEL(all_vectors) {
  (void)out;
  Row row;
  if ASCEND_IS_AIV {
    const int64_t self = GetBlockIdx(), count = GetBlockNum() * GetSubBlockNum();
    DataCopy(row.data, floats(in), N);
    SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    DataCopy(floats(work)[self * N], row.data, N);
    if (fault == 1 && self == 1) return;
    if (fault != 2 && fault != 3) SyncAll();  // finds all_vectors 1 DEADLOCK
    if (fault == 3) {
      CrossCoreSetFlag<0, PIPE_MTE2>(2);
      CrossCoreWaitFlag(2);
    }
    DataCopy(row.data, floats(work)[(self + 1) % count * N], N);  // finds all_vectors 2 GM-RACE
    PipeBarrier<PIPE_MTE2>();
    DataCopy(row.data, floats(work)[(self + 1) % count * N], N);  // finds all_vectors 3 GM-RACE
    if (fault == 4) SyncAll<false>();  // finds all_vectors 4 DEADLOCK
  } else if (fault == 5) {
    SyncAll();  // finds all_vectors 5 XFLAG
  }
}

// All cores of both kinds, then flags of mode 0 and mode 1 with the right pipe.
CHECK_KERNEL(all_cores) {
  (void)in, (void)out;
  Row row;
  const int64_t self = ASCEND_IS_AIC ? GetBlockIdx() : GetBlockNum() + GetBlockIdx();
  if ASCEND_IS_AIV {
    Duplicate(row.data, float(self), N);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    DataCopy(floats(work)[self * N], row.data, N);
    CrossCoreSetFlag<1, PIPE_MTE3>(2);
    CrossCoreWaitFlag(2);
    DataCopy(row.data, floats(work)[(self ^ 1) * N], N);
    SetFlag<HardEvent::MTE2_S>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_S>(EVENT_ID0);
  }
  if (fault != 1) SyncAll<false>();
  if ASCEND_IS_AIC {
    const int64_t writers = GetBlockNum();
    DataCopy(row.data, floats(work)[(writers + GetBlockIdx()) * N], N);  // finds all_cores 1 GM-RACE
  }
}

// Cross-core flags outside a mix kernel.
CHECK_KERNEL(unmixed) {
  (void)in, (void)out, (void)work;
  if (fault == 1) SyncAll();  // finds unmixed 1 XFLAG
  if (fault == 2) KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);  // finds unmixed 2 PARAM
  if (fault == 3) PipeBarrier<PIPE_M>();  // finds unmixed 3 PARAM
  if (fault == 4) {
    TPipe pipe;
    TBuf<TPosition::A1> buffer;
    pipe.InitBuffer(buffer, 32);  // finds unmixed 4 PARAM
  }
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
}

// Two vector cores per launch without an AIC may synchronise.
CHECK_KERNEL(vectors_alone) {
  (void)in, (void)out, (void)fault, (void)work;
  SyncAll();
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);
}

CHECK_KERNEL(on_cube) {
  (void)in, (void)out, (void)work;
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
  LocalTensor<float> x(TPosition::A1, 0, N);
  if (fault == 1) {
    Adds(x, x, 1.0f, N);  // finds on_cube 1 PARAM
  }
  LocalTensor<float> a(TPosition::A2, 0, N);
  if (fault == 2) DataCopy(a, x, N);  // finds on_cube 2 UNSUPPORTED
}
