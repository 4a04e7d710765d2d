// AIV: the best positions of a row of one block, by a threshold.
//
// Candidates stay in the order of their positions. When there is no room for another tile, those
// below the `count`-th largest score go, and of later tiles only scores above it come.
//
// Products of floats are rounded to F16 before they come, so scores have an error, which `Exact`
// bounds. Candidates that the errors leave open are scored again, from queries and keys.
#pragma once

#include "exact.h"
#include "narrow.h"

namespace lightning_indexer {

template <class T, class Score, class Tiles>
class Pool {
 public:
  static constexpr bool ROUNDED = !QUANTISED<Score>;
  static constexpr int32_t KEYS = Tiles::KEYS, CAP = Buffers<Tiles>::CAP;

  __aicore__ Pool(const Buffers<Tiles>& ub, Exact<T, Tiles>& exact, int32_t count)
      : ub_(ub), exact_(exact), narrow_(ub), count_(count) {}

  __aicore__ void begin(int32_t row) {
    if (!cleared_) clear();
    rows_[row] = {};
    empty_from(row, 0);
    if constexpr (ROUNDED) Duplicate(ub_.most[row * 2 * 64], 0.0f, 2 * 64);
  }
  // Whether the tile after `tiles` others may find no room.
  __aicore__ bool full(int32_t row, int32_t tiles = 0) const {
    return rows_[row].used + (tiles + 1) * KEYS > CAP;
  }
  __aicore__ LocalTensor<float> positions(int32_t row) const { return ub_.positions[row * CAP]; }

  // ub.scores holds n scores of positions first, first + 1, …, none of them NaN, then -infinity.
  __aicore__ void add(int32_t row, int32_t first, int32_t n) {
    Row& r = rows_[row];
    const LocalTensor<float> values = candidates(row)[r.used], places = positions(row)[r.used];
    if (!r.bounded) {
      DataCopy(values, ub_.scores, round_up(n, 8));
      CreateVecIndex(places, float(first), n);
      r.used += round_up(n, 8);
      r.size += n;
      PipeBarrier<PIPE_V>();
      return;
    }
    if constexpr (ROUNDED) {
      exact_.upper(row, ub_.numbers, n);
      Compares(ub_.bits, ub_.numbers, r.bound, CMPMODE::GE, KEYS);
    } else {
      Compares(ub_.bits, ub_.scores, r.bound, CMPMODE::GT, KEYS);
    }
    PipeBarrier<PIPE_V>();
    CreateVecIndex(ub_.numbers, float(first), KEYS);
    PipeBarrier<PIPE_V>();
    const int32_t chosen = narrow_.pack(values, ub_.scores, ub_.bits, KEYS);
    narrow_.pack(places, ub_.numbers, ub_.bits, KEYS);
    PipeBarrier<PIPE_V>();
    r.used += round_up(chosen, 8);
    r.size += chosen;
  }

  // Makes room: all but the `count` best go, and those that may be among them.
  __aicore__ void shrink(int32_t row, const Place& query) {
    Row& r = rows_[row];
    if (r.size <= count_) {
      keep(row, LOWEST, r.size);
    } else if constexpr (ROUNDED) {
      const float score = narrow_.nth(candidates(row), r.used, count_);
      const Open open = exact_.open(row, score);
      keep(row, open.low, CAP);
      if (full(row)) settle(row, query, open);
      r.bound = exact_.lower(row, score);
    } else {
      r.bound = narrow_.nth(candidates(row), r.used, count_);
      keep(row, r.bound, count_);
    }
    r.bounded = r.size >= count_ && r.bound > LOWEST;
  }

  // Leaves the `count` best, or all if they are fewer, in ub.positions. Returns their number.
  __aicore__ int32_t finish(int32_t row, const Place& query) {
    Row& r = rows_[row];
    if (r.size <= count_) {
      keep(row, LOWEST, r.size);
    } else {
      const float score = narrow_.nth(candidates(row), r.used, count_);
      if constexpr (ROUNDED) {
        const Open open = exact_.open(row, score);
        keep(row, open.low, CAP);
        settle(row, query, open);
      } else {
        keep(row, score, count_);
      }
    }
    return r.size;
  }

 private:
  struct Row {
    int32_t used = 0, size = 0;  // lanes, and candidates in them
    bool bounded = false;
    float bound = 0;  // what a later score must exceed, or its upper bound reach
  };

  // Position of lanes without a candidate.
  static constexpr float NOWHERE = float(1 << 30);

  // Instructions read whole blocks, beyond what was written.
  __aicore__ void clear() {
    cleared_ = true;
    Duplicate(ub_.first, 0.0f, CAP);
    Duplicate(ub_.second, 0.0f, CAP);
    Duplicate(ub_.spare, 0.0f, Buffers<Tiles>::SPARE);
    Duplicate(ub_.found, 0.0f, 64);
    PipeBarrier<PIPE_V>();
  }

  __aicore__ LocalTensor<float> candidates(int32_t row) const { return ub_.candidates[row * CAP]; }

  __aicore__ void empty_from(int32_t row, int32_t lane) const {
    fill_from(candidates(row), LOWEST, lane, CAP);
    fill_from(positions(row), NOWHERE, lane, CAP);
  }

  // Exact scores for what is open, and the `count` best.
  __aicore__ void settle(int32_t row, const Place& query, const Open& open) {
    Row& r = rows_[row];
    if (r.size <= count_) return;
    const LocalTensor<float> values = candidates(row);
    for (int32_t begin = 0, step = 0; begin < r.size; begin += step) {
      // What is open of the first `step` lanes fits into one list.
      step = r.size - begin;
      int32_t n = between(values[begin], positions(row)[begin], open, step);
      if (n > KEYS) {
        step = KEYS;
        n = between(values[begin], positions(row)[begin], open, smaller(step, r.size - begin));
      }
      if (n > 0) exact_.score(row, query, values[begin], n);
    }
    keep(row, narrow_.nth(values, r.size, count_), count_);
  }

  // Lane numbers and positions of candidates inside `open`, in ub.numbers and ub.scores, if they
  // fit.
  __aicore__ int32_t between(const LocalTensor<float>& values, const LocalTensor<float>& places,
                             const Open& open, int32_t n) const {
    const int32_t lanes = round_up(n, 64);
    Compares(ub_.bits, values, open.low, CMPMODE::GE, lanes);
    Compares(ub_.more_bits, values, open.high, CMPMODE::LE, lanes);
    CreateVecIndex(ub_.first, 0.0f, n);
    PipeBarrier<PIPE_V>();
    const auto bits = ub_.bits.template ReinterpretCast<uint16_t>();
    And(bits, bits, ub_.more_bits.template ReinterpretCast<uint16_t>(), lanes / 16);
    PipeBarrier<PIPE_V>();
    const int32_t found = narrow_.pack(ub_.second, ub_.first, ub_.bits, n);
    PipeBarrier<PIPE_V>();
    if (found > KEYS) return found;
    DataCopy(ub_.numbers, ub_.second, KEYS);
    narrow_.pack(ub_.scores, places, ub_.bits, n);
    return found;
  }

  // Candidates of `score` or more, `most` of them: of those that equal it, the first ones.
  __aicore__ void keep(int32_t row, float score, int32_t most) {
    Row& r = rows_[row];
    const LocalTensor<float> values = candidates(row), places = positions(row);
    const int32_t lanes = round_up(r.used, 64);
    if (score > LOWEST) {
      Compares(ub_.bits, values, score, CMPMODE::GE, lanes);
    } else {
      Compares(ub_.bits, places, NOWHERE, CMPMODE::LT, lanes);
    }
    PipeBarrier<PIPE_V>();
    int32_t n = narrow_.pack(ub_.first, values, ub_.bits, lanes);
    narrow_.pack(ub_.second, places, ub_.bits, lanes);
    PipeBarrier<PIPE_V>();
    if (n > most) {
      drop(row, score, n, n - most);
      n = most;
    } else {
      DataCopy(values, ub_.first, round_up(n, 8));
      DataCopy(places, ub_.second, round_up(n, 8));
    }
    PipeBarrier<PIPE_V>();
    empty_from(row, n);
    PipeBarrier<PIPE_V>();
    r.size = n;
    r.used = round_up(n, 8);
  }
  // n candidates in `first` and `second`, without the last `extra` of those that equal `score`.
  __aicore__ void drop(int32_t row, float score, int32_t n, int32_t extra) const {
    const LocalTensor<float> values = candidates(row), places = positions(row);
    const int32_t lanes = round_up(n, 64);
    Compares(ub_.bits, ub_.first, score, CMPMODE::EQ, lanes);
    PipeBarrier<PIPE_V>();
    const int32_t equal = narrow_.pack(values, ub_.second, ub_.bits, n);
    const float end = narrow_.read(values, equal - extra);
    Compares(ub_.bits, ub_.first, score, CMPMODE::GT, lanes);
    Compares(ub_.more_bits, ub_.second, end, CMPMODE::LT, lanes);
    PipeBarrier<PIPE_V>();
    const auto bits = ub_.bits.template ReinterpretCast<uint16_t>();
    Or(bits, bits, ub_.more_bits.template ReinterpretCast<uint16_t>(), lanes / 16);
    PipeBarrier<PIPE_V>();
    narrow_.pack(values, ub_.first, ub_.bits, n);
    narrow_.pack(places, ub_.second, ub_.bits, n);
  }

  const Buffers<Tiles>& ub_;
  Exact<T, Tiles>& exact_;
  const Narrow<Tiles> narrow_;
  const int32_t count_;
  bool cleared_ = false;
  Row rows_[ROWS_PER_VECTOR];
};

}  // namespace lightning_indexer
