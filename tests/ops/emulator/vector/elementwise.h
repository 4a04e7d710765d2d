// Rows of instructions that work lane by lane.
#pragma once

#include "program.h"

namespace program {

#define EACH_NUMBER(macro, name) \
  macro(name, int16_t), macro(name, half), macro(name, int32_t), macro(name, float)
#define EACH_REAL(macro, name) macro(name, half), macro(name, float)
#define EACH_WORD(macro, name) macro(name, int16_t), macro(name, uint16_t)
#define PROGRAM_ACCUMULATE(T, U)                                                                   \
  PROGRAM_ROW(                                                                                     \
      Axpy, T, U, const auto d = at<T>(c.dst); const auto a = at<U>(c.src0);                       \
      const U s = scalar<U>(c); if (c.form == COUNT) Axpy(d, a, s, int32_t(c.count)); else masked( \
          c, [&](auto m, auto set) { Axpy<T, U, set()>(d, a, s, m, c.repeats, unary(c)); })),      \
      PROGRAM_ROW(MulAddDst, T, U, const auto d = at<T>(c.dst); const auto a = at<U>(c.src0);      \
                  const auto b = at<U>(c.src1);                                                    \
                  if (c.form == COUNT) MulAddDst(d, a, b, int32_t(c.count));                       \
                  else masked(c, [&](auto m, auto set) {                                           \
                    MulAddDst<T, U, set()>(d, a, b, m, c.repeats, binary(c));                      \
                  }))
#define PROGRAM_SHIFT_RIGHT(name, T)                                                          \
  PROGRAM_ROW(name, T, T, const auto d = at<T>(c.dst); const auto a = at<T>(c.src0);          \
              const T s = scalar<T>(c); if (c.form == COUNT) name(d, a, s, int32_t(c.count)); \
              else masked(c, [&](auto m, auto set) {                                          \
                name<T, set()>(d, a, s, m, c.repeats, unary(c), c.option != 0);               \
              }))
#define PROGRAM_CAST(T, U)                                                   \
  PROGRAM_ROW(                                                               \
      Cast, T, U, const auto d = at<T>(c.dst); const auto a = at<U>(c.src0); \
      const auto mode = RoundMode(c.mode);                                   \
      if (c.form == COUNT) Cast(d, a, mode, uint32_t(c.count)); else masked( \
          c, [&](auto m, auto set) { Cast<T, U, set()>(d, a, mode, m, c.repeats, unary(c)); }))
#define PROGRAM_FILL(T)                                                                         \
  PROGRAM_ROW(Duplicate, T, T, const auto d = at<T>(c.dst); const T s = scalar<T>(c);           \
              if (c.form == COUNT) Duplicate(d, s, int32_t(c.count));                           \
              else masked(c,                                                                    \
                          [&](auto m, auto set) {                                               \
                            Duplicate<T, set()>(d, s, m, c.repeats, c.stride[0], c.stride[3]);  \
                          })),                                                                  \
      PROGRAM_ROW(Copy, T, T, const auto d = at<T>(c.dst); const auto a = at<T>(c.src0);        \
                  CopyRepeatParams p;                                                           \
                  p.dstStride = c.stride[0], p.srcStride = c.stride[1],                         \
                  p.dstRepeatSize = c.stride[3], p.srcRepeatSize = c.stride[4];                 \
                  masked(c, [&](auto m, auto set) { Copy<T, set()>(d, a, m, c.repeats, p); })), \
      PROGRAM_ROW(Brcb, T, T, BrcbRepeatParams p;                                               \
                  p.dstBlkStride = c.stride[0], p.dstRepStride = c.stride[3];                   \
                  Brcb(at<T>(c.dst), at<T>(c.src0), c.repeats, p))
#define PROGRAM_RAMP(name, T)                                                    \
  PROGRAM_ROW(name, T, T, const auto d = at<T>(c.dst); const T s = scalar<T>(c); \
              if (c.form == COUNT) name(d, s, uint32_t(c.count)); else masked(   \
                  c, [&](auto m, auto) { name(d, s, m, c.repeats, c.stride[0], c.stride[3]); }))
#define PROGRAM_TRANSPOSE(T) PROGRAM_ROW(Transpose, T, T, Transpose(at<T>(c.dst), at<T>(c.src0)))
#define PROGRAM_MASK(T)                                              \
  PROGRAM_ROW(                                                       \
      SetVectorMask, T, T,                                           \
      if (c.option) {                                                \
        if (c.form == COUNT)                                         \
          SetVectorMask<T, MaskMode::COUNTER>(int32_t(c.count));     \
        else                                                         \
          SetVectorMask<T, MaskMode::COUNTER>(c.mask[1], c.mask[0]); \
      } else {                                                       \
        if (c.form == COUNT)                                         \
          SetVectorMask<T>(int32_t(c.count));                        \
        else                                                         \
          SetVectorMask<T>(c.mask[1], c.mask[0]);                    \
      })

inline const Row elementwise[] = {
    EACH_NUMBER(PROGRAM_BINARY, Add),
    EACH_NUMBER(PROGRAM_BINARY, Sub),
    EACH_NUMBER(PROGRAM_BINARY, Mul),
    EACH_NUMBER(PROGRAM_BINARY, Max),
    EACH_NUMBER(PROGRAM_BINARY, Min),
    EACH_REAL(PROGRAM_BINARY, Div),
    EACH_WORD(PROGRAM_BINARY, And),
    EACH_WORD(PROGRAM_BINARY, Or),
    EACH_REAL(PROGRAM_BINARY, FusedMulAdd),
    EACH_REAL(PROGRAM_BINARY, FusedMulAddRelu),
    EACH_NUMBER(PROGRAM_SCALAR, Adds),
    EACH_NUMBER(PROGRAM_SCALAR, Muls),
    EACH_NUMBER(PROGRAM_SCALAR, Maxs),
    EACH_NUMBER(PROGRAM_SCALAR, Mins),
    EACH_REAL(PROGRAM_SCALAR, LeakyRelu),
    EACH_WORD(PROGRAM_SCALAR, ShiftLeft),
    PROGRAM_SCALAR(ShiftLeft, int32_t),
    PROGRAM_SCALAR(ShiftLeft, uint32_t),
    EACH_WORD(PROGRAM_SHIFT_RIGHT, ShiftRight),
    PROGRAM_SHIFT_RIGHT(ShiftRight, int32_t),
    PROGRAM_SHIFT_RIGHT(ShiftRight, uint32_t),
    EACH_REAL(PROGRAM_UNARY, Exp),
    EACH_REAL(PROGRAM_UNARY, Ln),
    EACH_REAL(PROGRAM_UNARY, Sqrt),
    EACH_REAL(PROGRAM_UNARY, Rsqrt),
    EACH_REAL(PROGRAM_UNARY, Reciprocal),
    EACH_REAL(PROGRAM_UNARY, Abs),
    EACH_REAL(PROGRAM_UNARY, Relu),
    PROGRAM_UNARY(Relu, int32_t),
    EACH_WORD(PROGRAM_UNARY, Not),
    PROGRAM_ACCUMULATE(half, half),
    PROGRAM_ACCUMULATE(float, float),
    PROGRAM_ACCUMULATE(float, half),
    PROGRAM_CAST(float, half),
    PROGRAM_CAST(int32_t, half),
    PROGRAM_CAST(int16_t, half),
    PROGRAM_CAST(int8_t, half),
    PROGRAM_CAST(uint8_t, half),
    PROGRAM_CAST(int4b_t, half),
    PROGRAM_CAST(float, float),
    PROGRAM_CAST(half, float),
    PROGRAM_CAST(int64_t, float),
    PROGRAM_CAST(int32_t, float),
    PROGRAM_CAST(int16_t, float),
    PROGRAM_CAST(bfloat16_t, float),
    PROGRAM_CAST(float, bfloat16_t),
    PROGRAM_CAST(int32_t, bfloat16_t),
    PROGRAM_CAST(half, int4b_t),
    PROGRAM_CAST(half, uint8_t),
    PROGRAM_CAST(half, int8_t),
    PROGRAM_CAST(half, int16_t),
    PROGRAM_CAST(float, int16_t),
    PROGRAM_CAST(float, int32_t),
    PROGRAM_CAST(int64_t, int32_t),
    PROGRAM_CAST(int16_t, int32_t),
    PROGRAM_CAST(half, int32_t),
    PROGRAM_CAST(int32_t, int64_t),
    PROGRAM_CAST(float, int64_t),
    PROGRAM_FILL(int16_t),
    PROGRAM_FILL(uint16_t),
    PROGRAM_FILL(half),
    PROGRAM_FILL(bfloat16_t),
    PROGRAM_FILL(int32_t),
    PROGRAM_FILL(uint32_t),
    PROGRAM_FILL(float),
    EACH_NUMBER(PROGRAM_RAMP, CreateVecIndex),
    PROGRAM_TRANSPOSE(int16_t),
    PROGRAM_TRANSPOSE(uint16_t),
    PROGRAM_TRANSPOSE(half),
    PROGRAM_MASK(half),
    PROGRAM_MASK(float),
    PROGRAM_MASK(int64_t),
    PROGRAM_ROW(SetMaskCount, half, half, SetMaskCount()),
    PROGRAM_ROW(SetMaskNorm, half, half, SetMaskNorm()),
    PROGRAM_ROW(ResetMask, half, half, ResetMask()),
    PROGRAM_ROW(SetDeqScale, half, half, SetDeqScale(scalar<half>(c))),
};

}  // namespace program
