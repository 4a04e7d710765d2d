// Fixpipe, and DataCopy from L0C: results of Mmad to GM or L1, converted on the way.
//
// quantPre: NoQuant keeps float and int32_t (GM alone); F322F16 and F322BF16 round to nearest even,
// overflow gives infinity; DEQF16 and VDEQF16 are half(float(int32) * scale); QF322B8_PRE, REQ8 and
// their V forms are saturated int8_t or uint8_t of rint(x * scale) + offset. ReLU comes first. A
// scale is a float without its low 13 bits; bits 45..37 of the parameter are a signed offset. The V
// forms take one parameter per column. Int32 and offsets come from public descriptions of the
// format, the order of float roundings is not published.
#pragma once

#include "ascendc/tensor.h"
#include "emu/cube.h"

// Numbers as the instruction set has them.
enum QuantMode_t {
  NoQuant = 0,
  F322F16 = 1,
  VREQ8 = 8,
  REQ8 = 9,
  VDEQF16 = 10,
  DEQF16 = 11,
  F322BF16 = 16,
  VQF322B8_PRE = 23,
  QF322B8_PRE = 24
};

namespace AscendC {

using ::QuantMode_t;

enum class CO2Layout : uint8_t { NZ = 0, ROW_MAJOR, COLUMN_MAJOR };
struct FixpipeConfig {
  CO2Layout format;
};
inline constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
inline constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};

struct FixpipeParamsV220 {
  uint16_t nSize = 16;  // NZ: a multiple of 16, of 8 with isChannelSplit, of 32 in 8 bits
  uint16_t mSize = 16;
  uint16_t srcStride = 16;  // rows of a column block in L0C, a multiple of 16
  uint32_t dstStride = 16;  // ROW_MAJOR: elements of a row; NZ: 32-byte units of a column block
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  uint16_t ndNum = 1;        // ROW_MAJOR: matrices
  uint16_t srcNdStride = 0;  // fractals of 1024 bytes
  uint16_t dstNdStride = 0;  // elements
  bool reluEn = false;
  uint8_t unitFlag = 0;         // 0, 2: keep, 3: flip; emu/cube.h has the protocol
  bool isChannelSplit = false;  // NZ, float: columns in groups of 8

  FixpipeParamsV220() = default;
  FixpipeParamsV220(uint16_t n, uint16_t m, uint16_t src_stride, uint32_t dst_stride, bool relu)
      : nSize(n), mSize(m), srcStride(src_stride), dstStride(dst_stride), reluEn(relu) {}
  FixpipeParamsV220(uint16_t n, uint16_t m, uint16_t src_stride, uint32_t dst_stride, bool relu,
                    QuantMode_t quant, uint64_t scalar, uint16_t nd, uint16_t src_nd,
                    uint16_t dst_nd)
      : nSize(n),
        mSize(m),
        srcStride(src_stride),
        dstStride(dst_stride),
        quantPre(quant),
        deqScalar(scalar),
        ndNum(nd),
        srcNdStride(src_nd),
        dstNdStride(dst_nd),
        reluEn(relu) {}
};

// Of DataCopy from L0C; quantisation and matrices come from the registers below.
struct DataCopyCO12DstParams {
  uint8_t sid = 0;
  uint16_t nSize = 0, mSize = 0;
  uint32_t dstStride = 0;
  uint16_t srcStride = 0;
  uint8_t unitFlag = 0, clipReluPre = 0, eltWiseOp = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint8_t reluPre = 0;  // 1: ReLU
  bool channelSplit = false;
  bool nz2ndEn = false;

  DataCopyCO12DstParams() = default;
  DataCopyCO12DstParams(uint16_t n, uint16_t m, uint32_t dst_stride, uint16_t src_stride,
                        QuantMode_t quant, uint8_t relu, bool split, bool nz2nd)
      : nSize(n),
        mSize(m),
        dstStride(dst_stride),
        srcStride(src_stride),
        quantPre(quant),
        reluPre(relu),
        channelSplit(split),
        nz2ndEn(nz2nd) {}
};

template <class T, class U, const FixpipeConfig& config>
emu::Fixpipe fixpipe_call(const FixpipeParamsV220& params) {
  static_assert(config.format != CO2Layout::COLUMN_MAJOR, "arch 2201 has no COLUMN_MAJOR");
  return {emu::number_of<T>(),
          emu::number_of<U>(),
          params.nSize,
          params.mSize,
          params.srcStride,
          params.dstStride,
          emu::quant_of(params.quantPre),
          params.deqScalar,
          params.ndNum,
          params.srcNdStride,
          params.dstNdStride,
          params.reluEn,
          params.isChannelSplit,
          config.format == CO2Layout::ROW_MAJOR,
          params.unitFlag};
}

template <class T, class U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& params,
             emu::At at = emu::At::current()) {
  emu::fixpipe("Fixpipe", dst.range(0, 0), src.range(0, 0), nullptr,
               fixpipe_call<T, U, config>(params), at);
}
template <class T, class U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& params,
             emu::At at = emu::At::current()) {
  emu::fixpipe("Fixpipe", dst.range(0, 0), src.range(0, 0), nullptr,
               fixpipe_call<T, U, config>(params), at);
}
// `scales`: nSize parameters in L1, for the V forms of quantPre.
template <class T, class U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
             const LocalTensor<uint64_t>& scales, const FixpipeParamsV220& params,
             emu::At at = emu::At::current()) {
  const emu::Range table = scales.range(0, 0);
  emu::fixpipe("Fixpipe", dst.range(0, 0), src.range(0, 0), &table,
               fixpipe_call<T, U, config>(params), at);
}
template <class T, class U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src,
             const LocalTensor<uint64_t>& scales, const FixpipeParamsV220& params,
             emu::At at = emu::At::current()) {
  const emu::Range table = scales.range(0, 0);
  emu::fixpipe("Fixpipe", dst.range(0, 0), src.range(0, 0), &table,
               fixpipe_call<T, U, config>(params), at);
}

// Registers of DataCopy from L0C.
inline void SetFixpipeNz2ndFlag(uint16_t ndNum, uint16_t srcNdStride, uint16_t dstNdStride,
                                emu::At at = emu::At::current()) {
  auto& registers = emu::set_fix_registers("SetFixpipeNz2ndFlag", at);
  registers.matrices = ndNum;
  registers.src_matrix = srcNdStride;
  registers.dst_matrix = dstNdStride;
}
inline void SetFixpipePreQuantFlag(uint64_t config, emu::At at = emu::At::current()) {
  emu::set_fix_registers("SetFixpipePreQuantFlag", at).scalar = config;
}
// Scales of the V forms, in the Fixpipe buffer.
template <class T, bool setRelu = false>
void SetFixPipeConfig(const LocalTensor<T>& quantPre, bool isUnitFlag = false,
                      emu::At at = emu::At::current()) {
  static_assert(!setRelu, "a table of negative slopes is not emulated");
  auto& registers = emu::set_fix_registers("SetFixPipeConfig", at);
  registers.unit_flag = isUnitFlag;
  registers.has_scales = true;
  registers.scales = quantPre.range(0, 0);
}

template <class T, class U>
emu::Fixpipe fixpipe_call(const DataCopyCO12DstParams& params) {
  return {emu::number_of<T>(),
          emu::number_of<U>(),
          params.nSize,
          params.mSize,
          params.srcStride,
          params.dstStride,
          emu::quant_of(params.quantPre),
          0,
          1,
          0,
          0,
          params.reluPre != 0,
          params.channelSplit,
          params.nz2ndEn,
          params.unitFlag};
}
template <class T, class U>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
              const DataCopyCO12DstParams& params, emu::At at = emu::At::current()) {
  emu::copy_from_l0c(dst.range(0, 0), src.range(0, 0), fixpipe_call<T, U>(params), at);
}
template <class T, class U>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<U>& src,
              const DataCopyCO12DstParams& params, emu::At at = emu::At::current()) {
  emu::copy_from_l0c(dst.range(0, 0), src.range(0, 0), fixpipe_call<T, U>(params), at);
}

}  // namespace AscendC
