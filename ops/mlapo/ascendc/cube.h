// The AIC: three products for each group of tokens, and weights that arrive ahead of them.
#pragma once

#include "feed.h"

namespace mlapo {

using namespace AscendC;

template <class T, class A, class B, class Tiles>
class Cube {
  template <class W>
  using Sum = typename std::conditional<sizeof(W) == 1, int32_t, float>::type;

 public:
  __aicore__ inline void init(TPipe& pipe, const Arguments& arguments, const Tiling& tiling) {
    a_ = arguments;
    t_ = tiling;
    feed_.init(pipe, arguments, tiling);
    pipe.InitBuffer(l0a_, 2 * Tiles::L0);
    pipe.InitBuffer(l0b_, 2 * Tiles::L0);
    pipe.InitBuffer(l0c_, 2 * Tiles::SUMS);
  }

  __aicore__ inline void run() {
    Task task = following({0, -1});
    while (!done(task)) {
      const Task next = following(task);
      feed_.fetch();
      await(task);
      if (task.stage == DOWN) {
        products<A>(task, next);
        CrossCoreSetFlag<2, PIPE_FIX>(DOWN_READY);
      } else if (task.stage == UP) {
        products<B>(task, next);
        CrossCoreSetFlag<2, PIPE_FIX>(UP_READY);
      } else {
        products<T>(task, next);
        if (t_.int8_query) CrossCoreSetFlag<2, PIPE_FIX>(QUERY_READY);
      }
      task = next;
    }
  }

 private:
  // A stage of group step - stage.
  struct Task {
    int32_t step, stage;
    __aicore__ inline int32_t group() const { return step - stage; }
  };
  __aicore__ inline bool done(const Task& task) const { return task.step >= feed_.order().steps(); }
  __aicore__ inline Task following(Task task) const {
    do {
      if (++task.stage == STAGES) task = {task.step + 1, 0};
    } while (!done(task) && (task.group() < 0 || task.group() >= feed_.order().groups()));
    return task;
  }

  // Waits until the AIVs have written what a task multiplies, unless that was waited for before.
  __aicore__ inline void await(const Task& task) {
    if (ahead_) {
      ahead_ = false;
      return;
    }
    if (task.stage == DOWN) {
      if (t_.quantise_x) CrossCoreWaitFlag(X_READY);
    } else if (task.stage == UP) {
      CrossCoreWaitFlag(LATENT_READY);
    } else {
      CrossCoreWaitFlag(NOPE_READY);
    }
  }

  // Has the activations behind a portion loaded meanwhile: the next ones of the task, or the first of
  // the next task. Of the same group those would wait for this task.
  __aicore__ inline void look_ahead(const Task& task, const Task& next, int32_t number,
                                    const Pass& pass, int32_t start) {
    const auto& order = feed_.order();
    const int32_t behind = start + order.portion();
    if (behind < pass.k) {
      feed_.want(task.stage, task.group(), pass, behind);
    } else if (number + 1 < order.passes(task.stage)) {
      feed_.want(task.stage, task.group(), order.pass(task.stage, number + 1), 0);
    } else if (!done(next) && next.group() != task.group() && order.passes(next.stage) > 0) {
      await(next);
      ahead_ = true;
      feed_.want(next.stage, next.group(), order.pass(next.stage, 0), 0);
    }
  }

  template <class W>
  __aicore__ inline void products(const Task& task, const Task& next) {
    const auto& order = feed_.order();
    const int32_t portion = order.portion(), stage = task.stage, group = task.group();
    rows_ = feed_.rows(group);
    padded_ = (rows_ + 15) / 16 * 16;
    for (int32_t i = 0; i < order.passes(stage); i++) {
      const Pass pass = order.pass(stage, i);
      const int32_t half = sums_ % 2;
      if (sums_ >= 2) WaitFlag<HardEvent::FIX_M>(half);
      for (int32_t done = 0; done < pass.k;) {
        const int32_t start = done / portion * portion;
        feed_.fetch();
        if (done == start) {
          feed_.turn_to(stage, group, pass, start);
          look_ahead(task, next, i, pass, start);
          feed_.take_activations();
        }
        const int32_t taken = order.chunk(pass, done);
        chunk<W>(pass, done, done - start, least(portion, pass.k - start), taken);
        done += taken;
      }
      SetFlag<HardEvent::M_FIX>(half);
      WaitFlag<HardEvent::M_FIX>(half);
      store<W>(stage, group, pass, half);
      if (sums_ + 2 < order.all_passes()) SetFlag<HardEvent::FIX_M>(half);
      sums_++;
    }
  }

  // One buffer of weights, whose K blocks start at `done` of the pass and at `inside` of the
  // activations in L1, `held` blocks deep.
  template <class W>
  __aicore__ inline void chunk(const Pass& pass, int32_t done, int32_t inside, int32_t held,
                               int32_t depth) {
    constexpr int32_t C0 = 32 / sizeof(W);
    const LocalTensor<W> rows = feed_.template activations<W>();
    const LocalTensor<Sum<W>> sums =
        l0c_.Get<int8_t>()[sums_ % 2 * Tiles::SUMS].template ReinterpretCast<Sum<W>>();
    const LocalTensor<W> weights = feed_.template take_weights<W>();
    for (int32_t k = 0; k < depth;) {
      const int32_t piece = feed_.order().piece(pass, depth - k), half = pieces_ % 2;
      const LocalTensor<W> left =
          l0a_.Get<int8_t>()[half * Tiles::L0].template ReinterpretCast<W>();
      const LocalTensor<W> right =
          l0b_.Get<int8_t>()[half * Tiles::L0].template ReinterpretCast<W>();
      if (pieces_ >= 2) WaitFlag<HardEvent::M_MTE1>(half);
      LoadData3DParamsV2<W> tile;
      tile.l1H = 1;
      tile.l1W = uint16_t(rows_);
      tile.channelSize = uint16_t(held * C0);
      tile.kExtension = uint16_t(piece * C0);
      tile.mExtension = uint16_t(rows_);
      tile.kStartPt = uint16_t((inside + k) * C0);
      LoadData(left, rows, tile);
      LoadData(right, weights,
               LoadData2DParams(uint16_t(k * pass.n / 16), uint8_t(piece * pass.n / 16), 1, 0, 0,
                                false, 0));
      SetFlag<HardEvent::MTE1_M>(half);
      WaitFlag<HardEvent::MTE1_M>(half);
      MmadParams product;
      product.m = uint16_t(rows_);
      product.n = uint16_t(pass.n);
      product.k = uint16_t(piece * C0);
      product.cmatrixInitVal = done + k == 0;
      if (done + k > 0 && padded_ / 16 * (pass.n / 16) < 10) PipeBarrier<PIPE_M>();
      Mmad(sums, left, right, product);
      if (pieces_ + 2 < feed_.order().all_pieces()) SetFlag<HardEvent::M_MTE1>(half);
      pieces_++;
      k += piece;
    }
    feed_.give_back();
  }

  template <class W>
  __aicore__ inline void store(int32_t stage, int32_t group, const Pass& pass, int32_t half) {
    const LocalTensor<Sum<W>> sums =
        l0c_.Get<int8_t>()[half * Tiles::SUMS].template ReinterpretCast<Sum<W>>();
    const int32_t columns = feed_.order().columns(stage);
    FixpipeParamsV220 move;
    move.nSize = uint16_t(pass.n);
    move.mSize = uint16_t(feed_.tokens(group));
    move.srcStride = uint16_t(padded_);
    if (stage == ABSORB_STAGE) {
      if constexpr (sizeof(W) == 2) {
        GlobalTensor<W> query;
        query.SetGlobalBuffer((__gm__ W*)(t_.int8_query ? a_.workspace + t_.query_at : a_.query));
        const int64_t place = t_.int8_query ? group % QUERY_SLOTS : group;
        const int64_t row = place * t_.group * t_.heads + pass.matrix;
        move.dstStride = uint32_t(t_.heads * columns);
        move.quantPre = std::is_same<W, half_t>::value ? QuantMode_t::F322F16 : QuantMode_t::F322BF16;
        Fixpipe<W, float, CFG_ROW_MAJOR>(query[row * columns + pass.n0], sums, move);
      }
      return;
    }
    GlobalTensor<Sum<W>> to;
    to.SetGlobalBuffer((__gm__ Sum<W>*)(a_.workspace + (stage == DOWN ? t_.down_at : t_.up_at)));
    const int64_t slot = stage == DOWN ? int64_t(group % DOWN_SLOTS) * t_.split_k + pass.part
                                       : group % UP_SLOTS;
    move.dstStride = uint32_t(columns);
    Fixpipe<Sum<W>, Sum<W>, CFG_ROW_MAJOR>(to[slot * t_.group * columns + pass.n0], sums, move);
  }

  using half_t = ::half;
  Arguments a_;
  Tiling t_;
  TBuf<TPosition::A2> l0a_;
  TBuf<TPosition::B2> l0b_;
  TBuf<TPosition::CO1> l0c_;
  Feed<A, B, Tiles> feed_;
  int32_t pieces_ = 0, sums_ = 0, rows_ = 0, padded_ = 0;
  bool ahead_ = false;  // the next task's activations are there
};

}  // namespace mlapo
