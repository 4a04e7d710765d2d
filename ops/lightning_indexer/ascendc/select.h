// AIV: the best positions of a row from scores that come tile by tile in ascending order.
//
// While a row has fewer than `count` candidates all scores go to the unsorted ones, later only
// those above the lowest of the best `count`. A full buffer is sorted and merged into the best, the
// older list first, so that equal scores keep the lower positions.
#pragma once

#include "sorting.h"

namespace lightning_indexer {

template <class Tiles>
class Selection {
 public:
  static constexpr int32_t KEYS = Tiles::KEYS, TOP = Tiles::TOP, LIST = 2 * TOP;
  // Candidates that wait at most: a longer sort would leave MTE2 without room to load ahead.
  static constexpr int32_t WAITING = TOP / 2;

  __aicore__ Selection(const Buffers<Tiles>& ub, int32_t count) : ub_(ub), count_(count) {
    // Instructions read whole blocks, beyond what was written.
    Duplicate(ub.places, 0, ROWS_PER_VECTOR * TOP);
    Duplicate(ub.kept, LOWEST, ROWS_PER_VECTOR * LIST);
    PipeBarrier<PIPE_V>();
  }

  __aicore__ LocalTensor<float> best(int32_t row) const { return ub_.kept[row * LIST]; }
  __aicore__ int32_t size(int32_t row) const { return rows_[row].kept; }

  __aicore__ void begin(int32_t row) {
    rows_[row] = {};
    Duplicate(ub_.values[row * TOP], LOWEST, TOP);
  }

  // Scores below `bound` need not be kept: S has waited for V since the last flush().
  __aicore__ void limit(int32_t row, float bound) {
    Row& r = rows_[row];
    int32_t low = 1, high = r.kept;  // the last record to keep lies in low … high
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (best(row).GetValue(2 * middle) >= bound) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    r.kept = low;
    r.bound = bound;
    r.limited = true;
    SetFlag<HardEvent::S_V>(EVENT_ID5);
    WaitFlag<HardEvent::S_V>(EVENT_ID5);
  }

  // ub.scores holds n scores of positions first, first + 1, …, none of them NaN, then -infinity.
  // `settle`: sort them at once while there are fewer than `count`, since there is time.
  __aicore__ void add(int32_t row, int32_t first, int32_t n, bool settle) {
    Row& r = rows_[row];
    if (r.used + KEYS > WAITING) flush(row);
    const LocalTensor<float> values = ub_.values[row * TOP + r.used];
    const LocalTensor<int32_t> places = ub_.places[row * TOP + r.used];
    const bool all = r.kept == count_;
    if (!all && !r.limited) {
      const int32_t whole = round_up(n, 8);
      DataCopy(values, ub_.scores, whole);
      CreateVecIndex(places, first, whole);
      r.used += whole;
      r.waiting += n;
      PipeBarrier<PIPE_V>();
      if (settle) flush(row);
      return;
    }
    CreateVecIndex(ub_.ramp, first, KEYS);
    Compares(ub_.bits, ub_.scores, all ? r.lowest : r.bound, all ? CMPMODE::GT : CMPMODE::GE, KEYS);
    PipeBarrier<PIPE_V>();
    const auto pattern = ub_.bits.template ReinterpretCast<uint32_t>();
    const GatherMaskParams once(1, 1, 8, 0);
    uint64_t chosen = 0;
    GatherMask(values, ub_.scores, pattern, true, KEYS, once, chosen);
    GatherMask(places, ub_.ramp, pattern, true, KEYS, once, chosen);
    r.used += round_up(int32_t(chosen), 8);
    r.waiting += int32_t(chosen);
    PipeBarrier<PIPE_V>();
  }

  // Merges what waits into the best.
  __aicore__ void flush(int32_t row) {
    Row& r = rows_[row];
    if (r.waiting == 0) return;
    const LocalTensor<float> values = ub_.values[row * TOP];
    const LocalTensor<float> sorted =
        sort(ub_, values, ub_.places[row * TOP], round_up(r.used, 32));
    Duplicate(values, LOWEST, TOP);
    const int32_t total = smaller(count_, r.kept + r.waiting);
    const LocalTensor<float> best = this->best(row);
    if (r.kept == 0) {
      DataCopy(best, sorted, round_up(2 * total, 8));
    } else {
      const bool right = sorted.GetPhyAddr() == ub_.right.GetPhyAddr();
      const LocalTensor<float> merged = right ? ub_.low_pair : ub_.high_pair;
      const uint16_t lengths[4] = {uint16_t(r.kept), uint16_t(r.waiting), 0, 0};
      MrgSort(merged, {best, sorted, best, best}, MrgSort4Info(lengths, false, 3, 1));
      PipeBarrier<PIPE_V>();
      DataCopy(best, merged, round_up(2 * total, 8));
    }
    PipeBarrier<PIPE_V>();
    r.kept = total;
    r.used = r.waiting = 0;
    if (r.kept == count_) r.lowest = lowest(best);
  }

 private:
  struct Row {
    int32_t used = 0, waiting = 0;  // lanes of the unsorted candidates, and candidates in them
    int32_t kept = 0;
    float lowest = 0;               // score of the last of `count` kept ones
    bool limited = false;
    float bound = 0;  // of what is wanted while fewer are kept, if limited
  };

  __aicore__ float lowest(const LocalTensor<float>& best) const {
    SetFlag<HardEvent::V_S>(EVENT_ID0);
    WaitFlag<HardEvent::V_S>(EVENT_ID0);
    const float score = best.GetValue(2 * (count_ - 1));
    SetFlag<HardEvent::S_V>(EVENT_ID0);
    WaitFlag<HardEvent::S_V>(EVENT_ID0);
    return score;
  }

  const Buffers<Tiles>& ub_;
  const int32_t count_;
  Row rows_[ROWS_PER_VECTOR];
};

}  // namespace lightning_indexer
