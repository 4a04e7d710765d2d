// Arithmetic on runs of elements: loop(op, type) is a function over n contiguous elements.
//
// Each function gives the IEEE result rounded once to the type. Half is computed in float, whose 24
// bits are more than twice the 11 of half plus two, so that rounding twice equals rounding once for
// + - * / and the square root. The NPU's Exp, Ln, Rsqrt and Reciprocal may differ by some ulps.
#pragma once

#include "emu/vector_engine.h"

namespace emu::vec {

// d[i] = op(a[i], b[i]); operations of one operand ignore b, those that accumulate read d.
using Loop = void (*)(std::byte* d, const std::byte* a, const std::byte* b, uint64_t scalar,
                      std::size_t n);

// Null where the operation does not exist for the type.
Loop loop(Op op, Elem elem);
// Axpy and MulAddDst with a float destination and half sources.
Loop mixed_loop(Op op);

}  // namespace emu::vec
