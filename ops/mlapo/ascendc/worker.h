// What the stages of an AIV share: arguments, buffers, constants in UB.
#pragma once

#include "arguments.h"
#include "buffers.h"
#include "rows.h"

namespace mlapo {

// Of `count` units dealt out in turn, how many a core gets.
__aicore__ inline int32_t share(int32_t count, int32_t core, int32_t cores) {
  return count > core ? (count - core - 1) / cores + 1 : 0;
}

template <class T_, class A_, class B_, class Tiles_>
struct Worker {
  using T = T_;
  using A = A_;
  using B = B_;
  using Tiles = Tiles_;
  using SumA = typename std::conditional<sizeof(A) == 1, int32_t, float>::type;
  using SumB = typename std::conditional<sizeof(B) == 1, int32_t, float>::type;
  static constexpr bool INT8_A = sizeof(A) == 1, INT8_B = sizeof(B) == 1;

  Arguments a;
  Tiling t;
  Buffers<Tiles> buffers;
  int32_t core, cores, groups, columns, width;
  // Of the first product's columns: q_lora | kv_lora.
  LocalTensor<float> down_scale, gamma_q, gamma_kv;
  LocalTensor<int32_t> down_bias;
  Numbers numbers;
  Turn turn;
  Point x_point, latent_point;

  __aicore__ inline void init(TPipe& pipe, const Arguments& arguments, const Tiling& tiling) {
    a = arguments;
    t = tiling;
    core = int32_t(GetBlockIdx());
    cores = 2 * t.cores;
    groups = groups_of(t);
    columns = t.q_lora + t.kv_lora + t.rope;
    width = t.nope + t.rope;
    const int32_t count = units();
    buffers.init(pipe, count + warmings(), count);
    place();
    load();
    compute();
  }

  __aicore__ inline int32_t first(int32_t group) const { return group * t.group; }
  __aicore__ inline int32_t rows(int32_t group) const { return tokens_of(t, group); }
  // Of one wave.
  __aicore__ inline int32_t tiles(int32_t group) const {
    return rows(group) * (t.heads / t.nope_waves / t.tile_heads);
  }

  // One AIV of WARMER reads W_UK ahead of the AICs. Byte at which a quarter of its share starts.
  static constexpr int32_t WARMER = 3, WARM_STEP = (Tiles::INPUT - Tiles::EXTRA) / 512 * 512;
  __aicore__ inline bool warms() const { return t.up_waves > 1 && core % WARMER == 0; }
  __aicore__ inline int64_t warm_from(int32_t quarter) const {
    const int64_t blocks = int64_t(t.heads) * t.kv_lora * t.nope / 16;
    return blocks * (core / WARMER * 4 + quarter) / (parts(cores, WARMER) * 4) * 32;
  }

  // n elements of GM from `from` on.
  template <class U>
  __aicore__ inline GlobalTensor<U> gm(GM_ADDR address, int64_t from = 0) const {
    GlobalTensor<U> tensor;
    tensor.SetGlobalBuffer((__gm__ U*)address);
    return tensor[from];
  }
  // A block of 32 bytes full of one float.
  __aicore__ inline void load_block(const LocalTensor<float>& to, GM_ADDR from, int64_t index) const {
    DataCopyPad(to, gm<float>(from, index), DataCopyExtParams(1, 4, 0, 0, 0),
                DataCopyPadExtParams<float>());
  }
  __aicore__ inline void store_float(GM_ADDR to, int64_t index, const LocalTensor<float>& from) const {
    DataCopyPad(gm<float>(to, index), from, DataCopyExtParams(1, 4, 0, 0, 0));
  }
  // Behind an input: scale of the row, angles.
  template <class U>
  __aicore__ inline LocalTensor<float> extra(const LocalTensor<U>& input, int32_t byte) const {
    return input[Tiles::INPUT - Tiles::EXTRA + byte].template ReinterpretCast<float>();
  }
  __aicore__ inline void load_angles(const LocalTensor<uint8_t>& input, int64_t token) const {
    const int32_t half = t.rope / 2;
    DataCopy(extra(input, COS), gm<float>(a.cos, token * half), half);
    DataCopy(extra(input, SIN), gm<float>(a.sin, token * half), half);
  }
  // Behind the sums of a tile of heads: scales of their columns, biases.
  static constexpr int32_t SCALES = Tiles::UP_SPLIT * Tiles::VALUES * 4,
                           BIASES = SCALES + Tiles::VALUES * 4;
  static constexpr int32_t ROW_SCALE = 0, COS = 128, SIN = 256;

 private:
  __aicore__ inline int32_t units() const {
    int32_t count = 0;
    for (int32_t group = 0; group < groups; group++) {
      const int32_t mine = share(rows(group), core, cores);
      count += (t.quantise_x ? 2 : 1) * mine + share(rows(group), cores - 1 - core, cores) +
               t.nope_waves * share(tiles(group), core, cores) +
               (t.int8_query ? share(rows(group) * t.heads, core, cores) : 0);
    }
    return count;
  }

  __aicore__ inline int32_t warmings() const {
    if (!warms()) return 0;
    return parts(int32_t(warm_from(1) - warm_from(0)), WARM_STEP) +
           parts(int32_t(warm_from(4) - warm_from(1)), WARM_STEP);
  }

  __aicore__ inline void place() {
    const int32_t line = Tiles::COLUMNS * 4;
    const int32_t turn_at = 3 * line + Tiles::VALUES * 4, small = turn_at + Tiles::MAX_ROPE * 16;
    down_scale = buffers.constants(0).template ReinterpretCast<float>();
    down_bias = buffers.constants(line).template ReinterpretCast<int32_t>();
    gamma_q = buffers.constants(2 * line).template ReinterpretCast<float>();
    gamma_kv = gamma_q[t.q_lora];
    turn.words = buffers.constants(3 * line).template ReinterpretCast<uint32_t>();
    turn.pair = buffers.constants(turn_at).template ReinterpretCast<uint32_t>();
    const LocalTensor<float> angles = buffers.constants(turn_at).template ReinterpretCast<float>();
    turn.sign = angles[Tiles::MAX_ROPE];
    turn.cos = angles[2 * Tiles::MAX_ROPE];
    turn.sin = angles[3 * Tiles::MAX_ROPE];
    const LocalTensor<float> rest = buffers.constants(small).template ReinterpretCast<float>();
    numbers.spread = rest;
    numbers.sum = rest[64];
    numbers.divisor = rest[72];
    numbers.ones = rest[80];
    numbers.most = rest[88];
    x_point.scale = rest[96];
    latent_point.scale = rest[104];
    numbers.scratch = rest[128];
  }

  __aicore__ inline void load() {
    const LocalTensor<T> gammas = buffers.template wide<T>(0);
    DataCopy(gammas, gm<T>(a.gamma_q), t.q_lora);
    DataCopy(gammas[t.q_lora], gm<T>(a.gamma_kv), t.kv_lora);
    if (INT8_A) DataCopy(down_scale, gm<float>(a.down_scale), columns);
    x_point.is_static = t.x_static != 0;
    latent_point.is_static = t.latent_static != 0;
    if (x_point.is_static) {
      DataCopy(down_bias, gm<int32_t>(a.down_bias), columns);
      load_block(x_point.scale, a.x_point, 0);
      x_point.offset = gm<float>(a.x_point).GetValue(1);
    }
    if (latent_point.is_static) {
      load_block(latent_point.scale, a.latent_point, 0);
      latent_point.offset = gm<float>(a.latent_point).GetValue(1);
    }
    SetFlag<HardEvent::MTE2_V>(CONSTANTS);
    WaitFlag<HardEvent::MTE2_V>(CONSTANTS);
  }

  __aicore__ inline void compute() {
    Cast(gamma_q, buffers.template wide<T>(0), RoundMode::CAST_NONE, t.q_lora + t.kv_lora);
    Duplicate(numbers.ones, 1.0f, 8);
    Duplicate(numbers.most, 127.0f, 8);
    // i, and its lowest bit p: the pair's angle is at 4 (i - p) / 2, the sign 2 p - 1.
    const int32_t n = t.rope;
    const LocalTensor<int32_t> pair = turn.pair.template ReinterpretCast<int32_t>();
    const LocalTensor<uint32_t> bit = buffers.template wide<uint32_t>(1);
    const LocalTensor<int32_t> p = buffers.template wide<int32_t>(1);
    CreateVecIndex(pair, 0, n);
    PipeBarrier<PIPE_V>();
    ShiftLeft(bit, turn.pair, uint32_t(31), n);
    PipeBarrier<PIPE_V>();
    ShiftRight(bit, bit, uint32_t(31), n);
    PipeBarrier<PIPE_V>();
    Cast(turn.sign, p, RoundMode::CAST_RINT, n);
    Sub(pair, pair, p, n);
    PipeBarrier<PIPE_V>();
    Muls(turn.sign, turn.sign, 2.0f, n);
    Muls(pair, pair, int32_t(2), n);
    PipeBarrier<PIPE_V>();
    Adds(turn.sign, turn.sign, -1.0f, n);
  }

  static constexpr int32_t CONSTANTS = 2;  // event
};

}  // namespace mlapo
