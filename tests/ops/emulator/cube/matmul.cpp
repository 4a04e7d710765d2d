// A whole matmul on one core with explicit events, and short kernels on the order of M and FIX.
#include "kernel_operator.h"

using namespace AscendC;

struct Sizes {
  int32_t m, n, k, tile_k;
  int32_t unit_flag;  // 1: instead of M_FIX and FIX_M
  int32_t tiles;      // repetitions of the product
  int32_t atomic;     // 1: results are added in GM
};

template <class T>
constexpr uint32_t C0 = 32 / sizeof(T);

template <class T>
LocalTensor<T> tensor(TPosition position, uint32_t address) {
  return LocalTensor<T>::at(position, address, 65536);
}

// A [m][k], B [n][k] or [k][n] of T in rows; C [m][n] of R.
template <class T, class R, bool TRANSPOSED>
class Matmul {
 public:
  Matmul(GM_ADDR a, GM_ADDR b, GM_ADDR c, const Sizes& sizes) : s_(sizes) {
    a_.SetGlobalBuffer(reinterpret_cast<T*>(a));
    b_.SetGlobalBuffer(reinterpret_cast<T*>(b));
    c_.SetGlobalBuffer(reinterpret_cast<R*>(c));
  }

  void run() {
    load();
    SetFlag<HardEvent::FIX_M>(0);
    SetFlag<HardEvent::M_MTE1>(0);
    for (int tile = 0; tile < s_.tiles; tile++) {
      if (!s_.unit_flag) WaitFlag<HardEvent::FIX_M>(0);
      for (int k = 0; k < s_.k; k += s_.tile_k) product(k);
      if (!s_.unit_flag) {
        SetFlag<HardEvent::M_FIX>(0);
        WaitFlag<HardEvent::M_FIX>(0);
      }
      store();
      if (!s_.unit_flag) SetFlag<HardEvent::FIX_M>(0);
    }
    WaitFlag<HardEvent::FIX_M>(0);
    WaitFlag<HardEvent::M_MTE1>(0);
  }

 private:
  int rows_b() const { return TRANSPOSED ? s_.k : s_.n; }
  int columns_b() const { return TRANSPOSED ? s_.n : s_.k; }
  static int up(int value) { return (value + 15) / 16 * 16; }

  void load() {
    const int m16 = up(s_.m), b16 = up(rows_b());
    DataCopy(l1_a_, a_, Nd2NzParams(1, s_.m, s_.k, 0, s_.k, m16, 1, 0));
    DataCopy(l1_b_, b_, Nd2NzParams(1, rows_b(), columns_b(), 0, columns_b(), b16, 1, 0));
    SetFlag<HardEvent::MTE2_MTE1>(0);
    WaitFlag<HardEvent::MTE2_MTE1>(0);
  }

  void product(int k) {
    WaitFlag<HardEvent::M_MTE1>(0);
    LoadData3DParamsV2<T> tile;
    tile.l1H = 1;
    tile.l1W = up(s_.m);
    tile.channelSize = s_.k;
    tile.mExtension = s_.m;
    tile.kExtension = s_.tile_k;
    tile.kStartPt = k;
    LoadData(l0_a_, l1_a_, tile);
    if constexpr (TRANSPOSED) {
      tile.l1W = up(s_.k);
      tile.channelSize = s_.n;
      tile.mExtension = s_.tile_k;
      tile.mStartPt = k;
      tile.kExtension = s_.n;
      tile.kStartPt = 0;
      LoadData(l0_b_, l1_b_, tile);
    } else {
      const int blocks = s_.tile_k / C0<T> * (up(s_.n) / 16);
      LoadData(l0_b_, l1_b_,
               LoadData2DParams(k / C0<T> * (up(s_.n) / 16), blocks, 1, 0, 0, false, 0));
    }
    SetFlag<HardEvent::MTE1_M>(0);
    WaitFlag<HardEvent::MTE1_M>(0);
    const bool last = k + s_.tile_k >= s_.k;
    const uint8_t flag = s_.unit_flag ? last ? 3 : 2 : 0;
    Mmad(l0_c_, l0_a_, l0_b_, MmadParams(s_.m, s_.n, s_.tile_k, flag, false, k == 0));
    PipeBarrier<PIPE_M>();
    SetFlag<HardEvent::M_MTE1>(0);
  }

  void store() {
    FixpipeParamsV220 out(s_.n, s_.m, up(s_.m), s_.n, false);
    out.unitFlag = s_.unit_flag ? 3 : 0;
    if (s_.atomic) SetAtomicAdd<R>();
    Fixpipe(c_, l0_c_, out);
    if (s_.atomic) SetAtomicNone();
    PipeBarrier<PIPE_FIX>();
  }

  const Sizes& s_;
  GlobalTensor<T> a_, b_;
  GlobalTensor<R> c_;
  LocalTensor<T> l1_a_ = tensor<T>(TPosition::A1, 0), l1_b_ = tensor<T>(TPosition::B1, 131072);
  LocalTensor<T> l0_a_ = tensor<T>(TPosition::A2, 0), l0_b_ = tensor<T>(TPosition::B2, 0);
  LocalTensor<R> l0_c_ = tensor<R>(TPosition::CO1, 0);
};

template <class T, class R, bool TRANSPOSED>
__global__ __aicore__ void matmul(GM_ADDR a, GM_ADDR b, GM_ADDR c, Sizes sizes) {
  Matmul<T, R, TRANSPOSED>(a, b, c, sizes).run();
}

// Products and results of one fractal in L0C with the unitFlags that `flags` names, two bits each,
// from the lowest: Mmad, Fixpipe, Mmad, Fixpipe; 1 leaves the instruction out.
extern "C" __global__ __aicore__ void unit_flags(GM_ADDR c, int32_t flags) {
  const auto a = tensor<half>(TPosition::A2, 0), b = tensor<half>(TPosition::B2, 0);
  const auto sum = tensor<float>(TPosition::CO1, 0);
  GlobalTensor<float> out;
  out.SetGlobalBuffer(reinterpret_cast<float*>(c));
  InitConstValue(a, InitConstValueParams<half>(1, 1, 0, half(1)));
  InitConstValue(b, InitConstValueParams<half>(1, 1, 0, half(2)));
  SetFlag<HardEvent::MTE1_M>(0);
  WaitFlag<HardEvent::MTE1_M>(0);
  for (int i = 0; i < 4; i++, flags >>= 2) {
    const uint8_t flag = flags & 3;
    if (flag == 1) continue;
    FixpipeParamsV220 params(16, 16, 16, 16, false);
    params.unitFlag = flag;
    if (i % 2 == 0) {
      Mmad(sum, a, b, MmadParams(16, 16, 16, flag, false, i == 0));
      PipeBarrier<PIPE_M>();
    } else {
      Fixpipe(out, sum, params);
      PipeBarrier<PIPE_FIX>();
    }
  }
}

// Two products of [m][16] by [16][n] that accumulate, with a barrier between them or without.
extern "C" __global__ __aicore__ void two_products(int32_t m, int32_t n, int32_t barrier) {
  const auto a = tensor<half>(TPosition::A2, 0), b = tensor<half>(TPosition::B2, 0);
  const auto sum = tensor<float>(TPosition::CO1, 0);
  InitConstValue(a, InitConstValueParams<half>(1, m / 16, 0, half(1)));
  InitConstValue(b, InitConstValueParams<half>(1, n / 16, 0, half(2)));
  SetFlag<HardEvent::MTE1_M>(0);
  WaitFlag<HardEvent::MTE1_M>(0);
  Mmad(sum, a, b, MmadParams(m, n, 16, 0, false, true));
  if (barrier) PipeBarrier<PIPE_M>();
  Mmad(sum, a, b, MmadParams(m, n, 16, 0, false, false));
}
