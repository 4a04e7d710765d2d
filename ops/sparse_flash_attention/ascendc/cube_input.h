// AIC: the query and the chosen rows on their way into L1.
//
// L1 holds the query and a ring of pieces of keys, each [WIDTH / 16][ROWS][16]; the weights of a
// piece take the place of its rotated part once its scores are out.
#pragma once

#include "common.h"

namespace sfa {

template <class T, class S>
class CubeInput {
 public:
  __aicore__ inline CubeInput(const Arguments& a, const Tiling& t)
      : t_(t),
        tasks_(t, a.requests, GetBlockIdx()),
        keys_(t, a, REACH / (t.key_row > t.key_rope_row ? t.key_row : t.key_rope_row)),
        work_(a.workspace, GetBlockIdx()),
        sums_(a, t, work_) {
    query_.SetGlobalBuffer((__gm__ T*)a.query);
    query_rope_.SetGlobalBuffer((__gm__ T*)a.query_rope);
    if constexpr (S::PACKED) query_rope_ = query_[S::LATENT];
    key_.SetGlobalBuffer((__gm__ T*)a.key);
    key_rope_.SetGlobalBuffer((__gm__ T*)a.key_rope);
  }

 protected:
  static constexpr int32_t KEPT = 5;  // tiles: the last one, this one, up to two more, a begun one
  static constexpr uint32_t QUERY_BYTES = GROUP * S::WIDTH * sizeof(T);
  static constexpr uint32_t PIECE = S::ROWS * S::WIDTH;  // elements
  static constexpr int32_t QUERY_EVENT = S::RING;
  static constexpr int64_t REACH = 65535;  // elements between rows of one copy
  static_assert(QUERY_BYTES + S::RING * PIECE * sizeof(T) <= 512 * 1024 - 256, "L1");
  static_assert(S::ROPE >= GROUP, "weights in place of the rotated part");

  struct Tile {
    Task task;
    int32_t keys = 0, blocks = 0, piece = 0;  // piece: number of its first one
    bool first = false;                       // of its task
  };

  __aicore__ inline Tile& tile_of(int32_t number) { return tiles_[number % KEPT]; }
  // Place in the ring, and number of the piece's events.
  __aicore__ inline int32_t place(const Tile& tile, int32_t block) const {
    return (tile.piece + block) % S::RING;
  }
  __aicore__ inline LocalTensor<T> piece(const Tile& tile, int32_t block) const {
    const uint32_t at = QUERY_BYTES + place(tile, block) * PIECE * uint32_t(sizeof(T));
    return LocalTensor<T>(TPosition::B1, at, PIECE);
  }
  __aicore__ inline int32_t rows_of(const Tile& tile, int32_t block) const {
    const int32_t rest = tile.keys - block * S::ROWS;
    return rest < S::ROWS ? rest : S::ROWS;
  }

  // A place of the ring is taken before it is filled and freed once it was read.
  __aicore__ inline void take_piece(int32_t place) { WaitFlag<HardEvent::MTE1_MTE2>(place); }
  __aicore__ inline void free_piece(int32_t place) { SetFlag<HardEvent::MTE1_MTE2>(place); }

  // Starts to load the next piece of keys into its place of the ring; false: there is none.
  __aicore__ inline bool gather() {
    while (true) {
      if (open_) {
        Tile& tile = tile_of(gathered_);
        const int32_t rows = S::PACKED ? load_unpacked(tile) : load_chosen(tile);
        tile.keys += rows;
        if (rows > 0) {
          ++pieces_;
          if (++tile.blocks == S::BLOCKS || rows < S::ROWS) close_tile();
          return true;
        }
        if (tile.keys > 0) close_tile();
      }
      open_ = tasks_.next(task_);
      if (!open_) return false;
      keys_.begin(task_);
      begin_tile(true);
    }
  }
  // Where rows are split, every block loads a query and a few keys. Half of the blocks begin with
  // the query, which comes from L2, so that HBM serves the keys of the others meanwhile; all of
  // them where keys have to be unpacked first.
  __aicore__ inline bool query_first() const {
    return gathered_ == 0 && t_.parts > 1 && (S::PACKED || GetBlockIdx() % 2 == 1);
  }

  __aicore__ inline void begin_tile(bool first) {
    Tile& tile = tile_of(gathered_);
    tile.task = task_;
    tile.keys = tile.blocks = 0;
    tile.piece = pieces_;
    tile.first = first;
  }
  __aicore__ inline void close_tile() {
    ++gathered_;
    begin_tile(false);
  }

  // The next keys of the task from the cache, row by row or by stretches of rows.
  __aicore__ inline int32_t load_chosen(const Tile& tile) {
    const LocalTensor<T> to = piece(tile, tile.blocks);
    const int32_t id = place(tile, tile.blocks);
    bool waited = false;
    const auto copy = [&](int64_t flat, int32_t count, int64_t step, int32_t at) {
      if (!waited) {
        if (query_first()) load_query(0);
        take_piece(id);
      }
      waited = true;
      copy_rows(to[at * 16], key_[uint64_t(flat) * t_.key_row], count, S::LATENT,
                step * t_.key_row);
      if (t_.width > S::LATENT)
        copy_rows(to[S::LATENT * S::ROWS + at * 16], key_rope_[uint64_t(flat) * t_.key_rope_row],
                  count, S::ROPE, step * t_.key_rope_row);
    };
    const int32_t rows = keys_.take(S::ROWS, copy);
    if (rows > 0) SetFlag<HardEvent::MTE2_MTE1>(id);
    return rows;
  }

  // Rows that the vector side has unpacked.
  __aicore__ inline int32_t load_unpacked(const Tile& tile) {
    const int32_t rows = keys_.take(S::ROWS, [](int64_t, int32_t, int64_t, int32_t) {});
    if (rows == 0) return 0;
    const int32_t id = place(tile, tile.blocks);
    const uint32_t from = (gathered_ % ROW_TILES * S::TILE + tile.blocks * S::ROWS) * S::WIDTH;
    if (query_first()) load_query(0);
    if (tile.blocks == 0) CrossCoreWaitFlag(KEYS_READY);
    take_piece(id);
    copy_rows(piece(tile, tile.blocks), work_.rows[from], rows, S::WIDTH, S::WIDTH);
    SetFlag<HardEvent::MTE2_MTE1>(id);
    return rows;
  }

  __aicore__ inline void copy_rows(const LocalTensor<T>& to, const GlobalTensor<T>& from,
                                   int32_t rows, int32_t columns, int64_t stride) {
    // The stride of one row has no meaning and may be beyond the field.
    if (rows == 1) stride = columns;
    DataCopy(to, from, Nd2NzParams(1, rows, columns, 0, stride, S::ROWS, 1, 0));
  }

  // Starts to load the query of a tile that is the first of its task, once.
  __aicore__ inline void load_query(int32_t number) {
    const Tile& tile = tile_of(number);
    if (!tile.first || query_tile_ == number) return;
    const bool again = query_tile_ >= 0;
    query_tile_ = number;
    if (again) {
      SetFlag<HardEvent::MTE1_MTE2>(QUERY_EVENT);
      WaitFlag<HardEvent::MTE1_MTE2>(QUERY_EVENT);
    }
    const int32_t head = tile.task.group * t_.group;
    const int32_t rest = t_.heads - head, heads = rest < t_.group ? rest : t_.group;
    const uint64_t row = tile.task.row;
    const uint64_t latent = row * t_.query_row + uint64_t(head) * t_.query_head;
    DataCopy(l1_query_, query_[latent],
             Nd2NzParams(1, heads, S::LATENT, 0, t_.query_head, t_.group, 1, 0));
    if (t_.width > S::LATENT) {
      const uint64_t rope = row * t_.rope_row + uint64_t(head) * t_.rope_head;
      DataCopy(l1_query_[S::LATENT * t_.group], query_rope_[rope],
               Nd2NzParams(1, heads, S::ROPE, 0, t_.rope_head, t_.group, 1, 0));
    }
    SetFlag<HardEvent::MTE2_MTE1>(QUERY_EVENT);
  }

  const Tiling& t_;
  Tasks tasks_;
  Keys keys_;
  Workspace<T, S> work_;
  Sums<T, S> sums_;
  GlobalTensor<T> query_, query_rope_, key_, key_rope_;
  LocalTensor<T> l1_query_{TPosition::A1, 0, QUERY_BYTES / uint32_t(sizeof(T))};
  Tile tiles_[KEPT];
  Task task_;
  bool open_ = false;
  int32_t gathered_ = 0, pieces_ = 0;  // tiles and pieces whose loading was started
  int32_t query_tile_ = -1;            // whose query is in L1, or on its way
};

}  // namespace sfa
