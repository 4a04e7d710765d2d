// What is done to rows of values in UB. Every function leaves V's writes behind a barrier.
#pragma once

#include "kernel_operator.h"

namespace mlapo {

using namespace AscendC;

// Numbers of V that every function uses. A "block" is 32 bytes of one repeated float.
struct Numbers {
  LocalTensor<float> sum;      // 8: result of a reduction
  LocalTensor<float> spread;   // 64: the same, a block for each
  LocalTensor<float> divisor;  // 8
  LocalTensor<float> ones, most;  // blocks of 1 and 127
  LocalTensor<float> scratch;     // of reductions
};

// dst = src op block, n values.
__aicore__ inline void times_block(const LocalTensor<float>& dst, const LocalTensor<float>& src,
                                   const LocalTensor<float>& block, int32_t n) {
  const int32_t whole = n / 64, rest = n % 64;
  const BinaryRepeatParams step(1, 1, 0, 8, 8, 0);
  if (whole > 0) Mul(dst, src, block, uint64_t(64), uint8_t(whole), step);
  if (rest > 0) Mul(dst[whole * 64], src[whole * 64], block, uint64_t(rest), 1, step);
  PipeBarrier<PIPE_V>();
}
__aicore__ inline void over_block(const LocalTensor<float>& dst, const LocalTensor<float>& src,
                                  const LocalTensor<float>& block, int32_t n) {
  const int32_t whole = n / 64, rest = n % 64;
  const BinaryRepeatParams step(1, 1, 0, 8, 8, 0);
  if (whole > 0) Div(dst, src, block, uint64_t(64), uint8_t(whole), step);
  if (rest > 0) Div(dst[whole * 64], src[whole * 64], block, uint64_t(rest), 1, step);
  PipeBarrier<PIPE_V>();
}

// The result of `Join` over n values, in every place of the block v.spread. Halves are joined until 64
// are left, which is faster than reducing repeat by repeat. `values` is scratch.
enum class Join { SUM, MAXIMUM };
template <Join JOIN>
__aicore__ inline void reduced(const LocalTensor<float>& values, int32_t n, const Numbers& v) {
  while (n > 64) {
    // The upper part is a whole number of blocks and not the larger one.
    const int32_t upper = n / 16 * 8;
    if (JOIN == Join::SUM)
      Add(values, values, values[n - upper], upper);
    else
      Max(values, values, values[n - upper], upper);
    PipeBarrier<PIPE_V>();
    n -= upper;
  }
  if (JOIN == Join::SUM)
    ReduceSum(v.sum, values, v.scratch, n);
  else
    ReduceMax(v.sum, values, v.scratch, n);
  PipeBarrier<PIPE_V>();
  Brcb(v.spread, v.sum, 1, BrcbRepeatParams(1, 8));
  PipeBarrier<PIPE_V>();
}

// What turns sums of a product into activations.
struct Scaling {
  LocalTensor<float> columns;  // scale of each column
  LocalTensor<int32_t> bias;   // where activations are static
  LocalTensor<float> row;      // block with the scale of the row, where they are not
  bool is_static;
};

// values = sums of `parts` parts, scaled and rounded to T. `wide` is scratch; sums are overwritten.
template <class T, class S>
__aicore__ inline void scaled(const LocalTensor<T>& values, const LocalTensor<float>& wide,
                              const LocalTensor<S>& sums, int32_t parts, int32_t n,
                              const Scaling& scaling) {
  for (int32_t part = 1; part < parts; part++) {
    Add(sums, sums, sums[part * n], n);
    PipeBarrier<PIPE_V>();
  }
  if constexpr (std::is_same<S, float>::value) {
    Cast(values, sums, RoundMode::CAST_RINT, n);
  } else {
    if (scaling.is_static) {
      Add(sums, sums, scaling.bias, n);
      PipeBarrier<PIPE_V>();
    }
    Cast(wide, sums, RoundMode::CAST_RINT, n);
    PipeBarrier<PIPE_V>();
    Mul(wide, wide, scaling.columns, n);
    PipeBarrier<PIPE_V>();
    if (!scaling.is_static) times_block(wide, wide, scaling.row, n);
    Cast(values, wide, RoundMode::CAST_RINT, n);
  }
  PipeBarrier<PIPE_V>();
}

// values = RMSNorm(values) * gamma, rounded to T before and after gamma. wide, other: scratch.
template <class T>
__aicore__ inline void normed(const LocalTensor<T>& values, const LocalTensor<float>& wide,
                              const LocalTensor<float>& other, const LocalTensor<float>& gamma,
                              float eps, int32_t n, const Numbers& v) {
  Cast(wide, values, RoundMode::CAST_NONE, n);
  PipeBarrier<PIPE_V>();
  Mul(other, wide, wide, n);
  PipeBarrier<PIPE_V>();
  reduced<Join::SUM>(other, n, v);
  Muls(v.spread, v.spread, 1.0f / float(n), 8);
  PipeBarrier<PIPE_V>();
  Adds(v.spread, v.spread, eps, 8);
  PipeBarrier<PIPE_V>();
  Sqrt(v.spread, v.spread, 8);
  PipeBarrier<PIPE_V>();
  Div(v.spread, v.ones, v.spread, 8);
  PipeBarrier<PIPE_V>();
  times_block(wide, wide, v.spread, n);
  Cast(values, wide, RoundMode::CAST_RINT, n);
  PipeBarrier<PIPE_V>();
  Cast(wide, values, RoundMode::CAST_NONE, n);
  PipeBarrier<PIPE_V>();
  Mul(wide, wide, gamma, n);
  PipeBarrier<PIPE_V>();
  Cast(values, wide, RoundMode::CAST_RINT, n);
  PipeBarrier<PIPE_V>();
}

// Scale and offset of static activations, the scale as a block.
struct Point {
  LocalTensor<float> scale;
  float offset;
  bool is_static;
};

// int8 of quotients of -127 to 127. Whole numbers first: half would round some across a tie.
__aicore__ inline void to_codes(const LocalTensor<int8_t>& codes, const LocalTensor<float>& wide,
                                const LocalTensor<float>& other, int32_t n) {
  Cast(wide, wide, RoundMode::CAST_RINT, n);
  PipeBarrier<PIPE_V>();
  const LocalTensor<half> narrow = other.template ReinterpretCast<half>();
  Cast(narrow, wide, RoundMode::CAST_RINT, n);
  PipeBarrier<PIPE_V>();
  Cast(codes, narrow, RoundMode::CAST_RINT, n);
}

// codes of n values, and the block `scale` where they are quantised per row. wide, other: scratch.
template <class T>
__aicore__ inline void quantised(const LocalTensor<int8_t>& codes, const LocalTensor<float>& scale,
                                 const LocalTensor<T>& values, const LocalTensor<float>& wide,
                                 const LocalTensor<float>& other, const Point& point, int32_t n,
                                 const Numbers& v) {
  Cast(wide, values, RoundMode::CAST_NONE, n);
  PipeBarrier<PIPE_V>();
  if (point.is_static) {
    over_block(wide, wide, point.scale, n);
    Adds(wide, wide, point.offset, n);
    PipeBarrier<PIPE_V>();
    Mins(wide, wide, 127.0f, n);
    PipeBarrier<PIPE_V>();
    Maxs(wide, wide, -128.0f, n);
    PipeBarrier<PIPE_V>();
  } else {
    Abs(other, wide, n);
    PipeBarrier<PIPE_V>();
    reduced<Join::MAXIMUM>(other, n, v);
    Div(scale, v.spread, v.most, 8);
    PipeBarrier<PIPE_V>();
    // A row of zeros has scale 0 and codes 0: it is divided by the smallest number.
    Maxs(v.divisor, scale, 1.4e-45f, 8);
    PipeBarrier<PIPE_V>();
    over_block(wide, wide, v.divisor, n);
  }
  to_codes(codes, wide, other, n);
}

// The same with a scale for each TILE values; scales holds 8 floats, one for each tile first.
template <int32_t TILE, class T>
__aicore__ inline void packed(const LocalTensor<int8_t>& codes, const LocalTensor<float>& scales,
                              const LocalTensor<T>& values, const LocalTensor<float>& wide,
                              const LocalTensor<float>& other, int32_t n, const Numbers& v) {
  static_assert(TILE == 128, "a tile is two repeats");
  const uint8_t tiles = uint8_t(n / TILE), step = TILE / 8;
  const BinaryRepeatParams by_tile(1, 1, 0, step, step, 1);
  Cast(wide, values, RoundMode::CAST_NONE, n);
  PipeBarrier<PIPE_V>();
  Abs(other, wide, n);
  PipeBarrier<PIPE_V>();
  Max(other, other, other[64], uint64_t(64), tiles, BinaryRepeatParams(1, 1, 1, step, step, step));
  PipeBarrier<PIPE_V>();
  WholeReduceMax(v.sum, other, uint64_t(64), tiles, 1, 1, step, ReduceOrder::ORDER_ONLY_VALUE);
  PipeBarrier<PIPE_V>();
  Div(scales, v.sum, v.most, 8);
  PipeBarrier<PIPE_V>();
  Maxs(v.divisor, scales, 1.4e-45f, 8);
  PipeBarrier<PIPE_V>();
  Brcb(v.spread, v.divisor, 1, BrcbRepeatParams(1, 8));
  PipeBarrier<PIPE_V>();
  Div(wide, wide, v.spread, uint64_t(64), tiles, by_tile);
  Div(wide[64], wide[64], v.spread, uint64_t(64), tiles, by_tile);
  PipeBarrier<PIPE_V>();
  to_codes(codes, wide, other, n);
}

// Angles of the rotation of neighbours; see worker.h.
struct Turn {
  LocalTensor<uint32_t> pair;   // byte offset of the angle of a value's pair, for one row
  LocalTensor<float> sign;      // -1, 1, -1, ...
  LocalTensor<float> cos, sin;  // of one row, scratch
  LocalTensor<uint32_t> words;  // pairs of values, scratch
};

// out [heads][dims] = rows of `dims` values, `pitch` apart, turned by angles of dims / 2 pairs. A pair is
// a word of 32 bits, whose halves change places.
template <class T>
__aicore__ inline void rotated(const LocalTensor<T>& out, const LocalTensor<T>& rows, int32_t heads,
                               int32_t dims, int32_t pitch, const LocalTensor<float>& cos,
                               const LocalTensor<float>& sin, const LocalTensor<float>& wide,
                               const LocalTensor<float>& other, const Turn& turn) {
  const uint8_t row = uint8_t(dims / 8), apart = uint8_t(pitch / 16), repeats = uint8_t(heads);
  const uint64_t pairs = uint64_t(dims / 2);
  const BinaryRepeatParams step(1, 1, 1, row, row, 0);
  const LocalTensor<uint32_t> words = rows.template ReinterpretCast<uint32_t>();
  const LocalTensor<uint32_t> low = turn.words, high = turn.words[heads * dims / 2];
  Cast(wide, rows, RoundMode::CAST_NONE, uint64_t(dims), repeats, UnaryRepeatParams(1, 1, row, apart));
  ShiftLeft(low, words, uint32_t(16), pairs, repeats, UnaryRepeatParams(1, 1, row / 2, apart));
  ShiftRight(high, words, uint32_t(16), pairs, repeats, UnaryRepeatParams(1, 1, row / 2, apart));
  Gather(turn.cos, cos, turn.pair, 0, dims);
  Gather(turn.sin, sin, turn.pair, 0, dims);
  PipeBarrier<PIPE_V>();
  Mul(turn.sin, turn.sin, turn.sign, dims);
  Mul(wide, wide, turn.cos, uint64_t(dims), repeats, step);
  Add(low.template ReinterpretCast<int32_t>(), low.template ReinterpretCast<int32_t>(),
      high.template ReinterpretCast<int32_t>(), heads * dims / 2);
  PipeBarrier<PIPE_V>();
  Cast(other, low.template ReinterpretCast<T>(), RoundMode::CAST_NONE, heads * dims);
  PipeBarrier<PIPE_V>();
  Mul(other, other, turn.sin, uint64_t(dims), repeats, step);
  PipeBarrier<PIPE_V>();
  Add(wide, wide, other, heads * dims);
  PipeBarrier<PIPE_V>();
  Cast(out, wide, RoundMode::CAST_RINT, heads * dims);
}

}  // namespace mlapo
