// Comparisons into bits and selection by bits. Bit i of byte j belongs to element 8 j + i.
#pragma once

#include "ascendc/vector_params.h"

namespace AscendC {

enum class CMPMODE : uint8_t { LT, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t {
  VSEL_CMPMASK_SPR,         // one set of bits, used again in each repeat
  VSEL_TENSOR_SCALAR_MODE,  // bits go on from repeat to repeat; the second source is a scalar
  VSEL_TENSOR_TENSOR_MODE,  // bits go on from repeat to repeat
};

}  // namespace AscendC

namespace emu::vec {

template <class T>
concept Comparable = Real<T> || std::same_as<T, int32_t>;  // int32_t with EQ only
template <class U>
concept BitTensor = OneOf<U, int8_t, uint8_t>;
template <class U>
concept SelectBits = OneOf<U, uint8_t, uint16_t, uint32_t, uint64_t>;

}  // namespace emu::vec

namespace AscendC {

// count * sizeof(T) must be a multiple of 256 bytes: a PARAM finding otherwise, and the rest is
// left out. Comparisons with NaN are false, NE true. In the forms with a mask each repeat writes
// 256 / sizeof(T) bits after those of the one before, and the mask must name every lane.
template <emu::vec::Comparable T, emu::vec::BitTensor U>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
             CMPMODE cmpMode, uint32_t count, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  const Operand second = operand(src1);
  compare({"Compare", at}, int(cmpMode), operand(dst), operand(src0), &second, {}, counted(count));
}
template <emu::vec::Comparable T, emu::vec::BitTensor U, bool isSetMask = true,
          emu::vec::MaskArgument Mask>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
             CMPMODE cmpMode, Mask mask, int64_t repeatTime, const BinaryRepeatParams& params,
             emu::At at = emu::At::current()) {
  using namespace emu::vec;
  const Operand second = operand(src1, params.src1BlkStride, params.src1RepStride);
  compare({"Compare", at}, int(cmpMode), operand(dst),
          operand(src0, params.src0BlkStride, params.src0RepStride), &second, {},
          lanes<isSetMask>(mask, repeatTime));
}

// Two names of one instruction: an element against a scalar.
#define EMU_COMPARE(name)                                                                         \
  template <emu::vec::Comparable T, emu::vec::BitTensor U>                                        \
  void name(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar,            \
            CMPMODE cmpMode, uint32_t count, emu::At at = emu::At::current()) {                   \
    using namespace emu::vec;                                                                     \
    compare({#name, at}, int(cmpMode), operand(dst), operand(src0), nullptr, scalar(src1Scalar),  \
            counted(count));                                                                      \
  }                                                                                               \
  template <emu::vec::Comparable T, emu::vec::BitTensor U, bool isSetMask = true,                 \
            emu::vec::MaskArgument Mask>                                                          \
  void name(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar,            \
            CMPMODE cmpMode, Mask mask, int64_t repeatTime, const UnaryRepeatParams& params,      \
            emu::At at = emu::At::current()) {                                                    \
    using namespace emu::vec;                                                                     \
    compare({#name, at}, int(cmpMode), operand(dst),                                              \
            operand(src0, params.srcBlkStride, params.srcRepStride), nullptr, scalar(src1Scalar), \
            lanes<isSetMask>(mask, repeatTime));                                                  \
  }
EMU_COMPARE(CompareScalar)
EMU_COMPARE(Compares)
#undef EMU_COMPARE

// dst = bit ? src0 : src1.
template <emu::vec::Real T, emu::vec::SelectBits U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint32_t count,
            emu::At at = emu::At::current()) {
  using namespace emu::vec;
  const Operand second = operand(src1);
  select({"Select", at}, int(selMode), operand(dst), operand(selMask), operand(src0), &second, {},
         counted(count));
}
template <emu::vec::Real T, emu::vec::SelectBits U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            T src1, SELMODE selMode, uint32_t count, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  select({"Select", at}, int(selMode), operand(dst), operand(selMask), operand(src0), nullptr,
         scalar(src1), counted(count));
}
template <emu::vec::Real T, emu::vec::SelectBits U, bool isSetMask = true,
          emu::vec::MaskArgument Mask>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, Mask mask, int64_t repeatTime,
            const BinaryRepeatParams& params, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  const Operand second = operand(src1, params.src1BlkStride, params.src1RepStride);
  select({"Select", at}, int(selMode), operand(dst, params.dstBlkStride, params.dstRepStride),
         operand(selMask), operand(src0, params.src0BlkStride, params.src0RepStride), &second, {},
         lanes<isSetMask>(mask, repeatTime));
}
template <emu::vec::Real T, emu::vec::SelectBits U, bool isSetMask = true,
          emu::vec::MaskArgument Mask>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            T src1, SELMODE selMode, Mask mask, int64_t repeatTime,
            const BinaryRepeatParams& params, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  select({"Select", at}, int(selMode), operand(dst, params.dstBlkStride, params.dstRepStride),
         operand(selMask), operand(src0, params.src0BlkStride, params.src0RepStride), nullptr,
         scalar(src1), lanes<isSetMask>(mask, repeatTime));
}

}  // namespace AscendC
