// Types that instructions must refuse, and their neighbours that they must take, at compile time.
#pragma once

#include "kernel_operator.h"

namespace types_check {

using namespace AscendC;

template <class T>
concept CanAdd = requires(LocalTensor<T> t) { Add(t, t, t, 8); };
template <class T>
concept CanDivide = requires(LocalTensor<T> t) { Div(t, t, t, 8); };
template <class T>
concept CanAnd = requires(LocalTensor<T> t) { And(t, t, t, 8); };
template <class T>
concept CanShift = requires(LocalTensor<T> t, T by) { ShiftLeft(t, t, by, 8); };
template <class T>
concept CanExp = requires(LocalTensor<T> t) { Exp(t, t, 8); };
template <class T>
concept CanRelu = requires(LocalTensor<T> t) { Relu(t, t, 8); };
template <class T>
concept CanSum = requires(LocalTensor<T> t) { ReduceSum(t, t, t, 8); };
template <class T>
concept CanSort = requires(LocalTensor<T> t, LocalTensor<uint32_t> index) {
  Sort32(t, t, index, 1);
};
template <class T>
concept CanTranspose = requires(LocalTensor<T> t) { Transpose(t, t); };
template <class T>
concept CanFill = requires(LocalTensor<T> t, T value) { Duplicate(t, value, 8); };
template <class T, class U>
concept CanCast = requires(LocalTensor<T> to, LocalTensor<U> from) {
  Cast(to, from, RoundMode::CAST_RINT, 8u);
};
template <class T, class U>
concept CanAxpy = requires(LocalTensor<T> to, LocalTensor<U> from, U by) { Axpy(to, from, by, 8); };
template <class T, class U>
concept CanCompare = requires(LocalTensor<U> to, LocalTensor<T> from) {
  Compare(to, from, from, CMPMODE::EQ, 64u);
};
template <class T, class U>
concept CanGatherMask = requires(LocalTensor<T> t, LocalTensor<U> bits, uint64_t& kept) {
  GatherMask(t, t, bits, false, 0, GatherMaskParams(1, 1, 8, 0), kept);
};

static_assert(CanAdd<half> && CanAdd<float> && CanAdd<int16_t> && CanAdd<int32_t>);
static_assert(!CanAdd<bfloat16_t> && !CanAdd<int8_t> && !CanAdd<uint32_t> && !CanAdd<int64_t>);
static_assert(CanDivide<float> && !CanDivide<int32_t> && !CanDivide<bfloat16_t>);
static_assert(CanAnd<int16_t> && CanAnd<uint16_t> && !CanAnd<int32_t> && !CanAnd<half>);
static_assert(CanShift<uint32_t> && !CanShift<float> && !CanShift<int8_t>);
static_assert(CanExp<half> && !CanExp<bfloat16_t> && !CanExp<int32_t>);
static_assert(CanRelu<int32_t> && !CanRelu<int16_t> && !CanRelu<bfloat16_t>);
static_assert(CanSum<float> && !CanSum<int32_t> && !CanSum<bfloat16_t>);
static_assert(CanSort<half> && !CanSort<bfloat16_t> && !CanSort<int32_t>);
static_assert(CanTranspose<half> && !CanTranspose<float>);
static_assert(CanFill<bfloat16_t> && !CanFill<int8_t> && !CanFill<int64_t>);
static_assert(CanCast<bfloat16_t, float> && CanCast<int8_t, half> && CanCast<half, int4b_t>);
static_assert(!CanCast<int8_t, float> && !CanCast<half, bfloat16_t> && !CanCast<bfloat16_t, half>);
static_assert(!CanCast<uint32_t, float> && !CanCast<float, uint8_t> && !CanCast<bfloat16_t, int32_t>);
static_assert(CanAxpy<float, half> && !CanAxpy<half, float> && !CanAxpy<int32_t, int32_t>);
static_assert(CanCompare<int32_t, uint8_t> && !CanCompare<int16_t, uint8_t>);
static_assert(CanCompare<half, int8_t> && !CanCompare<half, uint16_t>);
static_assert(CanGatherMask<half, uint16_t> && !CanGatherMask<half, uint32_t>);
static_assert(CanGatherMask<float, uint32_t> && !CanGatherMask<float, uint16_t>);

}  // namespace types_check
