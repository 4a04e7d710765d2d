// Cast between element types.
#pragma once

#include "ascendc/vector_params.h"
#include "emu/cast_table.h"

namespace AscendC {

enum class RoundMode : uint8_t {
  CAST_NONE = emu::vec::NONE,  // exact, or as CAST_RINT where the table allows it
  CAST_RINT = emu::vec::RINT,  // nearest, ties to even
  CAST_FLOOR = emu::vec::FLOOR,
  CAST_CEIL = emu::vec::CEIL,
  CAST_ROUND = emu::vec::ROUND,  // nearest, ties away from zero
  CAST_TRUNC = emu::vec::TRUNC,
  CAST_ODD = emu::vec::ODD,  // inexact results get an odd last bit; float to half only
};

template <class T, class U>
concept Castable = emu::vec::cast_modes(emu::vec::elem_of<U>(), emu::vec::elem_of<T>()) != 0;

// dst = src in the type of dst. Integers saturate and NaN becomes 0; float to half and to
// bfloat16_t overflow to infinity as IEEE rounding says (the NPU has a saturating mode that is not
// emulated). float to float rounds to whole numbers. Lanes are those of the wider type. A rounding
// mode that the pair lacks is a PARAM finding: CAST_NONE is accepted only where emu/cast_table.h
// lists it.
template <class T, class U>
  requires Castable<T, U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
          const uint32_t count, emu::At at = emu::At::current()) {
  using namespace emu::vec;
  cast({"Cast", at}, operand(dst), operand(src), int(roundMode), counted(count));
}
template <class T, class U, bool isSetMask = true, emu::vec::MaskArgument Mask>
  requires Castable<T, U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
          Mask mask, int64_t repeatTime, const UnaryRepeatParams& params,
          emu::At at = emu::At::current()) {
  using namespace emu::vec;
  cast({"Cast", at}, operand(dst, params.dstBlkStride, params.dstRepStride),
       operand(src, params.srcBlkStride, params.srcRepStride), int(roundMode),
       lanes<isSetMask>(mask, repeatTime));
}

// Factor of casts from int32_t to half: half(float(src) * scale).
inline void SetDeqScale(half scale, emu::At at = emu::At::current()) {
  emu::vec::set_deq_scale({"SetDeqScale", at}, std::bit_cast<uint16_t>(scale));
}

}  // namespace AscendC
