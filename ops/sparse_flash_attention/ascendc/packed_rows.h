// AIV: packed cache rows (512 int8 | 64 BF16 | 4 F32 scales) to BF16 in the workspace.
//
// Each AIV of a block unpacks half of a tile's keys, BATCH rows at a time: codes become F16, then
// F32, times the scale of their 128 columns, then BF16.
#pragma once

#include "common.h"

namespace sfa {

constexpr int32_t PACKED_BYTES = 656, PACKED_SCALES = 640, SCALED = 128;

template <class T, class S>
class PackedRows {
 public:
  static constexpr int32_t BATCH = 16;
  static constexpr uint32_t RAW_ROW = (PACKED_BYTES + 31) / 32 * 32;
  static constexpr uint32_t RAW_BYTES = BATCH * RAW_ROW, ROWS_BYTES = BATCH * S::WIDTH * 2;
  static constexpr uint32_t WIDE_BYTES = BATCH * S::LATENT * 4;
  static constexpr uint32_t SCALE_BYTES = BATCH * (32 + 256);
  static constexpr uint32_t BYTES = 2 * (RAW_BYTES + ROWS_BYTES) + SCALE_BYTES;

  // `at`: BYTES of UB of its own; `wide`: WIDE_BYTES that nobody needs during unpack().
  __aicore__ inline PackedRows(const Arguments& a, const Tiling& t, uint32_t at, uint32_t wide)
      : t_(t),
        keys_(t, a, REACH / t.key_row),
        at_(at),
        wide_(wide),
        sub_(int32_t(GetSubBlockIdx())) {
    packed_.SetGlobalBuffer((__gm__ int8_t*)a.key);
  }

  __aicore__ inline void begin() {
    for (int32_t i = 0; i < 2; ++i) {
      free_raw(i);
      free_rows(i);
    }
  }
  __aicore__ inline void end() {
    for (int32_t i = 0; i < 2; ++i) {
      take_raw(i);
      take_rows(i);
    }
  }

  // This AIV's part of the next `keys` keys of a task, into `rows` [keys][WIDTH].
  __aicore__ inline void unpack(const Task& task, bool first, int32_t keys,
                                const GlobalTensor<T>& rows) {
    if (first) keys_.begin(task);
    const int32_t half = (keys + 1) / 2, begin = sub_ * half, end = sub_ ? keys : half;
    skip(begin);
    for (int32_t at = begin; at < end; at += BATCH)
      unpack_batch(rows[uint64_t(at) * S::WIDTH], end - at < BATCH ? end - at : BATCH);
    skip(keys - end);
    CrossCoreSetFlag<2, PIPE_MTE3>(KEYS_READY);
  }

 private:
  enum Event : int32_t { RAW_IN = 4, ROWS_OUT = 2 };  // and the next one
  static constexpr int64_t REACH = 1 << 21;  // bytes between rows of one copy

  __aicore__ inline void take_raw(int32_t i) { WaitFlag<HardEvent::V_MTE2>(RAW_IN + i); }
  __aicore__ inline void free_raw(int32_t i) { SetFlag<HardEvent::V_MTE2>(RAW_IN + i); }
  __aicore__ inline void take_rows(int32_t i) { WaitFlag<HardEvent::MTE3_V>(ROWS_OUT + i); }
  __aicore__ inline void free_rows(int32_t i) { SetFlag<HardEvent::MTE3_V>(ROWS_OUT + i); }
  __aicore__ inline void skip(int32_t count) {
    keys_.take(count, [](int64_t, int32_t, int64_t, int32_t) {});
  }
  template <class U>
  __aicore__ inline LocalTensor<U> ub(uint32_t at, uint32_t bytes) const {
    return LocalTensor<U>(TPosition::VECCALC, at, bytes / sizeof(U));
  }

  __aicore__ inline void unpack_batch(const GlobalTensor<T>& to, int32_t count) {
    const int32_t turn = batches_++ % 2;
    const LocalTensor<int8_t> raw = ub<int8_t>(at_ + turn * RAW_BYTES, RAW_BYTES);
    const LocalTensor<T> rows = ub<T>(at_ + 2 * RAW_BYTES + turn * ROWS_BYTES, ROWS_BYTES);
    take_raw(turn);
    keys_.take(count, [&](int64_t flat, int32_t n, int64_t step, int32_t at) {
      const uint32_t gap = n > 1 ? uint32_t(step * t_.key_row - PACKED_BYTES) : 0;
      DataCopyPad(raw[at * RAW_ROW], packed_[uint64_t(flat) * t_.key_row],
                  DataCopyExtParams(n, PACKED_BYTES, gap, 0, 0), DataCopyPadExtParams<int8_t>());
    });
    SetFlag<HardEvent::MTE2_V>(RAW_IN + turn);
    WaitFlag<HardEvent::MTE2_V>(RAW_IN + turn);
    take_rows(turn);
    widen(raw, rows.template ReinterpretCast<half>(), count);
    round(raw, rows, count);
    free_raw(turn);
    SetFlag<HardEvent::V_MTE3>(ROWS_OUT + turn);
    WaitFlag<HardEvent::V_MTE3>(ROWS_OUT + turn);
    DataCopy(to, rows, count * S::WIDTH);
    free_rows(turn);
  }

  // Codes times scales in F32. The F16 step uses the place of the rows that leave.
  __aicore__ inline void widen(const LocalTensor<int8_t>& raw, const LocalTensor<half>& codes,
                               int32_t count) {
    constexpr uint32_t RAW_STRIDE = RAW_ROW / 32, HALF_STRIDE = S::LATENT * 2 / 32;
    const LocalTensor<float> wide = ub<float>(wide_, WIDE_BYTES);
    const uint32_t at_scales = at_ + 2 * (RAW_BYTES + ROWS_BYTES);
    const LocalTensor<float> scales = ub<float>(at_scales, BATCH * 32);
    const LocalTensor<float> spread = ub<float>(at_scales + BATCH * 32, BATCH * 256);
    for (int32_t at = 0; at < S::LATENT; at += 128)
      Cast(codes[at], raw[at], RoundMode::CAST_NONE, 128, count,
           UnaryRepeatParams(1, 1, HALF_STRIDE, RAW_STRIDE));
    Copy(scales, raw[PACKED_SCALES].template ReinterpretCast<float>(), 8, count,
         CopyRepeatParams(1, 1, 1, RAW_STRIDE));
    PipeBarrier<PIPE_V>();
    Cast(wide, codes, RoundMode::CAST_NONE, count * S::LATENT);
    Brcb(spread, scales, count, BrcbRepeatParams(1, 8));
    PipeBarrier<PIPE_V>();
    for (int32_t at = 0; at < S::LATENT; at += 64)
      Mul(wide[at], wide[at], spread[at / SCALED * 8], 64, count,
          BinaryRepeatParams(1, 1, 0, S::LATENT / 8, S::LATENT / 8, 8));
    PipeBarrier<PIPE_V>();
  }

  __aicore__ inline void round(const LocalTensor<int8_t>& raw, const LocalTensor<T>& rows,
                               int32_t count) {
    constexpr uint32_t OUT_STRIDE = S::WIDTH * 2 / 32;
    for (int32_t at = 0; at < S::LATENT; at += 64)
      Cast(rows[at], ub<float>(wide_, WIDE_BYTES)[at], RoundMode::CAST_RINT, 64, count,
           UnaryRepeatParams(1, 1, OUT_STRIDE, S::LATENT / 8));
    Copy(rows[S::LATENT], raw[S::LATENT].template ReinterpretCast<T>(), S::ROPE, count,
         CopyRepeatParams(1, 1, OUT_STRIDE, RAW_ROW / 32));
  }

  const Tiling& t_;
  Keys keys_;
  GlobalTensor<int8_t> packed_;
  const uint32_t at_, wide_;
  const int32_t sub_;
  int32_t batches_ = 0;
};

}  // namespace sfa
