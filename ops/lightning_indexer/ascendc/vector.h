// AIV: a row's scores, its best positions, and merging where several AIVs had parts of its keys.
#pragma once

#include "merge.h"
#include "scores.h"

namespace lightning_indexer {

template <class Score, class Tiles>
class VectorSide {
 public:
  static constexpr int32_t UNIT = Tiles::UNIT, STEP = Tiles::STEP, KEYS = Tiles::KEYS;

  __aicore__ VectorSide(const Work& work, const Shares& shares, const ScoreInputs& inputs,
                        GM_ADDR lists, GM_ADDR indices)
      : work_(work),
        shares_(shares),
        block_(int32_t(GetBlockIdx()) / VECTORS),
        vector_(int32_t(GetSubBlockIdx())),
        ub_(pipe_),
        selection_(ub_, work.tiling.count),
        scores_(work, ub_, inputs),
        merge_(work, shares, ub_, lists),
        results_(ub_, work.tiling, indices) {}

  __aicore__ void run() {
    other_rows();
    expect();
    const int32_t most = merge_.most_parts();
    for (Segments segments(work_, shares_, block_, STEP); segments.next();) {
      const Segment& s = segments.segment;
      select(s);
      const bool shared = merge_.parts(s.group) > 1;
      for (int32_t i = 0; i < rows(s); ++i) {
        if (shared) {
          merge_.store(s, i, selection_.best(i), selection_.size(i));
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
      pieces += steps(s) * rows(s) * (work_.tiling.heads / Buffers<Tiles>::HEADS);
    }
    scores_.expect(tiles, pieces);
  }

  __aicore__ void select(const Segment& s) {
    const int32_t heads = work_.tiling.heads, first = first_row(s);
    if (rows(s) > 0) scores_.load_weights(s.group.first + first, rows(s));
    for (int32_t i = 0; i < rows(s); ++i) selection_.begin(i);
    for (int32_t step = 0; step < s.steps; ++step, ++steps_) {
      CrossCoreWaitFlag(READY);
      // Little shall be left to sort when the last keys have come; int8 keys do so soon after those
      // before them.
      const bool settle = !s.halved || !Scores<Score, Tiles>::QUANT || step + 2 != steps(s);
      const int32_t n = keys(s, step), position = (s.part[vector_].begin + step * s.step) * UNIT;
      if (n > 0 && rows(s) > 0) {
        if constexpr (Scores<Score, Tiles>::QUANT) scores_.load_scales(s.group, position, n);
        const int32_t buffer_row = s.halved ? vector_ * heads : first * heads;
        const int64_t at =
            steps_ % Tiles::BUFFERS * Tiles::SCORES + int64_t(buffer_row) * KEYS;
        for (int32_t i = 0; i < rows(s); ++i) {
          const int32_t seen = smaller(n, s.group.visible(first + i) - position);
          scores_.row(i, at + int64_t(i) * heads * KEYS, n, seen);
          if (seen > 0) selection_.add(i, position, seen, settle);
        }
      }
      if (--steps_left_ >= Tiles::BUFFERS) CrossCoreSetFlag<2, PIPE_MTE2>(FREE);
    }
    for (int32_t i = 0; i < rows(s); ++i) selection_.flush(i);
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
  Scores<Score, Tiles> scores_;
  Merge<Tiles> merge_;
  Results<Tiles> results_;
  int32_t steps_ = 0, steps_left_ = 0;
};

}  // namespace lightning_indexer
