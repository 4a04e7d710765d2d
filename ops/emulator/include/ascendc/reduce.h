// Reductions to one value, to one value per repeat or per block, and of neighbours.
//
// Sums are binary trees of neighbours, half rounded to half at every node; lanes that the mask
// leaves out count as +0. Of equal largest or smallest values the one with the lowest index wins;
// the first NaN wins over all numbers. Indices are bits of an unsigned integer as wide as the
// value.
#pragma once

#include "ascendc/vector_params.h"

namespace AscendC {

enum class ReduceOrder : uint8_t {
  ORDER_VALUE_INDEX,
  ORDER_INDEX_VALUE,
  ORDER_ONLY_VALUE,
  ORDER_ONLY_INDEX
};

// dst[0] = largest or smallest of count elements, and with calIndex dst[1] = its index. The index
// form needs more room in sharedTmpBuffer; both sizes are checked. dst is aligned to two elements.
#define EMU_REDUCE(name, fold)                                                                    \
  template <emu::vec::Real T>                                                                     \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src,                                 \
            const LocalTensor<T>& sharedTmpBuffer, const int32_t count, bool calIndex = false,    \
            emu::At at = emu::At::current()) {                                                    \
    using namespace emu::vec;                                                                     \
    reduce_all({#name, at}, fold, operand(dst), operand(src), operand(sharedTmpBuffer), calIndex, \
               counted(count));                                                                   \
  }                                                                                               \
  template <emu::vec::Real T, emu::vec::MaskArgument Mask>                                        \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src,                                 \
            const LocalTensor<T>& sharedTmpBuffer, Mask mask, int64_t repeatTime,                 \
            int64_t srcRepStride, bool calIndex = false, emu::At at = emu::At::current()) {       \
    using namespace emu::vec;                                                                     \
    reduce_all({#name, at}, fold, operand(dst), operand(src, 1, srcRepStride),                    \
               operand(sharedTmpBuffer), calIndex, lanes<true>(mask, repeatTime));                \
  }
EMU_REDUCE(ReduceMax, Fold::Max)
EMU_REDUCE(ReduceMin, Fold::Min)
#undef EMU_REDUCE

// dst[0] = the tree of the repeats' trees.
template <emu::vec::Real T, bool isSetMask = true>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
               const LocalTensor<T>& sharedTmpBuffer, const int32_t count,
               emu::At at = emu::At::current()) {
  using namespace emu::vec;
  reduce_all({"ReduceSum", at}, Fold::Sum, operand(dst), operand(src), operand(sharedTmpBuffer),
             false, counted<isSetMask>(count));
}
template <emu::vec::Real T, emu::vec::MaskArgument Mask>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
               const LocalTensor<T>& sharedTmpBuffer, Mask mask, int64_t repeatTime,
               int64_t srcRepStride, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  reduce_all({"ReduceSum", at}, Fold::Sum, operand(dst), operand(src, 1, srcRepStride),
             operand(sharedTmpBuffer), false, lanes<true>(mask, repeatTime));
}

// One result for each repeat. dstRepStride counts elements for WholeReduceSum and ORDER_ONLY_VALUE,
// pairs of them for the orders with value and index, and uint32_t for ORDER_ONLY_INDEX.
template <emu::vec::Real T, bool isSetMask = true, emu::vec::MaskArgument Mask>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, Mask mask,
                    int64_t repeatTime, int64_t dstRepStride, int64_t srcBlkStride,
                    int64_t srcRepStride, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  reduce_repeats({"WholeReduceSum", at}, Fold::Sum, operand(dst, 1, dstRepStride),
                 operand(src, srcBlkStride, srcRepStride), Pairing::Value,
                 lanes<isSetMask>(mask, repeatTime));
}

#define EMU_WHOLE(name, fold)                                                                      \
  template <emu::vec::Real T, bool isSetMask = true, emu::vec::MaskArgument Mask>                  \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, Mask mask, int64_t repeatTime,   \
            int64_t dstRepStride, int64_t srcBlkStride, int64_t srcRepStride,                      \
            ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, emu::At at = emu::At::current()) { \
    using namespace emu::vec;                                                                      \
    reduce_repeats({#name, at}, fold, operand(dst, 1, dstRepStride),                               \
                   operand(src, srcBlkStride, srcRepStride), static_cast<Pairing>(order),          \
                   lanes<isSetMask>(mask, repeatTime));                                            \
  }
EMU_WHOLE(WholeReduceMax, Fold::Max)
EMU_WHOLE(WholeReduceMin, Fold::Min)
#undef EMU_WHOLE

// One result for each block of 32 bytes, eight for each repeat; dstRepStride counts eight elements.
// Every block needs a lane in the mask.
#define EMU_BLOCK(name, fold)                                                                    \
  template <emu::vec::Real T, bool isSetMask = true, emu::vec::MaskArgument Mask>                \
  void name(const LocalTensor<T>& dst, const LocalTensor<T>& src, int64_t repeatTime, Mask mask, \
            int64_t dstRepStride, int64_t srcBlkStride, int64_t srcRepStride,                    \
            emu::At at = emu::At::current()) {                                                   \
    using namespace emu::vec;                                                                    \
    reduce_blocks({#name, at}, fold, operand(dst, 1, dstRepStride),                              \
                  operand(src, srcBlkStride, srcRepStride), lanes<isSetMask>(mask, repeatTime)); \
  }
EMU_BLOCK(BlockReduceSum, Fold::Sum)
EMU_BLOCK(BlockReduceMax, Fold::Max)
EMU_BLOCK(BlockReduceMin, Fold::Min)
#undef EMU_BLOCK

// dst[i] = src[2 i] + src[2 i + 1] in each repeat; dstRepStride counts 128 bytes.
template <emu::vec::Real T, bool isSetMask = true, emu::vec::MaskArgument Mask>
void PairReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, int64_t repeatTime,
                   Mask mask, int64_t dstRepStride, int64_t srcBlkStride, int64_t srcRepStride,
                   emu::At at = emu::At::current()) {
  using namespace emu::vec;
  reduce_pairs({"PairReduceSum", at}, operand(dst, 1, dstRepStride),
               operand(src, srcBlkStride, srcRepStride), lanes<isSetMask>(mask, repeatTime));
}

}  // namespace AscendC
