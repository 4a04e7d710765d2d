// AIV: the n-th largest of a row's candidates.
//
// Samples of the candidates give bounds, what lies outside is counted and left out, and only the
// rest is sorted.
#pragma once

#include "sorting.h"

namespace lightning_indexer {

template <class Tiles>
class Narrow {
 public:
  // Sorted at once, at most.
  static constexpr int32_t SMALL = Tiles::TOP >= 256 ? Tiles::TOP / 8 : 32;
  static_assert(5 * SMALL <= Buffers<Tiles>::SPARE, "samples");

  __aicore__ explicit Narrow(const Buffers<Tiles>& ub) : ub_(ub) {}

  // The rank-th largest of n values. Uses `first`, `second` and `spare`.
  __aicore__ float nth(const LocalTensor<float>& values, int32_t n, int32_t rank) const {
    Lanes lanes = {values, n, rank, false, 0};
    while (lanes.n > SMALL) {
      const int32_t m = sample(lanes);
      const LocalTensor<float> sorted = sort_samples(m);
      const int32_t middle = int32_t(int64_t(lanes.rank) * m / lanes.n), margin = m / 16 + 2;
      const bool low = middle + margin < m, high = middle >= margin;
      const float below = low ? read(sorted, 2 * (middle + margin)) : 0;
      const float above = high ? read(sorted, 2 * (middle - margin)) : 0;
      if (low && cut(lanes, below, CMPMODE::GT, CMPMODE::LT)) return lanes.answer;
      if (high && cut(lanes, above, CMPMODE::LT, CMPMODE::GT)) return lanes.answer;
    }
    DataCopy(samples(), lanes.from, round_up(lanes.n, 8));
    PipeBarrier<PIPE_V>();
    return read(sort_samples(lanes.n), 2 * (lanes.rank - 1));
  }
  // The lanes whose bit is set, packed; returns their number.
  __aicore__ int32_t pack(const LocalTensor<float>& to, const LocalTensor<float>& from,
                          const LocalTensor<uint8_t>& bits, int32_t n) const {
    uint64_t kept = 0;
    GatherMask(to, from, bits.template ReinterpretCast<uint32_t>(), true, n,
               GatherMaskParams(1, 1, 8, 0), kept);
    return int32_t(kept);
  }
  // One lane, which V has written.
  __aicore__ float read(const LocalTensor<float>& from, int32_t lane) const {
    SetFlag<HardEvent::V_S>(EVENT_ID3);
    WaitFlag<HardEvent::V_S>(EVENT_ID3);
    const float value = from.GetValue(lane);
    SetFlag<HardEvent::S_V>(EVENT_ID2);
    WaitFlag<HardEvent::S_V>(EVENT_ID2);
    return value;
  }

 private:
  // Lanes that narrow: the rank-th largest of n is wanted.
  struct Lanes {
    LocalTensor<float> from;
    int32_t n, rank;
    bool second;  // where the next ones go
    float answer;
  };

  __aicore__ int32_t gather(const LocalTensor<float>& to, const LocalTensor<float>& from,
                            CMPMODE mode, float bound, int32_t n) const {
    Compares(ub_.bits, from, bound, mode, round_up(n, 64));
    PipeBarrier<PIPE_V>();
    const int32_t kept = pack(to, from, ub_.bits, n);
    PipeBarrier<PIPE_V>();
    return kept;
  }
  // Leaves the lanes that lie on the answer's side of `pivot`, `expected` first. Whether it is the
  // pivot.
  __aicore__ bool cut(Lanes& lanes, float pivot, CMPMODE expected, CMPMODE other) const {
    const LocalTensor<float> to = lanes.second ? ub_.second : ub_.first;
    int32_t n = 0;
    for (int32_t i = 0; i < 2; ++i) {
      const CMPMODE mode = i == 0 ? expected : other;
      n = gather(to, lanes.from, mode, pivot, lanes.n);
      const int32_t before = mode == CMPMODE::GT ? 0 : lanes.n - n;
      if (before < lanes.rank && lanes.rank <= before + n) {
        lanes = {to, n, lanes.rank - before, !lanes.second, 0};
        return false;
      }
    }
    lanes.answer = pivot;
    return true;
  }
  __aicore__ LocalTensor<float> samples() const { return ub_.spare[4 * SMALL]; }
  // Each fourth lane, and again until they are few.
  __aicore__ int32_t sample(const Lanes& lanes) const {
    LocalTensor<float> from = lanes.from;
    int32_t m = lanes.n;
    while (m > SMALL) {
      const int32_t n = (m + 3) / 4;
      const LocalTensor<float> to =
          n <= SMALL ? samples() : lanes.second ? ub_.second : ub_.first;
      uint64_t kept = 0;
      GatherMask(to, from, uint8_t(3), true, m, GatherMaskParams(1, 1, 8, 0), kept);
      PipeBarrier<PIPE_V>();
      from = to;
      m = n;
    }
    return m;
  }
  __aicore__ LocalTensor<float> sort_samples(int32_t m) const {
    const int32_t n = round_up(m, 32);
    fill_from(samples(), LOWEST, m, n);
    PipeBarrier<PIPE_V>();
    return sort(ub_.spare, ub_.spare[2 * SMALL], samples(),
                samples().template ReinterpretCast<uint32_t>(), n);
  }

  const Buffers<Tiles>& ub_;
};

}  // namespace lightning_indexer
