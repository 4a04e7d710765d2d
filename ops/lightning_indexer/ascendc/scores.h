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
  static constexpr bool QUANT = Score(0.5f) == Score(0);  // whole numbers
  static constexpr int32_t KEYS = Tiles::KEYS, PIECE = Buffers<Tiles>::PIECE;
  static constexpr int32_t HEADS = Buffers<Tiles>::HEADS;

  __aicore__ Scores(const Work& work, const Buffers<Tiles>& ub, const ScoreInputs& inputs)
      : work_(work), ub_(ub), inputs_(inputs) {
    table_.SetGlobalBuffer((__gm__ int32_t*)inputs.table);
    products_.SetGlobalBuffer((__gm__ Score*)inputs.products +
                              GetBlockIdx() / VECTORS * Tiles::BUFFERS * Tiles::SCORES);
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

  // How many calls of load_scales and of row() will come: nobody waits after the last ones.
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

  // ub.scores = scores of n keys for row `row` of load_weights, from the products at `offset` of
  // the block's buffers; the first `seen` lanes count, all others become -infinity.
  __aicore__ void row(int32_t row, int64_t offset, int32_t n, int32_t seen) {
    const int32_t heads = work_.tiling.heads;
    for (int32_t head = 0; head < heads; head += HEADS) {
      const int32_t half = pieces_used_ % 2;
      const LocalTensor<float> piece = ub_.pieces[half * PIECE];
      if (pieces_used_ >= 2) WaitFlag<HardEvent::V_MTE2>(half);
      load_piece(piece.template ReinterpretCast<Score>(), offset + int64_t(head) * KEYS, n);
      SetFlag<HardEvent::MTE2_V>(half);
      WaitFlag<HardEvent::MTE2_V>(half);
      if constexpr (QUANT) to_float(piece, n);
      add_heads(piece, row * heads + head, head == 0, n);
      if (++pieces_used_ + 1 < pieces_) SetFlag<HardEvent::V_MTE2>(half);
    }
    if constexpr (QUANT) {
      Mul(ub_.scores, ub_.scores, ub_.scales, n);
      PipeBarrier<PIPE_V>();
    }
    clean(seen);
  }

 private:
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
  // Products of HEADS heads and n keys.
  __aicore__ void load_piece(const LocalTensor<Score>& to, int64_t offset, int32_t n) const {
    const int32_t blocks = (n + 7) / 8, rest = KEYS / 8 - blocks;
    const DataCopyParams rows(HEADS, blocks, rest, rest), all(1, PIECE / 8, 0, 0);
    DataCopy(to, products_[offset], rest ? rows : all);
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
  float weights_[Buffers<Tiles>::HEAD_WORDS];
  int32_t tiles_left_ = 0, pieces_ = 0, pieces_used_ = 0;
  bool scales_used_ = false;
};

}  // namespace lightning_indexer
