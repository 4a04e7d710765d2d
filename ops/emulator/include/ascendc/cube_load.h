// LoadData, LoadDataWithTranspose and InitConstValue: operands of Mmad.
//
// L1 holds matrices in NZ [columns / C0][rows][C0]. L0A wants ZZ [m / 16][k / C0][16][C0], L0B
// wants ZN [k / C0][n / 16][16][C0 of k]. C0 is 32 bytes, a fractal 512 bytes.
#pragma once

#include "ascendc/tensor.h"
#include "emu/move.h"

namespace AscendC {

// Fractal i comes from startIndex + i * srcStride (minus with addrMode 1) and goes to
// i * (dstGap + 1), in fractals.
struct LoadData2DParams {
  uint16_t startIndex = 0;
  uint8_t repeatTimes = 0;
  uint16_t srcStride = 0;
  uint8_t sid = 0;
  uint16_t dstGap = 0;
  bool ifTranspose = false;  // inside a fractal of a 16-bit type
  uint8_t addrMode = 0;

  LoadData2DParams() = default;
  LoadData2DParams(uint16_t start, uint8_t repeat, uint16_t src_stride, uint8_t reserved,
                   uint16_t dst_gap, bool transpose, uint8_t mode)
      : startIndex(start),
        repeatTimes(repeat),
        srcStride(src_stride),
        sid(reserved),
        dstGap(dst_gap),
        ifTranspose(transpose),
        addrMode(mode) {}
};

// startIndex and srcStride count squares: 16 x 16 of 16 bits (one fractal), 32 x 32 of 8 bits (two,
// one below the other), 16 x 16 of 32 bits (two, side by side), 64 x 64 of int4b_t (four, one below
// the other). The transposed square is written as as many fractals of 16 rows, dstFracGap apart;
// iterations start dstGap + 1 fractals apart.
struct LoadData2dTransposeParams {
  uint16_t startIndex = 0;
  uint8_t repeatTimes = 0;
  uint16_t srcStride = 0;
  uint16_t dstGap = 0;
  uint16_t dstFracGap = 0;
  uint8_t addrMode = 0;

  LoadData2dTransposeParams() = default;
  LoadData2dTransposeParams(uint16_t start, uint8_t repeat, uint16_t src_stride, uint16_t dst_gap,
                            uint16_t fractal_gap, uint8_t mode = 0)
      : startIndex(start),
        repeatTimes(repeat),
        srcStride(src_stride),
        dstGap(dst_gap),
        dstFracGap(fractal_gap),
        addrMode(mode) {}
};

// With a filter of 1 x 1: the matrix in L1 has l1H * l1W rows and channelSize columns.
template <class T>
struct LoadData3DParamsV2 {
  uint8_t padList[4] = {};
  uint16_t l1H = 0, l1W = 0;
  uint16_t channelSize = 0;
  uint16_t kExtension = 0, mExtension = 0;
  uint16_t kStartPt = 0, mStartPt = 0;
  uint8_t strideW = 1, strideH = 1;
  uint8_t filterW = 1, filterH = 1;
  uint8_t dilationFilterW = 1, dilationFilterH = 1;
  bool enTranspose = false;
  bool enSmallK = false;
  T padValue{};
  bool filterSizeW = false, filterSizeH = false;
  bool fMatrixCtrl = false;

  LoadData3DParamsV2() = default;
  LoadData3DParamsV2(const uint8_t pads[4], uint16_t h, uint16_t w, uint16_t channels,
                     uint16_t k_ext, uint16_t m_ext, uint16_t k_start, uint16_t m_start,
                     uint8_t stride_w, uint8_t stride_h, uint8_t filter_w, uint8_t filter_h,
                     uint8_t dilation_w, uint8_t dilation_h, bool transpose, bool small_k,
                     T pad_value)
      : l1H(h),
        l1W(w),
        channelSize(channels),
        kExtension(k_ext),
        mExtension(m_ext),
        kStartPt(k_start),
        mStartPt(m_start),
        strideW(stride_w),
        strideH(stride_h),
        filterW(filter_w),
        filterH(filter_h),
        dilationFilterW(dilation_w),
        dilationFilterH(dilation_h),
        enTranspose(transpose),
        enSmallK(small_k),
        padValue(pad_value) {
    for (int i = 0; i < 4; i++) padList[i] = pads[i];
  }
};

template <class T>
struct InitConstValueParams {
  uint16_t repeatTimes = 0;
  uint16_t blockNum = 0;  // 32 bytes in L1, 512 in L0A and L0B
  uint16_t dstGap = 0;    // in the same units
  T initValue{};

  InitConstValueParams() = default;
  InitConstValueParams(uint16_t repeat, uint16_t blocks, uint16_t gap, T value)
      : repeatTimes(repeat), blockNum(blocks), dstGap(gap), initValue(value) {}
};

// L1 to L0A or L0B (MTE1), GM to L1, L0A or L0B (MTE2).
template <class T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParams& params,
              emu::At at = emu::At::current()) {
  emu::load_2d(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(),
               {params.startIndex, params.repeatTimes, params.srcStride, params.dstGap, 0,
                params.ifTranspose, params.addrMode == 1},
               at);
}
template <class T>
void LoadData(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const LoadData2DParams& params,
              emu::At at = emu::At::current()) {
  emu::load_2d(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(),
               {params.startIndex, params.repeatTimes, params.srcStride, params.dstGap, 0,
                params.ifTranspose, params.addrMode == 1},
               at);
}

template <class T>
void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                           const LoadData2dTransposeParams& params,
                           emu::At at = emu::At::current()) {
  emu::load_transposed(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(),
                       {params.startIndex, params.repeatTimes, params.srcStride, params.dstGap,
                        params.dstFracGap, true, params.addrMode == 1},
                       at);
}

// A tile of a matrix: to L0A as it is, or transposed with enTranspose (16 and 32 bits); to L0B as
// Mmad's B [k][n], which takes no 8-bit types. mStartPt is a multiple of 16, kStartPt of C0. A tile
// ends inside the matrix; what its last fractals hold beyond it is undefined, NaN or 0xA5 here.
template <class T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src,
              const LoadData3DParamsV2<T>& params, emu::At at = emu::At::current()) {
  const auto& pads = params.padList;
  const bool plain = params.filterW == 1 && params.filterH == 1 && !params.filterSizeW &&
                     !params.filterSizeH && params.strideW == 1 && params.strideH == 1 &&
                     params.dilationFilterW == 1 && params.dilationFilterH == 1 &&
                     !params.enSmallK && !params.fMatrixCtrl && !pads[0] && !pads[1] && !pads[2] &&
                     !pads[3];
  emu::load_3d(dst.range(0, 0), src.range(0, 0), emu::number_of<T>(),
               {uint32_t(params.l1H) * params.l1W, params.channelSize, params.mStartPt,
                params.kStartPt, params.mExtension, params.kExtension, params.enTranspose, plain},
               at);
}

// L1 (MTE2), L0A or L0B (MTE1).
template <class T>
void InitConstValue(const LocalTensor<T>& dst, const InitConstValueParams<T>& params,
                    emu::At at = emu::At::current()) {
  uint64_t value = 0;
  __builtin_memcpy(&value, &params.initValue, sizeof(T));
  emu::fill(dst.range(0, 0), emu::number_of<T>(),
            {params.repeatTimes, params.blockNum, params.dstGap, value}, at);
}

}  // namespace AscendC
