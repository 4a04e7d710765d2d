// Scalar access to GM, atomic additions.
#include "common.h"

// Core 0 writes with its scalar pipe, the other cores read after everybody waited.
CHECK_KERNEL(scalar_cache) {
  (void)in, (void)out;
  GlobalTensor<float> shared = floats(work);
  if (GetBlockIdx() == 0) {
    for (uint32_t i = 0; i < 16; ++i) shared.SetValue(i, 1.0f);  // finds scalar_cache 1 STALE
    if (fault != 1) DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE>(shared);
  }
  if (fault == 1) return;
  SetFlag<HardEvent::S_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::S_MTE3>(EVENT_ID0);
  SyncAll();
  if (GetBlockIdx() != 0) {
    assert(shared.GetValue(3) == 1.0f);
  }
  SyncAll();
  if (GetBlockIdx() == 0) {
    shared.SetValue(3, 2.0f);
    DataCacheCleanAndInvalid<float, CacheLine::ENTIRE_DATA_CACHE>(shared);
  }
  SyncAll();
  if (fault != 2) DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE>(shared);
  const float seen = shared.GetValue(3);  // finds scalar_cache 2 STALE
  assert(seen == (fault == 2 && GetBlockIdx() != 0 ? 1.0f : 2.0f));
  // Others' bytes of the line may change without harm.
  assert(shared.GetValue(4) == 1.0f);
  if (fault == 3) shared.GetValue(20);  // finds scalar_cache 3 UNINIT
  if (fault == 4) shared.SetValue(4096, 0.0f);  // finds scalar_cache 4 GM-OOB
  if (fault == 5) {
    GlobalTensor<float> odd;
    odd.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(work + 2));
    odd.GetValue(0);  // finds scalar_cache 5 ALIGN
  }
}

// What the scalar pipe stored is not in GM until its line is written back.
CHECK_KERNEL(scalar_and_copy) {
  (void)in, (void)out;
  TPipe pipe;
  TBuf<> buffer;
  pipe.InitBuffer(buffer, 64);
  LocalTensor<float> x = buffer.Get<float>();
  GlobalTensor<float> own = floats(work)[GetBlockIdx() * 16];
  for (uint32_t i = 0; i < 16; ++i) own.SetValue(i, 1.0f);
  if (fault != 1) DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE>(own);
  SetFlag<HardEvent::S_MTE2>(EVENT_ID0);
  WaitFlag<HardEvent::S_MTE2>(EVENT_ID0);
  DataCopy(x, own, 16);  // finds scalar_and_copy 1 STALE
  if (fault == 1) DataCacheCleanAndInvalid<float, CacheLine::SINGLE_CACHE_LINE>(own);
}

// Sums of all cores in one row.
CHECK_KERNEL(atomics) {
  (void)work;
  TPipe pipe;
  TBuf<> buffer;
  pipe.InitBuffer(buffer, N * 4);
  LocalTensor<float> x = buffer.Get<float>();
  if (GetBlockIdx() == 0) {
    Duplicate(x, 0.0f, N);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    if (fault != 1) DataCopy(floats(out), x, N);
    SetFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
  }
  if (fault != 2) SyncAll();
  DataCopy(x, floats(in), N);
  SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
  if (fault != 3) SetAtomicAdd<float>();
  DataCopy(floats(out), x, N);  // finds atomics 1 UNINIT
  SetAtomicNone();
  if (fault == 4 && GetBlockIdx() == 1) {
    SetFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
    DataCopy(x, floats(out), N);  // finds atomics 4 GM-RACE
  }
}
