// AIV: errors of scores from products that were rounded to F16, and scores without them.
#pragma once

#include "sorting.h"

namespace lightning_indexer {

// A query token and its request.
struct Place {
  Group group;
  int32_t token;
};

// Scores between which their errors decide.
struct Open {
  float low, high;
};

template <class T, class Tiles>
class Exact {
 public:
  static constexpr int32_t DIM = Buffers<Tiles>::DIM, KEYS = Tiles::KEYS;
  // A product is off by 2^-11 of itself or 2^-25. A part of 2^-5 more covers the sums.
  static constexpr float PART = 0x1p-11f * (1 + 0x1p-5f), LEAST = 0x1p-24f;

  __aicore__ Exact(const Work& work, const Buffers<Tiles>& ub, GM_ADDR query, GM_ADDR key,
                   GM_ADDR table)
      : work_(work), ub_(ub) {
    query_.SetGlobalBuffer((__gm__ T*)query);
    key_.SetGlobalBuffer((__gm__ T*)key);
    table_.SetGlobalBuffer((__gm__ int32_t*)table);
  }

  // `weight`: sum of a row's head weights without signs.
  __aicore__ void begin(int32_t row, float weight) { least_[row] = LEAST * weight; }

  // Where the last chosen key may lie if `score` is the last chosen score with errors.
  __aicore__ Open open(int32_t row, float score) {
    for (int32_t i = 0; i < 2; ++i) {
      WholeReduceMax(ub_.found[8 * i], ub_.most[(2 * row + i) * 64], 64, 1, 1, 1, 8,
                     ReduceOrder::ORDER_ONLY_VALUE);
    }
    SetFlag<HardEvent::V_S>(EVENT_ID4);
    WaitFlag<HardEvent::V_S>(EVENT_ID4);
    const float all = ub_.found.GetValue(0), minus = ub_.found.GetValue(8);
    SetFlag<HardEvent::S_V>(EVENT_ID4);
    WaitFlag<HardEvent::S_V>(EVENT_ID4);
    if (!(all < -LOWEST)) {
      error_[row] = -LOWEST;
      return {LOWEST, -LOWEST};
    }
    error_[row] = PART * ((score < 0 ? -score : score) + 2 * minus) + least_[row];
    const float width = 2 * error_[row] * (1 + 0x1p-8f);
    return {score - width, score + width};
  }
  // What the last chosen score reaches, after open().
  __aicore__ float lower(int32_t row, float score) const { return score - error_[row]; }

  // What n scores of a tile can be at most.
  __aicore__ void upper(int32_t row, const LocalTensor<float>& to, int32_t n) const {
    Adds(to, ub_.scores, least_[row], KEYS);
    PipeBarrier<PIPE_V>();
    Axpy(to, ub_.scales, PART, KEYS);
    PipeBarrier<PIPE_V>();
    Select(to, ub_.tame, to, -LOWEST, SELMODE::VSEL_TENSOR_SCALAR_MODE, KEYS);
    PipeBarrier<PIPE_V>();
    fill_from(to, LOWEST, n, KEYS);
    PipeBarrier<PIPE_V>();
  }

  // Scores of n keys of a row, lanes ub.numbers of `values`, positions ub.scores.
  __aicore__ void score(int32_t row, const Place& query, const LocalTensor<float>& values,
                        int32_t n) const {
    SetFlag<HardEvent::V_S>(EVENT_ID5);
    WaitFlag<HardEvent::V_S>(EVENT_ID5);
    for (int32_t begin = 0; begin < n; begin += BATCH) {
      const int32_t some = smaller(BATCH, n - begin);
      for (int32_t i = 0; i < some; ++i) {
        const int32_t position = int32_t(ub_.scores.GetValue(begin + i));
        DataCopy(raw_keys()[i * DIM], key_[key_row(query.group, position) * DIM], DIM);
      }
      const int32_t heads = work_.tiling.heads;
      for (int32_t first = 0; first < heads; first += AGAIN) {
        const int32_t part = smaller(AGAIN, heads - first);
        load_queries(int64_t(query.token) * heads + first, part, begin == 0 || heads > AGAIN);
        if (first == 0) Cast(keys(), raw_keys(), RoundMode::CAST_NONE, some * DIM);
        PipeBarrier<PIPE_V>();
        for (int32_t i = 0; i < some; ++i) dots(keys()[i * DIM], sums()[i * 64 + first], part);
      }
      add_heads(row, some);
      SetFlag<HardEvent::V_S>(EVENT_ID0);
      WaitFlag<HardEvent::V_S>(EVENT_ID0);
      for (int32_t i = 0; i < some; ++i) {
        values.SetValue(int32_t(ub_.numbers.GetValue(begin + i)), ub_.found.GetValue(i));
      }
      SetFlag<HardEvent::S_V>(EVENT_ID3);
      WaitFlag<HardEvent::S_V>(EVENT_ID3);
    }
  }

 private:
  static constexpr int32_t BATCH = Buffers<Tiles>::SPARE / (2 * DIM);
  static constexpr int32_t AGAIN = Buffers<Tiles>::AGAIN, QUERY = Buffers<Tiles>::QUERY;

  // Keys as they come and in F32, and their products with each head: in ub.spare.
  __aicore__ LocalTensor<T> raw_keys() const { return ub_.spare.template ReinterpretCast<T>(); }
  __aicore__ LocalTensor<float> keys() const { return ub_.spare[BATCH * DIM / 2]; }
  __aicore__ LocalTensor<float> sums() const { return ub_.spare[BATCH * (DIM / 2 + DIM)]; }
  // Queries of AGAIN heads in F32 and as they come, and what becomes of them: where pieces come.
  __aicore__ LocalTensor<float> queries() const { return ub_.pieces; }
  __aicore__ LocalTensor<T> raw_queries() const {
    return ub_.pieces[QUERY].template ReinterpretCast<T>();
  }
  __aicore__ LocalTensor<float> terms() const { return ub_.pieces[QUERY + QUERY / 2]; }

  __aicore__ int64_t key_row(const Group& group, int32_t position) const {
    const int32_t page = work_.tiling.page;
    if (page == 0) return int64_t(group.key_row) + position;
    const int32_t entry = group.request * work_.tiling.table_stride + position / page;
    return int64_t(table_.GetValue(entry)) * page + position % page;
  }

  __aicore__ void load_queries(int64_t row, int32_t heads, bool needed) const {
    if (needed) DataCopy(raw_queries(), query_[row * DIM], heads * DIM);
    SetFlag<HardEvent::MTE2_V>(EVENT_ID4);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID4);
    if (!needed) return;
    Cast(queries(), raw_queries(), RoundMode::CAST_NONE, heads * DIM);
    SetFlag<HardEvent::V_MTE2>(EVENT_ID4);
    WaitFlag<HardEvent::V_MTE2>(EVENT_ID4);
  }

  // One key with the heads: 64 terms each, folded to 8 and added up.
  __aicore__ void dots(const LocalTensor<float>& key, const LocalTensor<float>& to,
                       int32_t heads) const {
    const BinaryRepeatParams same(1, 1, 1, 8, 16, 0), across(8, 8, 8, 1, 1, 1);
    Mul(terms(), queries(), key, 64, heads, same);
    PipeBarrier<PIPE_V>();
    MulAddDst(terms(), queries()[64], key[64], 64, heads, same);
    PipeBarrier<PIPE_V>();
    for (int32_t blocks = 4; blocks > 0; blocks /= 2) {
      for (int32_t h = 0; h < heads; h += 8) {
        const LocalTensor<float> at = terms()[h * 64];
        Add(at, at, at[blocks * 8], 64, blocks, across);
      }
      PipeBarrier<PIPE_V>();
    }
    BlockReduceSum(to, terms(), heads / 8, 64, 1, 8, 64);
    PipeBarrier<PIPE_V>();
  }

  // ReLU, weights, the sum over heads; NaN becomes -infinity.
  __aicore__ void add_heads(int32_t row, int32_t n) const {
    const int32_t heads = work_.tiling.heads;
    Relu(sums(), sums(), heads, n, UnaryRepeatParams(1, 1, 8, 8));
    PipeBarrier<PIPE_V>();
    Mul(sums(), sums(), ub_.weights[row * heads], heads, n, BinaryRepeatParams(1, 1, 1, 8, 8, 0));
    PipeBarrier<PIPE_V>();
    WholeReduceSum(ub_.found, sums(), heads, n, 1, 1, 8);
    PipeBarrier<PIPE_V>();
    Compare(ub_.bits, ub_.found, ub_.found, CMPMODE::EQ, 64);
    PipeBarrier<PIPE_V>();
    Select(ub_.found, ub_.bits, ub_.found, LOWEST, SELMODE::VSEL_TENSOR_SCALAR_MODE, 64);
  }

  const Work& work_;
  const Buffers<Tiles>& ub_;
  GlobalTensor<T> query_, key_;
  GlobalTensor<int32_t> table_;
  float least_[ROWS_PER_VECTOR], error_[ROWS_PER_VECTOR];
};

}  // namespace lightning_indexer
