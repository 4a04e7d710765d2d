// AIV: softmax with a running maximum over tiles of scores, sums of products, results.
//
// Each AIV of a block has half of the group's heads, which are the columns of its scores: a repeat
// of 64 lanes holds whole rows, so that maxima, totals and scaling by head need no reduction
// across lanes. Statistics of a head stand in all lanes of the head.
#pragma once

#include "vector_output.h"

namespace sfa {

template <class T, class S>
class VectorSide : VectorOutput<T, S> {
 public:
  __aicore__ inline VectorSide(const Arguments& a, const Tiling& t)
      : Base(a, t),
        tasks_(t, a.requests, GetBlockIdx() / 2),
        work_(a.workspace, GetBlockIdx() / 2),
        counter_(a, t, P::INDICES),
        packed_(a, t, P::ROWS, P::OUT) {}

  __aicore__ inline void run() {
    begin();
    int32_t known = 0;
    for (int32_t tile = 0;; ++tile) {
      while (known <= tile + AHEAD && next(tiles_[known % KEPT])) ++known;
      if (tile < known) weigh(tiles_[tile % KEPT]);
      if (tile > 0) add_products(tiles_[(tile - 1) % KEPT]);
      if (tile >= known) break;
    }
    end();
  }

 private:
  using Base = VectorOutput<T, S>;
  using typename Base::P;
  using Base::t_, Base::half_, Base::sub_, Base::WEIGHTS_OUT, Base::RESULT_OUT;
  using Base::vector, Base::spread, Base::sums;
  using Base::store_rows, Base::store_part, Base::store_statistics;
  template <class U = float>
  __aicore__ inline LocalTensor<U> ub(uint32_t at, uint32_t elements) const {
    return Base::template ub<U>(at, elements);
  }
  struct Tile {
    Task task;
    int32_t number, keys;  // number counts tiles with keys, as the cube side does
    int32_t parity;        // of the task
    bool first, last;
  };
  // Tiles whose packed rows are made before the softmax of a tile, and tiles that are remembered.
  static constexpr int32_t AHEAD = S::PACKED ? ROW_TILES - 1 : 0, KEPT = ROW_TILES + 1;
  enum Event : int32_t { SCORES_IN = 0, PRODUCT_IN = 1 };  // MTE2_V and V_MTE2

  // A buffer is taken before it is filled and freed once it was read; at first all are free.
  __aicore__ inline void take_scores() { WaitFlag<HardEvent::V_MTE2>(SCORES_IN); }
  __aicore__ inline void free_scores() { SetFlag<HardEvent::V_MTE2>(SCORES_IN); }
  __aicore__ inline void take_product(int32_t i) { WaitFlag<HardEvent::V_MTE2>(PRODUCT_IN + i); }
  __aicore__ inline void free_product(int32_t i) { SetFlag<HardEvent::V_MTE2>(PRODUCT_IN + i); }
  __aicore__ inline void take_weights() { WaitFlag<HardEvent::MTE3_V>(WEIGHTS_OUT); }
  __aicore__ inline void free_weights() { SetFlag<HardEvent::MTE3_V>(WEIGHTS_OUT); }

  __aicore__ inline void begin() {
    free_scores();
    free_product(0);
    free_product(1);
    free_weights();
    if constexpr (S::PACKED) packed_.begin();
  }
  __aicore__ inline void end() {
    take_scores();
    take_product(0);
    take_product(1);
    take_weights();
    if constexpr (S::PACKED) packed_.end();
  }

  // The next tile of this block; a task without keys has one tile without keys.
  __aicore__ inline bool next(Tile& tile) {
    tile.first = left_ == 0;
    if (tile.first) {
      if (!tasks_.next(task_)) return false;
      parity_ ^= 1;
      left_ = task_.visible > 0 ? counter_.count(task_) : 0;
    }
    tile.task = task_;
    tile.parity = parity_;
    tile.number = number_;
    tile.keys = left_ < S::TILE ? left_ : S::TILE;
    if (tile.keys > 0) ++number_;
    left_ -= tile.keys;
    tile.last = left_ == 0;
    if constexpr (S::PACKED) {
      if (tile.keys > 0)
        packed_.unpack(tile.task, tile.first, tile.keys,
                       work_.rows[tile.number % ROW_TILES * S::TILE * S::WIDTH]);
    }
    return true;
  }

  __aicore__ inline void weigh(const Tile& tile) {
    const LocalTensor<float> scores = ub(P::SCORES, P::SCORES_BYTES / 4);
    const int32_t count = tile.keys * half_, repeats = (count + LANES - 1) / LANES;
    int32_t& turn = turns_[tile.parity];
    const LocalTensor<float> old = vector(P::MAXIMA, 2 * tile.parity + turn);
    if (tile.first) {
      Duplicate(old, NO_KEY, LANES);
      Duplicate(vector(P::TOTALS, tile.parity), 0.0f, LANES);
      PipeBarrier<PIPE_V>();
    }
    if (tile.keys == 0) return;
    turn ^= 1;
    const LocalTensor<float> peak = vector(P::MAXIMA, 2 * tile.parity + turn);
    Adds(peak, old, 0.0f, LANES);
    CrossCoreWaitFlag(SCORES_READY);
    take_scores();
    DataCopy(scores, work_.scores[(tile.number % 2 * 2 + sub_) * S::TILE * half_], count);
    SetFlag<HardEvent::MTE2_V>(SCORES_IN);
    WaitFlag<HardEvent::MTE2_V>(SCORES_IN);
    Muls(scores, scores, t_.scale, count);
    if (count % LANES) Duplicate(scores[count], NO_KEY, LANES - count % LANES);
    PipeBarrier<PIPE_V>();
    Max(peak, scores, peak, LANES, repeats, BinaryRepeatParams(1, 1, 1, 0, 8, 0));
    PipeBarrier<PIPE_V>();
    for (int32_t lanes = LANES / 2; lanes >= half_; lanes /= 2) {
      Max(peak, peak, peak[lanes], lanes);
      PipeBarrier<PIPE_V>();
    }
    Copy(peak[half_], peak, half_, LANES / half_ - 1, CopyRepeatParams(1, 1, half_ / 8, 0));
    PipeBarrier<PIPE_V>();
    exponentials(tile, scores, old, peak, repeats);
  }

  // weights = exp(scores - maximum), their totals, and the factor of what was summed before.
  __aicore__ inline void exponentials(const Tile& tile, const LocalTensor<float>& scores,
                                      const LocalTensor<float>& old, const LocalTensor<float>& peak,
                                      int32_t repeats) {
    const LocalTensor<float> safe = vector(P::SAFE), factor = vector(P::FACTOR);
    const LocalTensor<float> added = vector(P::ADDED);
    const LocalTensor<T> weights = ub<T>(P::WEIGHTS, P::WEIGHTS_BYTES / sizeof(T));
    Maxs(safe, peak, LOWEST, LANES);
    Duplicate(added, 0.0f, LANES);
    PipeBarrier<PIPE_V>();
    Sub(factor, old, safe, LANES);
    Sub(scores, scores, safe, LANES, repeats, BinaryRepeatParams(1, 1, 1, 8, 8, 0));
    PipeBarrier<PIPE_V>();
    Exp(factor, factor, LANES);
    Exp(scores, scores, repeats * LANES);
    PipeBarrier<PIPE_V>();
    take_weights();
    Cast(weights, scores, RoundMode::CAST_ROUND, tile.keys * half_);
    SetFlag<HardEvent::V_MTE3>(WEIGHTS_OUT);
    WaitFlag<HardEvent::V_MTE3>(WEIGHTS_OUT);
    DataCopy(work_.weights[(tile.number % 2 * 2 + sub_) * S::TILE * half_], weights,
             tile.keys * half_);
    free_weights();
    CrossCoreSetFlag<2, PIPE_MTE3>(WEIGHTS_READY);

    Add(added, scores, added, LANES, repeats, BinaryRepeatParams(1, 1, 1, 0, 8, 0));
    free_scores();
    Brcb(spread(tile.number % 2), factor, half_ / 8, BrcbRepeatParams(1, 8));
    PipeBarrier<PIPE_V>();
    for (int32_t lanes = LANES / 2; lanes >= half_; lanes /= 2) {
      Add(added, added, added[lanes], lanes);
      PipeBarrier<PIPE_V>();
    }
    FusedMulAdd(vector(P::TOTALS, tile.parity), factor, added, half_);
  }

  // sums = sums * factor + products of the tile.
  __aicore__ inline void add_products(const Tile& tile) {
    if (t_.direct) {
      finish_direct(tile);
      return;
    }
    if (tile.first) {
      Duplicate(ub(P::SUMS, P::SUMS_BYTES / 4), 0.0f, half_ * S::LATENT);
      PipeBarrier<PIPE_V>();
    }
    if (tile.keys > 0) {
      CrossCoreWaitFlag(PRODUCT_READY);
      for (int32_t chunk = 0; chunk < S::CHUNKS; ++chunk) add_chunk(tile, chunk);
    }
    if (tile.last) finish(tile);
  }

  __aicore__ inline void add_chunk(const Tile& tile, int32_t chunk) {
    const int32_t buffer = chunk % 2;
    const LocalTensor<float> added =
        ub(P::PRODUCT + buffer * P::PRODUCT_BYTES, P::PRODUCT_BYTES / 4);
    const int32_t row = (tile.number % 2 * S::CHUNKS + chunk) * t_.group + sub_ * half_;
    take_product(buffer);
    DataCopy(added, work_.products[row * COLUMNS], half_ * COLUMNS);
    SetFlag<HardEvent::MTE2_V>(PRODUCT_IN + buffer);
    WaitFlag<HardEvent::MTE2_V>(PRODUCT_IN + buffer);
    for (int32_t at = 0; at < COLUMNS; at += LANES)
      FusedMulAdd(sums(chunk)[at], spread(tile.number % 2), added[at], LANES, half_,
                  BinaryRepeatParams(1, 0, 1, COLUMNS / 8, 1, COLUMNS / 8));
    free_product(buffer);
  }

  __aicore__ inline void copy_statistics(const Tile& tile) {
    const LocalTensor<float> statistics = ub(P::STATISTICS, 2 * LANES);
    Adds(statistics, vector(P::MAXIMA, 2 * tile.parity + turns_[tile.parity]), 0.0f, half_);
    Adds(statistics[LANES], vector(P::TOTALS, tile.parity), 0.0f, half_);
  }

  // The one tile of a part: its products stay where the cube left them, or become zero.
  __aicore__ inline void finish_direct(const Tile& tile) {
    PipeBarrier<PIPE_V>();
    copy_statistics(tile);
    if (tile.keys == 0) Duplicate(ub(P::SUMS, P::SUMS_BYTES / 4), 0.0f, half_ * COLUMNS);
    SetFlag<HardEvent::V_MTE3>(RESULT_OUT);
    WaitFlag<HardEvent::V_MTE3>(RESULT_OUT);
    store_statistics(tile.task);
    if (tile.keys > 0) {
      CrossCoreWaitFlag(PRODUCT_READY);
      return;
    }
    for (int32_t chunk = 0; chunk < S::CHUNKS; ++chunk)
      DataCopy(work_.products[(chunk * t_.group + sub_ * half_) * COLUMNS], sums(0),
               half_ * COLUMNS);
  }

  __aicore__ inline void finish(const Tile& tile) {
    const LocalTensor<float> total = vector(P::TOTALS, tile.parity);
    copy_statistics(tile);
    if (t_.parts > 1) {
      store_part(tile.task);
      return;
    }
    // A total is 1 or more, or 0 where there was no key.
    Maxs(vector(P::SAFE), total, 0.5f, half_);
    PipeBarrier<PIPE_V>();
    Brcb(spread(2), vector(P::SAFE), half_ / 8, BrcbRepeatParams(1, 8));
    PipeBarrier<PIPE_V>();
    for (int32_t chunk = 0; chunk < S::CHUNKS; ++chunk)
      for (int32_t at = 0; at < COLUMNS; at += LANES)
        Div(sums(chunk)[at], sums(chunk)[at], spread(2), LANES, half_,
            BinaryRepeatParams(1, 1, 0, COLUMNS / 8, COLUMNS / 8, 1));
    PipeBarrier<PIPE_V>();
    const int32_t count = half_ * S::LATENT;
    Cast(ub<T>(P::OUT, count), ub(P::SUMS, count), RoundMode::CAST_RINT, count);
    store_rows(tile.task);
  }

  Tasks tasks_;
  Workspace<T, S> work_;
  KeyCount counter_;
  PackedRows<T, S> packed_;
  Tile tiles_[KEPT];
  Task task_;
  int32_t turns_[2] = {0, 0};
  int32_t parity_ = 0, left_ = 0, number_ = 0;
};

}  // namespace sfa
