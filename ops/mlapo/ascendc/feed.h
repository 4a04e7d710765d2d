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
  __aicore__ inline int32_t tokens(int32_t group) const { return tokens_of(t_, group); }
  __aicore__ inline int32_t rows(int32_t group) const { return rows_of(t_, tokens(group)); }

  // Loads weights as far ahead as there are buffers.
  __aicore__ inline void fetch() {
    while (!ahead_.end() && loaded_ < used_ + order_.slots()) {
      const Pass& pass = ahead_.pass();
      const int32_t slot = loaded_ % order_.slots(), stage = ahead_.stage();
      const int32_t columns = order_.columns(stage), depth = ahead_.size();
      const int64_t matrix = int64_t(pass.matrix) * order_.matrix_blocks() * columns;
      GlobalTensor<int8_t> weight;
      weight.SetGlobalBuffer((__gm__ int8_t*)(stage == DOWN ? a_.down
                                              : stage == UP ? a_.up
                                                            : a_.absorb));
      if (loaded_ >= order_.slots()) WaitFlag<HardEvent::MTE1_MTE2>(slot);
      DataCopy(l1_.Get<int8_t>()[slot * order_.slot()],
               weight[(matrix + int64_t(ahead_.block()) * columns + pass.n0) * 32],
               DataCopyParams(uint16_t(depth), uint16_t(pass.n), uint16_t(columns - pass.n), 0));
      SetFlag<HardEvent::MTE2_MTE1>(slot);
      loaded_++;
      ahead_.next();
    }
  }

  // Loads the portion of activations from K block `start` of a pass on, where neither buffer has it,
  // over the one that is not current.
  __aicore__ inline void want(int32_t stage, int32_t group, const Pass& pass, int32_t start) {
    const int32_t wanted = name(stage, group, pass, start);
    if (there_[0] == wanted || there_[1] == wanted) return;
    const int32_t buffer = 1 - current_;
    load_rows(stage, group, pass.matrix, pass.k0 + start, order_.held(pass, start), buffer);
    there_[buffer] = wanted;
  }
  // Makes it the current one.
  __aicore__ inline void turn_to(int32_t stage, int32_t group, const Pass& pass, int32_t start) {
    want(stage, group, pass, start);
    current_ = there_[0] == name(stage, group, pass, start) ? 0 : 1;
  }
  // MTE1 may read it.
  __aicore__ inline void take_activations() {
    if (loading_[current_]) WaitFlag<HardEvent::MTE2_MTE1>(ACTIVATIONS + current_);
    loading_[current_] = false;
  }

  // The oldest part of the weights that is not given back yet.
  template <class W>
  __aicore__ inline LocalTensor<W> take_weights() {
    const int32_t slot = used_ % order_.slots();
    WaitFlag<HardEvent::MTE2_MTE1>(slot);
    return l1_.Get<int8_t>()[slot * order_.slot()].template ReinterpretCast<W>();
  }
  __aicore__ inline void give_back() {
    if (used_ + order_.slots() < order_.all_chunks())
      SetFlag<HardEvent::MTE1_MTE2>(used_ % order_.slots());
    used_++;
  }
  // What turn_to made current.
  template <class W>
  __aicore__ inline LocalTensor<W> activations() const {
    return portion<W>(current_);
  }

 private:
  static constexpr int32_t ACTIVATIONS = Tiles::MORE_SLOTS;  // first event of their buffers

  template <class W>
  __aicore__ inline LocalTensor<W> portion(int32_t buffer) const {
    return l1_.Get<int8_t>()[Tiles::SLOTS * Tiles::SLOT + buffer * (Tiles::ACTIVATIONS / 2)]
        .template ReinterpretCast<W>();
  }

  __aicore__ inline int32_t name(int32_t stage, int32_t group, const Pass& pass, int32_t start) const {
    return (group * STAGES + stage) * 65536 + pass.matrix * order_.portions(pass) +
           start / order_.portion();
  }

  // Rows of what a stage multiplies, in bytes, and the bytes from one to the next.
  struct Rows {
    GM_ADDR first;
    int32_t pitch;
  };
  __aicore__ inline Rows source(int32_t stage, int32_t group, int32_t matrix) const {
    const int64_t first = int64_t(group) * t_.group;
    if (stage == DOWN) {
      const int32_t pitch = t_.hidden * int32_t(sizeof(A));
      return {(t_.quantise_x ? a_.workspace + t_.codes_at : a_.x) + first * pitch, pitch};
    }
    if (stage == UP) {
      const int32_t pitch = t_.q_lora * int32_t(sizeof(B));
      return {(sizeof(B) == 1 ? a_.latent_codes : a_.latent) + first * pitch, pitch};
    }
    const int64_t slot = int64_t(group % NOPE_SLOTS) * t_.heads + matrix;
    return {a_.workspace + t_.nope_at + slot * t_.group * t_.nope * 2, t_.nope * 2};
  }

  // K blocks k0 .. k0 + depth of them to NZ in one of two buffers; bytes are bytes, so the type of
  // the elements does not matter.
  __aicore__ inline void load_rows(int32_t stage, int32_t group, int32_t matrix, int32_t k0,
                                   int32_t depth, int32_t buffer) {
    const Rows from = source(stage, group, matrix);
    GlobalTensor<int8_t> values;
    values.SetGlobalBuffer((__gm__ int8_t*)(from.first + k0 * 32));
    const LocalTensor<int8_t> to = portion<int8_t>(buffer);
    if (loads_ >= 2) {
      SetFlag<HardEvent::MTE1_MTE2>(ACTIVATIONS);
      WaitFlag<HardEvent::MTE1_MTE2>(ACTIVATIONS);
    }
    loads_++;
    const int32_t count = tokens(group);
    Nd2NzParams move(1, uint16_t(count), uint16_t(depth * 32), 0, uint16_t(from.pitch),
                     uint16_t(rows(group)), 1, 0);
    DataCopy(to, values, move);
    if (count < rows(group)) {
      move.nValue = 1;
      DataCopy(to[count * 32], values[int64_t(count - 1) * from.pitch], move);
    }
    SetFlag<HardEvent::MTE2_MTE1>(ACTIVATIONS + buffer);
    loading_[buffer] = true;
  }

  Arguments a_;
  Tiling t_;
  TBuf<TPosition::A1> l1_;
  Sequence<A, B, Tiles> order_;
  Chunks<Sequence<A, B, Tiles>> ahead_;
  int32_t loaded_ = 0, used_ = 0, loads_ = 0;
  // Of the two buffers of activations: portions that they hold, whether they are being loaded, and
  // which one is in use.
  int32_t there_[2] = {-1, -1}, current_ = 1;
  bool loading_[2] = {false, false};
};

}  // namespace mlapo
