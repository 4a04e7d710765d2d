// AIC: scores = rows * queryT, products = weightsT * rows.
//
// The order of work is scores of tile i, then products of tile i - 1, so that the vector side has a
// tile's time for its softmax.
#pragma once

#include "cube_input.h"

namespace sfa {

template <class T, class S>
class CubeSide : CubeInput<T, S> {
 public:
  using CubeInput<T, S>::CubeInput;

  __aicore__ inline void run() {
    begin();
    for (int32_t tile = 0;; ++tile) {
      while (gathered_ <= tile && gather()) {
      }
      const bool more = tile < gathered_;
      if (more) {
        load_query(tile);
        make_scores(tile);
      }
      // MTE2 is in order: the weights, which are ready soon, then what L1 has room for. The pieces
      // from the last tile's first one on are in use.
      if (tile > 0) load_weights(tile - 1);
      const int32_t used = tile_of(tile > 0 ? tile - 1 : tile).piece;
      while (gathered_ < tile + 3 && pieces_ < used + S::RING && gather()) {
      }
      if (tile + 1 < gathered_) load_query(tile + 1);
      if (tile > 0) make_products(tile - 1);
      if (!more) break;
    }
    end();
  }

 private:
  using Base = CubeInput<T, S>;
  using typename Base::Tile;
  using Base::QUERY_BYTES, Base::PIECE, Base::QUERY_EVENT;
  using Base::tile_of, Base::place, Base::piece, Base::rows_of, Base::take_piece, Base::free_piece;
  using Base::gather, Base::load_query, Base::copy_rows;
  using Base::t_, Base::work_, Base::sums_, Base::l1_query_, Base::gathered_, Base::pieces_;
  static constexpr uint32_t L0_BYTES = 32768;            // of each of two buffers
  static constexpr uint32_t SCORE_BYTES = S::ROWS * GROUP * 4, PRODUCT_BYTES = GROUP * COLUMNS * 4;
  static_assert(S::ROWS * S::STEP * sizeof(T) <= L0_BYTES, "L0A: keys");
  static_assert(GROUP * S::TILE * sizeof(T) <= L0_BYTES, "L0A: weights");
  static_assert(GROUP * S::STEP * sizeof(T) <= L0_BYTES, "L0B: query");
  static_assert(S::ROWS * COLUMNS * sizeof(T) <= L0_BYTES, "L0B: values");
  static_assert(2 * SCORE_BYTES + 2 * PRODUCT_BYTES <= 128 * 1024, "L0C");

  __aicore__ inline LocalTensor<T> l0a(int32_t buffer) const {
    return LocalTensor<T>(TPosition::A2, buffer * L0_BYTES, L0_BYTES / sizeof(T));
  }
  __aicore__ inline LocalTensor<T> l0b(int32_t buffer) const {
    return LocalTensor<T>(TPosition::B2, buffer * L0_BYTES, L0_BYTES / sizeof(T));
  }
  // A buffer is taken before it is filled and freed once it was read; at first all are free. L0A
  // needs no flags: its buffer is loaded after one of L0B was taken, which the product before the
  // last one freed, and no later product has read that buffer of L0A.
  __aicore__ inline void take_l0b(int32_t i) { WaitFlag<HardEvent::M_MTE1>(i); }
  __aicore__ inline void free_l0b(int32_t i) { SetFlag<HardEvent::M_MTE1>(i); }
  __aicore__ inline void take_score(int32_t i) { WaitFlag<HardEvent::FIX_M>(i); }
  __aicore__ inline void free_score(int32_t i) { SetFlag<HardEvent::FIX_M>(i); }
  __aicore__ inline void take_product(int32_t i) { WaitFlag<HardEvent::FIX_M>(2 + i); }
  __aicore__ inline void free_product(int32_t i) { SetFlag<HardEvent::FIX_M>(2 + i); }

  // Rows of the query beyond the last head stay zero.
  __aicore__ inline void begin() {
    if (t_.heads % t_.group != 0) {
      InitConstValue(l1_query_, InitConstValueParams<T>(1, QUERY_BYTES / 32, 0, T(0.0f)));
      PipeBarrier<PIPE_MTE2>();
    }
    for (int32_t i = 0; i < S::RING; ++i) free_piece(i);
    for (int32_t i = 0; i < 2; ++i) {
      free_l0b(i);
      free_score(i);
      free_product(i);
    }
  }
  __aicore__ inline void end() {
    for (int32_t i = 0; i < S::RING; ++i) take_piece(i);
    for (int32_t i = 0; i < 2; ++i) {
      take_l0b(i);
      take_score(i);
      take_product(i);
    }
  }

  __aicore__ inline void make_scores(int32_t number) {
    const Tile& tile = tile_of(number);
    if (tile.first) WaitFlag<HardEvent::MTE2_MTE1>(QUERY_EVENT);
    for (int32_t block = 0; block < tile.blocks; ++block) {
      const int32_t rows = rows_of(tile, block), buffer = score_count_++ % 2;
      const LocalTensor<float> sum(TPosition::CO1, buffer * SCORE_BYTES, S::ROWS * GROUP);
      take_score(buffer);
      for (int32_t at = 0; at < t_.width; at += S::STEP)
        score_step(tile, block, sum, rows, at);
      SetFlag<HardEvent::M_FIX>(buffer);
      WaitFlag<HardEvent::M_FIX>(buffer);
      const int32_t half = t_.group / 2;
      FixpipeParamsV220 store(half, rows, (rows + 15) / 16 * 16, half, false);
      store.ndNum = 2;
      store.srcNdStride = half / 16 * ((rows + 15) / 16);
      store.dstNdStride = S::TILE * half;
      Fixpipe(work_.scores[(number % 2 * 2 * S::TILE + block * S::ROWS) * half], sum, store);
      free_score(buffer);
    }
    CrossCoreSetFlag<2, PIPE_FIX>(SCORES_READY);
  }

  __aicore__ inline void score_step(const Tile& tile, int32_t block, const LocalTensor<float>& sum,
                                    int32_t rows, int32_t at) {
    const int32_t rest = t_.width - at, step = rest < S::STEP ? rest : S::STEP;
    const int32_t a = a_count_++ % 2, b = b_count_++ % 2;
    take_l0b(b);
    LoadData(l0b(b), l1_query_[at * t_.group],
             LoadData2DParams(0, step / 16 * (t_.group / 16), 1, 0, 0, false, 0));
    if (at == 0) WaitFlag<HardEvent::MTE2_MTE1>(place(tile, block));
    load_tile(l0a(a), piece(tile, block), S::WIDTH, rows, 0, step, at, false);
    SetFlag<HardEvent::MTE1_M>(b);
    WaitFlag<HardEvent::MTE1_M>(b);
    // One row would make a product of a vector, which reads its operand in another layout.
    const int32_t m = rows == 1 ? 2 : rows;
    if (at > 0 && (m + 15) / 16 * (t_.group / 16) < 10) PipeBarrier<PIPE_M>();
    Mmad(sum, l0a(a), l0b(b), MmadParams(m, t_.group, step, 0, false, at == 0));
    free_l0b(b);
  }

  // Rows and columns of a piece of L1 that has ROWS rows.
  __aicore__ inline void load_tile(const LocalTensor<T>& to, const LocalTensor<T>& from,
                                   int32_t width, int32_t rows, int32_t row, int32_t columns,
                                   int32_t column, bool transpose) {
    LoadData3DParamsV2<T> tile;
    tile.l1H = 1;
    tile.l1W = S::ROWS;
    tile.channelSize = width;
    tile.mExtension = rows;
    tile.mStartPt = row;
    tile.kExtension = columns;
    tile.kStartPt = column;
    tile.enTranspose = transpose;
    LoadData(to, from, tile);
  }

  __aicore__ inline void make_products(int32_t number) {
    const Tile& tile = tile_of(number);
    const GlobalTensor<float> sums = sums_.of(tile.task);
    const int32_t b = load_values(tile, 0, 0);
    const int32_t a = a_count_++ % 2;
    for (int32_t block = 0; block < tile.blocks; ++block) {
      WaitFlag<HardEvent::MTE2_MTE1>(place(tile, block));
      load_tile(l0a(a)[block * S::ROWS * GROUP], piece(tile, block)[S::LATENT * S::ROWS],
                t_.group, rows_of(tile, block), 0, t_.group, 0, true);
    }
    // The task's first tile stores, the others add. A chunk comes after that of the tile before: its
    // place in L0C is free again only when that one, or a later one, is in GM.
    if (!tile.first) SetAtomicAdd<float>();
    for (int32_t chunk = 0; chunk < S::CHUNKS; ++chunk) product_chunk(tile, sums, a, b, chunk);
    SetAtomicNone();
    for (int32_t block = 0; block < tile.blocks; ++block)
      free_piece(place(tile, block));
    CrossCoreSetFlag<2, PIPE_FIX>(PRODUCT_READY);
  }

  __aicore__ inline void load_weights(int32_t number) {
    const Tile& tile = tile_of(number);
    const int32_t half = t_.group / 2;
    CrossCoreWaitFlag(WEIGHTS_READY);
    for (int32_t block = 0; block < tile.blocks; ++block) {
      const uint32_t from = (number % 2 * 2 * S::TILE + block * S::ROWS) * half;
      DataCopy(piece(tile, block)[S::LATENT * S::ROWS], work_.weights[from],
               Nd2NzParams(2, rows_of(tile, block), half, S::TILE * half, half, S::ROWS, 1,
                           half * S::ROWS));
      SetFlag<HardEvent::MTE2_MTE1>(place(tile, block));
    }
  }

  // COLUMNS columns of a piece's values; returns the buffer.
  __aicore__ inline int32_t load_values(const Tile& tile, int32_t block, int32_t chunk) {
    const int32_t b = b_count_++ % 2;
    take_l0b(b);
    load_tile(l0b(b), piece(tile, block), S::WIDTH, rows_of(tile, block), 0, COLUMNS,
              chunk * COLUMNS, false);
    return b;
  }

  // COLUMNS columns of the product, summed over the pieces of the tile, to `sums`; the first values
  // are in `loaded`.
  __aicore__ inline void product_chunk(const Tile& tile, const GlobalTensor<float>& sums, int32_t a,
                                       int32_t loaded, int32_t chunk) {
    const int32_t buffer = product_count_++ % 2;
    const LocalTensor<float> sum(TPosition::CO1, 2 * SCORE_BYTES + buffer * PRODUCT_BYTES,
                                 GROUP * COLUMNS);
    take_product(buffer);
    for (int32_t block = 0; block < tile.blocks; ++block) {
      const int32_t rows = rows_of(tile, block);
      const int32_t b = chunk == 0 && block == 0 ? loaded : load_values(tile, block, chunk);
      SetFlag<HardEvent::MTE1_M>(b);
      WaitFlag<HardEvent::MTE1_M>(b);
      Mmad(sum, l0a(a)[block * S::ROWS * GROUP], l0b(b),
           MmadParams(t_.group, COLUMNS, rows, 0, false, block == 0));
      free_l0b(b);
    }
    SetFlag<HardEvent::M_FIX>(2 + buffer);
    WaitFlag<HardEvent::M_FIX>(2 + buffer);
    Fixpipe(sums[chunk * t_.group * COLUMNS], sum,
            FixpipeParamsV220(COLUMNS, t_.group, t_.group, COLUMNS, false));
    free_product(buffer);
  }

  int32_t a_count_ = 0, b_count_ = 0, score_count_ = 0, product_count_ = 0;
};

}  // namespace sfa
