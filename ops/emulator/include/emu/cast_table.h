// Which conversions Cast knows on Atlas A2 and A3, and with which rounding modes.
#pragma once

#include "emu/vector_engine.h"

namespace emu::vec {

// Rounding modes by the number of the public RoundMode.
enum Rounding : int { NONE, RINT, FLOOR, CEIL, ROUND, TRUNC, ODD };

constexpr uint32_t ONLY_NONE = 1u << NONE;
constexpr uint32_t FIVE = 1u << RINT | 1u << FLOOR | 1u << CEIL | 1u << ROUND | 1u << TRUNC;

// Set of rounding modes (bit = mode) of a conversion; 0 where the conversion does not exist.
constexpr uint32_t cast_modes(Elem from, Elem to) {
  using enum Elem;
  switch (from) {
    case F32:
      if (to == F16) return ONLY_NONE | FIVE | 1u << ODD;
      return to == F32 || to == BF16 || to == S16 || to == S32 || to == S64 ? FIVE : 0;
    case F16:
      if (to == F32) return ONLY_NONE;
      if (to == S16 || to == S32) return FIVE;
      return to == S8 || to == U8 || to == S4 ? ONLY_NONE | FIVE : 0;
    case BF16: return to == F32 ? ONLY_NONE : to == S32 ? FIVE : 0;
    case S4:
    case S8:
    case U8: return to == F16 ? ONLY_NONE : 0;
    case S16: return to == F16 ? ONLY_NONE | FIVE : to == F32 ? ONLY_NONE : 0;
    case S32:
      if (to == F32) return ONLY_NONE | FIVE;
      return to == S16 || to == S64 || to == F16 ? ONLY_NONE : 0;
    case S64: return to == F32 ? FIVE : to == S32 ? ONLY_NONE : 0;
    default: return 0;
  }
}

}  // namespace emu::vec
