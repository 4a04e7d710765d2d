// Keeping the elements that a pattern names, and gathering by byte offsets.
#pragma once

#include "ascendc/vector_params.h"

namespace AscendC {

// src0BlockStride and src0RepeatStride in blocks of 32 bytes; src1RepeatStride too, 0 to use one
// pattern again in each repeat.
struct GatherMaskParams {
  GatherMaskParams() = default;
  GatherMaskParams(uint8_t blockStride, uint16_t repeats, uint16_t repeatStride,
                   uint8_t patternStride)
      : src0BlockStride(blockStride),
        repeatTimes(repeats),
        src0RepeatStride(repeatStride),
        src1RepeatStride(patternStride) {}
  ParamField<uint8_t> src0BlockStride = 1;
  ParamField<uint16_t> repeatTimes = 0, src0RepeatStride = 0;
  ParamField<uint8_t> src1RepeatStride = 0;
};

struct GatherRepeatParams {
  GatherRepeatParams() = default;
  GatherRepeatParams(uint8_t dstBlk, uint8_t dstRep) : dstBlkStride(dstBlk), dstRepStride(dstRep) {}
  ParamField<uint8_t> dstBlkStride = 1, dstRepStride = 8;
};

}  // namespace AscendC

namespace emu::vec {

template <class T, class U>
concept PatternOf =
    (sizeof(T) == 2 && std::same_as<U, uint16_t>) || (sizeof(T) == 4 && std::same_as<U, uint32_t>);

inline GatherMaskShape shape(bool counter, uint32_t mask, const AscendC::GatherMaskParams& params) {
  return {counter,
          mask,
          params.src0BlockStride,
          params.repeatTimes,
          params.src0RepeatStride,
          params.src1RepeatStride};
}

}  // namespace emu::vec

namespace AscendC {

// Packs the elements whose bit in the pattern is 1; rsvdCnt is their number over all repeats.
// reduceMode false: each repeat takes 256 bytes and mask must be 0. reduceMode true: each repeat
// takes `mask` elements, src0RepeatStride apart. Built-in patterns: 1 even, 2 odd elements, 3 to 6
// the first to fourth of every four, 7 all. A pattern tensor holds one bit for each element, the
// lowest bit first. dst may not overlap the source or the pattern.
template <emu::vec::Storable T, class U>
  requires emu::vec::PatternOf<T, U>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                const LocalTensor<U>& src1Pattern, const bool reduceMode, const uint32_t mask,
                const GatherMaskParams& gatherMaskParams, uint64_t& rsvdCnt,
                emu::At at = emu::At::current()) {
  using namespace emu::vec;
  const Operand pattern = operand(src1Pattern);
  rsvdCnt = gather_mask({"GatherMask", at}, operand(dst), operand(src0), &pattern, 0,
                        shape(reduceMode, mask, gatherMaskParams));
}
template <emu::vec::Storable T>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const uint8_t src1Pattern,
                const bool reduceMode, const uint32_t mask,
                const GatherMaskParams& gatherMaskParams, uint64_t& rsvdCnt,
                emu::At at = emu::At::current()) {
  using namespace emu::vec;
  rsvdCnt = gather_mask({"GatherMask", at}, operand(dst), operand(src0), nullptr, src1Pattern,
                        shape(reduceMode, mask, gatherMaskParams));
}

// dst[i] = the element at src + srcBaseAddr + srcOffset[i], both in bytes and multiples of the
// size.
template <emu::vec::Storable T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseAddr,
            const uint32_t count, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  gather({"Gather", at}, operand(dst), operand(src), operand(srcOffset), srcBaseAddr,
         counted(count));
}
template <emu::vec::Storable T, emu::vec::MaskArgument Mask>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseAddr, Mask mask,
            int64_t repeatTime, int64_t dstRepStride, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  gather({"Gather", at}, operand(dst, 1, dstRepStride), operand(src), operand(srcOffset),
         srcBaseAddr, lanes<true>(mask, repeatTime));
}

// Eight blocks of 32 bytes in each repeat, at byte offsets that are multiples of 32.
template <emu::vec::Storable T>
void Gatherb(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
             const LocalTensor<uint32_t>& offset, int64_t repeatTime,
             const GatherRepeatParams& params, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  gather_blocks({"Gatherb", at}, operand(dst, params.dstBlkStride, params.dstRepStride),
                operand(src0), operand(offset), repeatTime);
}

}  // namespace AscendC
