// What Fixpipe does to a number on its way out of L0C: no checks, no clocks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emu {

// Steps of one Fixpipe. `Copy` keeps float or int32. `ToHalf` and `ToBf16` round a float to nearest
// even; what is too large becomes infinity. `Dequant` multiplies an int32 (as float) by a scale in
// float and rounds to half. `ToByte` multiplies float or int32 (as float) by a scale in float,
// rounds to nearest even, adds the offset and saturates to int8 or uint8; NaN becomes 0.
enum class FixStep : uint8_t { Copy, ToHalf, ToBf16, Dequant, ToByte };

// Scale of a stored quantisation parameter: bits 31..13 of a float, the rest of its mantissa is 0.
float fix_scale(uint64_t parameter);
// Offset of a stored quantisation parameter: bits 45..37, signed.
int fix_offset(uint64_t parameter);

struct FixRow {
  FixStep step;
  bool from_int;   // source is int32, else float
  bool to_signed;  // ToByte: int8, else uint8
  bool relu;       // negative numbers become 0 before anything else; NaN stays
};

// Converts `count` numbers at `from` to `to`; the scale of number i is parameters[i * step], where
// step is 0 for one scale.
void fix_convert(const FixRow& row, const std::byte* from, std::byte* to, int count,
                 const uint64_t* parameters, int parameter_step);

}  // namespace emu
