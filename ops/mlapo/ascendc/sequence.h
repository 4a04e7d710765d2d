// The products of one AIC in the order in which it makes them.
//
// Sizes along K count blocks of 32 bytes. Weights in GM and L1 are NZ [K blocks][N][32 bytes].
#pragma once

#include "kernel_operator.h"
#include "tiles.h"

namespace mlapo {

enum Stage : int32_t { DOWN = 0, UP = 1, ABSORB_STAGE = 2, STAGES = 3 };

// Columns n0 .. n0 + n of a weight, and the part k0 .. k0 + k of the sums.
struct Pass {
  int32_t n0, n, k0, k, matrix, part;
};

template <class A, class B, class Tiles>
class Sequence {
 public:
  __aicore__ inline void init(const Tiling& t, int32_t core) {
    rows_ = t.group > 2 ? t.group : 2;
    const int32_t padded = (rows_ + 15) / 16 * 16;
    most_ = Tiles::SUMS / (4 * padded * 16);
    most_ = least(most_, Tiles::L0 / 512);
    most_ = least(most_, Tiles::SLOT / 512);
    const int32_t groups = (t.tokens + t.group - 1) / t.group;
    steps_ = groups + STAGES - 1;
    groups_ = groups;

    const int32_t rows_of_cores = t.cores / t.split_k, place = core / t.split_k;
    part_ = core % t.split_k;
    columns_[DOWN] = t.q_lora + t.kv_lora + t.rope;
    columns_[UP] = t.heads * (t.nope + t.rope);
    columns_[ABSORB_STAGE] = t.kv_lora;
    share(DOWN, columns_[DOWN] / 16, place, rows_of_cores);
    share(UP, columns_[UP] / 16, core, t.cores);
    tile_ = t.absorb_tile;
    tiles_ = t.kv_lora / tile_;
    share(ABSORB_STAGE, t.heads * tiles_, core, t.cores);
    passes_[ABSORB_STAGE] = count_[ABSORB_STAGE];

    const int32_t blocks = t.hidden * int32_t(sizeof(A)) / 32;
    k0_[DOWN] = blocks * part_ / t.split_k;
    k_[DOWN] = blocks * (part_ + 1) / t.split_k - k0_[DOWN];
    k0_[UP] = k0_[ABSORB_STAGE] = 0;
    k_[UP] = t.q_lora * int32_t(sizeof(B)) / 32;
    k_[ABSORB_STAGE] = t.nope / 16;
    portion_ = Tiles::ACTIVATIONS / 2 / (rows_ * 32);
    padded_ = padded;
    count_all();
  }

  __aicore__ inline Pass pass(int32_t stage, int32_t i) const {
    if (stage == ABSORB_STAGE) {
      const int32_t unit = first_[stage] + i;
      return {unit % tiles_ * tile_, tile_, 0, k_[stage], unit / tiles_, 0};
    }
    const int32_t from = count_[stage] * i / passes_[stage];
    const int32_t to = count_[stage] * (i + 1) / passes_[stage];
    return {(first_[stage] + from) * 16, (to - from) * 16, k0_[stage], k_[stage], 0,
            stage == DOWN ? part_ : 0};
  }

  // K blocks that one buffer of L1 holds, from `done` on: within a portion of the activations.
  __aicore__ inline int32_t chunk(const Pass& pass, int32_t done) const {
    const int32_t left = least(pass.k, (done / portion_ + 1) * portion_) - done;
    return least(left, Tiles::SLOT / (pass.n * 32));
  }
  // K blocks that one half of L0A and L0B holds.
  __aicore__ inline int32_t piece(const Pass& pass, int32_t left) const {
    return least(left, Tiles::L0 / (32 * (pass.n > padded_ ? pass.n : padded_)));
  }

  __aicore__ inline int32_t columns(int32_t stage) const { return columns_[stage]; }
  __aicore__ inline int32_t passes(int32_t stage) const { return passes_[stage]; }
  __aicore__ inline int32_t depth(int32_t stage) const { return k_[stage]; }
  __aicore__ inline int32_t portion() const { return portion_; }
  __aicore__ inline int32_t steps() const { return steps_; }
  __aicore__ inline int32_t groups() const { return groups_; }
  // Of the whole launch.
  __aicore__ inline int32_t all_passes() const { return all_passes_; }
  __aicore__ inline int32_t all_chunks() const { return all_chunks_; }
  __aicore__ inline int32_t all_pieces() const { return all_pieces_; }

 private:
  __aicore__ inline void share(int32_t stage, int32_t units, int32_t place, int32_t places) {
    first_[stage] = units * place / places;
    count_[stage] = units * (place + 1) / places - first_[stage];
    passes_[stage] = (count_[stage] + most_ - 1) / most_;
  }

  __aicore__ inline void count_all() {
    all_passes_ = all_chunks_ = all_pieces_ = 0;
    for (int32_t stage = 0; stage < STAGES; stage++) {
      for (int32_t i = 0; i < passes_[stage]; i++) {
        const Pass each = pass(stage, i);
        all_passes_++;
        for (int32_t done = 0; done < each.k;) {
          const int32_t taken = chunk(each, done);
          all_chunks_++;
          for (int32_t inner = 0; inner < taken; inner += piece(each, taken - inner)) all_pieces_++;
          done += taken;
        }
      }
    }
    all_passes_ *= groups_;
    all_chunks_ *= groups_;
    all_pieces_ *= groups_;
  }

  int32_t rows_, padded_, most_, steps_, groups_, part_, tile_, tiles_, portion_;
  int32_t all_passes_, all_chunks_, all_pieces_;
  int32_t columns_[STAGES], first_[STAGES], count_[STAGES], passes_[STAGES];
  int32_t k0_[STAGES], k_[STAGES];
};

// Walks the chunks of weights. A step has stage s of group step - s; weights do not depend on it.
template <class Order>
class Chunks {
 public:
  __aicore__ inline void init(const Order* order) {
    order_ = order;
    find();
  }
  __aicore__ inline bool end() const { return step_ >= order_->steps(); }
  __aicore__ inline int32_t stage() const { return stage_; }
  __aicore__ inline int32_t done() const { return done_; }
  __aicore__ inline const Pass& pass() const { return pass_; }
  __aicore__ inline int32_t size() const { return order_->chunk(pass_, done_); }
  __aicore__ inline void next() {
    done_ += size();
    if (done_ < pass_.k) return;
    done_ = 0;
    number_++;
    find();
  }

 private:
  __aicore__ inline void find() {
    for (; !end(); turn()) {
      const int32_t group = step_ - stage_;
      if (group < 0 || group >= order_->groups() || number_ >= order_->passes(stage_)) continue;
      pass_ = order_->pass(stage_, number_);
      return;
    }
  }
  __aicore__ inline void turn() {
    number_ = 0;
    if (++stage_ < STAGES) return;
    stage_ = 0;
    step_++;
  }

  const Order* order_ = nullptr;
  int32_t step_ = 0, stage_ = 0, number_ = 0, done_ = 0;
  Pass pass_;
};

}  // namespace mlapo
