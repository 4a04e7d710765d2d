// AIV: lists of the parts of a group that fell to several AIVs, merged in fours.
//
// Part p is the p-th piece of the group's keys: of block p (from the group's first one) or, where
// AIVs halve the keys of their block, of AIV p % 2 of block p / 2. At each level the AIV of every
// fourth list that is left merges it with the next three. Of the last four lists nothing is merged
// unless the order by score is wanted: how many records each of them gives is enough. Lists keep
// the order of their keys, so equal scores keep the lower position first.
//
// Before the first level samples bound the score of the last record that can be kept: each of them
// stands for SAMPLE_STEP records that are no smaller. Lists are cut there; for evenly spread scores
// little more than `count` records of all lists together are merged then. The same bound from the
// first keys of a single row, while the others come, spares most of those the sorting.
#pragma once

#include "finish.h"
#include "select.h"

namespace lightning_indexer {

template <class Tiles>
class Merge {
 public:
  static constexpr int32_t LIST = Tiles::LIST, UNIT = Tiles::UNIT;
  static constexpr int32_t SAMPLED_RECORDS = SAMPLE_STEP * Tiles::SAMPLES;
  static constexpr int32_t BLOCK_PLACES = Tiles::LISTS * Tiles::PLACE / 8;  // units of 32 bytes

  __aicore__ Merge(const Work& work, const Shares& shares, const Buffers<Tiles>& ub, GM_ADDR lists)
      : work_(work),
        shares_(shares),
        ub_(ub),
        block_(int32_t(GetBlockIdx()) / VECTORS),
        vector_(int32_t(GetSubBlockIdx())) {
    lists_.SetGlobalBuffer((__gm__ float*)lists);
    sizes_.SetGlobalBuffer((__gm__ int32_t*)lists);
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

  // Number of this AIV's part.
  __aicore__ int32_t part(const Segment& s) const {
    const int32_t block = block_ - shares_.block_of(s.group.base);
    return s.halved ? VECTORS * block + vector_ : block;
  }

  // Records of this AIV's part of a row that sees `seen` keys.
  __aicore__ int32_t listed(const Segment& s, int32_t seen) const {
    return listed(s.part[part(s) % VECTORS], seen);
  }
  // The list of this AIV's part, `size` records and as many more as are `listed`, with room for its
  // samples, and the samples.
  __aicore__ void store(const Segment& s, int32_t row, const LocalTensor<float>& list,
                        int32_t size, int32_t listed) const {
    const int64_t to = place(block_, s.slot, vector_, row);
    fill_from(list, LOWEST, 2 * size, larger(2 * SAMPLED_RECORDS, round_up(2 * listed, 8)));
    SetFlag<HardEvent::V_MTE3>(EVENT_ID1);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID1);
    if (listed > 0) DataCopy(lists_[to], list, round_up(2 * listed, 8));
    store_samples(to + Tiles::SAMPLES_AT, list);
    SetFlag<HardEvent::MTE3_V>(EVENT_ID1);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID1);
  }
  // Samples of the first keys of this AIV's part, for all AIVs.
  __aicore__ void store_early(const Segment& s, const LocalTensor<float>& list,
                              int32_t size) const {
    fill_from(list, LOWEST, 2 * size, 2 * SAMPLED_RECORDS);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID5);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID5);
    store_samples(place(block_, s.slot, vector_, 0) + Tiles::MERGED_AT, list);
    CrossCoreSetFlag<0, PIPE_MTE3>(SAMPLED);
    SetFlag<HardEvent::MTE3_V>(EVENT_ID5);
    WaitFlag<HardEvent::MTE3_V>(EVENT_ID5);
  }
  // A score that at least `count` of the first keys reach by the samples of all AIVs, or -infinity.
  __aicore__ float early_bound(const Segment& s) const {
    const int32_t all = parts(s.group), needed = samples_needed(), each = samples_each(all);
    CrossCoreWaitFlag(SAMPLED);
    if (all * each < needed || 8 * all * each > LIST) return LOWEST;
    return least_score(s, 0, needed, each, Tiles::MERGED_AT, ub_.kept[LIST],
                       ub_.values[Tiles::TOP]);
  }

  // A merged list and its size.
  __aicore__ void store_merged(const Segment& s, int32_t row, const LocalTensor<float>& list,
                               int32_t size) const {
    const int64_t to = place(block_, s.slot, vector_, row);
    const LocalTensor<int32_t> own = ub_.sizes[8 * 4];
    own.SetValue(0, size);
    SetFlag<HardEvent::S_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::S_MTE3>(EVENT_ID0);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID2);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID2);
    DataCopy(lists_[to + Tiles::MERGED_AT], list, round_up(2 * size, 8));
    DataCopyPad(sizes_[to + Tiles::SIZE_AT], own, DataCopyExtParams(1, sizeof(int32_t), 0, 0, 0));
    SetFlag<HardEvent::MTE3_S>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_S>(EVENT_ID0);
  }

  // What this AIV's part has of a row's result: it lies in the first `size` records of `list`, and
  // `before` records lie in lists of earlier parts.
  struct Choice {
    LocalTensor<float> list;
    int32_t size = 0, before = 0;
  };

  // The choice from the lists of parts 0, stride, 2 stride, 3 stride.
  __aicore__ Choice choose(const Segment& s, int32_t row, int32_t seen, int32_t stride) const {
    Lists lists;
    const Span all = {0, parts(s.group)};
    if (stride == 1) load_parts(s, row, seen, all, Tiles::TOP, lists);
    else load_merged(s, row, seen, all, stride, lists);
    if (lists.count > 1) take_best(smaller(work_.tiling.count, seen), lists);
    const int32_t own = part(s) / stride * stride;
    Choice choice;
    for (int32_t i = 0; i < lists.count && lists.part[i] <= own; ++i) {
      choice.list = ub_.pieces[i * LIST];
      if (lists.part[i] == own) choice.size = lists.length[i];
      else choice.before += lists.length[i];
    }
    return choice;
  }
  // Positions of this AIV's part.
  __aicore__ Span positions(const Segment& s) const {
    const Span units = s.part[part(s) % VECTORS];
    return {units.begin * UNIT, units.end * UNIT};
  }

  // Merges the lists of parts p, p + stride, p + 2 stride, p + 3 stride of this AIV's row into
  // `to`, where part p is this AIV's. Returns the size, or 0 where nothing is to be merged.
  __aicore__ int32_t merge(const Segment& s, int32_t row, int32_t seen, int32_t stride,
                           const LocalTensor<float>& to) const {
    const int32_t own = part(s), all = parts(s.group);
    if (own % (4 * stride) != 0 || all == 1 || (stride > 1 && own + stride >= all)) return 0;
    const int32_t needed = samples_needed(), each = samples_each(all);
    const bool cut = stride == 1 && all > 4 && all * each >= needed && 2 * all * each <= LIST;
    float least = LOWEST;
    if (cut) {
      least = least_score(s, row, needed, each, Tiles::SAMPLES_AT, ub_.pieces, ub_.values);
    }
    const int32_t end = smaller(own + 4 * stride, all);
    Lists lists;
    const int32_t first = cut ? SAMPLED_RECORDS : Tiles::TOP;  // records
    if (stride == 1) load_parts(s, row, seen, {own, end}, first, lists);
    else load_merged(s, row, seen, {own, end}, stride, lists);
    if (lists.count == 0) return 0;
    if (cut) shorten(s, row, least, lists);
    return merge_loaded(lists, to);
  }

 private:
  // Lists in UB, LIST words from one to the next: the first part of each, and its records.
  struct Lists {
    int32_t count = 0;
    int32_t part[4];
    uint16_t length[4] = {1, 1, 1, 1};
  };

  __aicore__ int64_t place(int32_t block, int32_t slot, int32_t vector, int32_t row) const {
    return ((int64_t(block) * 2 + slot) * VECTORS + vector) * ROWS_PER_VECTOR * Tiles::PLACE +
           row * Tiles::PLACE;
  }
  __aicore__ Segment segment(const Group& group, int32_t p) const {
    return segment_of(group, shares_, block(group, p), Tiles::STEP);
  }
  __aicore__ int32_t block(const Group& group, int32_t p) const {
    return shares_.block_of(group.base) + (shares_.halves(group) ? p / VECTORS : p);
  }
  __aicore__ int32_t vector(const Segment& s, int32_t p) const {
    return s.halved ? p % VECTORS : vector_;
  }

  __aicore__ int32_t samples_needed() const {
    return (work_.tiling.count + SAMPLE_STEP - 1) / SAMPLE_STEP;
  }
  // Of each of `all` lists: twice as many samples as are needed, if lists have so many.
  __aicore__ int32_t samples_each(int32_t all) const {
    return smaller(Tiles::SAMPLES, (2 * samples_needed() + all - 1) / all);
  }
  // The block of four records that ends with the sampled one.
  __aicore__ void store_samples(int64_t to, const LocalTensor<float>& list) const {
    DataCopy(lists_[to], list[2 * (SAMPLE_STEP - 4)],
             DataCopyParams(Tiles::SAMPLES, 1, SAMPLE_STEP / 4 - 1, 0));
  }
  __aicore__ int32_t listed(Span units, int32_t seen) const {
    const int32_t keys = smaller(seen, units.end * UNIT) - smaller(seen, units.begin * UNIT);
    return smaller(work_.tiling.count, keys);
  }

  // A score that at least `count` records of all parts reach: the `needed`-th of `each` samples of
  // every part, which lie `from` in their places and come to `raw`; `values` is room.
  __aicore__ float least_score(const Segment& own, int32_t row, int32_t needed, int32_t each,
                               int32_t from, const LocalTensor<float>& raw,
                               const LocalTensor<float>& values) const {
    const Span blocks = shares_.blocks(own.group);
    const Segment first = segment(own.group, 0);
    const int32_t more = blocks.end - blocks.begin - 1;
    int32_t words = 0;
    for (int32_t v = 0; v < (own.halved ? VECTORS : 1); ++v) {
      DataCopy(raw[words],
               lists_[place(blocks.begin, first.slot, vector(own, v), row) + from], 8 * each);
      words += 8 * each;
      DataCopy(raw[words],
               lists_[place(blocks.begin + 1, 0, vector(own, v), row) + from],
               DataCopyParams(more, each, BLOCK_PLACES - each, 0));
      words += 8 * each * more;
    }
    SetFlag<HardEvent::MTE2_V>(EVENT_ID5);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID5);
    // Of each eight words the seventh.
    uint64_t kept = 0;
    GatherMask(ub_.left, raw, 5, true, words, GatherMaskParams(1, 1, 8, 0), kept);
    PipeBarrier<PIPE_V>();
    GatherMask(values, ub_.left, 2, true, words / 4, GatherMaskParams(1, 1, 8, 0), kept);
    PipeBarrier<PIPE_V>();
    const int32_t samples = words / 8, lanes = round_up(samples, 32);
    fill_from(values, LOWEST, samples, lanes);
    PipeBarrier<PIPE_V>();
    const LocalTensor<float> sorted = sort(ub_, values, ub_.places, lanes);
    // S, and what it issues later, comes after the vector instructions, and shorten() after S.
    SetFlag<HardEvent::V_S>(EVENT_ID2);
    WaitFlag<HardEvent::V_S>(EVENT_ID2);
    return sorted.GetValue(2 * (needed - 1));
  }

  // Lists of single parts, whose lengths follow from their keys, or the first `most` records.
  __aicore__ void load_parts(const Segment& own, int32_t row, int32_t seen, Span parts,
                             int32_t most, Lists& lists) const {
    for (int32_t p = parts.begin; p < parts.end; ++p) {
      const Segment s = segment(own.group, p);
      const int32_t size = listed(s.part[p % VECTORS], seen);
      if (size == 0) continue;
      DataCopy(ub_.pieces[lists.count * LIST],
               lists_[place(block(own.group, p), s.slot, vector(s, p), row)],
               round_up(2 * smaller(size, most), 8));
      lists.part[lists.count] = p;
      lists.length[lists.count++] = uint16_t(size);
    }
  }

  // Merged lists, which have their lengths beside them.
  __aicore__ void load_merged(const Segment& own, int32_t row, int32_t seen, Span parts,
                              int32_t stride, Lists& lists) const {
    int64_t places[4];
    for (int32_t p = parts.begin; p < parts.end; p += stride) {
      const Segment s = segment(own.group, p);
      // Keys rise with parts: where this one has none that the row sees, later ones have none.
      if (s.part[p % VECTORS].begin * UNIT >= seen) break;
      places[lists.count] = place(block(own.group, p), s.slot, vector(s, p), row);
      DataCopyPad(ub_.sizes[8 * lists.count], sizes_[places[lists.count] + Tiles::SIZE_AT],
                  DataCopyExtParams(1, sizeof(int32_t), 0, 0, 0), DataCopyPadExtParams<int32_t>());
      lists.part[lists.count++] = p;
    }
    SetFlag<HardEvent::MTE2_S>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_S>(EVENT_ID0);
    for (int32_t i = 0; i < lists.count; ++i) {
      lists.length[i] = uint16_t(ub_.sizes.GetValue(8 * i));
      DataCopy(ub_.pieces[i * LIST], lists_[places[i] + Tiles::MERGED_AT],
               round_up(2 * lists.length[i], 8));
    }
    SetFlag<HardEvent::S_MTE2>(EVENT_ID0);
    WaitFlag<HardEvent::S_MTE2>(EVENT_ID0);
  }

  // Cuts lists of single parts before the first record below `least`; at least one record stays.
  // SAMPLED_RECORDS of each are loaded; the others follow where they may be needed.
  __aicore__ void shorten(const Segment& own, int32_t row, float least, Lists& lists) const {
    SetFlag<HardEvent::MTE2_S>(EVENT_ID1);
    WaitFlag<HardEvent::MTE2_S>(EVENT_ID1);
    bool more = false;
    int32_t high[4];
    for (int32_t i = 0; i < lists.count; ++i) {
      high[i] = smaller(lists.length[i], SAMPLED_RECORDS);
      if (high[i] == lists.length[i] || score(i, SAMPLED_RECORDS - 1) < least) continue;
      const int32_t p = lists.part[i];
      const Segment s = segment(own.group, p);
      high[i] = lists.length[i];
      DataCopy(ub_.pieces[i * LIST + 2 * SAMPLED_RECORDS],
               lists_[place(block(own.group, p), s.slot, vector(s, p), row) + 2 * SAMPLED_RECORDS],
               round_up(2 * (lists.length[i] - SAMPLED_RECORDS), 8));
      more = true;
    }
    if (more) {
      SetFlag<HardEvent::MTE2_S>(EVENT_ID2);
      WaitFlag<HardEvent::MTE2_S>(EVENT_ID2);
    }
    for (int32_t i = 0; i < lists.count; ++i) {
      int32_t low = 1;  // the answer lies in low … high
      while (low < high[i]) {
        const int32_t middle = (low + high[i]) / 2;
        if (score(i, middle) >= least) {
          low = middle + 1;
        } else {
          high[i] = middle;
        }
      }
      lists.length[i] = uint16_t(low);
    }
    SetFlag<HardEvent::S_MTE2>(EVENT_ID1);
    WaitFlag<HardEvent::S_MTE2>(EVENT_ID1);
  }

  // Cuts the loaded lists so that the `size` best of all records stay, of equal ones those of the
  // earlier list. Where every list offers its next n records, n lists or fewer being `size` or
  // fewer, the one whose last offered record is the best gives them: fewer than `size` are better.
  __aicore__ void take_best(int32_t size, Lists& lists) const {
    SetFlag<HardEvent::MTE2_S>(EVENT_ID3);
    WaitFlag<HardEvent::MTE2_S>(EVENT_ID3);
    int32_t taken[4] = {0, 0, 0, 0};
    while (size > 0) {
      const int32_t step = larger(1, size / lists.count);
      int32_t best = -1, given = 0;
      float highest = LOWEST;
      for (int32_t i = 0; i < lists.count; ++i) {
        const int32_t n = smaller(step, lists.length[i] - taken[i]);
        if (n == 0) continue;
        const float last = score(i, taken[i] + n - 1);
        if (best >= 0 && last <= highest) continue;
        best = i;
        given = n;
        highest = last;
      }
      if (best < 0) break;
      taken[best] += given;
      size -= given;
    }
    for (int32_t i = 0; i < lists.count; ++i) lists.length[i] = uint16_t(taken[i]);
    SetFlag<HardEvent::S_MTE2>(EVENT_ID2);
    WaitFlag<HardEvent::S_MTE2>(EVENT_ID2);
  }
  __aicore__ float score(int32_t list, int32_t record) const {
    return ub_.pieces.GetValue(list * LIST + 2 * record);
  }

  __aicore__ int32_t merge_loaded(const Lists& lists, const LocalTensor<float>& to) const {
    SetFlag<HardEvent::MTE2_V>(EVENT_ID2);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID2);
    int32_t size = 0;
    for (int32_t i = 0; i < lists.count; ++i) size += lists.length[i];
    size = smaller(size, work_.tiling.count);
    const LocalTensor<float> from = ub_.pieces;
    LocalTensor<float> merged = from;
    if (lists.count > 1) {
      merged = ub_.four;
      MrgSort(merged, {from, from[LIST], from[2 * LIST], from[3 * LIST]},
              MrgSort4Info(lists.length, false, (1 << lists.count) - 1, 1));
      PipeBarrier<PIPE_V>();
    }
    DataCopy(to, merged, round_up(2 * size, 8));
    PipeBarrier<PIPE_V>();
    SetFlag<HardEvent::V_MTE2>(EVENT_ID2);
    WaitFlag<HardEvent::V_MTE2>(EVENT_ID2);
    return size;
  }

  const Work& work_;
  const Shares& shares_;
  const Buffers<Tiles>& ub_;
  const int32_t block_, vector_;
  GlobalTensor<float> lists_;
  GlobalTensor<int32_t> sizes_;
};

}  // namespace lightning_indexer
