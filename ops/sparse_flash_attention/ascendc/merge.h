// AIV: results of rows whose slots were split over blocks, from the results of their parts.
//
// A unit of work is COLUMNS columns of two heads of a row, few enough that the units spread evenly
// over the AIVs: maximum and total over the parts, then the sum of the parts' sums, each times
// exp(its reference - maximum). Parts add in their order, so that a row's bits do not depend on the
// order in which blocks finish.
#pragma once

#include "vector_side.h"

namespace sfa {

template <class T, class S>
class Merge {
 public:
  __aicore__ inline Merge(const Arguments& a, const Tiling& t) : t_(t) {
    out_.SetGlobalBuffer((__gm__ T*)a.out);
    maxima_.SetGlobalBuffer((__gm__ float*)a.softmax_max);
    totals_.SetGlobalBuffer((__gm__ float*)a.softmax_sum);
    parts_.SetGlobalBuffer((__gm__ float*)(a.workspace + parts_offset<S>(t)));
  }

  __aicore__ inline void run() {
    const int32_t pieces = t_.group / HEADS, per_row = S::CHUNKS * pieces;
    const int32_t units = t_.rows * t_.groups * per_row;
    free_statistics();
    free_sums(0);
    free_sums(1);
    free_result();
    for (int32_t unit = int32_t(GetBlockIdx()); unit < units; unit += 2 * t_.blocks)
      merge(unit / per_row, unit % per_row / pieces, unit % pieces * HEADS);
    take_statistics();
    take_sums(0);
    take_sums(1);
    take_result();
  }

 private:
  enum Event : int32_t { STATISTICS_IN = 0, SUMS_IN = 1 };
  static constexpr uint64_t PART = part_bytes(S::LATENT) / 4;  // elements
  static constexpr int32_t MOST = PARTS, BATCH = 8, HEADS = 2, UNIT = HEADS * COLUMNS;
  // Places in UB, in bytes.
  static constexpr uint32_t PEAKS = 0, REFERENCES = PEAKS + MOST * 32;
  static constexpr uint32_t WEIGHED = REFERENCES + MOST * 32;
  static constexpr uint32_t FACTORS = WEIGHED + MOST * 32, PEAK = FACTORS + MOST * 256;
  static constexpr uint32_t SAFE = PEAK + 32, TOTAL = SAFE + 32, SPREAD = TOTAL + 32;
  static constexpr uint32_t SUM = SPREAD + 256, OUT = SUM + UNIT * 4, IN = OUT + UNIT * 2;
  static_assert(IN + 2 * BATCH * UNIT * 4 <= 192 * 1024 - 256, "UB");
  static_assert(PART / 8 <= 65535, "gap between parts");

  __aicore__ inline LocalTensor<float> ub(uint32_t at, uint32_t elements) const {
    return LocalTensor<float>(TPosition::VECCALC, at, elements);
  }

  __aicore__ inline void take_statistics() { WaitFlag<HardEvent::V_MTE2>(STATISTICS_IN); }
  __aicore__ inline void free_statistics() { SetFlag<HardEvent::V_MTE2>(STATISTICS_IN); }
  __aicore__ inline void take_sums(int32_t i) { WaitFlag<HardEvent::V_MTE2>(SUMS_IN + i); }
  __aicore__ inline void free_sums(int32_t i) { SetFlag<HardEvent::V_MTE2>(SUMS_IN + i); }
  __aicore__ inline void take_result() { WaitFlag<HardEvent::MTE3_V>(0); }
  __aicore__ inline void free_result() { SetFlag<HardEvent::MTE3_V>(0); }

  __aicore__ inline void merge(int32_t pair, int32_t chunk, int32_t first_head) {
    const int32_t head = pair % t_.groups * t_.group + first_head, rest = t_.heads - head;
    if (rest <= 0) return;
    const GlobalTensor<float> parts = parts_[uint64_t(pair) * t_.parts * PART];
    const LocalTensor<float> sum = ub(SUM, UNIT);
    take_result();
    weigh(parts, first_head / 8);
    Duplicate(sum, 0.0f, UNIT);
    PipeBarrier<PIPE_V>();
    for (int32_t first = 0; first < t_.parts; first += BATCH)
      add(parts[first * PART + (chunk * t_.group + first_head) * COLUMNS], first, first_head % 8);
    Maxs(ub(SAFE, 8), ub(TOTAL, 8), 0.5f, 8);
    PipeBarrier<PIPE_V>();
    Brcb(ub(SPREAD, 64), ub(SAFE, 8), 1, BrcbRepeatParams(1, 8));
    PipeBarrier<PIPE_V>();
    for (int32_t at = 0; at < COLUMNS; at += LANES)
      Div(sum[at], sum[at], ub(SPREAD, 64)[first_head % 8 * 8], LANES, HEADS,
          BinaryRepeatParams(1, 1, 0, COLUMNS / 8, COLUMNS / 8, 1));
    PipeBarrier<PIPE_V>();
    const LocalTensor<T> out(TPosition::VECCALC, OUT, UNIT);
    Cast(out, sum, RoundMode::CAST_RINT, UNIT);
    SetFlag<HardEvent::V_MTE3>(0);
    WaitFlag<HardEvent::V_MTE3>(0);
    store(out, uint64_t(pair / t_.groups) * t_.heads + head, rest, chunk,
          chunk == 0 && first_head % 8 == 0);
    free_result();
  }

  // Maximum and total of eight heads, and the factor of every part, each in a block of its own.
  __aicore__ inline void weigh(const GlobalTensor<float>& parts, int32_t octet) {
    const int32_t n = t_.parts;
    const LocalTensor<float> peaks = ub(PEAKS, MOST * 8), weighed = ub(WEIGHED, MOST * 8);
    const LocalTensor<float> references = ub(REFERENCES, MOST * 8);
    const LocalTensor<float> peak = ub(PEAK, 8), safe = ub(SAFE, 8), total = ub(TOTAL, 8);
    const DataCopyParams rows(n, 1, PART / 8 - 1, 0);
    const BinaryRepeatParams fold(1, 1, 1, 0, 1, 0), each(1, 1, 1, 1, 1, 0);
    take_statistics();
    DataCopy(peaks, parts[GROUP * S::LATENT + octet * 8], rows);
    DataCopy(references, parts[GROUP * (S::LATENT + 1) + octet * 8], rows);
    DataCopy(weighed, parts[GROUP * (S::LATENT + 2) + octet * 8], rows);
    SetFlag<HardEvent::MTE2_V>(STATISTICS_IN);
    Duplicate(peak, NO_KEY, 8);
    Duplicate(total, 0.0f, 8);
    PipeBarrier<PIPE_V>();
    WaitFlag<HardEvent::MTE2_V>(STATISTICS_IN);
    Max(peak, peaks, peak, 8, n, fold);
    PipeBarrier<PIPE_V>();
    Maxs(safe, peak, LOWEST, 8);
    PipeBarrier<PIPE_V>();
    Sub(references, references, safe, 8, n, each);
    PipeBarrier<PIPE_V>();
    Exp(references, references, n * 8);
    PipeBarrier<PIPE_V>();
    Mul(weighed, weighed, references, n * 8);
    Brcb(ub(FACTORS, MOST * 64), references, n, BrcbRepeatParams(1, 8));
    PipeBarrier<PIPE_V>();
    Add(total, weighed, total, 8, n, fold);
    free_statistics();
  }

  // Adds the sums of BATCH parts from `first` on.
  __aicore__ inline void add(const GlobalTensor<float>& sums, int32_t first, int32_t lane) {
    const int32_t buffer = first / BATCH % 2, rest = t_.parts - first;
    const int32_t count = rest < BATCH ? rest : BATCH;
    const LocalTensor<float> sum = ub(SUM, UNIT), factors = ub(FACTORS, MOST * 64)[lane * 8];
    const LocalTensor<float> in = ub(IN + buffer * BATCH * UNIT * 4, BATCH * UNIT);
    take_sums(buffer);
    DataCopy(in, sums, DataCopyParams(count, UNIT / 8, (PART - UNIT) / 8, 0));
    SetFlag<HardEvent::MTE2_V>(SUMS_IN + buffer);
    WaitFlag<HardEvent::MTE2_V>(SUMS_IN + buffer);
    for (int32_t i = 0; i < count; ++i) {
      for (int32_t at = 0; at < COLUMNS; at += LANES)
        MulAddDst(sum[at], in[i * UNIT + at], factors[(first + i) * 64], LANES, HEADS,
                  BinaryRepeatParams(1, 1, 0, COLUMNS / 8, COLUMNS / 8, 1));
      PipeBarrier<PIPE_V>();
    }
    free_sums(buffer);
  }

  // With `statistics`, those of the eight heads from this one on.
  __aicore__ inline void store(const LocalTensor<T>& out, uint64_t head, int32_t rest,
                               int32_t chunk, bool statistics) {
    constexpr uint16_t BLOCK = 32 / sizeof(T);
    DataCopy(out_[head * S::LATENT + chunk * COLUMNS], out,
             DataCopyParams(rest < HEADS ? rest : HEADS, COLUMNS / BLOCK, 0,
                            (S::LATENT - COLUMNS) / BLOCK));
    if (!statistics) return;
    const DataCopyExtParams heads(1, (rest < 8 ? rest : 8) * 4, 0, 0, 0);
    DataCopyPad(maxima_[head], ub(PEAK, 8), heads);
    DataCopyPad(totals_[head], ub(TOTAL, 8), heads);
  }

  const Tiling& t_;
  GlobalTensor<T> out_;
  GlobalTensor<float> maxima_, totals_, parts_;
};

}  // namespace sfa
