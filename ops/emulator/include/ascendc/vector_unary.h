// Vector instructions of one operand, constants, index ramps, copies, broadcasts, and Transpose.
//
// Exp, Ln, Sqrt, Rsqrt and Reciprocal are IEEE here; on the NPU they may differ by some ulps, and
// Rsqrt and Reciprocal are approximations. Scatter does not exist on Atlas A2 and A3.
#pragma once

#include "ascendc/vector_params.h"

namespace AscendC {

#define EMU_UNARY(name, Types)                                                                   \
  template <emu::vec::Types T, bool isSetMask = true>                                            \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count,          \
            emu::At at = emu::At::current()) {                                                   \
    using namespace emu::vec;                                                                    \
    unary({#name, at}, Op::name, operand(dst), operand(src), {}, counted<isSetMask>(count));     \
  }                                                                                              \
  template <emu::vec::Types T, bool isSetMask = true, emu::vec::MaskArgument Mask>               \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, Mask mask, int64_t repeatTime, \
            const UnaryRepeatParams& params, emu::At at = emu::At::current()) {                  \
    using namespace emu::vec;                                                                    \
    unary({#name, at}, Op::name, operand(dst, params.dstBlkStride, params.dstRepStride),         \
          operand(src, params.srcBlkStride, params.srcRepStride), {},                            \
          lanes<isSetMask>(mask, repeatTime));                                                   \
  }
EMU_UNARY(Exp, Real)
EMU_UNARY(Ln, Real)
EMU_UNARY(Sqrt, Real)
EMU_UNARY(Rsqrt, Real)
EMU_UNARY(Reciprocal, Real)
EMU_UNARY(Abs, Real)
EMU_UNARY(Relu, Rectifiable)  // NaN stays NaN
EMU_UNARY(Not, Word)
#undef EMU_UNARY

// Block strides are of 16 bits, the repeat stride of 8.
template <emu::vec::Storable T>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count,
               emu::At at = emu::At::current()) {
  using namespace emu::vec;
  duplicate({"Duplicate", at}, operand(dst), scalar(scalarValue), counted(count));
}
template <emu::vec::Storable T, bool isSetMask = true, emu::vec::MaskArgument Mask>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, Mask mask, int64_t repeatTime,
               int64_t dstBlockStride, int64_t dstRepeatStride, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  duplicate({"Duplicate", at}, operand(dst, dstBlockStride, dstRepeatStride), scalar(scalarValue),
            lanes<isSetMask>(mask, repeatTime));
}

// first, first + 1, ...: lane j of repeat i of the form with a mask gets first + i * lanes + j.
template <emu::vec::Number T>
void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count,
                    emu::At at = emu::At::current()) {
  using namespace emu::vec;
  index_ramp({"CreateVecIndex", at}, operand(dst), scalar(firstValue), counted(count));
}
template <emu::vec::Number T, emu::vec::MaskArgument Mask>
void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, Mask mask, int64_t repeatTime,
                    int64_t dstBlkStride, int64_t dstRepStride, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  index_ramp({"CreateVecIndex", at}, operand(dst, dstBlkStride, dstRepStride), scalar(firstValue),
             lanes<true>(mask, repeatTime));
}

template <emu::vec::Storable T, bool isSetMask = true, emu::vec::MaskArgument Mask>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, Mask mask, int64_t repeatTime,
          const CopyRepeatParams& params, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  unary({"Copy", at}, Op::Copy, operand(dst, params.dstStride, params.dstRepeatSize),
        operand(src, params.srcStride, params.srcRepeatSize), {},
        lanes<isSetMask>(mask, repeatTime));
}

// Eight elements in each repeat, each of which fills one block of 32 bytes. repeatTime is at most
// 254.
template <emu::vec::Storable T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src0, int64_t repeatTime,
          const BrcbRepeatParams& params, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  brcb({"Brcb", at}, operand(dst, params.dstBlkStride, params.dstRepStride), operand(src0),
       repeatTime);
}

// 16 x 16 elements of two bytes; dst may be src.
template <emu::vec::OneOf<int16_t, uint16_t, half> T>
void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
               emu::At at = emu::At::current()) {
  using namespace emu::vec;
  transpose16({"Transpose", at}, operand(dst), operand(src));
}

}  // namespace AscendC
