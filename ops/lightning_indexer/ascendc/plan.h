// Who does what: every core derives it from the lengths in GM.
//
// A group is up to `tiling.group` query tokens of one request. Its visible keys are cut into units
// of UNIT keys, the units of all groups are numbered through, and every block takes an equal piece
// of the numbers. A group that falls to several blocks leaves a list of candidates per part.
#pragma once

#include "kernel_operator.h"
#include "tiling.h"

namespace lightning_indexer {

using namespace AscendC;

struct Span {
  int32_t begin, end;
};

// Whether products are whole numbers, with scales.
template <class Score>
constexpr bool QUANTISED = Score(0.5f) == Score(0);

__aicore__ inline int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
__aicore__ inline int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
__aicore__ inline int32_t round_up(int32_t n, int32_t step) { return (n + step - 1) / step * step; }

// A request: rows of query, number of keys, and the row of its first key where keys are contiguous.
struct Request {
  Span rows;
  int32_t keys, key_row;
};

// Query tokens first, first + 1, … of a request.
struct Group {
  int32_t request;
  int32_t first, rows;
  int32_t keys, key_row;
  int32_t seen;   // keys that the first row sees
  int32_t more;   // keys that each later row sees more
  int32_t base;   // number of its first unit
  int32_t units;  // those that the last row sees

  __aicore__ int32_t visible(int32_t row) const { return larger(0, seen + more * row); }
};

// Lengths and sizes, which do not depend on the core.
class Work {
 public:
  __aicore__ Work(const Tiling& tiling, GM_ADDR query_lengths, GM_ADDR key_lengths, int32_t unit)
      : tiling(tiling), unit(unit) {
    query_lengths_.SetGlobalBuffer((__gm__ int32_t*)query_lengths);
    key_lengths_.SetGlobalBuffer((__gm__ int32_t*)key_lengths);
  }
  __aicore__ Request request(int32_t number) const {
    const Span q = span(query_lengths_, tiling.query_form, tiling.query_tokens, number);
    const Span k = span(key_lengths_, tiling.key_form, tiling.key_tokens, number);
    return {q, k.end - k.begin, k.begin};
  }
  // Keys that a row of the request sees.
  __aicore__ int32_t visible(const Request& r, int32_t row) const {
    return tiling.causal ? larger(0, r.keys - (r.rows.end - row) + 1) : r.keys;
  }
  // Whether the results of rows that see so many keys or fewer are known without scores: nothing,
  // or all keys in ascending order.
  __aicore__ bool known(int32_t visible) const {
    return visible == 0 || (!tiling.by_score && visible <= tiling.count);
  }

  const Tiling tiling;
  const int32_t unit;

 private:
  __aicore__ static Span span(const GlobalTensor<int32_t>& lengths, int32_t form, int32_t tokens,
                              int32_t number) {
    if (form == PREFIX_SUMS) {
      return {number ? lengths.GetValue(number - 1) : 0, lengths.GetValue(number)};
    }
    const int32_t begin = number * tokens;
    return {begin, begin + (form == PER_REQUEST ? lengths.GetValue(number) : tokens)};
  }

  GlobalTensor<int32_t> query_lengths_, key_lengths_;
};

// The groups that need scores, in order.
class Groups {
 public:
  __aicore__ explicit Groups(const Work& work) : work_(work) {}

  __aicore__ bool next() {
    group.base += group.units;
    group.units = 0;
    group.first += group.rows;
    group.rows = 0;
    const Tiling& tiling = work_.tiling;
    while (true) {
      while (group.first >= request_.rows.end) {
        if (++group.request >= tiling.requests) return false;
        request_ = work_.request(group.request);
        group.first = request_.rows.begin;
        group.keys = request_.keys;
        group.key_row = request_.key_row;
        group.more = tiling.causal;
      }
      const int32_t left = request_.rows.end - group.first;
      group.rows = smaller(tiling.group, left);
      group.seen = tiling.causal ? group.keys - left + 1 : group.keys;
      const int32_t most = group.visible(group.rows - 1);
      if (!work_.known(most)) {
        group.units = (most + work_.unit - 1) / work_.unit;
        return true;
      }
      group.first += group.rows;
    }
  }

  Group group = {-1, 0, 0, 0, 0, 0, 0, 0, 0};

 private:
  const Work& work_;
  Request request_ = {{0, 0}, 0, 0};
};

// Which block has which units.
class Shares {
 public:
  __aicore__ explicit Shares(const Work& work) : by_score_(work.tiling.by_score) {
    int32_t rows = 0;
    for (Groups groups(work); groups.next();) {
      total_ = groups.group.base + groups.group.units;
      rows += groups.group.rows;
    }
    blocks_ = smaller(int32_t(GetBlockNum()), total_);
    one_row_ = rows == 1;
  }
  // Whether all blocks have parts of one row, of `units` units each or more.
  __aicore__ bool together(int32_t units) const {
    return one_row_ && blocks_ > 1 && total_ / blocks_ >= units;
  }
  __aicore__ Span of(int32_t block) const {
    if (block >= blocks_) return {total_, total_};
    return {first(block), first(block + 1)};
  }
  __aicore__ int32_t block_of(int32_t unit) const {
    return int32_t(((int64_t(unit) + 1) * blocks_ - 1) / total_);
  }
  __aicore__ Span blocks(const Group& group) const {
    return {block_of(group.base), block_of(group.base + group.units - 1) + 1};
  }
  __aicore__ bool by_score() const { return by_score_; }
  // The AIVs of a block halve the keys of a single row that several blocks share. More rows, they
  // share out; a row of one block goes to one of them.
  __aicore__ bool halves(const Group& group) const {
    const Span all = blocks(group);
    return group.rows == 1 && all.end - all.begin > 1;
  }

 private:
  __aicore__ int32_t first(int32_t block) const {
    return int32_t(int64_t(block) * total_ / blocks_);
  }

  const bool by_score_;
  bool one_row_ = false;
  int32_t total_ = 0, blocks_ = 0;
};

// The units of one group that fall to one block, numbered within the group.
struct Segment {
  Group group;
  Span units;
  Span part[VECTORS];  // of each AIV; all of them where the AIVs do not halve them
  bool halved;
  int32_t step, steps;  // units that an AIV takes at once, and how often
  int32_t slot;        // of its partial lists: 0 if it begins where the block's share begins
  // Rows of one block, wanted in ascending order: a threshold is found instead of sorting, and
  // products of floats come rounded to F16.
  bool alone;
};

__aicore__ inline Segment segment_of(const Group& group, const Shares& shares, int32_t block,
                                     int32_t step) {
  const Span share = shares.of(block), all = shares.blocks(group);
  Segment s;
  s.group = group;
  s.halved = shares.halves(group);
  s.alone = all.end - all.begin == 1 && !shares.by_score();
  s.units = {larger(share.begin, group.base) - group.base,
             smaller(share.end, group.base + group.units) - group.base};
  const int32_t middle = s.units.begin + (s.units.end - s.units.begin + 1) / 2;
  s.part[0] = {s.units.begin, s.halved ? middle : s.units.end};
  s.part[1] = {s.halved ? middle : s.units.begin, s.units.end};
  // Half steps where the row's other keys wait for the last ones: less is left to do after them.
  s.step = s.halved ? larger(1, step / 2) : step;
  s.steps = (s.part[0].end - s.part[0].begin + s.step - 1) / s.step;
  s.slot = group.base + s.units.begin == share.begin ? 0 : 1;
  return s;
}

// The segments of a block.
class Segments {
 public:
  __aicore__ Segments(const Work& work, const Shares& shares, int32_t block, int32_t step)
      : groups_(work), shares_(shares), share_(shares.of(block)), block_(block), step_(step) {}

  __aicore__ bool next() {
    while (groups_.next()) {
      const Group& group = groups_.group;
      if (group.base >= share_.end) return false;
      if (group.base + group.units > share_.begin) {
        segment = segment_of(group, shares_, block_, step_);
        return true;
      }
    }
    return false;
  }

  Segment segment;

 private:
  Groups groups_;
  const Shares& shares_;
  const Span share_;
  const int32_t block_, step_;
};

}  // namespace lightning_indexer
