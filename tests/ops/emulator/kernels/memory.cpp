// Bounds, alignment and content of memory.
#include <cstring>

#include "common.h"

CHECK_KERNEL(bounds) {
  (void)work;
  TPipe pipe;
  TBuf<> buffer, next;
  pipe.InitBuffer(buffer, N * 4);
  pipe.InitBuffer(next, N * 4);
  LocalTensor<float> x = buffer.Get<float>();
  if (fault == 1) pipe.InitBuffer(next, 192 * 1024);  // finds bounds 1 CAPACITY
  if (fault == 2) DataCopy(x, floats(in), N + 8);  // finds bounds 2 OOB
  if (fault == 3) DataCopy(x[4 * N], floats(in), N);  // finds bounds 3 OOB
  if (fault == 4) DataCopy(x, floats(in)[4096 - 8], 16);  // finds bounds 4 GM-OOB
  if (fault == 5) DataCopy(x, floats(nullptr), N);  // finds bounds 5 GM-OOB
  if (fault == 6) DataCopy(x[4], floats(in), N - 8);  // finds bounds 6 ALIGN
  if (fault == 7) x.SetValue(N, 1.0f);  // finds bounds 7 OOB
  if (fault == 8) pipe.InitBuffer(next, 0);  // finds bounds 8 PARAM
  if (fault == 9) DataCopy(floats(in), x, N);  // finds bounds 9 UNINIT
  DataCopy(x, floats(in), N);
  SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
  if (fault == 10) DataCopy(floats(in), x, N);  // finds bounds 10 PARAM
  DataCopy(floats(out)[GetBlockIdx() * N], x, N);
}

// A kernel that places its tensors without TPipe.
CHECK_KERNEL(placed) {
  (void)work;
  LocalTensor<float> x(TPosition::VECIN, 1024, N);
  if (fault == 1) LocalTensor<float>(TPosition::VECIN, 191 * 1024, N);  // finds placed 1 CAPACITY
  DataCopy(x, floats(in), N);
  SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
  if (fault == 2) DataCopy(floats(out), x, 64 * 1024);  // finds placed 2 OOB
  DataCopy(floats(out)[GetBlockIdx() * N], x, N);
}

CHECK_KERNEL(content) {
  TPipe pipe;
  TBuf<> buffer, result;
  pipe.InitBuffer(buffer, 2 * N * 4);
  pipe.InitBuffer(result, N * 4);
  LocalTensor<float> x = buffer.Get<float>(), y = result.Get<float>();
  const uint32_t first = GetBlockIdx() * N;
  DataCopy(x, floats(in), N);
  if (fault == 1) DataCopy(x[N], floats(work)[first], N);  // finds content 1 UNINIT
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
  if (fault == 2) Adds(y, x[8], 1.0f, N);  // finds content 2 UNINIT
  if (fault == 3) Adds(x[4], x, 1.0f, 128);  // finds content 3 ALIGN
  if (fault == 4) Adds(x[8], x, 1.0f, 128);  // finds content 4 OVERLAP
  PipeBarrier<PIPE_V>();
  Adds(y, x, 1.0f, N);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  if (fault == 5) DataCopy(floats(work)[first], y, N - 1);  // finds content 5 ALIGN
  DataCopy(floats(out)[first], y, N);
}

// What the emulator lacks, and types that an instruction does not take.
CHECK_KERNEL(refused) {
  (void)in, (void)out, (void)work;
  LocalTensor<int32_t> x(TPosition::VECIN, 0, 64);
  LocalTensor<uint8_t> bits(TPosition::VECIN, 512, 32);
  Duplicate(x, 1, 64);
  PipeBarrier<PIPE_V>();
  if (fault == 1) CompareScalar(bits, x, 1, CMPMODE::LT, 64);  // finds refused 1 DTYPE
}

// Outputs of four bytes that lie in one unit of 32 bytes do not touch each other.
CHECK_KERNEL(neighbours) {
  (void)in, (void)work;
  TPipe pipe;
  TBuf<> buffer;
  pipe.InitBuffer(buffer, 32);
  LocalTensor<float> x = buffer.Get<float>();
  Duplicate(x, float(GetBlockIdx()), 8);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  const DataCopyExtParams one{1, 4, 0, 0, 0};
  const uint32_t at = fault == 1 ? 0 : GetBlockIdx();
  DataCopyPad(floats(out)[at], x, one);  // finds neighbours 1 GM-RACE
}
