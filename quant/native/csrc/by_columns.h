// Matrices whose rows are rotated into each other.
//
// Every column is needed before the first row is done: panels of columns are rotated and leave the
// cache once as F32, and rows that belong together come back once, for Paley's part, the search and
// the codes.
#pragma once

#include "work.h"

namespace g5 {

// Columns that are rotated together: whole lines of memory of any source.
constexpr int64_t PANEL = 128;

// Every row into work.matrix, rotated along itself and multiplied with its factor.
inline void fill(Work& work) {
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
inline void turn(Work& work, const Segment& g, int64_t first, int64_t begin, int64_t end,
                 bool direct, float* panel, float* room) {
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
inline void turn_segment(Work& work, const Segment& g, bool direct) {
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
inline void finish_plain(Work& work, int64_t begin, int64_t end) {
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

inline void by_columns(Work& work) {
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

}  // namespace g5
