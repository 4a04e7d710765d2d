// Rows of instructions that look at more than one lane.
#pragma once

#include "program.h"

namespace program {

#define PROGRAM_REDUCE(name, T)                                                         \
  PROGRAM_ROW(                                                                          \
      name, T, T, const auto d = at<T>(c.dst); const auto a = at<T>(c.src0);            \
      const auto t = at<T>(c.extra);                                                    \
      if (c.form == COUNT) name(d, a, t, int32_t(c.count), c.option != 0); else masked( \
          c, [&](auto m, auto) { name(d, a, t, m, c.repeats, c.stride[4], c.option != 0); }))
#define PROGRAM_REDUCE_SUM(name, T)                                                                \
  PROGRAM_ROW(name, T, T, const auto d = at<T>(c.dst); const auto a = at<T>(c.src0);               \
              const auto t = at<T>(c.extra); if (c.form == COUNT) name(d, a, t, int32_t(c.count)); \
              else masked(c, [&](auto m, auto) { name(d, a, t, m, c.repeats, c.stride[4]); }))
#define PROGRAM_WHOLE(name, T)                                                         \
  PROGRAM_ROW(name, T, T, masked(c, [&](auto m, auto set) {                            \
                name<T, set()>(at<T>(c.dst), at<T>(c.src0), m, c.repeats, c.stride[3], \
                               c.stride[1], c.stride[4], ReduceOrder(c.mode));         \
              }))
#define PROGRAM_WHOLE_SUM(name, T)                                                     \
  PROGRAM_ROW(name, T, T, masked(c, [&](auto m, auto set) {                            \
                name<T, set()>(at<T>(c.dst), at<T>(c.src0), m, c.repeats, c.stride[3], \
                               c.stride[1], c.stride[4]);                              \
              }))
#define PROGRAM_BLOCK(name, T)                                                         \
  PROGRAM_ROW(name, T, T, masked(c, [&](auto m, auto set) {                            \
                name<T, set()>(at<T>(c.dst), at<T>(c.src0), c.repeats, m, c.stride[3], \
                               c.stride[1], c.stride[4]);                              \
              }))
#define PROGRAM_COMPARE(T)                                                                      \
  PROGRAM_ROW(Compare, T, T, const auto d = at<uint8_t>(c.dst); const auto a = at<T>(c.src0);   \
              const auto b = at<T>(c.src1); const auto mode = CMPMODE(c.mode);                  \
              if (c.form == COUNT) Compare(d, a, b, mode, uint32_t(c.count));                   \
              else masked(c,                                                                    \
                          [&](auto m, auto set) {                                               \
                            Compare<T, uint8_t, set()>(d, a, b, mode, m, c.repeats, binary(c)); \
                          })),                                                                  \
      PROGRAM_ROW(CompareScalar, T, T, const auto d = at<uint8_t>(c.dst);                       \
                  const auto a = at<T>(c.src0); const T s = scalar<T>(c);                       \
                  const auto mode = CMPMODE(c.mode);                                            \
                  if (c.form == COUNT) CompareScalar(d, a, s, mode, uint32_t(c.count));         \
                  else masked(c, [&](auto m, auto set) {                                        \
                    Compares<T, uint8_t, set()>(d, a, s, mode, m, c.repeats, unary(c));         \
                  }))
#define PROGRAM_SELECT(T)                                                            \
  PROGRAM_ROW(                                                                       \
      Select, T, T, const auto d = at<T>(c.dst); const auto a = at<T>(c.src0);       \
      const auto bits = at<uint8_t>(c.extra); const auto mode = SELMODE(c.mode);     \
      const auto b = at<T>(c.src1); const T s = scalar<T>(c); if (c.form == COUNT) { \
        if (c.option)                                                                \
          Select(d, bits, a, s, mode, uint32_t(c.count));                            \
        else                                                                         \
          Select(d, bits, a, b, mode, uint32_t(c.count));                            \
      } else masked(c, [&](auto m, auto set) {                                       \
        if (c.option)                                                                \
          Select<T, uint8_t, set()>(d, bits, a, s, mode, m, c.repeats, binary(c));   \
        else                                                                         \
          Select<T, uint8_t, set()>(d, bits, a, b, mode, m, c.repeats, binary(c));   \
      }))
#define PROGRAM_GATHER(T, U)                                                                      \
  PROGRAM_ROW(GatherMask, T, T, GatherMaskParams p; p.src0BlockStride = c.stride[1];              \
              p.repeatTimes = c.repeats, p.src0RepeatStride = c.stride[4],                        \
              p.src1RepeatStride = c.stride[5];                                                   \
              if (c.mode) GatherMask(at<T>(c.dst), at<T>(c.src0), uint8_t(c.mode), c.option != 0, \
                                     uint32_t(c.count), p, result[0]);                            \
              else GatherMask(at<T>(c.dst), at<T>(c.src0), at<U>(c.src1), c.option != 0,          \
                              uint32_t(c.count), p, result[0])),                                  \
      PROGRAM_ROW(                                                                                \
          Gather, T, T, const auto d = at<T>(c.dst); const auto a = at<T>(c.src0);                \
          const auto o = at<uint32_t>(c.src1); const auto base = uint32_t(c.scalar);              \
          if (c.form == COUNT) Gather(d, a, o, base, uint32_t(c.count)); else masked(             \
              c, [&](auto m, auto) { Gather(d, a, o, base, m, c.repeats, c.stride[3]); })),       \
      PROGRAM_ROW(Gatherb, T, T, GatherRepeatParams p;                                            \
                  p.dstBlkStride = c.stride[0], p.dstRepStride = c.stride[3];                     \
                  Gatherb(at<T>(c.dst), at<T>(c.src0), at<uint32_t>(c.src1), c.repeats, p))
#define PROGRAM_SORT(T)                                                                            \
  PROGRAM_ROW(Sort32, T, T, Sort32(at<T>(c.dst), at<T>(c.src0), at<uint32_t>(c.src1), c.repeats)), \
      PROGRAM_ROW(Extract, T, T,                                                                   \
                  Extract(at<T>(c.dst), at<uint32_t>(c.extra), at<T>(c.src0), c.repeats)),         \
      PROGRAM_ROW(MrgSort, T, T, merge<T>(c, result))

// The lists lie one after the other from src0, except where `option` leaves that many bytes
// between.
template <class T>
void merge(const Command& c, uint64_t* result) {
  LocalTensor<T> lists[4];
  Place place = c.src0;
  for (int i = 0; i < 4; i++) {
    lists[i] = at<T>(place);
    place.address += c.lengths[i] * 8 + c.option;
  }
  const MrgSortSrcList<T> sources(lists[0], lists[1], lists[2], lists[3]);
  if (c.form == COUNT) {
    MrgSort4Info info;
    for (int i = 0; i < 4; i++) info.elementLengths[i] = c.lengths[i];
    info.ifExhaustedSuspension = c.count != 0, info.validBit = c.mode, info.repeatTimes = c.repeats;
    MrgSort(at<T>(c.dst), sources, info);
    uint16_t taken[4];
    GetMrgSortResult(taken[0], taken[1], taken[2], taken[3]);
    for (int i = 0; i < 4; i++) result[i] = taken[i];
    return;
  }
  uint16_t lengths[4];
  uint32_t taken[4] = {};
  for (int i = 0; i < 4; i++) lengths[i] = uint16_t(c.lengths[i]);
  if (c.count)
    MrgSort<T, true>(at<T>(c.dst), sources, lengths, taken, uint16_t(c.mode), c.repeats);
  else
    MrgSort<T>(at<T>(c.dst), sources, lengths, taken, uint16_t(c.mode), c.repeats);
  for (int i = 0; i < 4; i++) result[i] = taken[i];
}

inline const Row whole[] = {
    PROGRAM_REDUCE(ReduceMax, half),
    PROGRAM_REDUCE(ReduceMax, float),
    PROGRAM_REDUCE(ReduceMin, half),
    PROGRAM_REDUCE(ReduceMin, float),
    PROGRAM_REDUCE_SUM(ReduceSum, half),
    PROGRAM_REDUCE_SUM(ReduceSum, float),
    PROGRAM_WHOLE(WholeReduceMax, half),
    PROGRAM_WHOLE(WholeReduceMax, float),
    PROGRAM_WHOLE(WholeReduceMin, half),
    PROGRAM_WHOLE(WholeReduceMin, float),
    PROGRAM_WHOLE_SUM(WholeReduceSum, half),
    PROGRAM_WHOLE_SUM(WholeReduceSum, float),
    PROGRAM_BLOCK(BlockReduceSum, half),
    PROGRAM_BLOCK(BlockReduceSum, float),
    PROGRAM_BLOCK(BlockReduceMax, half),
    PROGRAM_BLOCK(BlockReduceMax, float),
    PROGRAM_BLOCK(BlockReduceMin, half),
    PROGRAM_BLOCK(BlockReduceMin, float),
    PROGRAM_BLOCK(PairReduceSum, half),
    PROGRAM_BLOCK(PairReduceSum, float),
    PROGRAM_COMPARE(half),
    PROGRAM_COMPARE(float),
    PROGRAM_COMPARE(int32_t),
    PROGRAM_SELECT(half),
    PROGRAM_SELECT(float),
    PROGRAM_GATHER(int16_t, uint16_t),
    PROGRAM_GATHER(uint16_t, uint16_t),
    PROGRAM_GATHER(half, uint16_t),
    PROGRAM_GATHER(bfloat16_t, uint16_t),
    PROGRAM_GATHER(int32_t, uint32_t),
    PROGRAM_GATHER(uint32_t, uint32_t),
    PROGRAM_GATHER(float, uint32_t),
    PROGRAM_SORT(half),
    PROGRAM_SORT(float),
};

}  // namespace program
