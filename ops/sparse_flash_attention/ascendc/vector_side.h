// AIV: softmax with a running maximum over tiles of scores, sums of products, results.
//
// Each AIV of a block has half of the group's heads, which are the columns of its scores: a repeat
// of 64 lanes holds whole rows, so that maxima, totals and scaling by head need no reduction
// across lanes. Statistics of a head stand in all lanes of the head.
#pragma once

#include "packed_rows.h"

namespace sfa {

constexpr int32_t LANES = 64;
constexpr float LOWEST = -3.4028234663852886e38f;
constexpr float NO_KEY = -__builtin_inff();

// Places in UB, in bytes.
template <class S>
struct Places {
  static constexpr uint32_t HALF = GROUP / 2, COUNTED = 512;
  static constexpr uint32_t SUMS = 0, SUMS_BYTES = HALF * S::LATENT * 4;
  static constexpr uint32_t PRODUCT = SUMS + SUMS_BYTES, PRODUCT_BYTES = HALF * COLUMNS * 4;
  static constexpr uint32_t SCORES = PRODUCT + 2 * PRODUCT_BYTES, SCORES_BYTES = S::TILE * HALF * 4;
  static constexpr uint32_t WEIGHTS = SCORES + SCORES_BYTES, WEIGHTS_BYTES = S::TILE * HALF * 2;
  static constexpr uint32_t OUT = WEIGHTS + WEIGHTS_BYTES, OUT_BYTES = HALF * S::LATENT * 2;
  static constexpr uint32_t INDICES = OUT + OUT_BYTES;
  static constexpr uint32_t SMALL = INDICES + 2 * COUNTED * 4;
  // Vectors of 64 lanes: maxima of two tasks, each old and new, totals of two tasks, the others.
  static constexpr uint32_t VECTOR = LANES * 4;
  static constexpr uint32_t MAXIMA = SMALL, TOTALS = MAXIMA + 4 * VECTOR;
  static constexpr uint32_t SAFE = TOTALS + 2 * VECTOR, FACTOR = SAFE + VECTOR;
  static constexpr uint32_t ADDED = FACTOR + VECTOR, COUNT = ADDED + VECTOR;
  static constexpr uint32_t STATISTICS = COUNT + VECTOR;  // what leaves: maxima, totals
  static constexpr uint32_t SPREAD = STATISTICS + 2 * VECTOR, SPREAD_BYTES = HALF * 32;
  static constexpr uint32_t ROWS = SPREAD + 3 * SPREAD_BYTES;  // factors of two tiles, totals
  static constexpr uint32_t END = ROWS + (S::PACKED ? PackedRows<bfloat16_t, S>::BYTES : 0);
  static_assert(END <= 192 * 1024 - 256, "UB");
  static_assert(!S::PACKED || OUT_BYTES >= PackedRows<bfloat16_t, S>::WIDE_BYTES, "UB of results");
};

// Where the parts' results begin in the workspace.
template <class S>
__aicore__ inline uint64_t parts_offset(const Tiling& t) {
  return t.blocks * block_bytes(S::TILE, S::LATENT, S::PACKED, S::WIDTH);
}

template <class T, class S>
class VectorSide {
 public:
  __aicore__ inline VectorSide(const Arguments& a, const Tiling& t)
      : t_(t), tasks_(t, a.requests, GetBlockIdx() / 2), work_(a.workspace, GetBlockIdx() / 2),
        packed_(a, t, P::ROWS, P::OUT),        half_(t.group / 2), sub_(int32_t(GetSubBlockIdx())) {
    indices_.SetGlobalBuffer((__gm__ int32_t*)a.indices);
    out_.SetGlobalBuffer((__gm__ T*)a.out);
    maxima_.SetGlobalBuffer((__gm__ float*)a.softmax_max);
    totals_.SetGlobalBuffer((__gm__ float*)a.softmax_sum);
    parts_.SetGlobalBuffer((__gm__ float*)(a.workspace + parts_offset<S>(t)));
  }

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
  using P = Places<S>;
  struct Tile {
    Task task;
    int32_t number, keys;  // number counts tiles with keys, as the cube side does
    int32_t parity;        // of the task
    bool first, last;
  };
  // Tiles whose packed rows are made before the softmax of a tile, and tiles that are remembered.
  static constexpr int32_t AHEAD = S::PACKED ? ROW_TILES - 1 : 0, KEPT = ROW_TILES + 1;
  enum Event : int32_t { SCORES_IN = 0, PRODUCT_IN = 1, INDICES_IN = 3 };  // MTE2_V and V_MTE2
  enum OutEvent : int32_t { WEIGHTS_OUT = 0, RESULT_OUT = 1 };             // V_MTE3 and MTE3_V

  template <class U = float>
  __aicore__ inline LocalTensor<U> ub(uint32_t at, uint32_t elements) const {
    return LocalTensor<U>(TPosition::VECCALC, at, elements);
  }
  __aicore__ inline LocalTensor<float> vector(uint32_t at, int32_t number = 0) const {
    return ub(at + number * P::VECTOR, LANES);
  }
  __aicore__ inline LocalTensor<float> spread(int32_t number) const {
    return ub(P::SPREAD + number * P::SPREAD_BYTES, P::SPREAD_BYTES / 4);
  }

  // A buffer is taken before it is filled and freed once it was read; in the beginning all are free.
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
      left_ = task_.visible > 0 ? count_keys() : 0;
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

  // How many keys the task's slots name: per slot clamp(visible - index n, 0, n), 0 for -1.
  __aicore__ inline int32_t count_keys() {
    const int32_t n = t_.sparse_block;
    const LocalTensor<int32_t> index = ub<int32_t>(P::INDICES, P::COUNTED);
    const LocalTensor<int32_t> valid = ub<int32_t>(P::INDICES + P::COUNTED * 4, P::COUNTED);
    const LocalTensor<float> number = index.template ReinterpretCast<float>();
    const LocalTensor<float> folded = valid.template ReinterpretCast<float>();
    int32_t total = 0;
    for (int32_t slot = task_.first_slot; slot < task_.end_slot; slot += P::COUNTED) {
      const int32_t rest = task_.end_slot - slot;
      const int32_t count = rest < int32_t(P::COUNTED) ? rest : P::COUNTED;
      DataCopyPad(index, indices_[uint64_t(task_.row) * t_.slots + slot],
                  DataCopyExtParams(1, count * 4, 0, 0, 0), DataCopyPadExtParams<int32_t>());
      SetFlag<HardEvent::MTE2_V>(INDICES_IN);
      WaitFlag<HardEvent::MTE2_V>(INDICES_IN);
      Adds(valid, index, 1, count);
      Muls(index, index, -n, count);
      PipeBarrier<PIPE_V>();
      Mins(valid, valid, 1, count);
      Adds(index, index, task_.visible, count);
      PipeBarrier<PIPE_V>();
      Maxs(index, index, 0, count);
      PipeBarrier<PIPE_V>();
      Mins(index, index, n, count);
      PipeBarrier<PIPE_V>();
      Mul(index, index, valid, count);
      PipeBarrier<PIPE_V>();
      Cast(number, index, RoundMode::CAST_NONE, count);
      PipeBarrier<PIPE_V>();
      ReduceSum(vector(P::COUNT), number, folded, count);
      SetFlag<HardEvent::V_S>(0);
      WaitFlag<HardEvent::V_S>(0);
      total += int32_t(vector(P::COUNT).GetValue(0));
      SetFlag<HardEvent::S_V>(0);
      WaitFlag<HardEvent::S_V>(0);
    }
    return total;
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
    DataCopy(work_.weights[(tile.number % 2 * 2 + sub_) * S::TILE * half_], weights, tile.keys * half_);
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

  __aicore__ inline LocalTensor<float> sums(int32_t chunk) const {
    return ub(P::SUMS + chunk * half_ * COLUMNS * 4, half_ * COLUMNS);
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
    Cast(ub<T>(P::OUT, half_ * S::LATENT), ub(P::SUMS, half_ * S::LATENT), RoundMode::CAST_RINT, half_ * S::LATENT);
    store_rows(tile.task);
  }

  __aicore__ inline void store_rows(const Task& task) {
    const LocalTensor<T> rows = ub<T>(P::OUT, half_ * S::LATENT);
    const LocalTensor<float> statistics = ub(P::STATISTICS, 2 * LANES);
    const int32_t head = task.group * t_.group + sub_ * half_, rest = t_.heads - head;
    const int32_t heads = rest < half_ ? rest : half_;
    const uint64_t at = uint64_t(task.row) * t_.heads + head;
    SetFlag<HardEvent::V_MTE3>(RESULT_OUT);
    WaitFlag<HardEvent::V_MTE3>(RESULT_OUT);
    if (heads > 0) {
      constexpr uint16_t UNIT = 32 / sizeof(T);
      for (int32_t chunk = 0; chunk < S::CHUNKS; ++chunk)
        DataCopy(out_[at * S::LATENT + chunk * COLUMNS], rows[chunk * half_ * COLUMNS],
                 DataCopyParams(heads, COLUMNS / UNIT, 0, (S::LATENT - COLUMNS) / UNIT));
      DataCopyPad(maxima_[at], statistics, DataCopyExtParams(1, heads * 4, 0, 0, 0));
      DataCopyPad(totals_[at], statistics[LANES], DataCopyExtParams(1, heads * 4, 0, 0, 0));
    }
    // Once per task; others may then use the place of results.
    SetFlag<HardEvent::MTE3_V>(RESULT_OUT);
    WaitFlag<HardEvent::MTE3_V>(RESULT_OUT);
  }

  // A block has one task where rows are split, so nothing comes after it.
  __aicore__ inline void store_part(const Task& task) {
    const GlobalTensor<float> to = parts_[task.index * (part_bytes(S::LATENT) / 4)];
    SetFlag<HardEvent::V_MTE3>(RESULT_OUT);
    WaitFlag<HardEvent::V_MTE3>(RESULT_OUT);
    for (int32_t chunk = 0; chunk < S::CHUNKS; ++chunk)
      DataCopy(to[(chunk * t_.group + sub_ * half_) * COLUMNS], sums(chunk), half_ * COLUMNS);
    store_statistics(task);
  }

  __aicore__ inline void store_statistics(const Task& task) {
    const LocalTensor<float> statistics = ub(P::STATISTICS, 2 * LANES);
    const GlobalTensor<float> to =
        parts_[task.index * (part_bytes(S::LATENT) / 4) + GROUP * S::LATENT + sub_ * half_];
    DataCopy(to, statistics, half_);
    DataCopy(to[GROUP], statistics[LANES], half_);
  }

  const Tiling& t_;
  Tasks tasks_;
  Workspace<T, S> work_;
  GlobalTensor<int32_t> indices_;
  GlobalTensor<T> out_;
  GlobalTensor<float> maxima_, totals_, parts_;
  PackedRows<T, S> packed_;
  Tile tiles_[KEPT];
  Task task_;
  const int32_t half_, sub_;
  int32_t turns_[2] = {0, 0};
  int32_t parity_ = 0, left_ = 0, number_ = 0;
};

}  // namespace sfa
