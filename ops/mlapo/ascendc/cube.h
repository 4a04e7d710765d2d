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
    const auto& order = feed_.order();
    for (Task task = order.first(); !order.end(task);) {
      const Task next = order.following(task);
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
        if (t_.int8_query && task.wave + 1 == t_.nope_waves) CrossCoreSetFlag<2, PIPE_FIX>(QUERY_READY);
      }
      task = next;
    }
  }

 private:
  // Waits until the AIVs have written what a task multiplies, unless that was waited for before.
  __aicore__ inline void await(const Task& task) {
    if (ahead_) {
      ahead_ = false;
    } else if (task.stage == ABSORB_STAGE) {
      CrossCoreWaitFlag(NOPE_READY);
    } else if (task.stage == UP) {
      if (task.wave == 0) CrossCoreWaitFlag(LATENT_READY);
    } else {
      if (task.wave == 0 && t_.quantise_x) CrossCoreWaitFlag(X_READY);
    }
  }

  // Whether the AIVs make what `next` multiplies of the sums of `task`, or are doing so.
  __aicore__ inline bool dependent(const Task& task, const Task& next) const {
    if (next.group != task.group || next.stage == task.stage) return false;
    return next.stage == UP ? task.stage == DOWN : next.wave / feed_.order().behind() == task.wave;
  }

  // Has the activations behind a portion loaded meanwhile: the next ones of the task, or the first of
  // the next task.
  __aicore__ inline void look_ahead(const Task& task, const Task& next, int32_t number,
                                    const Pass& pass, int32_t turn) {
    const auto& order = feed_.order();
    if (turn + 1 < order.portions(pass)) {
      feed_.want(task.stage, task.group, pass, order.start(pass, turn + 1));
    } else if (number + 1 < order.passes(task.stage, task.wave)) {
      const Pass behind = order.pass(task.stage, task.wave, number + 1);
      feed_.want(task.stage, task.group, behind, order.start(behind, 0));
    } else if (!order.end(next) && !dependent(task, next) && order.passes(next.stage, next.wave) > 0) {
      await(next);
      ahead_ = true;
      const Pass behind = order.pass(next.stage, next.wave, 0);
      feed_.want(next.stage, next.group, behind, order.start(behind, 0));
    }
  }

  template <class W>
  __aicore__ inline void products(const Task& task, const Task& next) {
    const auto& order = feed_.order();
    const int32_t stage = task.stage, group = task.group;
    tokens_ = feed_.tokens(group);
    const int32_t blocks = parts(tokens_, t_.block);
    for (int32_t i = 0; i < order.passes(stage, task.wave); i++) {
      const Pass pass = order.pass(stage, task.wave, i);
      const int32_t portions = order.portions(pass);
      for (int32_t turn = 0; turn < portions; turn++) {
        const int32_t start = order.start(pass, turn), held = order.held(pass, start);
        for (int32_t inside = 0; inside < held;) {
          feed_.fetch();
          if (inside == 0) {
            feed_.turn_to(stage, group, pass, start);
            look_ahead(task, next, i, pass, turn);
            feed_.take_activations();
          }
          const int32_t taken = order.chunk(pass, held, inside);
          const bool first = turn == 0 && inside == 0;
          const bool last = turn + 1 == portions && inside + taken == held;
          const LocalTensor<W> weights = feed_.template take_weights<W>();
          for (int32_t block = 0; block < blocks; block++) {
            const int32_t sum = sums_ + block;
            if (first && sum >= 2) WaitFlag<HardEvent::FIX_M>(sum % 2);
            chunk<W>(weights, pass, {block, first, inside, held, taken});
            if (!last) continue;
            SetFlag<HardEvent::M_FIX>(sum % 2);
            WaitFlag<HardEvent::M_FIX>(sum % 2);
            store<W>(stage, group, pass, block);
            if (sum + 2 < order.all_sums()) SetFlag<HardEvent::FIX_M>(sum % 2);
          }
          feed_.give_back();
          inside += taken;
        }
      }
      sums_ += blocks;
    }
  }

  // Of a block of tokens: sums start with it; K blocks from `inside` of the `held` ones in L1 on.
  struct Part {
    int32_t block;
    bool first;
    int32_t inside, held, depth;
  };
  __aicore__ inline int32_t block_tokens(int32_t block) const {
    return least(t_.block, tokens_ - block * t_.block);
  }
  template <class W>
  __aicore__ inline LocalTensor<Sum<W>> sums(int32_t block) const {
    return l0c_.Get<int8_t>()[(sums_ + block) % 2 * Tiles::SUMS].template ReinterpretCast<Sum<W>>();
  }

  // One buffer of weights times a block of tokens.
  template <class W>
  __aicore__ inline void chunk(const LocalTensor<W>& weights, const Pass& pass, const Part& part) {
    constexpr int32_t C0 = 32 / sizeof(W);
    const LocalTensor<W> rows = feed_.template activations<W>();
    const int32_t count = rows_of(t_, block_tokens(part.block));
    const int32_t fractals = parts(count, 16) * (pass.n / 16);
    for (int32_t k = 0; k < part.depth;) {
      const int32_t piece = feed_.order().piece(pass, part.depth - k), half = pieces_ % 2;
      const LocalTensor<W> left =
          l0a_.Get<int8_t>()[half * Tiles::L0].template ReinterpretCast<W>();
      const LocalTensor<W> right =
          l0b_.Get<int8_t>()[half * Tiles::L0].template ReinterpretCast<W>();
      if (pieces_ >= 2) WaitFlag<HardEvent::M_MTE1>(half);
      LoadData3DParamsV2<W> tile;
      tile.l1H = 1;
      tile.l1W = uint16_t(rows_of(t_, tokens_));
      tile.channelSize = uint16_t(part.held * C0);
      tile.kExtension = uint16_t(piece * C0);
      tile.mExtension = uint16_t(count);
      tile.kStartPt = uint16_t((part.inside + k) * C0);
      tile.mStartPt = uint16_t(part.block * t_.block);
      LoadData(left, rows, tile);
      LoadData(right, weights,
               LoadData2DParams(uint16_t(k * pass.n / 16), uint8_t(piece * pass.n / 16), 1, 0, 0,
                                false, 0));
      SetFlag<HardEvent::MTE1_M>(half);
      WaitFlag<HardEvent::MTE1_M>(half);
      MmadParams product;
      product.m = uint16_t(count);
      product.n = uint16_t(pass.n);
      product.k = uint16_t(piece * C0);
      product.cmatrixInitVal = part.first && k == 0;
      if (!product.cmatrixInitVal && fractals < 10) PipeBarrier<PIPE_M>();
      Mmad(sums<W>(part.block), left, right, product);
      if (pieces_ + 2 < feed_.order().all_pieces()) SetFlag<HardEvent::M_MTE1>(half);
      pieces_++;
      k += piece;
    }
  }

  template <class W>
  __aicore__ inline void store(int32_t stage, int32_t group, const Pass& pass, int32_t block) {
    const int32_t columns = feed_.order().columns(stage), row = block * t_.block;
    const LocalTensor<Sum<W>> from = sums<W>(block);
    FixpipeParamsV220 move;
    move.nSize = uint16_t(pass.n);
    move.mSize = uint16_t(block_tokens(block));
    move.srcStride = uint16_t(parts(block_tokens(block), 16) * 16);
    if (stage == ABSORB_STAGE) {
      if constexpr (sizeof(W) == 2) {
        GlobalTensor<W> query;
        query.SetGlobalBuffer((__gm__ W*)(t_.int8_query ? a_.workspace + t_.query_at : a_.query));
        const int64_t place = t_.int8_query ? group % QUERY_SLOTS : group;
        const int64_t at = (place * t_.group + row) * t_.heads + pass.matrix;
        move.dstStride = uint32_t(t_.heads * columns);
        move.quantPre = std::is_same<W, half_t>::value ? QuantMode_t::F322F16 : QuantMode_t::F322BF16;
        Fixpipe<W, float, CFG_ROW_MAJOR>(query[at * columns + pass.n0], from, move);
      }
      return;
    }
    GlobalTensor<Sum<W>> to;
    to.SetGlobalBuffer((__gm__ Sum<W>*)(a_.workspace + (stage == DOWN ? t_.down_at : t_.up_at)));
    // Parts of a row lie next to each other.
    const int64_t slot = stage == DOWN ? group % DOWN_SLOTS : group % UP_SLOTS;
    const int32_t split = stage == DOWN ? t_.split_k : t_.up_split;
    const int64_t at = (slot * t_.group + row) * split + pass.part;
    move.dstStride = uint32_t(split * columns);
    Fixpipe<Sum<W>, Sum<W>, CFG_ROW_MAJOR>(to[at * columns + pass.n0], from, move);
  }

  using half_t = ::half;
  Arguments a_;
  Tiling t_;
  TBuf<TPosition::A2> l0a_;
  TBuf<TPosition::B2> l0b_;
  TBuf<TPosition::CO1> l0c_;
  Feed<A, B, Tiles> feed_;
  int32_t pieces_ = 0, sums_ = 0, tokens_ = 0;
  bool ahead_ = false;  // the next task's activations are there
};

}  // namespace mlapo
