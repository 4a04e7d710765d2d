// AIV: softmax over tiles of scores, results.
//
// The cube adds the products of a task's tiles in GM. Weights are exp(score - reference): the
// maximum of the first tile, or of the last tile whose maximum exceeded it by more than SLACK. Only
// then the sums in GM are scaled, so that they rarely leave it.
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
        sums_(a, t, work_),
        counter_(a, t, P::INDICES),
        packed_(a, t, P::ROWS, P::OUT) {}

  __aicore__ inline void run() {
    begin();
    int32_t known = 0;
    for (int32_t tile = 0;; ++tile) {
      while (known <= tile + AHEAD && next(tiles_[known % KEPT])) ++known;
      if (tile < known) weigh(tiles_[tile % KEPT]);
      if (tile > 0) settle(tiles_[(tile - 1) % KEPT]);
      if (tile >= known) break;
    }
    end();
  }

 private:
  using Base = VectorOutput<T, S>;
  using typename Base::P;
  using Base::t_, Base::half_, Base::sub_, Base::WEIGHTS_OUT, Base::RESULT_OUT;
  using Base::vector, Base::spread, Base::store_rows, Base::store_part;
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
  // Weights up to exp(SLACK), which F16 holds.
  static constexpr float SLACK = 8.0f;
  enum Event : int32_t { SCORES_IN = 0, SUMS_IN = 1 };  // MTE2_V and V_MTE2

  // A buffer is taken before it is filled and freed once it was read; at first all are free.
  __aicore__ inline void take_scores() { WaitFlag<HardEvent::V_MTE2>(SCORES_IN); }
  __aicore__ inline void free_scores() { SetFlag<HardEvent::V_MTE2>(SCORES_IN); }
  __aicore__ inline void take_sums(int32_t i) { WaitFlag<HardEvent::V_MTE2>(SUMS_IN + i); }
  __aicore__ inline void free_sums(int32_t i) { SetFlag<HardEvent::V_MTE2>(SUMS_IN + i); }
  __aicore__ inline void take_weights() { WaitFlag<HardEvent::MTE3_V>(WEIGHTS_OUT); }
  __aicore__ inline void free_weights() { SetFlag<HardEvent::MTE3_V>(WEIGHTS_OUT); }

  __aicore__ inline void begin() {
    free_scores();
    free_sums(0);
    free_sums(1);
    free_weights();
    if constexpr (S::PACKED) packed_.begin();
  }
  __aicore__ inline void end() {
    take_scores();
    take_sums(0);
    take_sums(1);
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
    const LocalTensor<float> peak = vector(P::MAXIMA, tile.parity);
    const LocalTensor<float> reference = vector(P::REFERENCES, tile.parity);
    if (tile.first) {
      Duplicate(peak, NO_KEY, LANES);
      Duplicate(reference, LOWEST, LANES);
      Duplicate(vector(P::TOTALS, tile.parity), 0.0f, LANES);
    }
    if (tile.keys == 0) return;
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
    if (tile.first) {
      Maxs(reference, peak, LOWEST, LANES);
      PipeBarrier<PIPE_V>();
    } else if (grown(peak, reference)) {
      scale_sums(tile, peak, reference);
    }
    exponentials(tile, scores, reference, repeats);
  }

  // Whether a maximum is far above its reference, or not a number.
  __aicore__ inline bool grown(const LocalTensor<float>& peak,
                               const LocalTensor<float>& reference) {
    const LocalTensor<float> growth = vector(P::ADDED), most = vector(P::FACTOR);
    Sub(growth, peak, reference, LANES);
    PipeBarrier<PIPE_V>();
    WholeReduceMax(most, growth, LANES, 1, 1, 1, 8);
    SetFlag<HardEvent::V_S>(0);
    WaitFlag<HardEvent::V_S>(0);
    const float value = most.GetValue(0);
    SetFlag<HardEvent::S_V>(0);
    WaitFlag<HardEvent::S_V>(0);
    return !(value <= SLACK);
  }

  // Makes the maxima the references of what has been summed.
  __aicore__ inline void scale_sums(const Tile& tile, const LocalTensor<float>& peak,
                                    const LocalTensor<float>& reference) {
    const LocalTensor<float> safe = vector(P::SAFE), factor = vector(P::FACTOR);
    const LocalTensor<float> total = vector(P::TOTALS, tile.parity);
    const GlobalTensor<float> sums = sums_.of(tile.task)[sub_ * half_ * COLUMNS];
    Maxs(safe, peak, LOWEST, LANES);
    PipeBarrier<PIPE_V>();
    Sub(factor, reference, safe, LANES);
    PipeBarrier<PIPE_V>();
    Adds(reference, safe, 0.0f, LANES);
    Exp(factor, factor, LANES);
    PipeBarrier<PIPE_V>();
    Mul(total, total, factor, LANES);
    Brcb(spread(), factor, half_ / 8, BrcbRepeatParams(1, 8));
    PipeBarrier<PIPE_V>();
    wait_products(tile.number);
    for (int32_t chunk = 0; chunk < S::CHUNKS; ++chunk) {
      const GlobalTensor<float> place = sums[chunk * t_.group * COLUMNS];
      const LocalTensor<float> in = load_sums(place, chunk), out = ub(P::OUT, half_ * COLUMNS);
      for (int32_t at = 0; at < COLUMNS; at += LANES)
        Mul(out[at], in[at], spread(), LANES, half_,
            BinaryRepeatParams(1, 1, 0, COLUMNS / 8, COLUMNS / 8, 1));
      free_sums(chunk % 2);
      SetFlag<HardEvent::V_MTE3>(RESULT_OUT);
      WaitFlag<HardEvent::V_MTE3>(RESULT_OUT);
      DataCopy(place, out, half_ * COLUMNS);
      SetFlag<HardEvent::MTE3_V>(RESULT_OUT);
      WaitFlag<HardEvent::MTE3_V>(RESULT_OUT);
    }
  }

  // weights = exp(scores - reference), and their totals.
  __aicore__ inline void exponentials(const Tile& tile, const LocalTensor<float>& scores,
                                      const LocalTensor<float>& reference, int32_t repeats) {
    const LocalTensor<float> added = vector(P::ADDED), total = vector(P::TOTALS, tile.parity);
    const LocalTensor<T> weights = ub<T>(P::WEIGHTS, P::WEIGHTS_BYTES / sizeof(T));
    Sub(scores, scores, reference, LANES, repeats, BinaryRepeatParams(1, 1, 1, 8, 8, 0));
    Duplicate(added, 0.0f, LANES);
    PipeBarrier<PIPE_V>();
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
    PipeBarrier<PIPE_V>();
    for (int32_t lanes = LANES / 2; lanes >= half_; lanes /= 2) {
      Add(added, added, added[lanes], lanes);
      PipeBarrier<PIPE_V>();
    }
    Add(total, total, added, half_);
  }

  // Until the cube has added the products of the first `count` tiles.
  __aicore__ inline void wait_products(int32_t count) {
    for (; products_ < count; ++products_) CrossCoreWaitFlag(PRODUCT_READY);
  }

  // A chunk of this AIV's sums on its way to V; its buffer is chunk % 2.
  __aicore__ inline LocalTensor<float> load_sums(const GlobalTensor<float>& from, int32_t chunk) {
    const int32_t buffer = chunk % 2;
    const LocalTensor<float> in = ub(P::SUMS + buffer * P::SUMS_BYTES, P::SUMS_BYTES / 4);
    take_sums(buffer);
    DataCopy(in, from, half_ * COLUMNS);
    SetFlag<HardEvent::MTE2_V>(SUMS_IN + buffer);
    WaitFlag<HardEvent::MTE2_V>(SUMS_IN + buffer);
    return in;
  }

  // After the products of a tile.
  __aicore__ inline void settle(const Tile& tile) {
    if (tile.keys > 0) wait_products(tile.number + 1);
    if (!tile.last) return;
    PipeBarrier<PIPE_V>();
    if (t_.parts > 1) finish_part(tile);
    else finish(tile);
  }

  __aicore__ inline void finish_part(const Tile& tile) {
    const LocalTensor<float> statistics = ub(P::STATISTICS, 3 * LANES);
    Adds(statistics, vector(P::MAXIMA, tile.parity), 0.0f, half_);
    Adds(statistics[LANES], vector(P::REFERENCES, tile.parity), 0.0f, half_);
    Adds(statistics[2 * LANES], vector(P::TOTALS, tile.parity), 0.0f, half_);
    store_part(tile.task, sums_.of(tile.task), tile.keys == 0);
  }

  __aicore__ inline void finish(const Tile& tile) {
    const LocalTensor<float> total = vector(P::TOTALS, tile.parity), safe = vector(P::SAFE);
    const LocalTensor<float> peak = vector(P::MAXIMA, tile.parity), factor = vector(P::FACTOR);
    const LocalTensor<float> statistics = ub(P::STATISTICS, 3 * LANES);
    Maxs(factor, peak, LOWEST, half_);
    // A total is 1 or more, or 0 where there was no key.
    Maxs(safe, total, 0.5f, half_);
    Adds(statistics, peak, 0.0f, half_);
    PipeBarrier<PIPE_V>();
    Sub(factor, vector(P::REFERENCES, tile.parity), factor, half_);
    Brcb(spread(), safe, half_ / 8, BrcbRepeatParams(1, 8));
    PipeBarrier<PIPE_V>();
    Exp(factor, factor, half_);
    PipeBarrier<PIPE_V>();
    Mul(statistics[LANES], total, factor, half_);
    const LocalTensor<T> out = ub<T>(P::OUT, half_ * S::LATENT);
    if (tile.keys == 0) Duplicate(ub(P::OUT, P::OUT_BYTES / 4), 0.0f, P::OUT_BYTES / 4);
    for (int32_t chunk = 0; tile.keys > 0 && chunk < S::CHUNKS; ++chunk) {
      const int32_t row = chunk * t_.group + sub_ * half_;
      const LocalTensor<float> in = load_sums(sums_.of(tile.task)[row * COLUMNS], chunk);
      for (int32_t at = 0; at < COLUMNS; at += LANES)
        Div(in[at], in[at], spread(), LANES, half_,
            BinaryRepeatParams(1, 1, 0, COLUMNS / 8, COLUMNS / 8, 1));
      PipeBarrier<PIPE_V>();
      Cast(out[chunk * half_ * COLUMNS], in, RoundMode::CAST_RINT, half_ * COLUMNS);
      free_sums(chunk % 2);
    }
    store_rows(tile.task);
  }

  Tasks tasks_;
  Workspace<T, S> work_;
  Sums<T, S> sums_;
  KeyCount counter_;
  PackedRows<T, S> packed_;
  Tile tiles_[KEPT];
  Task task_;
  int32_t parity_ = 0, left_ = 0, number_ = 0, products_ = 0;
};

}  // namespace sfa
