// A tile of exact integer sums: rows of activation codes times rows of weights.
#pragma once

#include <utility>

#include "g5_int8_dot.h"

#define G5_FORCE __attribute__((always_inline))

namespace g5 {

template <class Fn, int... I>
G5_INLINE void unrolled_over(const Fn& fn, std::integer_sequence<int, I...>) {
  (fn(std::integral_constant<int, I>{}), ...);
}
// fn(0), fn(1), ... fn(N - 1), the index a constant.
template <int N, class Fn>
G5_INLINE void unrolled(const Fn& fn) {
  unrolled_over(fn, std::make_integer_sequence<int, N>{});
}

// Rows of stored activation codes start this many bytes apart at a multiple of it, so that a whole
// operand can be read at their end; what lies there meets weights that are 0.
constexpr int64_t CODE_ALIGN = 64;

inline int64_t padded_terms(int64_t terms) {
  return (terms + CODE_ALIGN - 1) / CODE_ALIGN * CODE_ALIGN;
}

struct Tile {
  const uint8_t* x;  // codes + OFFSET of the format
  int64_t x_stride;
  const int8_t* w;
  int64_t w_stride;
  int64_t terms;
  int32_t* out;
  int64_t out_stride;
};

template <class Format, int COLUMNS>
G5_INLINE void totals(const typename Format::Sum* sums, int32_t* out) {
  if constexpr (COLUMNS == 4) {
    Format::total4(sums, out);
  } else {
    for (int c = 0; c < COLUMNS; c++) out[c] = Format::total(sums[c]);
  }
}

// ROWS x (STORED * OUTPUTS) sums at `t`. `weights` holds the sums of the stored rows' weights:
// written where WRITE_SUMS, read otherwise. Loops are unrolled by templates, since the compiler
// keeps an array in registers only where it never sees a variable index.
template <class Format, int ROWS, int STORED, bool WRITE_SUMS>
G5_INLINE void tile_block(const Tile& t, int32_t* weights) {
  constexpr int COLUMNS = STORED * Format::OUTPUTS;
  typename Format::Sum sum[ROWS][COLUMNS], own[COLUMNS];
  unrolled<COLUMNS>([&](auto c) G5_FORCE {
    own[c] = Format::zero();
    unrolled<ROWS>([&](auto r) G5_FORCE { sum[r][c] = Format::zero(); });
  });
  const auto step = [&](const typename Format::Operand(&w)[COLUMNS], int64_t k) G5_FORCE {
    unrolled<ROWS>([&](auto r) G5_FORCE {
      const auto x = Format::activations(t.x + r * t.x_stride + k);
      unrolled<COLUMNS>([&](auto c) G5_FORCE { Format::add(sum[r][c], x, w[c]); });
    });
    if constexpr (WRITE_SUMS)
      unrolled<COLUMNS>([&](auto c) G5_FORCE { Format::add_weights(own[c], w[c]); });
  };
  int64_t k = 0;
  for (; k + Format::STEP <= t.terms; k += Format::STEP) {
    typename Format::Operand w[COLUMNS];
    unrolled<STORED>([&](auto s) G5_FORCE {
      const int8_t* row = t.w + s * t.w_stride + k;
      // Rows are short streams, which the hardware's prefetcher finds too late.
      if constexpr (WRITE_SUMS) __builtin_prefetch(row + STORED * t.w_stride, 0, 2);
      Format::unpack(Format::raw(row), w + s * Format::OUTPUTS);
    });
    step(w, k);
  }
  if (k < t.terms) {
    typename Format::Operand w[COLUMNS];
    unrolled<STORED>([&](auto s) G5_FORCE {
      Format::unpack(Format::raw(t.w + s * t.w_stride + k, t.terms - k), w + s * Format::OUTPUTS);
    });
    step(w, k);
  }
  if constexpr (WRITE_SUMS) totals<Format, COLUMNS>(own, weights);
  unrolled<ROWS>([&](auto r) G5_FORCE {
    int32_t dots[COLUMNS];
    totals<Format, COLUMNS>(sum[r], dots);
    for (int c = 0; c < COLUMNS; c++)
      t.out[r * t.out_stride + c] =
          Format::finish(dots[c], Format::NEEDS_WEIGHT_SUM ? weights[c] : 0);
  });
}

template <class Format, int STORED, bool WRITE_SUMS>
G5_INLINE void tile_rows(const Tile& t, int64_t rows, int32_t* weights) {
  if constexpr (Format::ROWS == 4) {
    switch (rows) {
      case 2: return tile_block<Format, 2, STORED, WRITE_SUMS>(t, weights);
      case 3: return tile_block<Format, 3, STORED, WRITE_SUMS>(t, weights);
      case 4: return tile_block<Format, 4, STORED, WRITE_SUMS>(t, weights);
    }
  }
  tile_block<Format, 1, STORED, WRITE_SUMS>(t, weights);
}

template <class Format, int STORED>
G5_INLINE void tile_columns(Tile t, int64_t rows) {
  int32_t weights[STORED * Format::OUTPUTS];
  bool first = Format::NEEDS_WEIGHT_SUM;
  while (rows > 0) {
    const int64_t take = rows < Format::ROWS ? rows : Format::ROWS;
    if (first)
      tile_rows<Format, STORED, true>(t, take, weights);
    else
      tile_rows<Format, STORED, false>(t, take, weights);
    first = false;
    t.x += take * t.x_stride;
    t.out += take * t.out_stride;
    rows -= take;
  }
}

// out [rows, stored * OUTPUTS] of `rows` rows of codes and `stored` rows of weights.
template <class Format>
void integer_tile(Tile t, int64_t rows, int64_t stored) {
  constexpr int STORED = 4 / Format::OUTPUTS;
  int64_t s = 0;
  for (; s + STORED <= stored; s += STORED) {
    tile_columns<Format, STORED>(t, rows);
    t.w += STORED * t.w_stride;
    t.out += STORED * Format::OUTPUTS;
  }
  for (; s < stored; s++) {
    tile_columns<Format, 1>(t, rows);
    t.w += t.w_stride;
    t.out += Format::OUTPUTS;
  }
}

}  // namespace g5
