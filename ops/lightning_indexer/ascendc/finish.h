// AIV: from the best records of a row to the positions that the caller gets.
#pragma once

#include "sorting.h"

namespace lightning_indexer {

template <class Tiles>
class Results {
 public:
  static constexpr int32_t TOP = Tiles::TOP;

  __aicore__ Results(const Buffers<Tiles>& ub, const Tiling& tiling, GM_ADDR indices)
      : ub_(ub), count_(tiling.count), by_score_(tiling.by_score) {
    indices_.SetGlobalBuffer((__gm__ int32_t*)indices);
  }

  // `row` of the result from `size` records. Uses the buffers of the candidates and of sorting.
  __aicore__ void write(int32_t row, const LocalTensor<float>& best, int32_t size) const {
    const int32_t lanes = round_up(size, 32);
    Extract(ub_.values, unsigned_places(), best, lanes / 32);
    PipeBarrier<PIPE_V>();
    if (!by_score_) ascending(size, lanes);
    fill_from(ub_.places, -1, size, TOP);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    copy_out(row);
    SetFlag<HardEvent::MTE3_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID0);
  }

  // Rows first, first + step, … < end see no key.
  __aicore__ void write_nothing(int32_t first, int32_t end, int32_t step) const {
    if (first >= end) return;
    Duplicate(ub_.places, -1, TOP);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    for (int32_t row = first; row < end; row += step) copy_out(row);
    SetFlag<HardEvent::MTE3_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID0);
  }

 private:
  __aicore__ LocalTensor<uint32_t> unsigned_places() const {
    return ub_.places.template ReinterpretCast<uint32_t>();
  }

  // Sorts by falling negative position; positions are below 2^24, hence exact in F32.
  __aicore__ void ascending(int32_t size, int32_t lanes) const {
    Cast(ub_.values, ub_.places, RoundMode::CAST_NONE, lanes);
    PipeBarrier<PIPE_V>();
    Muls(ub_.values, ub_.values, -1.0f, lanes);
    PipeBarrier<PIPE_V>();
    if (size < lanes) {
      fill_from(ub_.values, LOWEST, size, lanes);
      PipeBarrier<PIPE_V>();
    }
    const LocalTensor<float> sorted = sort(ub_, ub_.values, ub_.places, lanes);
    Extract(ub_.values, unsigned_places(), sorted, lanes / 32);
    PipeBarrier<PIPE_V>();
  }

  __aicore__ void copy_out(int32_t row) const {
    DataCopyPad(indices_[int64_t(row) * count_], ub_.places,
                DataCopyExtParams(1, count_ * sizeof(int32_t), 0, 0, 0));
  }

  const Buffers<Tiles>& ub_;
  const int32_t count_;
  const bool by_score_;
  GlobalTensor<int32_t> indices_;
};

}  // namespace lightning_indexer
