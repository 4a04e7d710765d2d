// AIV: lists of the parts of a group that fell to several AIVs, merged in fours.
//
// Part p is the p-th piece of the group's keys: of block p (from the group's first one) or, where
// AIVs halve the keys of their block, of AIV p % 2 of block p / 2. At each level the AIV of every
// fourth list that is left merges it with the next three. Lists keep the order of their keys, so
// equal scores keep the lower position first.
#pragma once

#include "finish.h"
#include "select.h"

namespace lightning_indexer {

template <class Tiles>
class Merge {
 public:
  static constexpr int32_t TOP = Tiles::TOP, LIST = 2 * TOP, UNIT = Tiles::UNIT;

  __aicore__ Merge(const Work& work, const Shares& shares, const Buffers<Tiles>& ub, GM_ADDR lists)
      : work_(work), shares_(shares), ub_(ub) {
    lists_.SetGlobalBuffer((__gm__ float*)lists);
  }

  __aicore__ int32_t parts(const Group& group) const {
    const Span blocks = shares_.blocks(group);
    return (blocks.end - blocks.begin) * (shares_.halves(group) ? VECTORS : 1);
  }
  __aicore__ int32_t most_parts() const {
    int32_t most = 1;
    for (Groups groups(work_); groups.next();) most = larger(most, parts(groups.group));
    return most;
  }

  // The list of this AIV's part.
  __aicore__ void store(const Segment& s, int32_t row, const LocalTensor<float>& list,
                        int32_t size) const {
    const int32_t block = int32_t(GetBlockIdx()) / VECTORS, vector = int32_t(GetSubBlockIdx());
    SetFlag<HardEvent::V_MTE3>(EVENT_ID1);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID1);
    DataCopy(lists_[place(block, s.slot, vector, row)], list, round_up(2 * size, 8));
    SetFlag<HardEvent::MTE3_V>(EVENT_ID1);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID1);
  }

  // Merges the lists of parts p, p + stride, p + 2 stride, p + 3 stride of this AIV's row into
  // `to`, where part p is this AIV's. Returns the size, or -1 where nothing is to be merged.
  __aicore__ int32_t merge(const Segment& s, int32_t row, int32_t seen, int32_t stride,
                           const LocalTensor<float>& to) const {
    const int32_t own = part(s), all = parts(s.group);
    if (own % (4 * stride) != 0 || own + stride >= all) return -1;
    int32_t lists = 0, total = 0;
    uint16_t lengths[4] = {1, 1, 1, 1};
    for (int32_t p = own; p < own + 4 * stride && p < all; p += stride) {
      const int32_t size = load(s.group, p, smaller(p + stride, all), row, seen, lists);
      if (size == 0) continue;
      lengths[lists++] = uint16_t(size);
      total += size;
    }
    if (lists == 0) return -1;
    SetFlag<HardEvent::MTE2_V>(EVENT_ID2);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID2);
    const int32_t size = smaller(total, work_.tiling.count);
    const LocalTensor<float> from = ub_.pieces;
    LocalTensor<float> merged = from;
    if (lists > 1) {
      merged = ub_.four;
      MrgSort(merged, {from, from[LIST], from[2 * LIST], from[3 * LIST]},
              MrgSort4Info(lengths, false, (1 << lists) - 1, 1));
      PipeBarrier<PIPE_V>();
    }
    DataCopy(to, merged, round_up(2 * size, 8));
    PipeBarrier<PIPE_V>();
    SetFlag<HardEvent::V_MTE2>(EVENT_ID2);
    WaitFlag<HardEvent::V_MTE2>(EVENT_ID2);
    return size;
  }

  __aicore__ int32_t part(const Segment& s) const {
    const int32_t block =
        int32_t(GetBlockIdx()) / VECTORS - shares_.block_of(s.group.base);
    return s.halved ? VECTORS * block + int32_t(GetSubBlockIdx()) : block;
  }

 private:
  __aicore__ int64_t place(int32_t block, int32_t slot, int32_t vector, int32_t row) const {
    return ((int64_t(block) * 2 + slot) * VECTORS + vector) * ROWS_PER_VECTOR * LIST + row * LIST;
  }
  __aicore__ Segment segment(const Group& group, int32_t p) const {
    return segment_of(group, shares_, block(group, p), Tiles::STEP);
  }
  __aicore__ int32_t block(const Group& group, int32_t p) const {
    return shares_.block_of(group.base) + (shares_.halves(group) ? p / VECTORS : p);
  }

  // Loads the list of parts first to end - 1, which lies where part `first` has its own.
  __aicore__ int32_t load(const Group& group, int32_t first, int32_t end, int32_t row,
                          int32_t seen, int32_t number) const {
    const Segment s = segment(group, first), last = segment(group, end - 1);
    const int32_t from = s.part[first % VECTORS].begin;
    const int32_t until = last.part[(end - 1) % VECTORS].end;
    const int32_t size =
        smaller(work_.tiling.count, smaller(seen, until * UNIT) - smaller(seen, from * UNIT));
    if (size == 0) return 0;
    const int32_t vector = s.halved ? first % VECTORS : int32_t(GetSubBlockIdx());
    DataCopy(ub_.pieces[number * LIST], lists_[place(block(group, first), s.slot, vector, row)],
             round_up(2 * size, 8));
    return size;
  }

  const Work& work_;
  const Shares& shares_;
  const Buffers<Tiles>& ub_;
  GlobalTensor<float> lists_;
};

}  // namespace lightning_indexer
