// Conversions of runs of elements.
#pragma once

#include "emu/cast_table.h"

namespace emu::vec {

// n elements from `from` to `to`; half with `scale` where int32 becomes half. Packed int4 runs
// start at an even element and have an even length.
void convert(std::byte* to, Elem target, const std::byte* from, Elem source, int rounding,
             float scale, std::size_t n);

}  // namespace emu::vec
