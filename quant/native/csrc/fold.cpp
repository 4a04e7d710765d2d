// One matrix: source bytes in, norms and rotations folded in F32, codes and scales (or floats) out.
//
// Without a rotation of its rows a matrix is worked on row by row, in cache from the source's bytes
// to the codes. With one, every column is needed before the first row is done: panels of columns are
// rotated and leave the cache once as F32, and rows that belong together come back once, for Paley's
// part, the search and the codes.
#include <atomic>

#include "axis.h"
#include "search.h"
#include "source.h"

namespace g5 {
namespace {

enum Kind : int { AS_F32 = 0, AS_BF16 = 1, INT8 = 2, INT4 = 3 };
constexpr int NOT_FINITE = 3;
// Columns that are rotated together: whole lines of memory of any source.
constexpr int64_t PANEL = 128;

struct Output {
  int kind;
  bool search;   // else the scale that clips nothing
  void* data;    // [rows][columns], INT4: [rows / 2][columns]
  float* scale;  // [rows]
  float* bias;   // [rows][slices], INT4
  int64_t slices;
};

struct Work {
  Source source;
  Axis columns, rows;
  Output out;
  float* matrix = nullptr;  // [rows][stride], where rows are rotated
  int64_t stride = 0;
  std::atomic<int> error{OK};

  void fail(int code) { error.store(code); }
};

// Memory of a thread for two rows.
struct Rows {
  float* x;
  float* room;
  int16_t* words;
  int8_t* codes;
};

bool take_rows(int64_t columns, int64_t count, Rows* rows) {
  const size_t wide = size_t(padded(columns));
  rows->x = scratch<float>(1, wide * size_t(count));
  rows->room = scratch<float>(2, wide);
  rows->words = scratch<int16_t>(3, wide);
  rows->codes = scratch<int8_t>(4, wide * 2);
  return rows->x && rows->room && rows->words && rows->codes;
}

void clear_padding(float* x, int64_t n) {
  std::memset(x + n, 0, size_t(padded(n) - n) * sizeof(float));
}

// 8 * sum of codes * scale per slice, the constant that undoes the kernel's offset of 8.
void sum_codes(const int8_t* codes, int64_t n, float scale, int64_t slices, float* bias) {
  const int64_t wide = n / slices;
  for (int64_t s = 0; s < slices; s++) {
    int32_t sum = 0;
    for (int64_t i = 0; i < wide; i++) sum += codes[s * wide + i];
    bias[s] = float(8.0 * double(sum) * double(scale));
  }
}

// Writes row `index`, whose padding is zero.
void finish(Work& work, int64_t index, float* x, const Rows& rows, int8_t* codes) {
  const Output& out = work.out;
  const int64_t n = work.source.columns;
  if (work.columns.after != nullptr)
    for (int64_t i = 0; i < n; i++) x[i] *= work.columns.after[i];
  if (work.rows.after != nullptr)
    for (int64_t i = 0; i < n; i++) x[i] *= work.rows.after[index];
  if (out.kind == AS_F32) {
    std::memcpy(static_cast<float*>(out.data) + index * n, x, size_t(n) * sizeof(float));
  } else if (out.kind == AS_BF16) {
    bf16* to = static_cast<bf16*>(out.data) + index * n;
    int64_t i = 0;
    for (; i + W <= n; i += W) store(to + i, load(x + i));
    if (i < n) store_part(to + i, load(x + i), int(n - i));
  } else if (out.kind == INT8) {
    out.scale[index] = round_row<8>(x, n, out.search, rows.words, codes);
    std::memcpy(static_cast<int8_t*>(out.data) + index * n, codes, size_t(n));
  } else {
    const float scale = round_row<4>(x, n, out.search, rows.words, codes);
    out.scale[index] = scale;
    sum_codes(codes, n, scale, out.slices, out.bias + index * out.slices);
  }
}

// Writes rows `index` and `index` + 1, the latter only where there is one.
void finish_pair(Work& work, int64_t index, float* x, int64_t apart, bool both,
                 const Rows& rows) {
  const int64_t n = work.source.columns;
  int8_t* const odd = rows.codes + padded(n);
  finish(work, index, x, rows, rows.codes);
  if (both) finish(work, index + 1, x + apart, rows, odd);
  if (work.out.kind != INT4) return;
  int8_t* const to = static_cast<int8_t*>(work.out.data) + index / 2 * n;
  for (int64_t i = 0; i < n; i++)
    to[i] = int8_t((uint8_t(odd[i]) << 4) | (uint8_t(rows.codes[i]) & 15));
}

// Reads a whole row, folds its norm in and rotates along it.
void read_and_rotate(Work& work, int64_t row, float* x, float* room) {
  if (!read_row(work.source, row, 0, work.source.columns, work.columns.factors, x))
    work.fail(NOT_FINITE);
  along(work.columns, x, room);
}

// --- Matrices whose rows stay apart.

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

// --- Matrices whose rows are rotated into each other.

// Every row into work.matrix, rotated along itself and multiplied with its factor.
void fill(Work& work) {
  parallel_for(work.source.rows, 1, [&](int64_t begin, int64_t end, int) {
    float* room = scratch<float>(2, size_t(padded(work.source.columns)));
    if (room == nullptr) return work.fail(NO_MEMORY);
    for (int64_t row = begin; row < end; row++) {
      float* x = work.matrix + row * work.stride;
      read_and_rotate(work, row, x, room);
      if (work.rows.factors != nullptr)
        for (int64_t i = 0; i < work.source.columns; i++) x[i] *= work.rows.factors[row];
    }
  });
}

// Rotates rows [first, first + g.width) of columns [begin, end) but for Paley's part.
// From the source where `direct`, else in place.
void turn(Work& work, const Segment& g, int64_t first, int64_t begin, int64_t end, bool direct,
          float* panel, float* room) {
  const int64_t n = g.width, strips = (end - begin + STRIP - 1) / STRIP;
  float line[PANEL] = {};
  for (int64_t i = 0; i < n; i++) {
    const int64_t row = first + i;
    if (direct) {
      if (!read_row(work.source, row, begin, end, work.columns.factors, line))
        work.fail(NOT_FINITE);
      if (work.rows.factors != nullptr)
        for (int64_t k = 0; k < PANEL; k++) line[k] *= work.rows.factors[row];
    } else {
      std::memcpy(line, work.matrix + row * work.stride + begin,
                  size_t(end - begin) * sizeof(float));
    }
    for (int64_t s = 0; s < strips; s++)
      std::memcpy(panel + (s * n + i) * STRIP, line + s * STRIP, STRIP * sizeof(float));
  }
  for (int64_t s = 0; s < strips; s++) down(g, work.rows.again, panel + s * n * STRIP, room);
  for (int64_t i = 0; i < n; i++)
    for (int64_t s = 0; s < strips; s++)
      std::memcpy(work.matrix + (first + i) * work.stride + begin + s * STRIP,
                  panel + (s * n + i) * STRIP, STRIP * sizeof(float));
}

// All panels of one segment: pieces of rows that Sylvester's part mixes, unless a shift mixes all.
void turn_segment(Work& work, const Segment& g, bool direct) {
  Segment piece = g;
  if (g.shift == 0) {
    piece.width = piece.block = g.power();
    piece.order = 1;
  }
  const int64_t pieces = g.width / piece.width;
  const int64_t wide = piece.width <= 1024 ? PANEL : 2 * STRIP;
  const int64_t panels = (work.source.columns + wide - 1) / wide;
  parallel_for(pieces * panels, 1, [&](int64_t begin, int64_t end, int) {
    float* panel = scratch<float>(5, size_t(piece.width * wide));
    float* room = scratch<float>(6, size_t(piece.width * STRIP));
    if (panel == nullptr || room == nullptr) return work.fail(NO_MEMORY);
    for (int64_t i = begin; i < end; i++) {
      const int64_t left = i % panels * wide, right = left + wide;
      turn(work, piece, g.offset + i / panels * piece.width, left,
           right < work.source.columns ? right : work.source.columns, direct, panel, room);
    }
  });
}

// Paley's part for the rows at `place` and `place` + 1 of every Sylvester block, into rows of
// `apart` each: all those at `place`, then all those at `place` + 1.
template <int K>
void mix(const Work& work, int64_t place, int64_t power, float* to, int64_t apart) {
  const int64_t n = work.source.columns;
  for (int64_t i = 0; i < padded(n); i += W)
    for (int64_t next = 0; next < 2; next++) {
      F x[K], y[K];
      const float* from = work.matrix + (place + next) * work.stride + i;
      for (int64_t k = 0; k < K; k++) x[k] = load(from + k * power * work.stride);
      paley<K>(x, y);
      for (int64_t k = 0; k < K; k++) store(to + (next * K + k) * apart + i, y[k]);
    }
  for (int64_t k = 0; k < 2 * K; k++) clear_padding(to + k * apart, n);
}

template <int K>
void finish_mixed(Work& work, const Segment& g) {
  const int64_t n = work.source.columns, power = g.power(), half = power / 2;
  parallel_for(g.width / g.block * half, 1, [&](int64_t begin, int64_t end, int) {
    Rows rows;
    const int64_t wide = padded(n) + STRIP;
    if (!take_rows(wide, 2 * K, &rows)) return work.fail(NO_MEMORY);
    for (int64_t i = begin; i < end; i++) {
      const int64_t place = g.offset + i / half * g.block + i % half * 2;
      mix<K>(work, place, power, rows.x, wide);
      for (int64_t k = 0; k < K; k++)
        finish_pair(work, place + k * power, rows.x + k * wide, K * wide, true, rows);
    }
  });
}

// Rows [begin, end) of work.matrix, which are done but for the output.
void finish_plain(Work& work, int64_t begin, int64_t end) {
  const int64_t n = work.source.columns;
  parallel_for((end - begin + 1) / 2, 1, [&](int64_t first, int64_t last, int) {
    Rows rows;
    if (!take_rows(n, 1, &rows)) return work.fail(NO_MEMORY);
    for (int64_t p = first; p < last; p++) {
      const int64_t row = begin + 2 * p;
      const bool both = row + 1 < end;
      float* x = work.matrix + row * work.stride;
      clear_padding(x, n);
      if (both) clear_padding(x + work.stride, n);
      finish_pair(work, row, x, work.stride, both, rows);
    }
  });
}

void by_columns(Work& work) {
  const int64_t rows = work.source.rows;
  // Not a power of two, so that rows do not compete for the same places of a cache.
  work.stride = padded(work.source.columns) + STRIP;
  work.matrix = scratch<float>(0, size_t(rows * work.stride));
  if (work.matrix == nullptr) return work.fail(NO_MEMORY);
  const bool direct = work.columns.count == 0 && work.rows.count == 1 &&
                      work.rows.segments[0].width == rows;
  if (!direct) fill(work);
  int64_t done = 0;
  for (int64_t s = 0; s < work.rows.count; s++) {
    const Segment& g = work.rows.segments[s];
    turn_segment(work, g, direct);
    if (g.order == 1) continue;
    finish_plain(work, done, g.offset);
    if (g.order == 12) finish_mixed<12>(work, g);
    if (g.order == 20) finish_mixed<20>(work, g);
    done = g.offset + g.width;
  }
  finish_plain(work, done, rows);
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
// `source_type` is BF16, F32 or F8 (with `scales`, one per block of high x wide). An axis is `count`
// segments of (offset, width, order, block, shift), with three vectors as in axis.h. `kind` is the
// form of `out`: 0 F32, 1 BF16, 2 int8 with `scale` [rows], 3 int4 in pairs of rows with `scale` and
// `bias` [rows][slices]. `search` looks for the best scale. Returns NOT_FINITE where the source holds
// NaN or infinity.
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
