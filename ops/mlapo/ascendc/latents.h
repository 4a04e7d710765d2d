// Stages of the AIVs before and after the first product, a row at a time.
#pragma once

#include "worker.h"

namespace mlapo {

// Codes of x, and their scales.
template <class W>
__aicore__ inline void load_x(W& w, int64_t token) {
  const auto input = w.buffers.open_input();
  DataCopy(input.template ReinterpretCast<typename W::T>(),
           w.template gm<typename W::T>(w.a.x, token * w.t.hidden), w.t.hidden);
  w.buffers.input_filled();
}
template <class W>
__aicore__ inline void quantise_x(W& w, int32_t group) {
  using T = typename W::T;
  const int32_t rows = w.rows(group), width = w.t.hidden;
  const int64_t first = w.first(group);
  if (w.core < rows) load_x(w, first + w.core);
  for (int32_t row = w.core; row < rows; row += w.cores) {
    if (row + w.cores < rows) load_x(w, first + row + w.cores);
    const auto input = w.buffers.take_input();
    const auto output = w.buffers.open_output();
    const LocalTensor<int8_t> codes = output.template ReinterpretCast<int8_t>();
    const LocalTensor<float> scale =
        output[W::Tiles::OUTPUT - W::Tiles::EXTRA].template ReinterpretCast<float>();
    quantised<T>(codes, scale, input.template ReinterpretCast<T>(), w.buffers.template wide<float>(0),
                 w.buffers.template wide<float>(1), w.x_point, width, w.numbers);
    w.buffers.input_read();
    w.buffers.output_written();
    DataCopy(w.template gm<int8_t>(w.a.workspace + w.t.codes_at, (first + row) * width), codes, width);
    if (!w.x_point.is_static) w.store_float(w.a.workspace + w.t.scales_at, first + row, scale);
    w.buffers.output_sent();
  }
  CrossCoreSetFlag<0, PIPE_MTE3>(X_ALL);
  CrossCoreWaitFlag(X_ALL);
  CrossCoreSetFlag<2, PIPE_MTE3>(X_READY);
}

// Sums of `count` columns from `column` on of a row of the first product, part behind part.
template <class W>
__aicore__ inline void load_sums(W& w, int32_t group, int32_t row, int32_t column, int32_t count) {
  using S = typename W::SumA;
  const auto input = w.buffers.open_input();
  const int64_t at = (int64_t(group % DOWN_SLOTS) * w.t.group + row) * w.t.split_k;
  DataCopy(input.template ReinterpretCast<S>(),
           w.template gm<S>(w.a.workspace + w.t.down_at, at * w.columns + column),
           DataCopyParams(uint16_t(w.t.split_k), uint16_t(count / 8),
                          uint16_t((w.columns - count) / 8), 0));
  const int64_t token = w.first(group) + row;
  if (W::INT8_A && !w.x_point.is_static)
    w.load_block(w.extra(input, W::ROW_SCALE),
                 w.t.quantise_x ? w.a.workspace + w.t.scales_at : w.a.x_scale, token);
  if (column > 0) w.load_angles(input, token);
  w.buffers.input_filled();
}

template <class W>
__aicore__ inline Scaling down_scaling(W& w, const LocalTensor<uint8_t>& input, int32_t column) {
  return {w.down_scale[column], w.down_bias[column], w.extra(input, W::ROW_SCALE),
          w.x_point.is_static};
}

// The normalised q latent, and its codes where the second weight is int8.
template <class W>
__aicore__ inline void query_latents(W& w, int32_t group) {
  using T = typename W::T;
  using S = typename W::SumA;
  const int32_t rows = w.rows(group), n = w.t.q_lora;
  const auto wide = w.buffers.template wide<float>(0), other = w.buffers.template wide<float>(1);
  if (w.core < rows) load_sums(w, group, w.core, 0, n);
  for (int32_t row = w.core; row < rows; row += w.cores) {
    if (row + w.cores < rows) load_sums(w, group, row + w.cores, 0, n);
    const int64_t token = w.first(group) + row;
    const auto input = w.buffers.take_input();
    const auto output = w.buffers.open_output();
    const LocalTensor<T> latent = output.template ReinterpretCast<T>();
    scaled<T, S>(latent, wide, input.template ReinterpretCast<S>(), w.t.split_k, n,
                 down_scaling(w, input, 0));
    w.buffers.input_read();
    normed<T>(latent, wide, other, w.gamma_q, w.t.eps_q, n, w.numbers);
    const LocalTensor<int8_t> codes = output[2 * n].template ReinterpretCast<int8_t>();
    const LocalTensor<float> scale =
        output[W::Tiles::OUTPUT - W::Tiles::EXTRA].template ReinterpretCast<float>();
    if (W::INT8_B)
      quantised<T>(codes, scale, latent, wide, other, w.latent_point, n, w.numbers);
    w.buffers.output_written();
    if (!W::INT8_B || w.t.keep_latent) DataCopy(w.template gm<T>(w.a.latent, token * n), latent, n);
    if (W::INT8_B) DataCopy(w.template gm<int8_t>(w.a.latent_codes, token * n), codes, n);
    if (W::INT8_B && !w.latent_point.is_static) w.store_float(w.a.latent_scale, token, scale);
    w.buffers.output_sent();
  }
}

// Rows of the caches. The AIVs take them in the opposite order: those without a row of the q latent
// first.
template <class W>
__aicore__ inline void cache_rows(W& w, int32_t group) {
  using T = typename W::T;
  using S = typename W::SumA;
  const int32_t rows = w.rows(group), n = w.t.kv_lora, dims = w.t.rope, start = w.cores - 1 - w.core;
  const auto wide = w.buffers.template wide<float>(0), other = w.buffers.template wide<float>(1);
  const GlobalTensor<int32_t> slots = w.template gm<int32_t>(w.a.slots, w.first(group));
  if (start < rows) load_sums(w, group, start, w.t.q_lora, n + dims);
  for (int32_t row = start; row < rows; row += w.cores) {
    if (row + w.cores < rows) load_sums(w, group, row + w.cores, w.t.q_lora, n + dims);
    const auto input = w.buffers.take_input();
    const auto output = w.buffers.open_output();
    const LocalTensor<T> latent = output.template ReinterpretCast<T>();
    const LocalTensor<T> key = latent[n + dims];
    scaled<T, S>(latent, wide, input.template ReinterpretCast<S>(), w.t.split_k, n + dims,
                 down_scaling(w, input, w.t.q_lora));
    rotated<T>(key, latent[n], 1, dims, dims, w.extra(input, W::COS), w.extra(input, W::SIN), wide,
               other, w.turn);
    w.buffers.input_read();
    PipeBarrier<PIPE_V>();
    normed<T>(latent, wide, other, w.gamma_kv, w.t.eps_kv, n, w.numbers);
    const LocalTensor<int8_t> codes = key[dims].template ReinterpretCast<int8_t>();
    const LocalTensor<float> scales =
        output[W::Tiles::OUTPUT - W::Tiles::EXTRA].template ReinterpretCast<float>();
    if (w.t.packed) {
      packed<PACK_TILE, T>(codes, scales, latent, wide, other, n, w.numbers);
      if constexpr (std::is_same<T, half>::value) {
        const LocalTensor<float> angles = w.turn.cos;  // free again
        Cast(angles, key, RoundMode::CAST_NONE, dims);
        PipeBarrier<PIPE_V>();
        Cast(key.template ReinterpretCast<bfloat16_t>(), angles, RoundMode::CAST_RINT, dims);
      }
    }
    w.buffers.output_written();
    if (const int32_t slot = slots.GetValue(row); slot >= 0 && w.t.packed) {
      const int64_t place = slot * w.t.kv_row;
      DataCopy(w.template gm<int8_t>(w.a.kv_cache, place), codes, n);
      DataCopy(w.template gm<T>(w.a.kv_cache + place + n), key, dims);
      DataCopyPad(w.template gm<float>(w.a.kv_cache + place + n + dims * 2), scales,
                  DataCopyExtParams(1, uint32_t(n / PACK_TILE * 4), 0, 0, 0));
    } else if (slot >= 0) {
      DataCopy(w.template gm<T>(w.a.kv_cache, slot * w.t.kv_row), latent, n);
      DataCopy(w.template gm<T>(w.a.kr_cache, slot * w.t.kr_row), key, dims);
    }
    w.buffers.output_sent();
  }
}

}  // namespace mlapo
