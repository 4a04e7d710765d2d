// Matrix products of the cube on plain memory: no checks, no clocks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emu {

enum class Operand : uint8_t { S4, S8, F16, BF16, F32 };

// Values of `type` in the 32 bytes of one row of a fractal.
constexpr int operand_c0(Operand type) {
  switch (type) {
    case Operand::S4: return 64;
    case Operand::S8: return 32;
    case Operand::F32: return 8;
    default: return 16;
  }
}

struct Product {
  Operand type;
  const std::byte* a;  // fractals [m/16][k_fractals][16][C0]; plain k elements where m is 1
  const std::byte* b;  // fractals [k/C0][n/16][16][C0]
  std::byte* c;        // [n/16][c_rows][16] of float or int32
  int m, n, k;
  int k_fractals;         // fractals in a row of A
  int c_rows;             // a multiple of 16
  bool accumulate;        // C holds the sum so far
  const std::byte* bias;  // n floats or int32; sums start from them; null without
};

// C = (0 | C | bias) + A * B. Each sum adds its products in the order of k to what it starts from.
// Integers are exact modulo 2^32. Products of half and bfloat16 are exact in float, and so is every
// step's only rounding that of the addition; float operands are multiplied and added in double and
// rounded to float after each addition. The hardware's order is not published. Rows of C from m to
// the next multiple of 16 and columns beyond n hold NaN or 0xA5A5A5A5 afterwards.
void multiply(const Product& product);

}  // namespace emu
