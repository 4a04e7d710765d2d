// Stages of the AIVs behind the second product, in tiles of some heads of a token, and behind the
// third, in rows.
#pragma once

#include "worker.h"

namespace mlapo {

// Reads quarters `first` to `last` of this core's share of W_UK into nothing: AICs find it in L2 then.
template <class W>
__aicore__ inline void warm(W& w, int32_t first, int32_t last) {
  if (!w.warms()) return;
  const GlobalTensor<uint8_t> weight = w.template gm<uint8_t>(w.a.absorb);
  const int64_t end = w.warm_from(last);
  for (int64_t at = w.warm_from(first); at < end; at += W::WARM_STEP) {
    const auto input = w.buffers.open_input();
    DataCopy(input, weight[at], uint32_t(end - at < W::WARM_STEP ? end - at : W::WARM_STEP));
    w.buffers.input_filled();
    w.buffers.take_input();
    w.buffers.input_read();
  }
}

// A tile of some heads: token of the group, and first head.
struct Tile {
  int32_t row, head;
};
template <class W>
__aicore__ inline Tile tile_of(const W& w, int32_t wave, int32_t tile) {
  const int32_t heads = w.t.heads / w.t.nope_waves, across = heads / w.t.tile_heads;
  return {tile / across, wave * heads + tile % across * w.t.tile_heads};
}

// Columns stay in both buffers where all tiles of a core have the same heads.
template <class W>
__aicore__ inline void load_heads(W& w, int32_t group, const Tile& tile, bool columns_are_there) {
  using S = typename W::SumB;
  const int32_t row = tile.row, n = w.t.tile_heads * w.width, column = tile.head * w.width;
  const int64_t at = (int64_t(group % UP_SLOTS) * w.t.group + row) * w.t.up_split;
  const int32_t columns = w.t.heads * w.width;
  const int64_t token = w.first(group) + row;
  const auto input = w.buffers.open_input();
  DataCopy(input.template ReinterpretCast<S>(),
           w.template gm<S>(w.a.workspace + w.t.up_at, at * columns + column),
           DataCopyParams(uint16_t(w.t.up_split), uint16_t(n / 8), uint16_t((columns - n) / 8), 0));
  if (W::INT8_B && !columns_are_there) {
    DataCopy(input[W::SCALES].template ReinterpretCast<float>(),
             w.template gm<float>(w.a.up_scale, column), n);
    if (w.latent_point.is_static)
      DataCopy(input[W::BIASES].template ReinterpretCast<int32_t>(),
               w.template gm<int32_t>(w.a.up_bias, column), n);
  }
  if (W::INT8_B && !w.latent_point.is_static)
    w.load_block(w.extra(input, W::ROW_SCALE), w.a.latent_scale, token);
  w.load_angles(input, token);
  w.buffers.input_filled();
}

// Unrotated parts for W_UK, by head; rotated parts to the result.
template <class W>
__aicore__ inline void queries(W& w, int32_t group, int32_t wave) {
  using T = typename W::T;
  using S = typename W::SumB;
  const int32_t tiles = w.tiles(group), heads = w.t.tile_heads, nope = w.t.nope, dims = w.t.rope;
  const int32_t n = heads * w.width;
  const bool same = w.cores % (w.t.heads / w.t.nope_waves / heads) == 0;
  const auto wide = w.buffers.template wide<float>(0), other = w.buffers.template wide<float>(1);
  if (w.core < tiles) load_heads(w, group, tile_of(w, wave, w.core), false);
  for (int32_t tile = w.core; tile < tiles; tile += w.cores) {
    if (const int32_t next = tile + w.cores; next < tiles)
      load_heads(w, group, tile_of(w, wave, next), same && next >= w.core + 2 * w.cores);
    const auto [row, head] = tile_of(w, wave, tile);
    const auto input = w.buffers.take_input();
    const auto output = w.buffers.open_output();
    const LocalTensor<T> values = output.template ReinterpretCast<T>();
    const LocalTensor<T> turned = values[n];
    const Scaling scaling = {input[W::SCALES].template ReinterpretCast<float>(),
                             input[W::BIASES].template ReinterpretCast<int32_t>(),
                             w.extra(input, W::ROW_SCALE), w.latent_point.is_static};
    scaled<T, S>(values, wide, input.template ReinterpretCast<S>(), w.t.up_split, n,
                 scaling);
    rotated<T>(turned, values[nope], heads, dims, w.width, w.extra(input, W::COS),
               w.extra(input, W::SIN), wide, other, w.turn);
    w.buffers.input_read();
    w.buffers.output_written();
    const int64_t slot = int64_t(group % NOPE_SLOTS) * w.t.heads + head;
    DataCopyPad(w.template gm<T>(w.a.workspace + w.t.nope_at, (slot * w.t.group + row) * nope), values,
                DataCopyExtParams(uint16_t(heads), uint32_t(nope * 2), uint32_t(dims / 16),
                                  uint32_t((w.t.group - 1) * nope * 2), 0));
    DataCopy(w.template gm<T>(w.a.query_rope,
                              (int64_t(w.first(group) + row) * w.t.heads + head) * dims),
             turned, heads * dims);
    w.buffers.output_sent();
    PipeBarrier<PIPE_V>();
  }
}

// Codes of the absorbed queries, a head of a token at a time.
template <class W>
__aicore__ inline void load_query(W& w, int32_t group, int32_t row) {
  using T = typename W::T;
  const auto input = w.buffers.open_input();
  const int64_t place = int64_t(group % QUERY_SLOTS) * w.t.group * w.t.heads + row;
  DataCopy(input.template ReinterpretCast<T>(),
           w.template gm<T>(w.a.workspace + w.t.query_at, place * w.t.kv_lora), w.t.kv_lora);
  w.buffers.input_filled();
}
template <class W>
__aicore__ inline void quantise_queries(W& w, int32_t group) {
  using T = typename W::T;
  const int32_t rows = w.rows(group) * w.t.heads, n = w.t.kv_lora;
  const int64_t first = int64_t(w.first(group)) * w.t.heads;
  const Point dynamic = {w.numbers.ones, 0.0f, false};
  if (w.core < rows) load_query(w, group, w.core);
  for (int32_t row = w.core; row < rows; row += w.cores) {
    if (row + w.cores < rows) load_query(w, group, row + w.cores);
    const auto input = w.buffers.take_input();
    const auto output = w.buffers.open_output();
    const LocalTensor<int8_t> codes = output.template ReinterpretCast<int8_t>();
    const LocalTensor<float> scale =
        output[W::Tiles::OUTPUT - W::Tiles::EXTRA].template ReinterpretCast<float>();
    quantised<T>(codes, scale, input.template ReinterpretCast<T>(), w.buffers.template wide<float>(0),
                 w.buffers.template wide<float>(1), dynamic, n, w.numbers);
    w.buffers.input_read();
    w.buffers.output_written();
    DataCopy(w.template gm<int8_t>(w.a.query, (first + row) * n), codes, n);
    w.store_float(w.a.query_scale, first + row, scale);
    w.buffers.output_sent();
  }
}

}  // namespace mlapo
