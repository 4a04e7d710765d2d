// The AIC: three products for each group of tokens, and weights that arrive ahead of them.
#pragma once

#include "arguments.h"
#include "sequence.h"

namespace mlapo {

using namespace AscendC;

template <class T, class A, class B, class Tiles>
class Cube {
  template <class W>
  using Sum = typename std::conditional<sizeof(W) == 1, int32_t, float>::type;
  static constexpr int32_t ACTIVATIONS = Tiles::SLOTS;  // first event of their buffers

 public:
  __aicore__ inline void init(TPipe& pipe, const Arguments& arguments, const Tiling& tiling) {
    a_ = arguments;
    t_ = tiling;
    pipe.InitBuffer(l1_, Tiles::SLOTS * Tiles::SLOT + Tiles::ACTIVATIONS);
    pipe.InitBuffer(l0a_, 2 * Tiles::L0);
    pipe.InitBuffer(l0b_, 2 * Tiles::L0);
    pipe.InitBuffer(l0c_, 2 * Tiles::SUMS);
    order_.init(t_, int32_t(GetBlockIdx()));
    ahead_.init(&order_);
  }

  __aicore__ inline void run() {
    for (int32_t step = 0; step < order_.steps(); step++) {
      const int32_t up = step - UP, absorb = step - ABSORB_STAGE;
      if (step < order_.groups()) {
        fetch();
        if (t_.quantise_x) CrossCoreWaitFlag(X_READY);
        products<A>(DOWN, step);
        CrossCoreSetFlag<2, PIPE_FIX>(DOWN_READY);
      }
      if (up >= 0 && up < order_.groups()) {
        fetch();
        CrossCoreWaitFlag(LATENT_READY);
        products<B>(UP, up);
        CrossCoreSetFlag<2, PIPE_FIX>(UP_READY);
      }
      if (absorb >= 0) {
        fetch();
        CrossCoreWaitFlag(NOPE_READY);
        products<T>(ABSORB_STAGE, absorb);
        if (t_.int8_query) CrossCoreSetFlag<2, PIPE_FIX>(QUERY_READY);
      }
    }
  }

 private:
  // Loads weights as far ahead as there are buffers.
  __aicore__ inline void fetch() {
    while (!ahead_.end() && loaded_ < used_ + Tiles::SLOTS) {
      const Pass& pass = ahead_.pass();
      const int32_t slot = loaded_ % Tiles::SLOTS, stage = ahead_.stage();
      const int32_t columns = order_.columns(stage), depth = ahead_.size();
      const int64_t matrix = int64_t(pass.matrix) * order_.depth(stage) * columns;
      GlobalTensor<int8_t> weight;
      weight.SetGlobalBuffer((__gm__ int8_t*)(stage == DOWN ? a_.down
                                              : stage == UP ? a_.up
                                                            : a_.absorb));
      if (loaded_ >= Tiles::SLOTS) WaitFlag<HardEvent::MTE1_MTE2>(slot);
      const int64_t block = pass.k0 + ahead_.done();
      DataCopy(l1_.Get<int8_t>()[slot * Tiles::SLOT],
               weight[(matrix + block * columns + pass.n0) * 32],
               DataCopyParams(uint16_t(depth), uint16_t(pass.n), uint16_t(columns - pass.n), 0));
      SetFlag<HardEvent::MTE2_MTE1>(slot);
      loaded_++;
      ahead_.next();
    }
  }

  template <class W>
  __aicore__ inline GlobalTensor<W> rows_of(int32_t stage, int32_t group, int32_t matrix) {
    GlobalTensor<W> rows;
    const int64_t first = int64_t(group) * t_.group;
    if (stage == DOWN) {
      rows.SetGlobalBuffer((__gm__ W*)(t_.quantise_x ? a_.workspace + t_.codes_at : a_.x));
      return rows[first * t_.hidden];
    }
    if (stage == UP) {
      rows.SetGlobalBuffer((__gm__ W*)(sizeof(W) == 1 ? a_.latent_codes : a_.latent));
      return rows[first * t_.q_lora];
    }
    rows.SetGlobalBuffer((__gm__ W*)(a_.workspace + t_.nope_at));
    const int64_t slot = int64_t(group % NOPE_SLOTS) * t_.heads + matrix;
    return rows[slot * t_.group * t_.nope];
  }

  // Rows of what the weight multiplies, K blocks k0 .. k0 + depth, to NZ in one of two buffers. One
  // row is loaded twice: with m = 1 Mmad would want another layout.
  template <class W>
  __aicore__ inline void load_rows(int32_t stage, int32_t group, int32_t matrix, int32_t k0,
                                   int32_t depth, int32_t buffer) {
    constexpr int32_t C0 = 32 / sizeof(W);
    const int32_t width = stage == DOWN ? t_.hidden : stage == UP ? t_.q_lora : t_.nope;
    const GlobalTensor<W> rows = rows_of<W>(stage, group, matrix)[k0 * C0];
    const LocalTensor<W> to = activations<W>(buffer);
    if (loads_ >= 2) {
      SetFlag<HardEvent::MTE1_MTE2>(ACTIVATIONS);
      WaitFlag<HardEvent::MTE1_MTE2>(ACTIVATIONS);
    }
    loads_++;
    const Nd2NzParams move(1, uint16_t(tokens_), uint16_t(depth * C0), 0, uint16_t(width),
                           uint16_t(rows_), 1, 0);
    DataCopy(to, rows, move);
    if (tokens_ == 1) DataCopy(to[C0], rows, move);
    SetFlag<HardEvent::MTE2_MTE1>(ACTIVATIONS + buffer);
    loading_[buffer] = true;
  }
  template <class W>
  __aicore__ inline LocalTensor<W> activations(int32_t buffer) {
    return l1_.Get<int8_t>()[Tiles::SLOTS * Tiles::SLOT + buffer * (Tiles::ACTIVATIONS / 2)]
        .template ReinterpretCast<W>();
  }

  // A portion of the activations by number: those of a matrix, one after the other. Loads it where
  // neither buffer has it.
  template <class W>
  __aicore__ inline void want(int32_t stage, int32_t group, const Pass& pass, int32_t start) {
    const int32_t portion = order_.portion();
    const int32_t wanted = pass.matrix * ((pass.k + portion - 1) / portion) + start / portion;
    if (there_[0] == wanted || there_[1] == wanted) return;
    const int32_t buffer = 1 - current_;
    load_rows<W>(stage, group, pass.matrix, pass.k0 + start, least(portion, pass.k - start), buffer);
    there_[buffer] = wanted;
  }
  // Makes it the current one, and has the next one loaded meanwhile.
  template <class W>
  __aicore__ inline void turn_to(int32_t stage, int32_t group, int32_t number, const Pass& pass,
                                 int32_t start) {
    const int32_t portion = order_.portion();
    want<W>(stage, group, pass, start);
    const int32_t wanted = pass.matrix * ((pass.k + portion - 1) / portion) + start / portion;
    current_ = there_[0] == wanted ? 0 : 1;
    if (start + portion < pass.k)
      want<W>(stage, group, pass, start + portion);
    else if (number + 1 < order_.passes(stage))
      want<W>(stage, group, order_.pass(stage, number + 1), 0);
    if (loading_[current_]) WaitFlag<HardEvent::MTE2_MTE1>(ACTIVATIONS + current_);
    loading_[current_] = false;
  }

  template <class W>
  __aicore__ inline void products(int32_t stage, int32_t group) {
    tokens_ = least(t_.group, t_.tokens - group * t_.group);
    rows_ = tokens_ > 2 ? tokens_ : 2;
    padded_ = (rows_ + 15) / 16 * 16;
    there_[0] = there_[1] = -1;
    const int32_t portion = order_.portion();
    for (int32_t i = 0; i < order_.passes(stage); i++) {
      const Pass pass = order_.pass(stage, i);
      const int32_t half = sums_ % 2;
      if (sums_ >= 2) WaitFlag<HardEvent::FIX_M>(half);
      for (int32_t done = 0; done < pass.k;) {
        const int32_t start = done / portion * portion;
        fetch();
        if (done == start) turn_to<W>(stage, group, i, pass, start);
        const int32_t taken = order_.chunk(pass, done);
        chunk<W>(pass, done, done - start, least(portion, pass.k - start), taken);
        done += taken;
      }
      SetFlag<HardEvent::M_FIX>(half);
      WaitFlag<HardEvent::M_FIX>(half);
      store<W>(stage, group, pass, half);
      if (sums_ + 2 < order_.all_passes()) SetFlag<HardEvent::FIX_M>(half);
      sums_++;
    }
  }

  // One buffer of weights, whose K blocks start at `done` of the pass and at `inside` of the
  // activations in L1, `held` blocks deep.
  template <class W>
  __aicore__ inline void chunk(const Pass& pass, int32_t done, int32_t inside, int32_t held,
                               int32_t depth) {
    constexpr int32_t C0 = 32 / sizeof(W);
    const int32_t slot = used_ % Tiles::SLOTS;
    const LocalTensor<W> weights = l1_.Get<int8_t>()[slot * Tiles::SLOT].template ReinterpretCast<W>();
    const LocalTensor<W> rows = activations<W>(current_);
    const LocalTensor<Sum<W>> sums =
        l0c_.Get<int8_t>()[sums_ % 2 * Tiles::SUMS].template ReinterpretCast<Sum<W>>();
    WaitFlag<HardEvent::MTE2_MTE1>(slot);
    for (int32_t k = 0; k < depth;) {
      const int32_t piece = order_.piece(pass, depth - k), half = pieces_ % 2;
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
      if (pieces_ + 2 < order_.all_pieces()) SetFlag<HardEvent::M_MTE1>(half);
      pieces_++;
      k += piece;
    }
    if (used_ + Tiles::SLOTS < order_.all_chunks()) SetFlag<HardEvent::MTE1_MTE2>(slot);
    used_++;
  }

  template <class W>
  __aicore__ inline void store(int32_t stage, int32_t group, const Pass& pass, int32_t half) {
    const LocalTensor<Sum<W>> sums =
        l0c_.Get<int8_t>()[half * Tiles::SUMS].template ReinterpretCast<Sum<W>>();
    const int32_t columns = order_.columns(stage);
    FixpipeParamsV220 move;
    move.nSize = uint16_t(pass.n);
    move.mSize = uint16_t(tokens_);
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
  TBuf<TPosition::A1> l1_;
  TBuf<TPosition::A2> l0a_;
  TBuf<TPosition::B2> l0b_;
  TBuf<TPosition::CO1> l0c_;
  Sequence<A, B, Tiles> order_;
  Chunks<Sequence<A, B, Tiles>> ahead_;
  int32_t loaded_ = 0, used_ = 0, loads_ = 0, pieces_ = 0, sums_ = 0;
  int32_t tokens_ = 0, rows_ = 0, padded_ = 0;
  // Of the two buffers of activations: portions that they hold, whether they are being loaded, and
  // which one is in use.
  int32_t there_[2] = {-1, -1}, current_ = 1;
  bool loading_[2] = {false, false};
};

}  // namespace mlapo
