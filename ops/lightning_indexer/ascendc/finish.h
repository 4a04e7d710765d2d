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
    if (!by_score_) {
      Cast(ub_.pieces, ub_.places, RoundMode::CAST_NONE, size);
      PipeBarrier<PIPE_V>();
      sort_positions(ub_.pieces, size);
    }
    fill_from(ub_.places, -1, size, TOP);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    copy_out(row, ub_.places);
    SetFlag<HardEvent::MTE3_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID0);
  }

  // `row` of the result from n ascending positions in F32.
  __aicore__ void write_ascending(int32_t row, const LocalTensor<float>& positions,
                                  int32_t n) const {
    const auto to = ub_.first.template ReinterpretCast<int32_t>();
    if (n > 0) Cast(to, positions, RoundMode::CAST_RINT, n);
    PipeBarrier<PIPE_V>();
    fill_from(to, -1, n, TOP);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID4);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID4);
    copy_out(row, to);
    SetFlag<HardEvent::MTE3_V>(EVENT_ID4);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID4);
  }

  // The part of `row` whose positions lie in `own`, in its place in the row, from `size` records
  // that MTE2 brings; `before` positions lie before them. The last part writes the row's end too.
  __aicore__ void write_part(int32_t row, const LocalTensor<float>& list, int32_t size,
                             int32_t before, Span own, bool last) const {
    const LocalTensor<float> until = ub_.left, mine = ub_.right;
    int32_t n = 0;
    if (size > 0) {
      const int32_t lanes = round_up(size, 64);
      SetFlag<HardEvent::MTE2_V>(EVENT_ID6);
      WaitFlag<HardEvent::MTE2_V>(EVENT_ID6);
      // Extract takes whole repeats, which were written here.
      DataCopy(ub_.kept, list, round_up(2 * size, 8));
      SetFlag<HardEvent::V_MTE2>(EVENT_ID5);
      WaitFlag<HardEvent::V_MTE2>(EVENT_ID5);
      PipeBarrier<PIPE_V>();
      Extract(ub_.values, unsigned_places(), ub_.kept, lanes / 32);
      PipeBarrier<PIPE_V>();
      Cast(ub_.values, ub_.places, RoundMode::CAST_NONE, lanes);
      PipeBarrier<PIPE_V>();
      fill_from(ub_.values, float(1 << 30), size, lanes);
      PipeBarrier<PIPE_V>();
      const int32_t upto = gather(until, ub_.values, CMPMODE::LT, float(own.end), lanes);
      if (upto > 0) {
        const int32_t some = round_up(upto, 64);
        fill_from(until, -1.0f, upto, some);
        PipeBarrier<PIPE_V>();
        n = gather(mine, until, CMPMODE::GE, float(own.begin), some);
      }
      before += upto - n;
    }
    const int32_t words = last ? count_ - before : n;
    if (words == 0) return;
    if (n > 0) sort_positions(mine, n);
    fill_from(ub_.places, -1, n, TOP);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID3);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID3);
    DataCopyPad(indices_[int64_t(row) * count_ + before], ub_.places,
                DataCopyExtParams(1, words * sizeof(int32_t), 0, 0, 0));
    SetFlag<HardEvent::MTE3_V>(EVENT_ID3);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID3);
  }

  // `row` of the result: the first n positions.
  __aicore__ void write_first(int32_t row, int32_t n) const {
    CreateVecIndex(ub_.places, 0, TOP);
    PipeBarrier<PIPE_V>();
    fill_from(ub_.places, -1, n, TOP);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    copy_out(row, ub_.places);
    SetFlag<HardEvent::MTE3_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID0);
  }

 private:
  __aicore__ LocalTensor<uint32_t> unsigned_places() const {
    return ub_.places.template ReinterpretCast<uint32_t>();
  }

  // The lanes that compare so with `bound`, packed; returns their number.
  __aicore__ int32_t gather(const LocalTensor<float>& to, const LocalTensor<float>& from,
                            CMPMODE mode, float bound, int32_t lanes) const {
    const LocalTensor<uint8_t> bits = ub_.scales.template ReinterpretCast<uint8_t>();
    uint64_t kept = 0;
    Compares(bits, from, bound, mode, lanes);
    PipeBarrier<PIPE_V>();
    GatherMask(to, from, bits.template ReinterpretCast<uint32_t>(), true, lanes,
               GatherMaskParams(1, 1, 8, 0), kept);
    PipeBarrier<PIPE_V>();
    return int32_t(kept);
  }

  // n positions, as floats, to ub.places in ascending order. They are below 2^24, hence exact.
  __aicore__ void sort_positions(const LocalTensor<float>& positions, int32_t n) const {
    const int32_t lanes = round_up(n, 32);
    Cast(ub_.places, positions, RoundMode::CAST_RINT, n);
    Muls(ub_.values, positions, -1.0f, n);
    PipeBarrier<PIPE_V>();
    fill_from(ub_.values, LOWEST, n, lanes);
    PipeBarrier<PIPE_V>();
    const LocalTensor<float> sorted = sort(ub_, ub_.values, ub_.places, lanes);
    Extract(ub_.values, unsigned_places(), sorted, lanes / 32);
    PipeBarrier<PIPE_V>();
  }

  __aicore__ void copy_out(int32_t row, const LocalTensor<int32_t>& positions) const {
    DataCopyPad(indices_[int64_t(row) * count_], positions,
                DataCopyExtParams(1, count_ * sizeof(int32_t), 0, 0, 0));
  }

  const Buffers<Tiles>& ub_;
  const int32_t count_;
  const bool by_score_;
  GlobalTensor<int32_t> indices_;
};

}  // namespace lightning_indexer
