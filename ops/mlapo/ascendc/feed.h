// What an AIC multiplies, on its way from GM to L1: weights ahead of time, activations by portions.
#pragma once

#include "arguments.h"
#include "sequence.h"

namespace mlapo {

using namespace AscendC;

template <class A, class B, class Tiles>
class Feed {
 public:
  __aicore__ inline void init(TPipe& pipe, const Arguments& arguments, const Tiling& tiling) {
    a_ = arguments;
    t_ = tiling;
    pipe.InitBuffer(l1_, Tiles::SLOTS * Tiles::SLOT + Tiles::ACTIVATIONS);
    order_.init(t_, int32_t(GetBlockIdx()));
    ahead_.init(&order_);
  }

  __aicore__ inline const Sequence<A, B, Tiles>& order() const { return order_; }
  // Tokens of the group, and the rows that the cube multiplies for them.
  __aicore__ inline int32_t tokens() const { return tokens_; }
  __aicore__ inline int32_t rows() const { return rows_; }

  __aicore__ inline void turn_to_group(int32_t group) {
    tokens_ = least(t_.group, t_.tokens - group * t_.group);
    rows_ = tokens_ > 2 ? tokens_ : 2;
    there_[0] = there_[1] = -1;
  }

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

  // Makes the portion from K block `start` on of a pass the current one, and has the next one loaded
  // meanwhile.
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

  // The oldest part of the weights that is not given back yet.
  template <class W>
  __aicore__ inline LocalTensor<W> take_weights() {
    const int32_t slot = used_ % Tiles::SLOTS;
    WaitFlag<HardEvent::MTE2_MTE1>(slot);
    return l1_.Get<int8_t>()[slot * Tiles::SLOT].template ReinterpretCast<W>();
  }
  __aicore__ inline void give_back() {
    if (used_ + Tiles::SLOTS < order_.all_chunks())
      SetFlag<HardEvent::MTE1_MTE2>(used_ % Tiles::SLOTS);
    used_++;
  }
  // The portion of activations that turn_to made current.
  template <class W>
  __aicore__ inline LocalTensor<W> activations() const {
    return portion<W>(current_);
  }

 private:
  static constexpr int32_t ACTIVATIONS = Tiles::SLOTS;  // first event of their buffers

  template <class W>
  __aicore__ inline LocalTensor<W> portion(int32_t buffer) const {
    return l1_.Get<int8_t>()[Tiles::SLOTS * Tiles::SLOT + buffer * (Tiles::ACTIVATIONS / 2)]
        .template ReinterpretCast<W>();
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
    const LocalTensor<W> to = portion<W>(buffer);
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

  Arguments a_;
  Tiling t_;
  TBuf<TPosition::A1> l1_;
  Sequence<A, B, Tiles> order_;
  Chunks<Sequence<A, B, Tiles>> ahead_;
  int32_t loaded_ = 0, used_ = 0, loads_ = 0, tokens_ = 0, rows_ = 0;
  // Of the two buffers of activations: portions that they hold, whether they are being loaded, and
  // which one is in use.
  int32_t there_[2] = {-1, -1}, current_ = 1;
  bool loading_[2] = {false, false};
};

}  // namespace mlapo
