// Queues and what they own.
#include "common.h"

CHECK_KERNEL(queues) {
  (void)work;
  TPipe pipe;
  TQue<TPosition::VECIN, 1> in_queue;
  TQue<TPosition::VECOUT, 1> out_queue;
  TQue<TPosition::VECIN, 1> unused;
  pipe.InitBuffer(in_queue, 2, N * 4);
  pipe.InitBuffer(out_queue, 2, N * 4);
  for (uint32_t tile = 0; tile < 4; ++tile) {
    const uint32_t first = (4 * GetBlockIdx() + tile) * N;
    LocalTensor<float> x = in_queue.AllocTensor<float>();
    DataCopy(x, floats(in)[first], N);
    if (fault == 1) out_queue.EnQue(x);  // finds queues 1 QUEUE
    in_queue.EnQue(x);
    if (fault == 2) in_queue.EnQue(x);  // finds queues 2 QUEUE
    if (fault == 3) {
      LocalTensor<float> second = in_queue.AllocTensor<float>();
      in_queue.EnQue(second);  // finds queues 3 QUEUE
    }
    if (fault == 4) {
      in_queue.AllocTensor<float>();
      in_queue.AllocTensor<float>();  // finds queues 4 QUEUE
    }
    if (fault == 5) in_queue.FreeTensor(x);  // finds queues 5 QUEUE
    x = in_queue.DeQue<float>();
    if (fault == 6) x = in_queue.DeQue<float>();  // finds queues 6 QUEUE
    LocalTensor<float> y = out_queue.AllocTensor<float>();
    Adds(y, x, 1.0f, N);
    out_queue.EnQue(y);
    in_queue.FreeTensor(x);
    if (fault == 7) in_queue.FreeTensor(x);  // finds queues 7 QUEUE
    y = out_queue.DeQue<float>();
    DataCopy(floats(out)[first], y, N);
    if (fault == 8) in_queue.FreeTensor(y);  // finds queues 8 QUEUE
    if (fault == 9) unused.AllocTensor<float>();  // finds queues 9 QUEUE
    out_queue.FreeTensor(y);
  }
  if (fault == 11) {
    pipe.Reset();
    in_queue.AllocTensor<float>();  // finds queues 11 QUEUE
  }
  if (fault == 10) {
    LocalTensor<float> left = in_queue.AllocTensor<float>();  // finds queues 10 LEAK
    left.SetValue(0, 1.0f);
  }
}

// EnQue without DeQue leaks, and a use without EnQue and DeQue is not ordered.
CHECK_KERNEL(queue_order) {
  (void)work;
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> through;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(through, 1, N * 4);
  pipe.InitBuffer(queue, 1, N * 4);
  for (uint32_t tile = 0; tile < 2; ++tile) {
    const uint32_t first = (2 * GetBlockIdx() + tile) * N;
    LocalTensor<float> x = through.AllocTensor<float>();
    DataCopy(x, floats(in)[first], N);
    if (fault != 1) {
      through.EnQue(x);
      x = through.DeQue<float>();
    }
    DataCopy(floats(out)[first], x, N);  // finds queue_order 1 RAW
    through.FreeTensor(x);
  }
  LocalTensor<float> x = queue.AllocTensor<float>();
  DataCopy(x, floats(in), N);
  queue.EnQue(x);  // finds queue_order 2 LEAK
  if (fault == 3) SetFlag<HardEvent::MTE2_V>(EVENT_ID0);  // finds queue_order 3 EVENT-PAIR
  if (fault == 2) return;
  x = queue.DeQue<float>();
  queue.FreeTensor(x);
  if (fault == 4) TPipe second;  // finds queue_order 4 PARAM
}

// A flag set by hand has an id that TPipe gives to a queue.
CHECK_KERNEL(queue_ids) {
  (void)work, (void)out;
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, N * 4);
  LocalTensor<float> x = queue.AllocTensor<float>();
  DataCopy(x, floats(in), N);
  const event_t id = fault == 1 ? EVENT_ID0 : EVENT_ID3;
  SetFlag<HardEvent::MTE2_V>(id);
  queue.EnQue(x);  // finds queue_ids 1 EVENT-PAIR
  WaitFlag<HardEvent::MTE2_V>(id);
  x = queue.DeQue<float>();
  queue.FreeTensor(x);
}
