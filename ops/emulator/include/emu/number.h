// The element types of tensors, for code that is not a template.
#pragma once

#include "ascendc/types.h"

namespace emu {

enum class Number : uint8_t { None, S4, S8, U8, S16, U16, F16, BF16, S32, U32, F32, S64, U64, F64 };

template <class T>
constexpr Number number_of() {
  using enum Number;
  if constexpr (std::is_same_v<T, AscendC::int4b_t>) return S4;
  else if constexpr (std::is_same_v<T, half>) return F16;
  else if constexpr (std::is_same_v<T, bfloat16_t>) return BF16;
  else if constexpr (std::is_same_v<T, float>) return F32;
  else if constexpr (std::is_same_v<T, double>) return F64;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 1) return std::is_signed_v<T> ? S8 : U8;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 2)
    return std::is_signed_v<T> ? S16 : U16;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 4)
    return std::is_signed_v<T> ? S32 : U32;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 8)
    return std::is_signed_v<T> ? S64 : U64;
  else return None;
}

// Width in bits; 0 for None.
constexpr uint32_t bits_of(Number number) {
  constexpr uint32_t bits[] = {0, 4, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64, 64};
  return bits[int(number)];
}

const char* name(Number number);

}  // namespace emu
