// AIV: a row's scores, its best positions, and merging where several AIVs had parts of its keys.
#pragma once

#include "merge.h"
#include "pool.h"
#include "scores.h"

namespace lightning_indexer {

template <class T, class Score, class Tiles>
class VectorSide {
 public:
  static constexpr int32_t UNIT = Tiles::UNIT, STEP = Tiles::STEP, KEYS = Tiles::KEYS;
  static constexpr bool ROUNDED = !QUANTISED<Score>;
  // Steps of an AIV from which on its row is bounded early, and until samples are there.
  static constexpr int32_t MANY = 4, LATER = 1;

  __aicore__ VectorSide(const Work& work, const Shares& shares, const CubeInputs& cube,
                        const ScoreInputs& inputs, GM_ADDR lists, GM_ADDR indices)
      : work_(work),
        shares_(shares),
        block_(int32_t(GetBlockIdx()) / VECTORS),
        vector_(int32_t(GetSubBlockIdx())),
        ub_(pipe_),
        selection_(ub_, work.tiling.count),
        exact_(work, ub_, cube.query, cube.key, cube.table),
        pool_(ub_, exact_, work.tiling.count),
        scores_(work, ub_, inputs),
        merge_(work, shares, ub_, lists),
        results_(ub_, work.tiling, indices) {}

  __aicore__ void run() {
    other_rows();
    expect();
    const int32_t most = merge_.most_parts();
    for (Segments segments(work_, shares_, block_, STEP); segments.next();) {
      const Segment& s = segments.segment;
      if (s.alone && rows(s) > 0) {
        pool(s);
        continue;
      }
      select(s);
      const bool shared = merge_.parts(s.group) > 1;
      for (int32_t i = 0; i < rows(s); ++i) {
        if (shared) {
          merge_.store(s, i, selection_.best(i), selection_.size(i),
                       merge_.listed(s, s.group.visible(first_row(s) + i)));
        } else if (selection_.size(i) > 0) {
          results_.write(s.group.first + first_row(s) + i, selection_.best(i), selection_.size(i));
        }
      }
    }
    // By score all lists become one, otherwise four or fewer.
    const int32_t fewest = work_.tiling.by_score ? 1 : 4;
    int32_t stride = 1;
    for (; fewest * stride < most; stride *= 4) {
      SyncAll();
      for (Segments segments(work_, shares_, block_, STEP); segments.next();) {
        merge_level(segments.segment, stride);
      }
    }
    if (most == 1 || work_.tiling.by_score) return;
    SyncAll();
    for (Segments segments(work_, shares_, block_, STEP); segments.next();) {
      write_parts(segments.segment, stride);
    }
  }

 private:
  // Rows of the group that are this AIV's.
  __aicore__ int32_t first_row(const Segment& s) const {
    return s.group.rows == 1 || vector_ == 0 ? 0 : (s.group.rows + 1) / 2;
  }
  __aicore__ int32_t rows(const Segment& s) const {
    if (s.halved) return 1;
    if (s.group.rows == 1) return s.group.first % VECTORS == vector_ ? 1 : 0;
    return vector_ == 0 ? (s.group.rows + 1) / 2 : s.group.rows / 2;
  }
  // Steps in which this AIV has keys.
  __aicore__ int32_t steps(const Segment& s) const {
    const Span part = s.part[vector_];
    return (part.end - part.begin + s.step - 1) / s.step;
  }
  __aicore__ int32_t keys(const Segment& s, int32_t step) const {
    const Span part = s.part[vector_];
    const int32_t begin = (part.begin + step * s.step) * UNIT;
    const int32_t end = smaller(part.end * UNIT, s.group.visible(s.group.rows - 1));
    return smaller(s.step * UNIT, end - begin);
  }

  // Rows of no request, and those whose results are known.
  __aicore__ void other_rows() const {
    const Tiling& tiling = work_.tiling;
    const int32_t all = int32_t(GetBlockNum()) * VECTORS, own = int32_t(GetBlockIdx());
    int32_t done = 0;
    for (int32_t number = 0; number < tiling.requests; ++number) {
      const Request r = work_.request(number);
      int32_t until = r.rows.begin;
      while (until < r.rows.end) {
        const int32_t next = smaller(until + tiling.group, r.rows.end);
        if (!work_.known(work_.visible(r, next - 1))) break;
        until = next;
      }
      // A group may begin with rows that see nothing.
      while (until < r.rows.end && work_.visible(r, until) == 0) ++until;
      for (int32_t row = done + (own + all - done % all) % all; row < until; row += all)
        results_.write_first(row, row < r.rows.begin ? 0 : work_.visible(r, row));
      done = r.rows.end;
    }
    for (int32_t row = done + (own + all - done % all) % all; row < tiling.rows; row += all)
      results_.write_first(row, 0);
  }

  __aicore__ void expect() {
    int32_t tiles = 0, pieces = 0;
    for (Segments segments(work_, shares_, block_, STEP); segments.next();) {
      const Segment& s = segments.segment;
      steps_left_ += s.steps;
      tiles += rows(s) > 0 ? steps(s) : 0;
      pieces += steps(s) * rows(s) * scores_.pieces(s.alone && ROUNDED);
    }
    scores_.expect(tiles, pieces);
  }

  // The first key of a step of this AIV.
  __aicore__ int32_t position(const Segment& s, int32_t step) const {
    return (s.part[vector_].begin + step * s.step) * UNIT;
  }
  // The products of row i and of step `step`, which is number `steps_` of the block.
  __aicore__ typename Scores<Score, Tiles>::Tile tile(const Segment& s, int32_t step,
                                                      int32_t i) const {
    const int32_t heads = work_.tiling.heads;
    const int32_t row = s.halved ? vector_ * heads : (first_row(s) + i) * heads;
    return {(steps_ + step) % Tiles::BUFFERS * Tiles::SCORES, int64_t(row) * KEYS, keys(s, step),
            s.alone && ROUNDED};
  }
  __aicore__ void leave_step() {
    if (--steps_left_ >= Tiles::BUFFERS) CrossCoreSetFlag<2, PIPE_MTE2>(FREE);
  }

  // Rows of one block: the next tile comes while the one before is chosen from, unless that may
  // need its room.
  __aicore__ void pool(const Segment& s) {
    const int32_t count = rows(s), first = first_row(s), all = s.steps * count;
    scores_.load_weights(s.group.first + first, count);
    for (int32_t i = 0; i < count; ++i) {
      exact_.begin(i, scores_.weight(i));
      pool_.begin(i);
    }
    fetch(s, 0, count);
    for (int32_t t = 0; t < all; ++t) {
      const int32_t step = t / count, i = t % count, at = position(s, step);
      const int32_t seen = smaller(keys(s, step), s.group.visible(first + i) - at);
      if constexpr (ROUNDED) scores_.rounded_row(i, tile(s, step, i), seen);
      else scores_.row(i, tile(s, step, i), seen);
      if (i + 1 == count) leave_step();
      const bool early = !pool_.full(i, 1);
      if (early && t + 1 < all) fetch(s, t + 1, count);
      if (seen > 0) pool_.add(i, at, seen);
      if (pool_.full(i)) pool_.shrink(i, {s.group, s.group.first + first + i});
      if (!early && t + 1 < all) fetch(s, t + 1, count);
    }
    steps_ += s.steps;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t row = s.group.first + first + i;
      const int32_t size = pool_.finish(i, {s.group, row});
      if (s.group.visible(first + i) > 0) results_.write_ascending(row, pool_.positions(i), size);
    }
  }
  // Tile t of a segment, whose rows take turns.
  __aicore__ void fetch(const Segment& s, int32_t t, int32_t rows) {
    const int32_t step = t / rows;
    if (t % rows == 0) {
      CrossCoreWaitFlag(READY);
      if constexpr (!ROUNDED) scores_.load_scales(s.group, position(s, step), keys(s, step));
    }
    scores_.load(tile(s, step, t % rows));
  }

  __aicore__ void select(const Segment& s) {
    const int32_t first = first_row(s);
    // All parts of a row bound its scores together when a third of them has come.
    const int32_t early = shares_.together(2 * MANY * s.step) ? steps(s) / 3 : s.steps;
    if (rows(s) > 0) scores_.load_weights(s.group.first + first, rows(s));
    for (int32_t i = 0; i < rows(s); ++i) selection_.begin(i);
    for (int32_t step = 0; step < s.steps; ++step) {
      CrossCoreWaitFlag(READY);
      // Little shall be left to sort when the last keys have come; int8 keys do so soon after those
      // before them.
      const bool settle = !s.halved || ROUNDED || step + 2 != steps(s);
      const int32_t n = keys(s, step), at = position(s, step);
      if (n > 0 && rows(s) > 0) {
        if constexpr (!ROUNDED) scores_.load_scales(s.group, at, n);
        for (int32_t i = 0; i < rows(s); ++i) {
          const int32_t seen = smaller(n, s.group.visible(first + i) - at);
          scores_.load(tile(s, step, i));
          scores_.row(i, tile(s, step, i), seen);
          if (seen > 0) selection_.add(i, at, seen, settle);
        }
      }
      if (step == early) {
        selection_.flush(0);
        merge_.store_early(s, selection_.best(0), selection_.size(0));
      }
      if (step == early + LATER) limit(s);
      leave_step();
    }
    steps_ += s.steps;
    for (int32_t i = 0; i < rows(s); ++i) selection_.flush(i);
  }

  __aicore__ void limit(const Segment& s) {
    const float bound = merge_.early_bound(s);
    if (bound > LOWEST) selection_.limit(0, bound);
  }

  __aicore__ void merge_level(const Segment& s, int32_t stride) {
    const int32_t parts = merge_.parts(s.group);
    for (int32_t i = 0; i < rows(s); ++i) {
      const int32_t row = first_row(s) + i;
      const int32_t size =
          merge_.merge(s, i, s.group.visible(row), stride, selection_.best(0));
      if (size == 0) continue;
      if (4 * stride < parts || !work_.tiling.by_score) {
        merge_.store_merged(s, i, selection_.best(0), size);
      } else {
        results_.write(s.group.first + row, selection_.best(0), size);
      }
    }
  }

  // Ascending rows of several parts: the AIV of each part sorts what is its own.
  __aicore__ void write_parts(const Segment& s, int32_t stride) {
    const int32_t parts = merge_.parts(s.group);
    if (parts == 1) return;
    for (int32_t i = 0; i < rows(s); ++i) {
      const int32_t row = first_row(s) + i;
      const int32_t seen = s.group.visible(row);
      if (seen == 0) continue;
      const auto choice = merge_.choose(s, i, seen, stride);
      results_.write_part(s.group.first + row, choice.list, choice.size, choice.before,
                          merge_.positions(s), merge_.part(s) == parts - 1);
    }
  }

  const Work& work_;
  const Shares& shares_;
  const int32_t block_;
  const int32_t vector_;
  TPipe pipe_;
  Buffers<Tiles> ub_;
  Selection<Tiles> selection_;
  Exact<T, Tiles> exact_;
  Pool<T, Score, Tiles> pool_;
  Scores<Score, Tiles> scores_;
  Merge<Tiles> merge_;
  Results<Tiles> results_;
  int32_t steps_ = 0, steps_left_ = 0;
};

}  // namespace lightning_indexer
