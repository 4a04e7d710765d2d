// Int8 product of few rows, which reads the weight once and as it lies in memory.
#include "g5_int8_tile.h"

using namespace g5;

namespace {

constexpr int64_t COLUMNS = 64;  // outputs that one task computes at least
constexpr int64_t WORTH = 1 << 18;  // products below which another thread does not pay

}  // namespace

// sums int32 [rows, outputs] of codes [rows, terms] and weight [outputs, terms], whose rows lie
// `stride` apart.
G5_EXPORT int g5_mlapo_product(const int8_t* codes, int64_t rows, int64_t terms,
                               const int8_t* weight, int64_t outputs, int64_t stride,
                               int32_t* sums) {
  const int64_t padded = padded_terms(terms);
  auto* x = scratch<uint8_t>(0, size_t(rows * padded));
  if (x == nullptr) return NO_MEMORY;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t k = 0; k < terms; k++)
      x[r * padded + k] = uint8_t(codes[r * terms + k] + Bytes::OFFSET);
  const int64_t blocks = (outputs + COLUMNS - 1) / COLUMNS, each = rows * terms * COLUMNS;
  parallel_for(blocks, WORTH / (each + 1) + 1, [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * COLUMNS, last = end * COLUMNS < outputs ? end * COLUMNS : outputs;
    integer_tile<Bytes>({x, padded, weight + first * stride, stride, terms, sums + first, outputs},
                        rows, last - first);
  });
  return OK;
}
