// The products of one AIC in the order in which it makes them.
//
// Sizes along K count blocks of 32 bytes. Weights in GM and L1 are NZ [K blocks][N][32 bytes].
#pragma once

#include "kernel_operator.h"
#include "tiles.h"

namespace mlapo {

enum Stage : int32_t { DOWN = 0, UP = 1, ABSORB_STAGE = 2, STAGES = 3 };

// A wave of a stage for a group of tokens, and its place in the order.
struct Task {
  int32_t step, turn, part, stage, group, wave;
};

// Columns n0 .. n0 + n of a weight, and the part k0 .. k0 + k of the sums. `back`: the portions of it
// in reverse, so that it begins with those that the pass before left in L1; not of float sums, whose
// order would then depend on the number of passes.
struct Pass {
  int32_t n0, n, k0, k, matrix, part;
  bool back;
};

template <class A, class B, class Tiles>
class Sequence {
 public:
  __aicore__ inline void init(const Tiling& t, int32_t core) {
    block_ = t.block;
    slots_ = t.block < t.group ? Tiles::MORE_SLOTS : Tiles::SLOTS;
    slot_ = t.block < t.group ? Tiles::LESS_SLOT : Tiles::SLOT;
    most_ = Tiles::SUMS / (64 * block_);
    most_ = least(most_, Tiles::L0 / 512);
    most_ = least(most_, slot_ / 512);
    groups_ = groups_of(t);
    part_[DOWN] = core % t.split_k;
    part_[UP] = core % t.up_split;
    part_[ABSORB_STAGE] = 0;
    columns_[DOWN] = t.q_lora + t.kv_lora + t.rope;
    columns_[UP] = t.heads * (t.nope + t.rope);
    columns_[ABSORB_STAGE] = t.kv_lora;
    tile_ = t.absorb_tile;
    tiles_ = t.kv_lora / tile_;
    waves_[DOWN] = t.down_waves;
    waves_[UP] = t.up_waves;
    waves_[ABSORB_STAGE] = t.nope_waves;
    const int32_t latent = t.q_lora / 16, place = core / t.split_k, places = t.cores / t.split_k;
    if (t.down_waves == 1) {
      share(DOWN, 0, 0, columns_[DOWN] / 16, place, places);
    } else {
      share(DOWN, 0, 0, latent, place, places);
      share(DOWN, 1, latent, columns_[DOWN] / 16 - latent, places - 1 - place, places);
    }
    // Where a share is larger than another, other waves make up for it.
    const int32_t pairs = t.cores / t.up_split, fractals = columns_[UP] / 16 / t.up_waves;
    for (int32_t wave = 0; wave < t.up_waves; wave++)
      share(UP, wave, wave * fractals, fractals, (core / t.up_split + wave) % pairs, pairs);
    const int32_t units = t.heads * tiles_ / t.nope_waves;
    for (int32_t wave = 0; wave < t.nope_waves; wave++)
      share(ABSORB_STAGE, wave, wave * units, units, (core + wave) % t.cores, t.cores);
    cut(DOWN, t.hidden * int32_t(sizeof(A)) / 32, t.split_k);
    cut(UP, t.q_lora * int32_t(sizeof(B)) / 32, t.up_split);
    cut(ABSORB_STAGE, t.nope / 16, 1);
    portion_ = Tiles::ACTIVATIONS / 2 / (rows_of(t, t.group) * 32);
    const int32_t last = tokens_of(t, groups_ - 1);
    count_all((groups_ - 1) * parts(t.group, block_) + parts(last, block_));
  }

  // In step s come the first product of group s, then waves of the second one of group s - 1. Behind
  // each are waves of the third one, of the heads before: those that the AIVs have made meanwhile.
  __aicore__ inline Task first() const { return {0, 0, 0, DOWN, 0, 0}; }
  __aicore__ inline bool end(const Task& task) const { return task.step > groups_ + 1; }
  __aicore__ inline int32_t behind() const { return waves_[ABSORB_STAGE] / waves_[UP]; }
  __aicore__ inline Task following(Task task) const {
    do {
      task = advanced(task);
      const int32_t turn = task.stage == ABSORB_STAGE ? task.turn - 1 : task.turn;
      task.group = task.step - (task.stage == DOWN ? 0 : turn < 0 ? 2 : 1);
      task.wave = turn < 0 ? waves_[UP] - 1 : turn;
      if (task.stage == ABSORB_STAGE) task.wave = task.wave * behind() + task.part;
    } while (!end(task) && (task.group < 0 || task.group >= groups_));
    return task;
  }

  __aicore__ inline Pass pass(int32_t stage, int32_t wave, int32_t i) const {
    if (stage == ABSORB_STAGE) {
      const int32_t unit = first_[stage][wave] + i;
      return {unit % tiles_ * tile_, tile_, 0, k_[stage], unit / tiles_, 0, false};
    }
    const int32_t number = passes(stage, wave), units = count_[stage][wave];
    const bool exact = stage == DOWN ? sizeof(A) == 1 : sizeof(B) == 1;
    const int32_t from = units * i / number, to = units * (i + 1) / number;
    int32_t before = 0;
    for (int32_t earlier = 0; earlier < wave; earlier++) before += passes(stage, earlier);
    return {(first_[stage][wave] + from) * 16, (to - from) * 16, k0_[stage], k_[stage], 0,
            part_[stage], exact && (before + i) % 2 == 1};
  }

  // Portions of a pass: what one buffer of activations in L1 holds. Where the turn-th one starts, and
  // how deep it is.
  __aicore__ inline int32_t portions(const Pass& pass) const { return parts(pass.k, portion_); }
  __aicore__ inline int32_t start(const Pass& pass, int32_t turn) const {
    return (pass.back ? portions(pass) - 1 - turn : turn) * portion_;
  }
  __aicore__ inline int32_t held(const Pass& pass, int32_t start) const {
    return least(portion_, pass.k - start);
  }
  // K blocks of weights from `inside` of a portion on that one buffer of L1 gets.
  __aicore__ inline int32_t chunk(const Pass& pass, int32_t held, int32_t inside) const {
    return least(held - inside, parts(held, parts(held, slot_ / (pass.n * 32))));
  }
  // K blocks that one half of L0A and L0B holds.
  __aicore__ inline int32_t piece(const Pass& pass, int32_t left) const {
    return least(left, Tiles::L0 / (32 * (pass.n > block_ ? pass.n : block_)));
  }

  // Buffers of weights in L1, and bytes of one.
  __aicore__ inline int32_t slots() const { return slots_; }
  __aicore__ inline int32_t slot() const { return slot_; }
  __aicore__ inline int32_t matrix_blocks() const { return k_[ABSORB_STAGE]; }
  __aicore__ inline int32_t columns(int32_t stage) const { return columns_[stage]; }
  __aicore__ inline int32_t passes(int32_t stage, int32_t wave) const {
    const int32_t units = count_[stage][wave];
    return stage == ABSORB_STAGE ? units : parts(units, most_);
  }
  __aicore__ inline int32_t portion() const { return portion_; }
  // Of the whole launch: products, buffers of weights, halves of L0A and L0B.
  __aicore__ inline int32_t all_sums() const { return all_sums_; }
  __aicore__ inline int32_t all_chunks() const { return all_chunks_; }
  __aicore__ inline int32_t all_pieces() const { return all_pieces_; }

 private:
  __aicore__ inline Task advanced(Task task) const {
    if (task.stage == UP) {
      task.stage = ABSORB_STAGE;
    } else if (task.stage == ABSORB_STAGE && ++task.part < behind()) {
      return task;
    } else if (++task.turn < waves_[task.stage == DOWN ? DOWN : UP]) {
      task.stage = task.stage == DOWN ? DOWN : UP;
    } else {
      task.step += task.stage == DOWN ? 0 : 1;
      task.stage = task.stage == DOWN ? UP : DOWN;
      task.turn = 0;
    }
    task.part = 0;
    return task;
  }

  __aicore__ inline void share(int32_t stage, int32_t wave, int32_t from, int32_t units,
                               int32_t place, int32_t places) {
    const int32_t first = units * place / places;
    first_[stage][wave] = from + first;
    count_[stage][wave] = units * (place + 1) / places - first;
  }

  // K blocks of this core.
  __aicore__ inline void cut(int32_t stage, int32_t blocks, int32_t split) {
    k0_[stage] = blocks * part_[stage] / split;
    k_[stage] = blocks * (part_[stage] + 1) / split - k0_[stage];
  }

  __aicore__ inline void count_all(int32_t blocks) {
    all_sums_ = all_chunks_ = all_pieces_ = 0;
    for (int32_t stage = 0; stage < STAGES; stage++)
      for (int32_t wave = 0; wave < waves_[stage]; wave++)
        for (int32_t i = 0; i < passes(stage, wave); i++) count(pass(stage, wave, i));
    all_sums_ *= blocks;
    all_chunks_ *= groups_;
    all_pieces_ *= blocks;
  }
  __aicore__ inline void count(const Pass& pass) {
    all_sums_++;
    for (int32_t turn = 0; turn < portions(pass); turn++) {
      const int32_t whole = held(pass, start(pass, turn));
      for (int32_t inside = 0; inside < whole;) {
        const int32_t taken = chunk(pass, whole, inside);
        all_chunks_++;
        for (int32_t k = 0; k < taken; k += piece(pass, taken - k)) all_pieces_++;
        inside += taken;
      }
    }
  }

  int32_t block_, slots_, slot_, most_, groups_, tile_, tiles_, portion_;
  int32_t all_sums_, all_chunks_, all_pieces_;
  int32_t columns_[STAGES], waves_[STAGES], part_[STAGES], k0_[STAGES], k_[STAGES];
  int32_t first_[STAGES][NOPE_WAVES], count_[STAGES][NOPE_WAVES];
};

// Walks the chunks of weights.
template <class Order>
class Chunks {
 public:
  __aicore__ inline void init(const Order* order) {
    order_ = order;
    task_ = order->first();
    find();
  }
  __aicore__ inline bool end() const { return order_->end(task_); }
  __aicore__ inline int32_t stage() const { return task_.stage; }
  __aicore__ inline const Pass& pass() const { return pass_; }
  // First K block of the weight, and how many.
  __aicore__ inline int32_t block() const {
    return pass_.k0 + order_->start(pass_, turn_) + inside_;
  }
  __aicore__ inline int32_t size() const { return order_->chunk(pass_, held(), inside_); }
  __aicore__ inline void next() {
    inside_ += size();
    if (inside_ < held()) return;
    inside_ = 0;
    if (++turn_ < order_->portions(pass_)) return;
    turn_ = 0;
    number_++;
    find();
  }

 private:
  __aicore__ inline int32_t held() const { return order_->held(pass_, order_->start(pass_, turn_)); }
  __aicore__ inline void find() {
    while (!end() && number_ >= order_->passes(task_.stage, task_.wave)) {
      task_ = order_->following(task_);
      number_ = 0;
    }
    if (!end()) pass_ = order_->pass(task_.stage, task_.wave, number_);
  }

  const Order* order_ = nullptr;
  Task task_;
  int32_t number_ = 0, turn_ = 0, inside_ = 0;
  Pass pass_;
};

}  // namespace mlapo
