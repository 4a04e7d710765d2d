// Macros, number types and enumerations of kernel sources.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "emu/types.h"

#ifndef __NPU_ARCH__
#define __NPU_ARCH__ 2201
#endif
#if __NPU_ARCH__ != 2201
#error "the emulator models arch 2201 (Atlas A2 and A3); arch 3510 (Atlas 950) is not supported"
#endif

#define __aicore__
#define __global__
#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define __vector__
#define __cube__
#define __mix__(cubes, vectors)
#define GM_ADDR uint8_t*

using half = _Float16;

// Upper half of an IEEE float; conversion rounds to nearest, ties to even.
struct bfloat16_t {
  uint16_t bits = 0;

  bfloat16_t() = default;
  explicit bfloat16_t(float value) {
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    const bool nan = (raw & 0x7fffffff) > 0x7f800000;
    bits = uint16_t(nan ? raw >> 16 | 0x40 : (raw + 0x7fff + (raw >> 16 & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
  bool operator==(const bfloat16_t& other) const { return float(*this) == float(other); }
};

// Pipes, events and unit numbers live outside the namespace, as in kernel sources.
enum pipe_t : int {
  PIPE_S = int(emu::Pipe::S),
  PIPE_V = int(emu::Pipe::V),
  PIPE_M = int(emu::Pipe::M),
  PIPE_MTE1 = int(emu::Pipe::MTE1),
  PIPE_MTE2 = int(emu::Pipe::MTE2),
  PIPE_MTE3 = int(emu::Pipe::MTE3),
  PIPE_FIX = int(emu::Pipe::FIX),
  PIPE_ALL = emu::PIPES,
};

using event_t = int32_t;
inline constexpr event_t EVENT_ID0 = 0, EVENT_ID1 = 1, EVENT_ID2 = 2, EVENT_ID3 = 3, EVENT_ID4 = 4,
                         EVENT_ID5 = 5, EVENT_ID6 = 6, EVENT_ID7 = 7;

namespace AscendC {

using ::bfloat16_t;
using ::half;
using TEventID = int8_t;

// Two values in a byte, the first one in the low half. A tensor of them counts values.
struct int4b_t {
  uint8_t bits;
};

enum class TPosition : uint8_t {
  GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, TSCM, C2PIPE2GM, MAX
};
using QuePosition = TPosition;

enum class HardEvent : uint8_t {
  MTE2_MTE1, MTE1_MTE2, MTE1_M, M_MTE1, MTE2_V, V_MTE2, MTE3_V, V_MTE3, M_V, V_M, V_V,
  MTE3_MTE1, MTE1_MTE3, MTE1_V, V_MTE1, MTE2_M, M_MTE2, M_FIX, FIX_M, MTE3_MTE2, MTE2_MTE3,
  S_V, V_S, S_MTE2, MTE2_S, S_MTE3, MTE3_S, MTE2_FIX, FIX_MTE2, FIX_S, S_FIX, M_S, S_M,
  FIX_MTE3, MTE3_FIX, MTE1_FIX, FIX_MTE1, MTE1_S, S_MTE1, M_MTE3, MTE3_M, MAX
};

enum { AIC = 1, AIV = 2, MIX = 3 };

enum KernelMetaType : uint8_t {
  KERNEL_TYPE_AIV_ONLY, KERNEL_TYPE_AIC_ONLY, KERNEL_TYPE_MIX_AIV_1_0, KERNEL_TYPE_MIX_AIC_1_0,
  KERNEL_TYPE_MIX_AIC_1_1, KERNEL_TYPE_MIX_AIC_1_2
};

}  // namespace AscendC

using AscendC::KERNEL_TYPE_AIC_ONLY;
using AscendC::KERNEL_TYPE_AIV_ONLY;
using AscendC::KERNEL_TYPE_MIX_AIC_1_0;
using AscendC::KERNEL_TYPE_MIX_AIC_1_1;
using AscendC::KERNEL_TYPE_MIX_AIC_1_2;
using AscendC::KERNEL_TYPE_MIX_AIV_1_0;

namespace emu {

// Bytes of n elements; of int4 two share one.
template <class T>
constexpr uint64_t bytes_of(uint64_t n) {
  if constexpr (std::is_same_v<T, AscendC::int4b_t>) return (n + 1) / 2;
  else return n * sizeof(T);
}

template <class T>
constexpr uint64_t elements_in(uint64_t bytes) {
  if constexpr (std::is_same_v<T, AscendC::int4b_t>) return bytes * 2;
  else return bytes / sizeof(T);
}

constexpr Mem memory_of(AscendC::TPosition position) {
  using enum AscendC::TPosition;
  switch (position) {
    case A1: case B1: case C1: case TSCM: return Mem::L1;
    case A2: return Mem::L0A;
    case B2: return Mem::L0B;
    case CO1: return Mem::L0C;
    case C2: return Mem::BT;
    case C2PIPE2GM: return Mem::FB;
    case VECIN: case VECOUT: case VECCALC: return Mem::UB;
    default: return Mem::GM;
  }
}

}  // namespace emu
