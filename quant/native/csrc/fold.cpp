// One matrix: source bytes in, norms and rotations folded in F32, codes and scales (or floats) out.
//
// Without a rotation of its rows a matrix is worked on row by row, in cache from the source's bytes
// to the codes; by_columns.h has the others.
#include "by_columns.h"

namespace g5 {
namespace {

void by_rows(Work& work) {
  const int64_t n = work.source.columns, pairs = (work.source.rows + 1) / 2;
  parallel_for(pairs, 1, [&](int64_t begin, int64_t end, int) {
    Rows rows;
    if (!take_rows(n, 2, &rows)) return work.fail(NO_MEMORY);
    const int64_t wide = padded(n);
    for (int64_t p = begin; p < end; p++) {
      const bool both = 2 * p + 1 < work.source.rows;
      for (int64_t i = 0; i < 1 + both; i++) {
        read_and_rotate(work, 2 * p + i, rows.x + i * wide, rows.room);
        clear_padding(rows.x + i * wide, n);
      }
      finish_pair(work, 2 * p, rows.x, wide, both, rows);
    }
  });
}

bool supported(const Axis& axis, int64_t size, bool in_pairs) {
  int64_t end = 0;
  for (int64_t s = 0; s < axis.count; s++) {
    const Segment& g = axis.segments[s];
    const bool known = g.order == 1 || g.order == 12 || g.order == 20;
    if (!known || g.block < g.order || g.block % g.order || g.width % g.block) return false;
    const int64_t power = g.power();
    if ((power & (power - 1)) != 0 || g.offset < end || g.offset + g.width > size) return false;
    if (g.shift < 0 || g.shift >= g.width || (g.shift != 0 && g.order != 1)) return false;
    // Rows leave in pairs, which Paley's part must not cut.
    if (in_pairs && (g.offset % 2 != 0 || (g.order != 1 && power % 2 != 0))) return false;
    end = g.offset + g.width;
  }
  return true;
}

}  // namespace
}  // namespace g5

// Folds and stores one matrix [rows][columns].
//
// `source_type` is BF16, F32 or F8 (with `scales`, one per block of high x wide). An axis is
// `count` segments of (offset, width, order, block, shift), with three vectors as in axis.h. `kind`
// is the form of `out`: 0 F32, 1 BF16, 2 int8 with `scale` [rows], 3 int4 in pairs of rows with
// `scale` and `bias` [rows][slices]. `search` looks for the best scale. Returns NOT_FINITE where the
// source holds NaN or infinity.
G5_EXPORT int g5_fold(int source_type, const void* source, int64_t rows, int64_t columns,
                      const float* scales, int64_t high, int64_t wide,
                      const int64_t* column_segments, int64_t column_count,
                      const float* column_factors, const float* column_again,
                      const float* column_after, const int64_t* row_segments, int64_t row_count,
                      const float* row_factors, const float* row_again, const float* row_after,
                      int kind, int search, void* out, float* scale, float* bias, int64_t slices) {
  using namespace g5;
  if (source_type != F32 && source_type != BF16 && source_type != F8) return UNSUPPORTED;
  if (rows < 1 || columns < 1 || kind < AS_F32 || kind > INT4) return UNSUPPORTED;
  if (source_type == F8 && (scales == nullptr || high < 1 || wide < 1)) return UNSUPPORTED;
  if (kind == INT4 && (rows % 2 || slices < 1 || columns % slices)) return UNSUPPORTED;
  static_assert(sizeof(Segment) == 5 * sizeof(int64_t), "as in axis.py");
  Work work;
  work.source = {source_type, source, rows, columns, scales, high, wide};
  work.columns = {reinterpret_cast<const Segment*>(column_segments), column_count, column_factors,
                  column_again, column_after};
  work.rows = {reinterpret_cast<const Segment*>(row_segments), row_count, row_factors, row_again,
               row_after};
  work.out = {kind, search != 0, out, scale, bias, slices};
  if (!supported(work.columns, columns, false) || !supported(work.rows, rows, true))
    return UNSUPPORTED;
  if (row_count == 0 && row_factors == nullptr)
    by_rows(work);
  else
    by_columns(work);
  return work.error.load();
}
