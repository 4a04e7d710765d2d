// SetAtomicAdd and what ends it.
#pragma once

#include "ascendc/types.h"
#include "emu/atomic.h"

namespace AscendC {

// Later copies of this core from UB, L1 or L0C to GM add to what is there; they must have type T.
template <class T>
void SetAtomicAdd(emu::At at = emu::At::current()) {
  static_assert(std::is_same_v<T, int8_t> || std::is_same_v<T, int16_t> ||
                    std::is_same_v<T, int32_t> || std::is_same_v<T, half> ||
                    std::is_same_v<T, bfloat16_t> || std::is_same_v<T, float>,
                "SetAtomicAdd takes int8_t, int16_t, int32_t, half, bfloat16_t or float");
  emu::set_atomic("SetAtomicAdd", emu::number_of<T>(), at);
}
inline void SetAtomicNone(emu::At at = emu::At::current()) {
  emu::set_atomic("SetAtomicNone", emu::Number::None, at);
}
inline void DisableDmaAtomic(emu::At at = emu::At::current()) {
  emu::set_atomic("DisableDmaAtomic", emu::Number::None, at);
}

}  // namespace AscendC
