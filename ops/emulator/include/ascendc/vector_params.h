// Parameters that vector instructions share, and how templates hand operands to the engine.
#pragma once

#include <concepts>
#include <initializer_list>

#include "ascendc/tensor.h"
#include "emu/vector_engine.h"

namespace AscendC {

// An integer parameter of a struct. It keeps what was assigned, so that a value that the register
// field cannot hold is reported instead of being cut.
template <std::unsigned_integral Register>
class ParamField {
 public:
  constexpr ParamField(Register value = 0) : value_(value) {}
  template <std::integral T>
    requires(!std::same_as<T, Register>)
  constexpr ParamField& operator=(T value) {
    value_ = static_cast<int64_t>(value);
    return *this;
  }
  constexpr operator int64_t() const { return value_; }

 private:
  int64_t value_;
};

// Strides in blocks of 32 bytes; repeat strides from the start of one repeat to the next.
struct UnaryRepeatParams {
  UnaryRepeatParams() = default;
  UnaryRepeatParams(uint16_t dstBlk, uint16_t srcBlk, uint8_t dstRep, uint8_t srcRep)
      : dstBlkStride(dstBlk), srcBlkStride(srcBlk), dstRepStride(dstRep), srcRepStride(srcRep) {}
  ParamField<uint16_t> dstBlkStride = 1, srcBlkStride = 1;
  ParamField<uint8_t> dstRepStride = 8, srcRepStride = 8;
};

struct BinaryRepeatParams {
  BinaryRepeatParams() = default;
  BinaryRepeatParams(uint8_t dstBlk, uint8_t src0Blk, uint8_t src1Blk, uint8_t dstRep,
                     uint8_t src0Rep, uint8_t src1Rep)
      : dstBlkStride(dstBlk),
        src0BlkStride(src0Blk),
        src1BlkStride(src1Blk),
        dstRepStride(dstRep),
        src0RepStride(src0Rep),
        src1RepStride(src1Rep) {}
  ParamField<uint8_t> dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;
  ParamField<uint8_t> dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
};

struct CopyRepeatParams {
  CopyRepeatParams() = default;
  CopyRepeatParams(uint16_t dst, uint16_t src, uint16_t dstRepeat, uint16_t srcRepeat)
      : dstStride(dst), srcStride(src), dstRepeatSize(dstRepeat), srcRepeatSize(srcRepeat) {}
  ParamField<uint16_t> dstStride = 1, srcStride = 1, dstRepeatSize = 8, srcRepeatSize = 8;
};

struct BrcbRepeatParams {
  BrcbRepeatParams() = default;
  BrcbRepeatParams(uint16_t dstBlk, uint16_t dstRep) : dstBlkStride(dstBlk), dstRepStride(dstRep) {}
  ParamField<uint16_t> dstBlkStride = 1, dstRepStride = 8;
};

enum class MaskMode : uint8_t { NORMAL, COUNTER };

// Mask arguments of calls with isSetMask = false.
inline constexpr uint64_t MASK_PLACEHOLDER = 0;
inline uint64_t MASK_PLACEHOLDER_LIST[2] = {0, 0};

}  // namespace AscendC

namespace emu::vec {

template <class T>
constexpr Elem elem_of() {
  if constexpr (std::is_same_v<T, AscendC::half>)
    return Elem::F16;
  else if constexpr (std::is_same_v<T, AscendC::bfloat16_t>)
    return Elem::BF16;
  else if constexpr (std::is_same_v<T, float>)
    return Elem::F32;
  else if constexpr (std::is_same_v<T, AscendC::int4b_t>)
    return Elem::S4;
  else if constexpr (std::is_same_v<T, int8_t>)
    return Elem::S8;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return Elem::U8;
  else if constexpr (std::is_same_v<T, int16_t>)
    return Elem::S16;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return Elem::U16;
  else if constexpr (std::is_same_v<T, int32_t>)
    return Elem::S32;
  else if constexpr (std::is_same_v<T, uint32_t>)
    return Elem::U32;
  else if constexpr (std::is_same_v<T, int64_t>)
    return Elem::S64;
  else {
    static_assert(std::is_same_v<T, uint64_t>, "not an element type of AscendC");
    return Elem::U64;
  }
}

template <class T, class... Allowed>
concept OneOf = (std::same_as<T, Allowed> || ...);

// Types of the arithmetic of Atlas A2 and A3, which has no bfloat16_t.
template <class T>
concept Real = OneOf<T, AscendC::half, float>;
template <class T>
concept Number = OneOf<T, int16_t, AscendC::half, int32_t, float>;
template <class T>
concept Rectifiable = Real<T> || std::same_as<T, int32_t>;
template <class T>
concept Word = OneOf<T, int16_t, uint16_t>;
template <class T>
concept Shiftable = OneOf<T, int16_t, uint16_t, int32_t, uint32_t>;
template <class T>
concept Storable =
    OneOf<T, int16_t, uint16_t, AscendC::half, AscendC::bfloat16_t, int32_t, uint32_t, float>;

template <class T>
Operand operand(const AscendC::LocalTensor<T>& tensor, int64_t block = 1, int64_t repeat = 8) {
  return {tensor.memory(), tensor.GetPhyAddr(), tensor.GetLength(), elem_of<T>(), block, repeat};
}

template <class T>
Scalar scalar(T value) {
  Scalar result{elem_of<T>(), 0};
  if constexpr (sizeof(T) == 2)
    result.bits = std::bit_cast<uint16_t>(value);
  else if constexpr (sizeof(T) == 4)
    result.bits = std::bit_cast<uint32_t>(value);
  else
    result.bits = static_cast<uint64_t>(value);
  return result;
}

template <bool isSetMask = true>
Lanes counted(int64_t n) {
  static_assert(isSetMask, "the form with a count sets the mask");
  return {Lanes::Count, static_cast<uint64_t>(n)};
}

// A number of lanes, or two words with a bit for each lane.
template <class M>
concept MaskArgument = std::integral<M> || std::convertible_to<M, const uint64_t*>;

// Lanes of the two forms with a mask; without isSetMask the core's mask registers decide.
template <bool isSetMask>
Lanes lanes(uint64_t mask, int64_t repeats) {
  return {isSetMask ? Lanes::First : Lanes::Current, mask, 0, repeats};
}
template <bool isSetMask>
Lanes lanes(const uint64_t* mask, int64_t repeats) {
  if constexpr (isSetMask)
    return {Lanes::Bits, mask[0], mask[1], repeats};
  else
    return {Lanes::Current, 0, 0, repeats};
}

}  // namespace emu::vec
