// Order between the pipes of a core.
#include "common.h"

// in + 1 -> out in two tiles of one buffer; each synchronisation is left out in turn.
CHECK_KERNEL(order) {
  (void)work;
  TPipe pipe;
  TBuf<> x_buffer, y_buffer;
  pipe.InitBuffer(x_buffer, N * 4);
  pipe.InitBuffer(y_buffer, N * 4);
  LocalTensor<float> x = x_buffer.Get<float>(), y = y_buffer.Get<float>();
  for (uint32_t tile = 0; tile < 2; ++tile) {
    const uint32_t first = (2 * GetBlockIdx() + tile) * N;
    if (tile > 0 && fault != 1) {
      SetFlag<HardEvent::V_MTE2>(EVENT_ID1);
      WaitFlag<HardEvent::V_MTE2>(EVENT_ID1);
    }
    DataCopy(x, floats(in)[first], N);  // finds order 1 WAR
    if (fault == 2) DataCopy(x, floats(in)[first], N);  // finds order 2 WAW
    if (fault != 3) {
      SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
      WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
    }
    if (tile > 0 && fault != 4) {
      SetFlag<HardEvent::MTE3_V>(EVENT_ID0);
      WaitFlag<HardEvent::MTE3_V>(EVENT_ID0);
    }
    if (fault == 4) Duplicate(y, 0.0f, N);  // finds order 4 WAR
    PipeBarrier<PIPE_V>();
    Adds(y, x, 0.5f, N);  // finds order 3 RAW
    if (fault != 5) PipeBarrier<PIPE_V>();
    Adds(y, y, 0.5f, N);  // finds order 5 RAW
    if (fault != 6) {
      SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
      WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    }
    DataCopy(floats(out)[first], y, N);  // finds order 6 RAW
    if (fault == 7) DataCopy(floats(out)[first], y, N);  // finds order 7 WAW
    if (tile == 0) PipeBarrier<PIPE_MTE2>();
  }
}

// A value that the scalar pipe writes and reads, around one vector instruction.
CHECK_KERNEL(scalar_order) {
  (void)in, (void)work;
  TPipe pipe;
  TBuf<> buffer, sum_buffer;
  pipe.InitBuffer(buffer, 32);
  pipe.InitBuffer(sum_buffer, 32);
  LocalTensor<float> x = buffer.Get<float>(), sum = sum_buffer.Get<float>();
  for (uint32_t i = 0; i < 8; ++i) x.SetValue(i, float(i));
  if (fault != 1) {
    SetFlag<HardEvent::S_V>(EVENT_ID0);
    WaitFlag<HardEvent::S_V>(EVENT_ID0);
  }
  Adds(sum, x, 1.0f, 8);  // finds scalar_order 1 RAW
  if (fault != 2) {
    SetFlag<HardEvent::V_S>(EVENT_ID0);
    WaitFlag<HardEvent::V_S>(EVENT_ID0);
  }
  const float value = sum.GetValue(7);  // finds scalar_order 2 RAW
  if (fault == 3) Adds(sum, x, 2.0f, 8);
  sum.SetValue(0, value);  // finds scalar_order 3 WAW
  SetFlag<HardEvent::S_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::S_MTE3>(EVENT_ID0);
  DataCopy(floats(out)[GetBlockIdx() * 8], sum, 8);
}

// PIPE_ALL orders everything, also the scalar pipe.
CHECK_KERNEL(all_pipes) {
  (void)work;
  TPipe pipe;
  TBuf<> buffer;
  pipe.InitBuffer(buffer, N * 4);
  LocalTensor<float> x = buffer.Get<float>();
  DataCopy(x, floats(in), N);
  if (fault != 1) PipeBarrier<PIPE_ALL>();
  Adds(x, x, 1.0f, N);  // finds all_pipes 1 RAW
  PipeBarrier<PIPE_ALL>();
  x.SetValue(0, x.GetValue(1));
  PipeBarrier<PIPE_ALL>();
  DataCopy(floats(out)[GetBlockIdx() * N], x, N);
}

// Events that do not come in pairs.
CHECK_KERNEL(events) {
  (void)in, (void)out, (void)work;
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  if (fault == 1) SetFlag<HardEvent::MTE2_V>(EVENT_ID0);  // finds events 1 EVENT-PAIR
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
  if (fault == 2) WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);  // finds events 2 EVENT-PAIR
  if (fault == 3) WaitFlag<HardEvent::V_MTE2>(EVENT_ID3);  // finds events 3 EVENT-PAIR
  if (fault == 4) SetFlag<HardEvent::V_MTE3>(EVENT_ID1);  // finds events 4 EVENT-PAIR
  if (fault == 5) SetFlag<HardEvent::M_FIX>(EVENT_ID1);  // finds events 5 EVENT-PAIR
  if (fault == 6) SetFlag<HardEvent::V_MTE3>(8);  // finds events 6 EVENT-PAIR
  if (fault == 7) SetFlag<HardEvent::V_V>(EVENT_ID1);  // finds events 7 EVENT-PAIR
}

// Event ids that TPipe gives.
CHECK_KERNEL(event_ids) {
  (void)in, (void)out, (void)work;
  TPipe pipe;
  const TEventID id = pipe.AllocEventID<HardEvent::V_S>();
  const TEventID other = GetTPipePtr()->FetchEventID(HardEvent::V_S);
  assert(id != other);
  SetFlag<HardEvent::V_S>(id);
  WaitFlag<HardEvent::V_S>(id);
  pipe.ReleaseEventID<HardEvent::V_S>(id);
  if (fault == 1) pipe.ReleaseEventID<HardEvent::V_S>(id);  // finds event_ids 1 EVENT-PAIR
  if (fault == 2) {
    for (int i = 0; i < 8; ++i) pipe.AllocEventID<HardEvent::V_S>();
    pipe.AllocEventID<HardEvent::V_S>();  // finds event_ids 2 EVENT-PAIR
  }
}
