// z = a * x + y, in tiles of 256 elements with two buffers for each of x, y and z.
#include "kernel_operator.h"

using namespace AscendC;

struct Sizes {
  int32_t tiles;  // of each block
  float a;
};

constexpr uint32_t TILE = 256;

extern "C" __global__ __aicore__ __vector__ void scale_add(GM_ADDR x, GM_ADDR y, GM_ADDR z,
                                                           Sizes sizes) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> x_queue, y_queue;
  TQue<TPosition::VECOUT, 1> z_queue;
  pipe.InitBuffer(x_queue, 2, TILE * sizeof(float));
  pipe.InitBuffer(y_queue, 2, TILE * sizeof(float));
  pipe.InitBuffer(z_queue, 2, TILE * sizeof(float));
  GlobalTensor<float> x_rows, y_rows, z_rows;
  x_rows.SetGlobalBuffer((__gm__ float*)x);
  y_rows.SetGlobalBuffer((__gm__ float*)y);
  z_rows.SetGlobalBuffer((__gm__ float*)z);

  for (int32_t tile = 0; tile < sizes.tiles; ++tile) {
    const uint32_t first = (GetBlockIdx() * sizes.tiles + tile) * TILE;
    LocalTensor<float> a = x_queue.AllocTensor<float>(), b = y_queue.AllocTensor<float>();
    DataCopy(a, x_rows[first], TILE);
    DataCopy(b, y_rows[first], TILE);
    x_queue.EnQue(a);
    y_queue.EnQue(b);

    a = x_queue.DeQue<float>();
    b = y_queue.DeQue<float>();
    LocalTensor<float> c = z_queue.AllocTensor<float>();
    Muls(c, a, sizes.a, TILE);
    PipeBarrier<PIPE_V>();
    Add(c, c, b, TILE);
    z_queue.EnQue(c);
    x_queue.FreeTensor(a);
    y_queue.FreeTensor(b);

    c = z_queue.DeQue<float>();
    DataCopy(z_rows[first], c, TILE);
    z_queue.FreeTensor(c);
  }
}
