// How copies write: by storing, or by adding where SetAtomicAdd says so.
#pragma once

#include "emu/instruction.h"
#include "emu/number.h"

namespace emu {

// Per core: what copies to GM add instead of storing; None stores.
struct AtomicMode {
  Number number = Number::None;
};

void set_atomic(const char* api, Number number, At at);

// Writes `count` blocks of first.bytes, whose starts are `stride` bytes apart, from `values`, whose
// blocks are `value_stride` apart. In GM and with an atomic mode they are added, element by
// element: half and bfloat16 in float with one rounding to nearest even, integers modulo their
// size.
void store(Instruction& in, Range first, uint64_t count, uint64_t stride, uint32_t align,
           Number number, const std::byte* values, uint64_t value_stride);

}  // namespace emu
