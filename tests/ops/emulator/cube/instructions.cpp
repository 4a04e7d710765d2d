// One data movement, Mmad or Fixpipe per launch, on images of the memories that it touches.
#include "kernel_operator.h"

using namespace AscendC;

struct Image {  // of a local memory at address 0, or a place in GM
  int32_t position;
  int32_t bytes;
  int32_t address;  // of the tensor
  int32_t reserved;
};

struct Call {
  int32_t op, type, other_type, config;
  Image src, second, third, dst;
  int32_t p[20];
  uint64_t q;
};

enum Op {
  COUNT,
  BLOCKS,
  PAD_IN,
  PAD_OUT,
  NZ,
  LOAD_2D,
  LOAD_TRANSPOSED,
  LOAD_3D,
  FILL,
  MMAD,
  MMAD_BIAS,
  FIX,
  FIX_VECTOR,
  CO12,
  CO12_VECTOR,
  OLD_PAD_IN,
  OLD_PAD_OUT
};

struct Memory {
  const Image& image;
  uint8_t* gm;

  bool global() const { return image.position == int(TPosition::GM); }
  uint8_t* host() const {
    return reinterpret_cast<uint8_t*>(emu::local(emu::memory_of(TPosition(image.position))));
  }
  void poke() const {
    if (!global() && image.bytes) __builtin_memcpy(host(), gm, image.bytes);
  }
  void peek() const {
    if (!global() && image.bytes) __builtin_memcpy(gm, host(), image.bytes);
  }
  template <class T>
  LocalTensor<T> local() const {
    return LocalTensor<T>::at(TPosition(image.position), image.address,
                              image.bytes - image.address);
  }
  template <class T>
  GlobalTensor<T> wide() const {
    GlobalTensor<T> tensor;
    tensor.SetGlobalBuffer(reinterpret_cast<T*>(gm + image.address));
    return tensor;
  }
};

struct Case {
  const Call& call;
  Memory src, second, third, dst;

  template <class T>
  T value() const {
    T value;
    __builtin_memcpy(static_cast<void*>(&value), &call.q, sizeof value);
    return value;
  }

  template <class T>
  void count() const {
    if (src.global()) DataCopy(dst.local<T>(), src.wide<T>(), uint32_t(call.p[0]));
    else if (dst.global()) DataCopy(dst.wide<T>(), src.local<T>(), uint32_t(call.p[0]));
    else DataCopy(dst.local<T>(), src.local<T>(), uint32_t(call.p[0]));
  }
  template <class T, class U>
  void blocks() const {
    const auto& p = call.p;
    const DataCopyParams params(p[0], p[1], p[2], p[3]);
    if constexpr (std::is_same_v<T, U>) {
      if (src.global()) return DataCopy(dst.local<T>(), src.wide<T>(), params);
      if (dst.global()) return DataCopy(dst.wide<T>(), src.local<T>(), params);
    }
    DataCopy(dst.local<T>(), src.local<U>(), params);
  }
  template <class T>
  void pad() const {
    const auto& p = call.p;
    const DataCopyExtParams params(p[0], p[1], p[2], p[3], 0);
    const DataCopyParams old(p[0], p[1], p[2], p[3]);
    if (call.op == PAD_IN)
      DataCopyPad(dst.local<T>(), src.wide<T>(), params,
                  DataCopyPadExtParams<T>(p[4], p[5], p[6], value<T>()));
    if (call.op == OLD_PAD_IN)
      DataCopyPad(dst.local<T>(), src.wide<T>(), old, DataCopyPadParams(p[4], p[5], p[6], call.q));
    if (call.op == PAD_OUT) DataCopyPad(dst.wide<T>(), src.local<T>(), params);
    if (call.op == OLD_PAD_OUT) DataCopyPad(dst.wide<T>(), src.local<T>(), old);
  }
  template <class T>
  void load() const {
    const auto& p = call.p;
    if (call.op == NZ)
      DataCopy(dst.local<T>(), src.wide<T>(),
               Nd2NzParams(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]));
    if (call.op == LOAD_2D) {
      const LoadData2DParams params(p[0], p[1], p[2], 0, p[3], p[4], p[5]);
      if (src.global()) LoadData(dst.local<T>(), src.wide<T>(), params);
      else LoadData(dst.local<T>(), src.local<T>(), params);
    }
    if (call.op == LOAD_TRANSPOSED)
      LoadDataWithTranspose(dst.local<T>(), src.local<T>(),
                            LoadData2dTransposeParams(p[0], p[1], p[2], p[3], p[4], p[5]));
    if (call.op == LOAD_3D) {
      LoadData3DParamsV2<T> params;
      params.l1H = p[0];
      params.l1W = p[1];
      params.channelSize = p[2];
      params.kExtension = p[3];
      params.mExtension = p[4];
      params.kStartPt = p[5];
      params.mStartPt = p[6];
      params.enTranspose = p[7];
      params.filterW = p[8];
      LoadData(dst.local<T>(), src.local<T>(), params);
    }
    if (call.op == FILL)
      InitConstValue(dst.local<T>(), InitConstValueParams<T>(p[0], p[1], p[2], value<T>()));
  }
  template <class T, class U>
  void mmad() const {
    const auto& p = call.p;
    MmadParams params(p[0], p[1], p[2], p[3], p[4], p[5]);
    params.kDirectionAlign = p[6];
    const auto c = dst.local<T>();
    if (call.op == MMAD) Mmad(c, src.local<U>(), second.local<U>(), params);
    else Mmad(c, src.local<U>(), second.local<U>(), third.local<T>(), params);
  }
  template <class T, class U>
  void fixpipe() const {
    call.config ? fixpipe_as<T, U, CFG_ROW_MAJOR>() : fixpipe_as<T, U, CFG_NZ>();
  }
  template <class T, class U, const FixpipeConfig& config>
  void fixpipe_as() const {
    const auto& p = call.p;
    const auto mode = QuantMode_t(p[4]);
    if (call.op == CO12 || call.op == CO12_VECTOR) {
      SetFixpipeNz2ndFlag(p[5], p[6], p[7]);
      SetFixpipePreQuantFlag(call.q);
      if (call.op == CO12_VECTOR) {
        const auto table = LocalTensor<uint64_t>::at(TPosition::C2PIPE2GM, 0, 2048);
        DataCopy(table, second.local<uint64_t>(), DataCopyParams(1, (p[0] + 15) / 16, 0, 0));
        SetFixPipeConfig(table);
        PipeBarrier<PIPE_FIX>();
      }
      const DataCopyCO12DstParams params(p[0], p[1], p[3], p[2], mode, p[8], p[10], call.config);
      if (dst.global()) DataCopy(dst.wide<T>(), src.local<U>(), params);
      else DataCopy(dst.local<T>(), src.local<U>(), params);
      return;
    }
    FixpipeParamsV220 params(p[0], p[1], p[2], p[3], p[8], mode, call.q, p[5], p[6], p[7]);
    params.unitFlag = p[9];
    params.isChannelSplit = p[10];
    const auto from = src.local<U>();
    if (call.op == FIX && dst.global()) Fixpipe<T, U, config>(dst.wide<T>(), from, params);
    else if (call.op == FIX) Fixpipe<T, U, config>(dst.local<T>(), from, params);
    else if (dst.global())
      Fixpipe<T, U, config>(dst.wide<T>(), from, second.local<uint64_t>(), params);
    else Fixpipe<T, U, config>(dst.local<T>(), from, second.local<uint64_t>(), params);
  }

  template <class T>
  void move() const {
    if (call.op == COUNT) count<T>();
    else if (call.op == BLOCKS) blocks<T, T>();
    else if (call.op == PAD_IN || call.op == PAD_OUT || call.op >= OLD_PAD_IN) pad<T>();
    else load<T>();
  }
  void move_any() const {
    if (call.type == 0) return move<int8_t>();
    if (call.type == 1) return move<half>();
    if (call.type == 2) return move<bfloat16_t>();
    if (call.type == 3) return move<float>();
    if (call.type == 4) return move<int32_t>();
    if (call.op == LOAD_TRANSPOSED)
      return LoadDataWithTranspose(dst.local<int4b_t>(), src.local<int4b_t>(),
                                   LoadData2dTransposeParams(call.p[0], call.p[1], call.p[2],
                                                             call.p[3], call.p[4], call.p[5]));
  }
  // `type` is the result's, `other_type` the operands'.
  void run() const {
    const int pair = call.type * 10 + call.other_type;
    if (call.op == MMAD || call.op == MMAD_BIAS) {
      if (pair == 40) mmad<int32_t, int8_t>();
      else if (pair == 45) mmad<int32_t, int4b_t>();
      else if (pair == 31) mmad<float, half>();
      else if (pair == 32) mmad<float, bfloat16_t>();
      else if (pair == 33) mmad<float, float>();
      else mmad<float, int8_t>();
    } else if (call.op == FIX || call.op == FIX_VECTOR || call.op == CO12 ||
               call.op == CO12_VECTOR) {
      if (pair == 3) fixpipe<int8_t, float>();
      else if (pair == 4) fixpipe<int8_t, int32_t>();
      else if (pair == 63) fixpipe<uint8_t, float>();
      else if (pair == 64) fixpipe<uint8_t, int32_t>();
      else if (pair == 13) fixpipe<half, float>();
      else if (pair == 14) fixpipe<half, int32_t>();
      else if (pair == 23) fixpipe<bfloat16_t, float>();
      else if (pair == 33) fixpipe<float, float>();
      else if (pair == 34) fixpipe<float, int32_t>();
      else fixpipe<int32_t, int32_t>();
    } else if (call.op == BLOCKS && pair == 31) {
      blocks<float, half>();
    } else if (call.op == BLOCKS && pair == 32) {
      blocks<float, bfloat16_t>();
    } else {
      move_any();
    }
  }
};

// Buffers of an image that is in GM are used where they are.
extern "C" __global__ __aicore__ void one_instruction(GM_ADDR src, GM_ADDR second, GM_ADDR third,
                                                      GM_ADDR dst, Call call) {
  const Case one{
      call, {call.src, src}, {call.second, second}, {call.third, third}, {call.dst, dst}};
  one.src.poke();
  one.second.poke();
  one.third.poke();
  one.dst.poke();
  if (call.p[19] == 1) SetAtomicAdd<half>();
  if (call.p[19] == 2) SetAtomicAdd<bfloat16_t>();
  if (call.p[19] == 3) SetAtomicAdd<float>();
  if (call.p[19] == 4) SetAtomicAdd<int32_t>();
  if (call.p[19] == 5) SetAtomicAdd<int8_t>();
  one.run();
  SetAtomicNone();
  one.dst.peek();
}
