// AIC: scores of heads and query tokens against keys, with ReLU, into the block's buffers in GM.
//
// Units of UNIT keys run through a ring of L1 buffers, halves of L0B and halves of L0C; keys are
// loaded RING - 1 units ahead. The AIVs get a step, up to STEP units for each of them, at once.
#pragma once

#include "plan.h"

namespace lightning_indexer {

// The units of a block in the order in which the AIC takes them.
class Units {
 public:
  __aicore__ Units(const Work& work, const Shares& shares, int32_t block, int32_t step)
      : segments_(work, shares, block, step) {}

  __aicore__ bool next() {
    if (++unit < end_) return true;
    const Segment& s = segments_.segment;
    if (open_ && vector_ == 0 && s.halved && enter(1)) return true;
    if (open_ && ++step < s.steps) return enter(0);
    open_ = segments_.next();
    if (!open_) return false;
    ++number;
    step = 0;
    return enter(0);
  }
  __aicore__ const Segment& segment() const { return segments_.segment; }
  __aicore__ bool first_of_segment() const { return step == 0 && first_of_step(); }
  __aicore__ bool first_of_step() const { return vector_ == 0 && unit == begin_; }
  __aicore__ bool last_of_step() const {
    const Segment& s = segments_.segment;
    if (unit + 1 < end_) return false;
    return vector_ == 1 || !s.halved || s.part[1].begin + step * s.step >= s.part[1].end;
  }
  __aicore__ bool last_of_segment() const {
    return step + 1 == segments_.segment.steps && last_of_step();
  }
  // Row of the score buffer, and place in it, where the unit's scores begin.
  __aicore__ int32_t row(int32_t heads) const { return vector_ * heads; }
  __aicore__ int32_t place() const { return unit - begin_; }

  int32_t unit = 0;     // within the group
  int32_t step = 0;     // within the segment
  int32_t number = -1;  // of the segment

 private:
  __aicore__ bool enter(int32_t vector) {
    const Segment& s = segments_.segment;
    const Span part = s.part[vector];
    const int32_t begin = part.begin + step * s.step;
    if (begin >= part.end) return false;
    vector_ = vector;
    unit = begin_ = begin;
    end_ = smaller(begin + s.step, part.end);
    return true;
  }

  Segments segments_;
  int32_t vector_ = 0, begin_ = 0, end_ = 0;
  bool open_ = false;
};

struct CubeInputs {
  GM_ADDR query;
  GM_ADDR key;
  GM_ADDR table;
  GM_ADDR products;
};

template <class T, class Score, class Tiles>
class CubeSide {
 public:
  static constexpr int32_t UNIT = Tiles::UNIT, DIM = 128;
  static constexpr int32_t C0 = 32 / sizeof(T), COLUMNS = DIM / C0;
  static constexpr int32_t RING = 4;
  static constexpr int32_t KEY_BYTES = UNIT * DIM * sizeof(T);
  static constexpr int32_t QUERY_BYTES = MOST_ROWS * DIM * sizeof(T);
  static constexpr int32_t SCORE_BYTES = MOST_ROWS * UNIT * 4;
  static_assert(RING * KEY_BYTES + QUERY_BYTES <= 512 * 1024 - 256, "L1");
  static_assert(QUERY_BYTES <= 64 * 1024, "L0A");
  static_assert(2 * KEY_BYTES <= 64 * 1024, "L0B");
  static_assert(2 * SCORE_BYTES <= 128 * 1024, "L0C");
  // Events 0 to RING - 1 belong to the ring, the next one to queries.
  static constexpr int32_t QUERY_EVENT = RING, L0A_EVENT = 2;
  static_assert(QUERY_EVENT < 6, "events");

  __aicore__ CubeSide(const Work& work, const Shares& shares, const CubeInputs& inputs)
      : work_(work), shares_(shares), block_(int32_t(GetBlockIdx())) {
    const Span share = shares.of(block_);
    total_ = share.end - share.begin;
    query_.SetGlobalBuffer((__gm__ T*)inputs.query);
    key_.SetGlobalBuffer((__gm__ T*)inputs.key);
    table_.SetGlobalBuffer((__gm__ int32_t*)inputs.table);
    products_.SetGlobalBuffer((__gm__ Score*)inputs.products +
                              GetBlockIdx() * Tiles::BUFFERS * Tiles::SCORES);
    rounded_.SetGlobalBuffer((__gm__ half*)inputs.products +
                             GetBlockIdx() * Tiles::BUFFERS * 2 * Tiles::SCORES);
    pipe_.InitBuffer(keys_buffer_, RING * KEY_BYTES);
    pipe_.InitBuffer(query_buffer_, QUERY_BYTES);
    pipe_.InitBuffer(a_buffer_, QUERY_BYTES);
    pipe_.InitBuffer(b_buffer_, 2 * KEY_BYTES);
    pipe_.InitBuffer(c_buffer_, 2 * SCORE_BYTES);
  }

  __aicore__ void run() {
    Units ahead(work_, shares_, block_, Tiles::STEP), units(work_, shares_, block_, Tiles::STEP);
    int32_t loaded = 0;
    for (int32_t i = 0; i < total_; ++i) {
      units.next();
      const bool fresh = units.first_of_segment();
      if (fresh) load_query(units);
      for (; loaded < total_ && loaded < i + RING; ++loaded) {
        ahead.next();
        load_keys(ahead, loaded);
      }
      if (fresh) place_query(units, i);
      multiply(units, i);
    }
  }

 private:
  __aicore__ int32_t rows(const Segment& s) const { return s.group.rows * work_.tiling.heads; }
  __aicore__ int32_t keys(const Units& u) const {
    const Group& group = u.segment().group;
    return smaller(UNIT, group.visible(group.rows - 1) - u.unit * UNIT);
  }

  // Unit i of the block to its place in the ring, as NZ of its own height.
  __aicore__ void load_keys(const Units& u, int32_t i) {
    const int32_t slot = i % RING, n = keys(u), height = round_up(n, 16);
    const LocalTensor<T> to = keys_buffer_.template Get<T>()[slot * UNIT * DIM];
    if (i >= RING) WaitFlag<HardEvent::MTE1_MTE2>(slot);
    const Group& group = u.segment().group;
    const int32_t page = work_.tiling.page;
    for (int32_t done = 0; done < n;) {
      const int32_t position = u.unit * UNIT + done;
      int64_t row = int64_t(group.key_row) + position;
      int32_t count = n - done;
      if (page) {
        const int32_t entry = group.request * work_.tiling.table_stride + position / page;
        row = int64_t(table_.GetValue(entry)) * page + position % page;
        count = smaller(count, page - position % page);
      }
      DataCopy(to[done * C0], key_[row * DIM],
               Nd2NzParams(1, count, DIM, 0, DIM, height, 1, 0));
      done += count;
    }
    if (n < height) {
      // In units of 32 bytes; no bytes, hence the other type.
      InitConstValue(to[n * C0].template ReinterpretCast<half>(),
                     InitConstValueParams<half>(COLUMNS, height - n, n, half(0)));
    }
    SetFlag<HardEvent::MTE2_MTE1>(slot);
  }

  // The segment's queries to L1, ahead of keys that come later.
  __aicore__ void load_query(const Units& u) {
    const int32_t m = rows(u.segment());
    if (u.number > 0) WaitFlag<HardEvent::MTE1_MTE2>(QUERY_EVENT);
    DataCopy(query_buffer_.template Get<T>(),
             query_[int64_t(u.segment().group.first) * work_.tiling.heads * DIM],
             Nd2NzParams(1, m, DIM, 0, DIM, m, 1, 0));
    SetFlag<HardEvent::MTE2_MTE1>(QUERY_EVENT);
  }

  // And to L0A.
  __aicore__ void place_query(const Units& u, int32_t i) {
    const int32_t blocks = rows(u.segment()) / 16;
    const LocalTensor<T> l1 = query_buffer_.template Get<T>(), a = a_buffer_.template Get<T>();
    WaitFlag<HardEvent::MTE2_MTE1>(QUERY_EVENT);
    if (u.number > 0) WaitFlag<HardEvent::M_MTE1>(L0A_EVENT);
    for (int32_t block = 0; block < blocks; ++block) {
      LoadData(a[block * 16 * DIM], l1,
               LoadData2DParams(block, COLUMNS, blocks, 0, 0, false, 0));
    }
    if (i + u.segment().units.end - u.segment().units.begin < total_) {
      SetFlag<HardEvent::MTE1_MTE2>(QUERY_EVENT);
    }
  }

  __aicore__ void multiply(const Units& u, int32_t i) {
    const Segment& s = u.segment();
    const int32_t slot = i % RING, half = i % 2;
    const int32_t m = rows(s), n = round_up(keys(u), 16);
    const int32_t product = s.halved ? work_.tiling.heads : m;
    const LocalTensor<T> a = a_buffer_.template Get<T>();
    const LocalTensor<T> b = b_buffer_.template Get<T>()[half * UNIT * DIM];
    const LocalTensor<Score> c = c_buffer_.template Get<Score>()[half * MOST_ROWS * UNIT];
    if (i >= 2) WaitFlag<HardEvent::M_MTE1>(half);
    WaitFlag<HardEvent::MTE2_MTE1>(slot);
    LoadData(b, keys_buffer_.template Get<T>()[slot * UNIT * DIM],
             LoadData2DParams(0, COLUMNS * (n / 16), 1, 0, 0, false, 0));
    if (i + RING < total_) SetFlag<HardEvent::MTE1_MTE2>(slot);
    SetFlag<HardEvent::MTE1_M>(half);
    WaitFlag<HardEvent::MTE1_M>(half);
    if (i >= 2) WaitFlag<HardEvent::FIX_M>(half);
    Mmad(c, a, b, MmadParams(product, n, DIM, 0, false, true));
    if (i + 2 < total_) SetFlag<HardEvent::M_MTE1>(half);
    if (u.last_of_segment() && i + 1 < total_) SetFlag<HardEvent::M_MTE1>(L0A_EVENT);
    SetFlag<HardEvent::M_FIX>(half);
    WaitFlag<HardEvent::M_FIX>(half);
    if (u.first_of_step() && steps_++ >= Tiles::BUFFERS) CrossCoreWaitFlag(FREE);
    const int64_t buffer = (steps_ - 1) % Tiles::BUFFERS * Tiles::SCORES;
    const int64_t to = int64_t(u.row(work_.tiling.heads)) * Tiles::KEYS + u.place() * UNIT;
    store(s.alone, buffer, to, c, n, product);
    if (i + 2 < total_) SetFlag<HardEvent::FIX_M>(half);
    if (u.last_of_step()) CrossCoreSetFlag<2, PIPE_FIX>(READY);
  }

  // m x n products with ReLU, at element `to` of a buffer.
  __aicore__ void store(bool alone, int64_t buffer, int64_t to, const LocalTensor<Score>& c,
                        int32_t n, int32_t m) const {
    if constexpr (!QUANTISED<Score>) {
      if (alone) {
        Fixpipe(rounded_[2 * buffer + to], c,
                FixpipeParamsV220(n, m, m, Tiles::KEYS, true, F322F16, 0, 1, 0, 0));
        return;
      }
    }
    Fixpipe(products_[buffer + to], c, FixpipeParamsV220(n, m, m, Tiles::KEYS, true));
  }

  const Work& work_;
  const Shares& shares_;
  const int32_t block_;
  int32_t total_;  // units
  int32_t steps_ = 0;
  GlobalTensor<T> query_, key_;
  GlobalTensor<int32_t> table_;
  GlobalTensor<Score> products_;
  GlobalTensor<half> rounded_;
  TPipe pipe_;
  TBuf<TPosition::A1> keys_buffer_, query_buffer_;
  TBuf<TPosition::A2> a_buffer_;
  TBuf<TPosition::B2> b_buffer_;
  TBuf<TPosition::CO1> c_buffer_;
};

}  // namespace lightning_indexer
