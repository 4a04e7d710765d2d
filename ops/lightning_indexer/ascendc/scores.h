// AIV: head weights and scales, and scores of a row from the products of its heads.
#pragma once

#include "sorting.h"

namespace lightning_indexer {

struct ScoreInputs {
  GM_ADDR weights;
  GM_ADDR query_scale;
  GM_ADDR key_scale;
  GM_ADDR table;
  GM_ADDR products;
};

// Score: float or int32_t, the type of the products. QUANT: they have scales.
template <class Score, class Tiles>
class Scores {
 public:
  static constexpr bool QUANT = QUANTISED<Score>;
  static constexpr int32_t KEYS = Tiles::KEYS, PIECE = Buffers<Tiles>::PIECE;
  static constexpr int32_t HEADS = Buffers<Tiles>::HEADS;

  __aicore__ Scores(const Work& work, const Buffers<Tiles>& ub, const ScoreInputs& inputs)
      : work_(work), ub_(ub), inputs_(inputs) {
    table_.SetGlobalBuffer((__gm__ int32_t*)inputs.table);
    products_.SetGlobalBuffer((__gm__ Score*)inputs.products +
                              GetBlockIdx() / VECTORS * Tiles::BUFFERS * Tiles::SCORES);
    rounded_.SetGlobalBuffer((__gm__ half*)inputs.products +
                             GetBlockIdx() / VECTORS * Tiles::BUFFERS * 2 * Tiles::SCORES);
  }

  // Products of one row with n keys: element `at` of a buffer, in F16 if they are rounded.
  struct Tile {
    int64_t buffer, at;
    int32_t n;
    bool rounded;
  };
  // How often pieces of a row's tile come.
  __aicore__ int32_t pieces(bool rounded) const {
    return (work_.tiling.heads + piece_heads(rounded) - 1) / piece_heads(rounded);
  }
  // Begins to bring a tile, which must be used by row() before the next but one begins.
  __aicore__ void load(const Tile& tile) {
    for (int32_t i = 0; i < smaller(2, pieces(tile.rounded)); ++i) load_piece(tile, i);
  }

  // Weights of `rows` rows from `first`, times the queries' scales, for `row()`.
  __aicore__ void load_weights(int32_t first, int32_t rows) {
    const int32_t n = rows * work_.tiling.heads;
    const int64_t at = int64_t(first) * work_.tiling.heads;
    load(ub_.raw_weights, inputs_.weights, work_.tiling.weights_type, at, n);
    if constexpr (QUANT) {
      load(ub_.raw_query_scales, inputs_.query_scale, work_.tiling.query_scale_type, at, n);
    }
    SetFlag<HardEvent::MTE2_V>(EVENT_ID3);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID3);
    widen(ub_.weights, ub_.raw_weights, work_.tiling.weights_type, n);
    if constexpr (QUANT) {
      widen(ub_.query_scales, ub_.raw_query_scales, work_.tiling.query_scale_type, n);
      PipeBarrier<PIPE_V>();
      Mul(ub_.weights, ub_.weights, ub_.query_scales, n);
    }
    SetFlag<HardEvent::V_S>(EVENT_ID1);
    WaitFlag<HardEvent::V_S>(EVENT_ID1);
    for (int32_t i = 0; i < n; ++i) weights_[i] = ub_.weights.GetValue(i);
    SetFlag<HardEvent::S_V>(EVENT_ID1);
    WaitFlag<HardEvent::S_V>(EVENT_ID1);
  }

  // Sum of a row's weights without signs.
  __aicore__ float weight(int32_t row) const {
    float sum = 0;
    for (int32_t i = 0; i < work_.tiling.heads; ++i) {
      const float w = weights_[row * work_.tiling.heads + i];
      sum += w < 0 ? -w : w;
    }
    return sum;
  }

  // How many calls of load_scales, and pieces, will come: nobody waits after the last ones.
  __aicore__ void expect(int32_t tiles, int32_t pieces) {
    tiles_left_ = tiles;
    pieces_ = pieces;
  }

  // Scales of n keys of a group from position `first`.
  __aicore__ void load_scales(const Group& group, int32_t first, int32_t n) {
    if (scales_used_) WaitFlag<HardEvent::V_MTE2>(EVENT_ID3);
    scales_used_ = true;
    const int32_t page = work_.tiling.page, type = work_.tiling.key_scale_type;
    for (int32_t done = 0; done < n;) {
      const int32_t position = first + done;
      int64_t row = int64_t(group.key_row) + position;
      int32_t count = n - done;
      if (page) {
        const int32_t entry = group.request * work_.tiling.table_stride + position / page;
        row = int64_t(table_.GetValue(entry)) * page + position % page;
        count = smaller(count, page - position % page);
      }
      const int32_t word = type == FLOAT32 ? done : done / 2;
      load(ub_.raw_scales[word], inputs_.key_scale, type, row, count);
      done += count;
    }
    SetFlag<HardEvent::MTE2_V>(EVENT_ID4);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID4);
    widen(ub_.scales, ub_.raw_scales, type, n);
    if (--tiles_left_ > 0) SetFlag<HardEvent::V_MTE2>(EVENT_ID3);
  }

  // ub.scores = scores for row `row` of load_weights, from a tile that was loaded; the first `seen`
  // lanes count, all others become -infinity.
  __aicore__ void row(int32_t row, const Tile& tile, int32_t seen) {
    const int32_t n = tile.n, heads = work_.tiling.heads;
    for (int32_t i = 0; i < heads / HEADS; ++i) {
      const int32_t half = used_ % 2;
      const LocalTensor<float> piece = ub_.pieces[half * PIECE];
      WaitFlag<HardEvent::MTE2_V>(half);
      if constexpr (QUANT) to_float(piece, n);
      add_heads(piece, row * heads + i * HEADS, i == 0, n);
      used(tile, i, half);
    }
    if constexpr (QUANT) {
      Mul(ub_.scores, ub_.scores, ub_.scales, n);
      PipeBarrier<PIPE_V>();
    }
    clean(seen);
  }
  // The same from rounded products. Sums of positive and of negative terms come apart: ub.scales
  // and ub.raw_scales hold the sum of both without signs and that of the negative ones, ub.tame
  // where all of it is finite, ub.most the largest of the row.
  __aicore__ void rounded_row(int32_t row, const Tile& tile, int32_t seen) {
    const int32_t heads = work_.tiling.heads;
    const LocalTensor<float> plus = ub_.scales, minus = ub_.raw_scales;
    Duplicate(plus, 0.0f, KEYS);
    Duplicate(minus, 0.0f, KEYS);
    for (int32_t i = 0; i < pieces(true); ++i) {
      const int32_t side = used_ % 2, first = i * piece_heads(true);
      const auto piece = ub_.pieces[side * PIECE].template ReinterpretCast<half>();
      WaitFlag<HardEvent::MTE2_V>(side);
      for (int32_t h = first; h < smaller(heads, first + piece_heads(true)); h += WIDE) {
        widen_heads(piece[(h - first) * KEYS], tile.n);
        for (int32_t j = 0; j < WIDE; ++j) {
          const float weight = weights_[row * heads + h + j];
          if (weight >= 0) Axpy(plus, ub_.spare[j * KEYS], weight, tile.n);
          else Axpy(minus, ub_.spare[j * KEYS], -weight, tile.n);
          PipeBarrier<PIPE_V>();
        }
      }
      used(tile, i, side);
    }
    Sub(ub_.scores, plus, minus, KEYS);
    Add(plus, plus, minus, KEYS);
    PipeBarrier<PIPE_V>();
    Compares(ub_.tame, plus, HUGE, CMPMODE::LE, KEYS);
    PipeBarrier<PIPE_V>();
    Select(plus, ub_.tame, plus, -LOWEST, SELMODE::VSEL_TENSOR_SCALAR_MODE, KEYS);
    PipeBarrier<PIPE_V>();
    note_most(ub_.most[row * 2 * 64], plus);
    note_most(ub_.most[row * 2 * 64 + 64], minus);
    clean(seen);
  }

 private:
  // Heads that are widened at once.
  static constexpr int32_t WIDE = HEADS * KEYS <= Buffers<Tiles>::SPARE ? HEADS
                                  : HEADS / 2 * KEYS <= Buffers<Tiles>::SPARE ? HEADS / 2
                                                                              : HEADS / 4;
  static_assert(WIDE * KEYS <= Buffers<Tiles>::SPARE, "heads in F32");
  // Larger sums count as infinite.
  static constexpr float HUGE = 1e30f;

  __aicore__ static constexpr int32_t piece_heads(bool rounded) {
    return rounded ? 2 * HEADS : HEADS;
  }
  // n numbers from element `at`.
  __aicore__ void load(const LocalTensor<float>& to, GM_ADDR from, int32_t type, int64_t at,
                       int32_t n) const {
    if (type == FLOAT32) {
      copy_in(to, (__gm__ float*)from + at, n);
    } else {
      copy_in(to.template ReinterpretCast<half>(), (__gm__ half*)from + at, n);
    }
  }
  template <class T>
  __aicore__ void copy_in(const LocalTensor<T>& to, __gm__ T* from, int32_t n) const {
    GlobalTensor<T> source;
    source.SetGlobalBuffer(from);
    DataCopyPad(to, source, DataCopyExtParams(1, n * sizeof(T), 0, 0, 0),
                DataCopyPadExtParams<T>());
  }
  // Piece i of a tile: products of some heads, a row of KEYS elements each.
  __aicore__ void load_piece(const Tile& tile, int32_t i) {
    const int32_t side = loaded_ % 2, first = i * piece_heads(tile.rounded);
    const int32_t heads = smaller(piece_heads(tile.rounded), work_.tiling.heads - first);
    if (loaded_ >= 2) WaitFlag<HardEvent::V_MTE2>(side);
    const LocalTensor<float> to = ub_.pieces[side * PIECE];
    if (tile.rounded) {
      copy_rows(to.template ReinterpretCast<half>(),
                rounded_[2 * tile.buffer + tile.at + int64_t(first) * KEYS], heads, tile.n);
    } else {
      copy_rows(to.template ReinterpretCast<Score>(),
                products_[tile.buffer + tile.at + int64_t(first) * KEYS], heads, tile.n);
    }
    SetFlag<HardEvent::MTE2_V>(side);
    ++loaded_;
  }
  template <class U>
  __aicore__ void copy_rows(const LocalTensor<U>& to, const GlobalTensor<U>& from, int32_t rows,
                            int32_t n) const {
    constexpr int32_t LANES = 32 / sizeof(U);
    const int32_t blocks = (n + LANES - 1) / LANES, rest = KEYS / LANES - blocks;
    const DataCopyParams some(rows, blocks, rest, rest), all(1, rows * (KEYS / LANES), 0, 0);
    DataCopy(to, from, rest ? some : all);
  }
  // Piece i of a tile was used: another may come in its place.
  __aicore__ void used(const Tile& tile, int32_t i, int32_t side) {
    if (++used_ + 1 < pieces_) SetFlag<HardEvent::V_MTE2>(side);
    if (i + 2 < pieces(tile.rounded)) load_piece(tile, i + 2);
  }
  // The products of WIDE heads, in ub.spare.
  __aicore__ void widen_heads(const LocalTensor<half>& from, int32_t n) const {
    if (n == KEYS) {
      Cast(ub_.spare, from, RoundMode::CAST_NONE, WIDE * KEYS);
    } else {
      for (int32_t h = 0; h < WIDE; ++h) {
        Cast(ub_.spare[h * KEYS], from[h * KEYS], RoundMode::CAST_NONE, n);
      }
    }
    PipeBarrier<PIPE_V>();
  }
  __aicore__ void note_most(const LocalTensor<float>& most, const LocalTensor<float>& sums) const {
    Max(most, sums, most, 64, KEYS / 64, BinaryRepeatParams(1, 1, 1, 0, 8, 0));
  }
  __aicore__ void to_float(const LocalTensor<float>& piece, int32_t n) const {
    const auto whole = piece.template ReinterpretCast<int32_t>();
    if (n == KEYS) {
      Cast(piece, whole, RoundMode::CAST_NONE, PIECE);
    } else {
      for (int32_t h = 0; h < HEADS; ++h) {
        Cast(piece[h * KEYS], whole[h * KEYS], RoundMode::CAST_NONE, n);
      }
    }
    PipeBarrier<PIPE_V>();
  }
  __aicore__ void add_heads(const LocalTensor<float>& piece, int32_t weight, bool first,
                            int32_t n) const {
    for (int32_t h = 0; h < HEADS; ++h) {
      if (first && h == 0) {
        Muls(ub_.scores, piece, weights_[weight], n);
      } else {
        Axpy(ub_.scores, piece[h * KEYS], weights_[weight + h], n);
      }
      PipeBarrier<PIPE_V>();
    }
  }
  // Hidden lanes and NaN become -infinity.
  __aicore__ void clean(int32_t seen) const {
    fill_from(ub_.scores, LOWEST, larger(seen, 0), KEYS);
    PipeBarrier<PIPE_V>();
    Compare(ub_.bits, ub_.scores, ub_.scores, CMPMODE::EQ, KEYS);
    PipeBarrier<PIPE_V>();
    Select(ub_.scores, ub_.bits, ub_.scores, LOWEST, SELMODE::VSEL_TENSOR_SCALAR_MODE, KEYS);
    PipeBarrier<PIPE_V>();
  }
  __aicore__ void widen(const LocalTensor<float>& to, const LocalTensor<float>& raw, int32_t type,
                        int32_t n) const {
    if (type == FLOAT32) {
      Muls(to, raw, 1.0f, n);
    } else if (type == FLOAT16) {
      Cast(to, raw.template ReinterpretCast<half>(), RoundMode::CAST_NONE, n);
    } else {
      Cast(to, raw.template ReinterpretCast<bfloat16_t>(), RoundMode::CAST_NONE, n);
    }
  }

  const Work& work_;
  const Buffers<Tiles>& ub_;
  const ScoreInputs inputs_;
  GlobalTensor<int32_t> table_;
  GlobalTensor<Score> products_;
  GlobalTensor<half> rounded_;
  float weights_[Buffers<Tiles>::HEAD_WORDS];
  int32_t tiles_left_ = 0, pieces_ = 0, loaded_ = 0, used_ = 0;
  bool scales_used_ = false;
};

}  // namespace lightning_indexer
