// z = a * x + y, in tiles of 256 elements, two buffers in turn for what comes in and what goes out.
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
  TQue<TPosition::VECIN, 1> in_queue;  // a tile of x, then one of y
  TQue<TPosition::VECOUT, 1> out_queue;
  pipe.InitBuffer(in_queue, 2, 2 * TILE * sizeof(float));
  pipe.InitBuffer(out_queue, 2, TILE * sizeof(float));
  GlobalTensor<float> x_rows, y_rows, z_rows;
  x_rows.SetGlobalBuffer((__gm__ float*)x);
  y_rows.SetGlobalBuffer((__gm__ float*)y);
  z_rows.SetGlobalBuffer((__gm__ float*)z);

  for (int32_t tile = 0; tile < sizes.tiles; ++tile) {
    const uint32_t first = (GetBlockIdx() * sizes.tiles + tile) * TILE;
    LocalTensor<float> in = in_queue.AllocTensor<float>();
    DataCopy(in, x_rows[first], TILE);
    DataCopy(in[TILE], y_rows[first], TILE);
    in_queue.EnQue(in);

    in = in_queue.DeQue<float>();
    LocalTensor<float> out = out_queue.AllocTensor<float>();
    Muls(out, in, sizes.a, TILE);
    PipeBarrier<PIPE_V>();
    Add(out, out, in[TILE], TILE);
    out_queue.EnQue(out);
    in_queue.FreeTensor(in);

    out = out_queue.DeQue<float>();
    DataCopy(z_rows[first], out, TILE);
    out_queue.FreeTensor(out);
  }
}
