// Vector instructions of two operands or of one and a scalar, masks, and writing constants.
//
// Every instruction has the forms (…, count) and (…, mask, repeatTime, strides), where mask is a
// number of lanes or the address of two words. count must be positive. Results are IEEE, rounded
// once to the type; integers wrap. Max and Min give NaN where either side is NaN.
#pragma once

#include "ascendc/vector_params.h"

namespace AscendC {

inline void SetMaskCount(emu::At at = emu::At::current()) {
  emu::vec::set_mask_mode({"SetMaskCount", at}, true);
}
inline void SetMaskNorm(emu::At at = emu::At::current()) {
  emu::vec::set_mask_mode({"SetMaskNorm", at}, false);
}
inline void ResetMask(emu::At at = emu::At::current()) { emu::vec::reset_mask({"ResetMask", at}); }
template <class T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(uint64_t maskHigh, uint64_t maskLow, emu::At at = emu::At::current()) {
  emu::vec::set_mask({"SetVectorMask", at}, sizeof(T), mode == MaskMode::COUNTER, maskHigh,
                     maskLow);
}
template <class T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(int32_t length, emu::At at = emu::At::current()) {
  emu::vec::set_mask_length({"SetVectorMask", at}, sizeof(T), mode == MaskMode::COUNTER, length);
}

// Both forms of a binary instruction. The macro is undefined below.
#define EMU_BINARY(name, Types)                                                                \
  template <emu::vec::Types T, bool isSetMask = true>                                          \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, \
            const int32_t& count, emu::At at = emu::At::current()) {                           \
    using namespace emu::vec;                                                                  \
    binary({#name, at}, Op::name, operand(dst), operand(src0), operand(src1),                  \
           counted<isSetMask>(count));                                                         \
  }                                                                                            \
  template <emu::vec::Types T, bool isSetMask = true, emu::vec::MaskArgument Mask>             \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, \
            Mask mask, int64_t repeatTime, const BinaryRepeatParams& params,                   \
            emu::At at = emu::At::current()) {                                                 \
    using namespace emu::vec;                                                                  \
    binary({#name, at}, Op::name, operand(dst, params.dstBlkStride, params.dstRepStride),      \
           operand(src0, params.src0BlkStride, params.src0RepStride),                          \
           operand(src1, params.src1BlkStride, params.src1RepStride),                          \
           lanes<isSetMask>(mask, repeatTime));                                                \
  }
EMU_BINARY(Add, Number)
EMU_BINARY(Sub, Number)
EMU_BINARY(Mul, Number)
EMU_BINARY(Max, Number)
EMU_BINARY(Min, Number)
EMU_BINARY(Div, Real)
EMU_BINARY(And, Word)
EMU_BINARY(Or, Word)
EMU_BINARY(FusedMulAdd, Real)      // src0 * dst + src1, rounded once
EMU_BINARY(FusedMulAddRelu, Real)  // the same, then Relu
#undef EMU_BINARY

// dst = src op scalar.
#define EMU_SCALAR(name, Types)                                                                    \
  template <emu::vec::Types T, bool isSetMask = true>                                              \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,            \
            const int32_t& count, emu::At at = emu::At::current()) {                               \
    using namespace emu::vec;                                                                      \
    unary({#name, at}, Op::name, operand(dst), operand(src), scalar(scalarValue),                  \
          counted<isSetMask>(count));                                                              \
  }                                                                                                \
  template <emu::vec::Types T, bool isSetMask = true, emu::vec::MaskArgument Mask>                 \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, Mask mask, \
            int64_t repeatTime, const UnaryRepeatParams& params,                                   \
            emu::At at = emu::At::current()) {                                                     \
    using namespace emu::vec;                                                                      \
    unary({#name, at}, Op::name, operand(dst, params.dstBlkStride, params.dstRepStride),           \
          operand(src, params.srcBlkStride, params.srcRepStride), scalar(scalarValue),             \
          lanes<isSetMask>(mask, repeatTime));                                                     \
  }
EMU_SCALAR(Adds, Number)
EMU_SCALAR(Muls, Number)
EMU_SCALAR(Maxs, Number)
EMU_SCALAR(Mins, Number)
EMU_SCALAR(LeakyRelu, Real)       // src where src >= 0, else src * scalar
EMU_SCALAR(ShiftLeft, Shiftable)  // by 0 to the width of the type; bits only, also of signed types
#undef EMU_SCALAR

// Arithmetic shift of signed, logical shift of unsigned types. roundEn adds half of the last bit.
template <emu::vec::Shiftable T, bool isSetMask = true>
void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,
                const int32_t& count, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  unary({"ShiftRight", at}, Op::ShiftRight, operand(dst), operand(src), scalar(scalarValue),
        counted<isSetMask>(count));
}
template <emu::vec::Shiftable T, bool isSetMask = true, emu::vec::MaskArgument Mask>
void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,
                Mask mask, int64_t repeatTime, const UnaryRepeatParams& params,
                bool roundEn = false, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  unary({"ShiftRight", at}, roundEn ? Op::ShiftRightRound : Op::ShiftRight,
        operand(dst, params.dstBlkStride, params.dstRepStride),
        operand(src, params.srcBlkStride, params.srcRepStride), scalar(scalarValue),
        lanes<isSetMask>(mask, repeatTime));
}

// dst += src * scalar and dst += src0 * src1, each rounded once. The destination may be float where
// the sources are half.
template <class T, class U>
concept Accumulates =
    emu::vec::Real<T> && (std::same_as<T, U> || (std::same_as<T, float> && std::same_as<U, half>));

template <class T, class U, bool isSetMask = true>
  requires Accumulates<T, U>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue,
          const int32_t& count, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  unary({"Axpy", at}, Op::Axpy, operand(dst), operand(src), scalar(scalarValue),
        counted<isSetMask>(count));
}
template <class T, class U, bool isSetMask = true, emu::vec::MaskArgument Mask>
  requires Accumulates<T, U>
void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue, Mask mask,
          int64_t repeatTime, const UnaryRepeatParams& params, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  unary({"Axpy", at}, Op::Axpy, operand(dst, params.dstBlkStride, params.dstRepStride),
        operand(src, params.srcBlkStride, params.srcRepStride), scalar(scalarValue),
        lanes<isSetMask>(mask, repeatTime));
}
template <class T, class U, bool isSetMask = true>
  requires Accumulates<T, U>
void MulAddDst(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1,
               const int32_t& count, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  binary({"MulAddDst", at}, Op::MulAddDst, operand(dst), operand(src0), operand(src1),
         counted<isSetMask>(count));
}
template <class T, class U, bool isSetMask = true, emu::vec::MaskArgument Mask>
  requires Accumulates<T, U>
void MulAddDst(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1,
               Mask mask, int64_t repeatTime, const BinaryRepeatParams& params,
               emu::At at = emu::At::current()) {
  using namespace emu::vec;
  binary({"MulAddDst", at}, Op::MulAddDst, operand(dst, params.dstBlkStride, params.dstRepStride),
         operand(src0, params.src0BlkStride, params.src0RepStride),
         operand(src1, params.src1BlkStride, params.src1RepStride),
         lanes<isSetMask>(mask, repeatTime));
}

}  // namespace AscendC
