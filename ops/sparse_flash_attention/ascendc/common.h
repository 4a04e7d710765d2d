// What the cube and the vector side share: sizes of tiles, arguments, tasks, chosen keys.
#pragma once

#include "kernel_operator.h"
#include "tiling.h"

namespace sfa {

using namespace AscendC;

// A tile of TILE keys is BLOCKS pieces of ROWS keys; L1 holds RING pieces. Products of scores take
// STEP columns of query and key at a time.
template <int32_t LATENT_, int32_t ROWS_, int32_t BLOCKS_, int32_t RING_, int32_t STEP_,
          bool PACKED_ = false>
struct Shape {
  static constexpr int32_t LATENT = LATENT_, ROPE = 64, WIDTH = LATENT + ROPE;
  static constexpr int32_t ROWS = ROWS_, BLOCKS = BLOCKS_, RING = RING_, STEP = STEP_;
  static constexpr int32_t TILE = ROWS * BLOCKS;
  static constexpr int32_t CHUNKS = LATENT / COLUMNS;
  static constexpr bool PACKED = PACKED_;
  static_assert(LATENT % COLUMNS == 0 && ROWS % 16 == 0 && STEP % 16 == 0);
  static_assert(RING >= 2 * BLOCKS && RING <= 7, "two tiles at least; event ids 0 to RING");
};

// Flags between the cores of a block.
constexpr uint16_t SCORES_READY = 0, WEIGHTS_READY = 1, PRODUCT_READY = 2, KEYS_READY = 3;

struct Arguments {
  GM_ADDR query;
  GM_ADDR query_rope;
  GM_ADDR key;
  GM_ADDR key_rope;
  GM_ADDR indices;
  GM_ADDR requests;
  GM_ADDR block_table;
  GM_ADDR out;
  GM_ADDR softmax_max;
  GM_ADDR softmax_sum;
  GM_ADDR workspace;
};

struct Task {
  int32_t index, row, group, first_slot, end_slot;
  int32_t request, visible;  // visible: keys of the request that the row may use
};

// A core's part of the workspace.
template <class T, class S>
struct Workspace {
  GlobalTensor<float> scores, sums;  // [2][2][TILE][group / 2], [2][CHUNKS][group][COLUMNS]
  GlobalTensor<T> weights, rows;     // [2][2][TILE][group / 2], [ROW_TILES][TILE][WIDTH]

  __aicore__ inline Workspace(GM_ADDR base, int64_t block) {
    constexpr uint64_t pairs = uint64_t(2) * S::TILE * GROUP;
    GM_ADDR at = base + block * block_bytes(S::TILE, S::LATENT, S::PACKED, S::WIDTH);
    scores.SetGlobalBuffer((__gm__ float*)at);
    sums.SetGlobalBuffer((__gm__ float*)(at + pairs * 4));
    weights.SetGlobalBuffer((__gm__ T*)(at + pairs * 4 + uint64_t(2) * GROUP * S::LATENT * 4));
    rows.SetGlobalBuffer((__gm__ T*)(at + pairs * 6 + uint64_t(2) * GROUP * S::LATENT * 4));
  }
};

// Where the parts' results begin in the workspace.
template <class S>
__aicore__ inline uint64_t parts_offset(const Tiling& t) {
  return t.blocks * block_bytes(S::TILE, S::LATENT, S::PACKED, S::WIDTH);
}

// The sums of a task, [CHUNKS][group][COLUMNS]: in the result of its part, or in one of two places
// of its block.
template <class T, class S>
class Sums {
 public:
  __aicore__ inline Sums(const Arguments& a, const Tiling& t, const Workspace<T, S>& work)
      : t_(t), own_(work.sums) {
    parts_.SetGlobalBuffer((__gm__ float*)(a.workspace + parts_offset<S>(t)));
  }
  __aicore__ inline GlobalTensor<float> of(const Task& task) const {
    if (t_.parts > 1) return parts_[uint64_t(task.index) * (part_bytes(S::LATENT) / 4)];
    return own_[task.index / t_.blocks % 2 * (S::CHUNKS * t_.group * COLUMNS)];
  }

 private:
  const Tiling& t_;
  GlobalTensor<float> own_, parts_;
};

// The tasks of a block in order.
class Tasks {
 public:
  __aicore__ inline Tasks(const Tiling& t, GM_ADDR requests, int64_t block)
      : t_(t), next_(int32_t(block)) {
    requests_.SetGlobalBuffer((__gm__ int32_t*)requests);
  }

  __aicore__ inline bool next(Task& task) {
    if (next_ >= t_.tasks) return false;
    task.index = next_;
    const int32_t part = next_ % t_.parts, pair = next_ / t_.parts;
    task.group = pair % t_.groups;
    task.row = pair / t_.groups;
    task.first_slot = part * t_.part_slots;
    task.end_slot = task.first_slot + t_.part_slots;
    if (task.end_slot > t_.slots) task.end_slot = t_.slots;
    find(task);
    next_ += t_.blocks;
    return true;
  }

 private:
  __aicore__ inline int32_t word(int32_t which) const {
    return requests_.GetValue(request_ * REQUEST_WORDS + which);
  }

  // Rows ascend, and so do the first rows of the requests.
  __aicore__ inline void find(Task& task) {
    task.request = 0;
    task.visible = 0;
    while (request_ < t_.requests && word(0) + word(1) <= task.row) ++request_;
    if (request_ == t_.requests || task.row < word(0)) return;
    task.request = request_;
    task.visible = word(3);
    if (t_.causal) task.visible += task.row - word(0) + 1 - word(1);
    if (task.visible < 0) task.visible = 0;
  }

  const Tiling& t_;
  GlobalTensor<int32_t> requests_;
  int32_t next_, request_ = 0;
};

// Walks the keys that a task's slots name, leaving out what is -1 or not visible.
class Keys {
 public:
  // `reach`: rows between neighbours of one copy at most.
  __aicore__ inline Keys(const Tiling& t, const Arguments& a, int64_t reach)
      : t_(t), reach_(reach) {
    indices_.SetGlobalBuffer((__gm__ int32_t*)a.indices);
    table_.SetGlobalBuffer((__gm__ int32_t*)a.block_table);
    requests_.SetGlobalBuffer((__gm__ int32_t*)a.requests);
  }

  __aicore__ inline void begin(const Task& task) {
    row_ = uint64_t(task.row) * t_.slots;
    slot_ = task.first_slot;
    end_ = task.end_slot;
    request_ = task.request;
    visible_ = task.visible;
    inner_ = 0;
    if (visible_ == 0) slot_ = end_;
  }

  // Takes up to `most` keys and calls run(flat row, rows, rows from one to the next, place among
  // these keys) for each stretch of keys at one distance; returns how many there were.
  template <class Run>
  __aicore__ inline int32_t take(int32_t most, const Run& run) {
    int32_t taken = 0, length = 0;
    int64_t start = 0, step = 1;
    while (taken < most && slot_ < end_) {
      const int32_t index = indices_.GetValue(row_ + slot_);
      const int32_t first = index * t_.sparse_block + inner_;
      int32_t last = (index + 1) * t_.sparse_block;
      if (last > visible_) last = visible_;
      if (index < 0 || first >= last) {
        ++slot_;
        inner_ = 0;
        continue;
      }
      int32_t count = last - first, together = 0;
      if (count > most - taken) count = most - taken;
      const int64_t flat = place(first, together);
      if (count > together) count = together;
      if (length == 1 && count == 1 && flat > start && flat - start <= reach_) step = flat - start;
      if (length > 0 && flat == start + length * step && (count == 1 || step == 1)) {
        length += count;
      } else {
        if (length > 0) run(start, length, step, taken - length);
        start = flat;
        length = count;
        step = 1;
      }
      taken += count;
      inner_ += count;
    }
    if (length > 0) run(start, length, step, taken - length);
    return taken;
  }

 private:
  // Flat row of a position, and how many rows lie together from there.
  __aicore__ inline int64_t place(int32_t position, int32_t& together) const {
    if (t_.page_size == 0) {
      together = visible_ - position;
      return int64_t(requests_.GetValue(request_ * REQUEST_WORDS + 2)) + position;
    }
    const int32_t page = position / t_.page_size, inside = position - page * t_.page_size;
    together = t_.page_size - inside;
    const int32_t block = table_.GetValue(uint64_t(request_) * t_.table_stride + page);
    return int64_t(block) * t_.page_size + inside;
  }

  const Tiling& t_;
  const int64_t reach_;
  GlobalTensor<int32_t> indices_, table_, requests_;
  uint64_t row_ = 0;
  int32_t slot_ = 0, end_ = 0, inner_ = 0, request_ = 0, visible_ = 0;
};

}  // namespace sfa
