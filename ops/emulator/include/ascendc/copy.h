// DataCopy and DataCopyPad between GM, UB, L1, the bias table and the Fixpipe buffer.
//
// Paths of arch 2201: GM to UB and L1 (MTE2), UB and L1 to GM (MTE3), UB to UB (V), L1 to the bias
// table (MTE1) and to the Fixpipe buffer (FIX). Others are UNSUPPORTED; from L0C see fixpipe.h.
// GM addresses are multiples of the element, UB and L1 of 32 bytes, BT and FB of 64 bytes. A count
// that is no whole number of units is an ALIGN finding and its rest is not copied.
#pragma once

#include "ascendc/copy_params.h"
#include "ascendc/tensor.h"
#include "emu/move.h"

namespace AscendC {

template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, uint32_t count,
              emu::At at = emu::At::current()) {
  emu::copy_count(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(), count, at);
}
template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count,
              emu::At at = emu::At::current()) {
  emu::copy_count(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(), count, at);
}
template <class T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count,
              emu::At at = emu::At::current()) {
  emu::copy_count(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(), count, at);
}

template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& params,
              emu::At at = emu::At::current()) {
  emu::copy_blocks(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(), emu::number_of<T>(),
                   {params.blockCount, params.blockLen, params.srcGap, params.dstGap}, at);
}
template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& params,
              emu::At at = emu::At::current()) {
  emu::copy_blocks(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(), emu::number_of<T>(),
                   {params.blockCount, params.blockLen, params.srcGap, params.dstGap}, at);
}
// T and U differ only where half or bfloat16_t become float on the way to the bias table.
template <class T, class U>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const DataCopyParams& params,
              emu::At at = emu::At::current()) {
  emu::copy_blocks(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(), emu::number_of<U>(),
                   {params.blockCount, params.blockLen, params.srcGap, params.dstGap}, at);
}

// Rows of GM to NZ in L1; the last column block is filled with zeros.
template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& params,
              emu::At at = emu::At::current()) {
  emu::copy_nz(
      dst.range(0, 0), src.range(0, 0), emu::number_of<T>(),
      {params.ndNum, params.nValue, params.dValue, params.srcNdMatrixStride, params.srcDValue,
       params.dstNzC0Stride, params.dstNzNStride, params.dstNzMatrixStride},
      at);
}

// GM to UB in bytes. A block and its paddings take whole units of UB. Without paddings the rest of
// the last unit repeats the block's first element. With paddings it is undefined, and so are
// paddings without isPad: NaN or 0xA5 here.
template <class T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                 const DataCopyExtParams& params, const DataCopyPadExtParams<T>& padding,
                 emu::At at = emu::At::current()) {
  uint64_t value = 0;
  __builtin_memcpy(&value, &padding.paddingValue, sizeof(T));
  emu::copy_pad_in(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(),
                   {params.blockCount, params.blockLen, params.srcStride, params.dstStride},
                   {padding.isPad, uint32_t(emu::bytes_of<T>(padding.leftPadding)),
                    uint32_t(emu::bytes_of<T>(padding.rightPadding)), value},
                   at);
}
template <class T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                 const DataCopyParams& params, const DataCopyPadParams& padding,
                 emu::At at = emu::At::current()) {
  emu::copy_pad_in(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(),
                   {params.blockCount, params.blockLen, params.srcGap, params.dstGap},
                   {padding.isPad, uint32_t(emu::bytes_of<T>(padding.leftPadding)),
                    uint32_t(emu::bytes_of<T>(padding.rightPadding)), padding.paddingValue},
                   at);
}

// UB to GM in bytes: each block starts at a unit of UB, and GM receives blockLen bytes of it.
template <class T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                 const DataCopyExtParams& params, emu::At at = emu::At::current()) {
  emu::copy_pad_out(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(),
                    {params.blockCount, params.blockLen, params.srcStride, params.dstStride}, at);
}
template <class T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                 const DataCopyParams& params, emu::At at = emu::At::current()) {
  emu::copy_pad_out(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(),
                    {params.blockCount, params.blockLen, params.srcGap, params.dstGap}, at);
}

}  // namespace AscendC
