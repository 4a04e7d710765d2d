// AIV: places in UB, and what leaves for the results or for the results of parts.
#pragma once

#include "key_count.h"
#include "packed_rows.h"

namespace sfa {

constexpr int32_t LANES = 64;
constexpr float LOWEST = -3.4028234663852886e38f;
constexpr float NO_KEY = -__builtin_inff();

// Places in UB, in bytes.
template <class S>
struct Places {
  static constexpr uint32_t HALF = GROUP / 2;
  static constexpr uint32_t SUMS = 0, SUMS_BYTES = HALF * COLUMNS * 4;  // of two chunks
  static constexpr uint32_t SCORES = SUMS + 2 * SUMS_BYTES, SCORES_BYTES = S::TILE * HALF * 4;
  static constexpr uint32_t WEIGHTS = SCORES + SCORES_BYTES, WEIGHTS_BYTES = S::TILE * HALF * 2;
  static constexpr uint32_t OUT = WEIGHTS + WEIGHTS_BYTES, OUT_BYTES = HALF * S::LATENT * 2;
  static constexpr uint32_t INDICES = OUT + OUT_BYTES;
  static constexpr uint32_t SMALL = INDICES + KeyCount::BYTES;
  // Vectors of 64 lanes: maxima, references and totals of two tasks, the others.
  static constexpr uint32_t VECTOR = LANES * 4;
  static constexpr uint32_t MAXIMA = SMALL, REFERENCES = MAXIMA + 2 * VECTOR;
  static constexpr uint32_t TOTALS = REFERENCES + 2 * VECTOR, SAFE = TOTALS + 2 * VECTOR;
  static constexpr uint32_t FACTOR = SAFE + VECTOR, ADDED = FACTOR + VECTOR;
  static constexpr uint32_t STATISTICS = ADDED + VECTOR;  // what leaves: up to three vectors
  static constexpr uint32_t SPREAD = STATISTICS + 3 * VECTOR, SPREAD_BYTES = HALF * 32;
  static constexpr uint32_t ROWS = SPREAD + SPREAD_BYTES;  // of factors or totals
  static constexpr uint32_t END = ROWS + (S::PACKED ? PackedRows<bfloat16_t, S>::BYTES : 0);
  static_assert(END <= 192 * 1024 - 256, "UB");
  static_assert(!S::PACKED || OUT_BYTES >= PackedRows<bfloat16_t, S>::WIDE_BYTES, "UB of results");
};

template <class T, class S>
class VectorOutput {
 public:
  __aicore__ inline VectorOutput(const Arguments& a, const Tiling& t)
      : t_(t), half_(t.group / 2), sub_(int32_t(GetSubBlockIdx())) {
    out_.SetGlobalBuffer((__gm__ T*)a.out);
    maxima_.SetGlobalBuffer((__gm__ float*)a.softmax_max);
    totals_.SetGlobalBuffer((__gm__ float*)a.softmax_sum);
    parts_.SetGlobalBuffer((__gm__ float*)(a.workspace + parts_offset<S>(t)));
  }

 protected:
  using P = Places<S>;
  enum OutEvent : int32_t { WEIGHTS_OUT = 0, RESULT_OUT = 1 };  // V_MTE3 and MTE3_V

  template <class U = float>
  __aicore__ inline LocalTensor<U> ub(uint32_t at, uint32_t elements) const {
    return LocalTensor<U>(TPosition::VECCALC, at, elements);
  }
  __aicore__ inline LocalTensor<float> vector(uint32_t at, int32_t number = 0) const {
    return ub(at + number * P::VECTOR, LANES);
  }
  __aicore__ inline LocalTensor<float> spread() const {
    return ub(P::SPREAD, P::SPREAD_BYTES / 4);
  }

  __aicore__ inline void store_rows(const Task& task) {
    const LocalTensor<T> rows = ub<T>(P::OUT, half_ * S::LATENT);
    const LocalTensor<float> statistics = ub(P::STATISTICS, 2 * LANES);
    const int32_t head = task.group * t_.group + sub_ * half_, rest = t_.heads - head;
    const int32_t heads = rest < half_ ? rest : half_;
    const uint64_t at = uint64_t(task.row) * t_.heads + head;
    SetFlag<HardEvent::V_MTE3>(RESULT_OUT);
    WaitFlag<HardEvent::V_MTE3>(RESULT_OUT);
    if (heads > 0) {
      constexpr uint16_t UNIT = 32 / sizeof(T);
      for (int32_t chunk = 0; chunk < S::CHUNKS; ++chunk)
        DataCopy(out_[at * S::LATENT + chunk * COLUMNS], rows[chunk * half_ * COLUMNS],
                 DataCopyParams(heads, COLUMNS / UNIT, 0, (S::LATENT - COLUMNS) / UNIT));
      DataCopyPad(maxima_[at], statistics, DataCopyExtParams(1, heads * 4, 0, 0, 0));
      DataCopyPad(totals_[at], statistics[LANES], DataCopyExtParams(1, heads * 4, 0, 0, 0));
    }
    // Once per task; others may then use the place of results.
    SetFlag<HardEvent::MTE3_V>(RESULT_OUT);
    WaitFlag<HardEvent::MTE3_V>(RESULT_OUT);
  }

  // Statistics of a part; its sums are in their place, or zero if there was no key.
  __aicore__ inline void store_part(const Task& task, const GlobalTensor<float>& sums, bool empty) {
    const LocalTensor<float> statistics = ub(P::STATISTICS, 3 * LANES);
    const GlobalTensor<float> to =
        parts_[uint64_t(task.index) * (part_bytes(S::LATENT) / 4) + GROUP * S::LATENT +
               sub_ * half_];
    if (empty) Duplicate(ub(P::OUT, P::OUT_BYTES / 4), 0.0f, half_ * COLUMNS);
    SetFlag<HardEvent::V_MTE3>(RESULT_OUT);
    WaitFlag<HardEvent::V_MTE3>(RESULT_OUT);
    for (int32_t i = 0; i < 3; ++i) DataCopy(to[i * GROUP], statistics[i * LANES], half_);
    for (int32_t chunk = 0; empty && chunk < S::CHUNKS; ++chunk)
      DataCopy(sums[(chunk * t_.group + sub_ * half_) * COLUMNS], ub(P::OUT, half_ * COLUMNS),
               half_ * COLUMNS);
    SetFlag<HardEvent::MTE3_V>(RESULT_OUT);
    WaitFlag<HardEvent::MTE3_V>(RESULT_OUT);
  }

  const Tiling& t_;
  const int32_t half_, sub_;
  GlobalTensor<T> out_;
  GlobalTensor<float> maxima_, totals_, parts_;
};

}  // namespace sfa
