// Sorting of scores with their indices, in records of 8 bytes: score in the low word (of a half
// score the upper two bytes are unused and left as they are), uint32_t index in the high word.
//
// Order: descending; NaN before +infinity; equal scores keep their order, in MrgSort the earlier
// list first. -0 equals +0.
#pragma once

#include "ascendc/vector_params.h"

namespace AscendC {

// 32 elements in each repeat. score aligned to 128 bytes (half: 64), index to 128, dst to 256.
template <emu::vec::Real T>
void Sort32(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
            const LocalTensor<uint32_t>& src1, const int32_t repeatTime,
            emu::At at = emu::At::current()) {
  using namespace emu::vec;
  sort32({"Sort32", at}, operand(dst), operand(src0), operand(src1), repeatTime);
}

template <class T>
struct MrgSortSrcList {
  MrgSortSrcList() = default;
  MrgSortSrcList(const LocalTensor<T>& first, const LocalTensor<T>& second,
                 const LocalTensor<T>& third, const LocalTensor<T>& fourth)
      : src1(first), src2(second), src3(third), src4(fourth) {}
  LocalTensor<T> src1, src2, src3, src4;
};

struct MrgSort4Info {
  MrgSort4Info() = default;
  MrgSort4Info(const uint16_t lengths[4], bool suspend, uint16_t valid, uint16_t repeats)
      : ifExhaustedSuspension(suspend), validBit(valid), repeatTimes(repeats) {
    for (int i = 0; i < 4; i++) elementLengths[i] = lengths[i];
  }
  ParamField<uint16_t> elementLengths[4] = {0, 0, 0, 0};
  bool ifExhaustedSuspension = false;
  ParamField<uint16_t> validBit = 0, repeatTimes = 0;
};

}  // namespace AscendC

namespace emu::vec {

template <class T>
void merge(Issue issue, const AscendC::LocalTensor<T>& dst, const AscendC::MrgSortSrcList<T>& src,
           const MergeShape& shape) {
  const Operand lists[4] = {operand(src.src1), operand(src.src2), operand(src.src3),
                            operand(src.src4)};
  merge_sort(issue, operand(dst), lists, shape);
}

}  // namespace emu::vec

namespace AscendC {

// Merges two to four lists (validBit 3, 7, 15) of elementLengths <= 4095 records, which must be
// sorted. repeatTimes > 1 needs four equal lists that follow one another, no suspension and
// validBit 15; each repeat goes on where the one before ended. With ifExhaustedSuspension the merge
// ends as soon as one list has ended; GetMrgSortResult then says how many records of each list dst
// holds.
template <emu::vec::Real T>
void MrgSort(const LocalTensor<T>& dst, const MrgSortSrcList<T>& src, const MrgSort4Info& params,
             emu::At at = emu::At::current()) {
  emu::vec::MergeShape shape{{}, params.ifExhaustedSuspension, params.validBit, params.repeatTimes};
  for (int i = 0; i < 4; i++) shape.lengths[i] = params.elementLengths[i];
  emu::vec::merge({"MrgSort", at}, dst, src, shape);
}
template <emu::vec::Real T, bool isExhaustedSuspension = false>
void MrgSort(const LocalTensor<T>& dst, const MrgSortSrcList<T>& sortList,
             const uint16_t elementCountList[4], uint32_t sortedNum[4], uint16_t validBit,
             const int32_t repeatTime, emu::At at = emu::At::current()) {
  emu::vec::MergeShape shape{{}, isExhaustedSuspension, validBit, repeatTime};
  for (int i = 0; i < 4; i++) shape.lengths[i] = elementCountList[i];
  emu::vec::merge({"MrgSort", at}, dst, sortList, shape);
  if constexpr (isExhaustedSuspension) {
    uint16_t counts[4];
    emu::vec::merge_counts({"MrgSort", at}, counts);
    for (int i = 0; i < 4; i++) sortedNum[i] = counts[i];
  }
}

// Records of each list that the last MrgSort of this core took.
inline void GetMrgSortResult(uint16_t& list1, uint16_t& list2, uint16_t& list3, uint16_t& list4,
                             emu::At at = emu::At::current()) {
  uint16_t counts[4];
  emu::vec::merge_counts({"GetMrgSortResult", at}, counts);
  list1 = counts[0], list2 = counts[1], list3 = counts[2], list4 = counts[3];
}

// Scores and indices of 32 records in each repeat.
template <emu::vec::Real T>
void Extract(const LocalTensor<T>& dstValue, const LocalTensor<uint32_t>& dstIndex,
             const LocalTensor<T>& sorted, const int32_t repeatTime,
             emu::At at = emu::At::current()) {
  using namespace emu::vec;
  extract({"Extract", at}, operand(dstValue), operand(dstIndex), operand(sorted), repeatTime);
}

// On Atlas A2 and A3 scores need no preparation: concat becomes another name of src.
template <emu::vec::Real T>
void Concat(LocalTensor<T>& concat, const LocalTensor<T>& src, const LocalTensor<T>&,
            const int32_t) {
  concat = src;
}

}  // namespace AscendC
