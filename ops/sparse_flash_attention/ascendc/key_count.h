// AIV: how many keys the slots of a task name.
#pragma once

#include "common.h"

namespace sfa {

class KeyCount {
 public:
  static constexpr uint32_t COUNTED = 512, BYTES = 2 * COUNTED * 4 + 32;

  // `at`: BYTES of UB.
  __aicore__ inline KeyCount(const Arguments& a, const Tiling& t, uint32_t at) : t_(t), at_(at) {
    indices_.SetGlobalBuffer((__gm__ int32_t*)a.indices);
  }

  // The sum over slots of clamp(visible - index * n, 0, n) for blocks of n keys; 0 for -1.
  __aicore__ inline int32_t count(const Task& task) {
    int32_t total = 0;
    for (int32_t slot = task.first_slot; slot < task.end_slot; slot += COUNTED) {
      const int32_t rest = task.end_slot - slot;
      total += count_slots(task, slot, rest < int32_t(COUNTED) ? rest : int32_t(COUNTED));
    }
    return total;
  }

 private:
  static constexpr int32_t INDICES_IN = 3;  // MTE2_V

  __aicore__ inline int32_t count_slots(const Task& task, int32_t slot, int32_t count) {
    const int32_t n = t_.sparse_block;
    const LocalTensor<int32_t> index(TPosition::VECCALC, at_, COUNTED);
    const LocalTensor<int32_t> valid(TPosition::VECCALC, at_ + COUNTED * 4, COUNTED);
    const LocalTensor<float> sum(TPosition::VECCALC, at_ + 2 * COUNTED * 4, 8);
    const LocalTensor<float> number = index.template ReinterpretCast<float>();
    DataCopyPad(index, indices_[uint64_t(task.row) * t_.slots + slot],
                DataCopyExtParams(1, count * 4, 0, 0, 0), DataCopyPadExtParams<int32_t>());
    SetFlag<HardEvent::MTE2_V>(INDICES_IN);
    WaitFlag<HardEvent::MTE2_V>(INDICES_IN);
    Adds(valid, index, 1, count);
    Muls(index, index, -n, count);
    PipeBarrier<PIPE_V>();
    Mins(valid, valid, 1, count);
    Adds(index, index, task.visible, count);
    PipeBarrier<PIPE_V>();
    Maxs(index, index, 0, count);
    PipeBarrier<PIPE_V>();
    Mins(index, index, n, count);
    PipeBarrier<PIPE_V>();
    Mul(index, index, valid, count);
    PipeBarrier<PIPE_V>();
    Cast(number, index, RoundMode::CAST_NONE, count);
    PipeBarrier<PIPE_V>();
    ReduceSum(sum, number, valid.template ReinterpretCast<float>(), count);
    SetFlag<HardEvent::V_S>(0);
    WaitFlag<HardEvent::V_S>(0);
    const int32_t total = int32_t(sum.GetValue(0));
    SetFlag<HardEvent::S_V>(0);
    WaitFlag<HardEvent::S_V>(0);
    return total;
  }

  const Tiling& t_;
  const uint32_t at_;
  GlobalTensor<int32_t> indices_;
};

}  // namespace sfa
