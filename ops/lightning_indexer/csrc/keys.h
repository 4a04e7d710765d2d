// Where the keys of a request lie, and how they get to the tiles.
#pragma once

#include <algorithm>
#include <type_traits>

#include "g5_vec.h"

namespace g5 {

// Keys of one request: rows `stride` elements apart, `first` + position, or found in a block table.
struct KeyRows {
  const char* base;
  int64_t stride, dim, first;
  const int32_t* table;
  int64_t block_size;
};

// Follows positions that grow: the row of each, and how many keys from it on are neighbours. It
// divides once per block only.
class Walk {
 public:
  explicit Walk(const KeyRows& rows) : rows_(rows), end_(rows.table == nullptr ? INT64_MAX : 0) {}

  int64_t row(int64_t position) {
    if (position >= end_ || position < begin_) find(position);
    return (rows_.table == nullptr ? rows_.first : base_ - begin_) + position;
  }
  int64_t left(int64_t position) const { return end_ - position; }

 private:
  void find(int64_t position) {
    if (rows_.table == nullptr) return;
    const int64_t block = position / rows_.block_size;
    begin_ = block * rows_.block_size;
    end_ = begin_ + rows_.block_size;
    base_ = rows_.table[block] * rows_.block_size;
  }
  const KeyRows& rows_;
  int64_t begin_ = 0, end_, base_ = 0;
};

// Numbers of a key or query head as the lanes want them.
template <class To, class From>
G5_INLINE void convert(const From* from, To* to, int64_t n) {
  if constexpr (std::is_same_v<To, From> && sizeof(To) < 4) {
    std::memcpy(to, from, size_t(n) * sizeof(To));
  } else if constexpr (sizeof(From) == 1) {
    for (int64_t i = 0; i < n; i++) to[i] = To(from[i]);
  } else {
    int64_t i = 0;
    for (; i + W <= n; i += W) store(to + i, load(from + i));
    for (; i < n; i++) to[i] = to_f32(from[i]);
  }
}

// A whole number of 16-byte pieces, which the AVX-512 loop takes at a time.
template <class Key>
constexpr int64_t padded(int64_t dim) {
  constexpr int64_t step = 16 / sizeof(Key);
  return (dim + step - 1) / step * step;
}

// A tile of keys, in place or copied.
template <class Key>
struct TileKeys {
  const Key* data;
  int64_t stride;
};

// `keys` keys from `position` on, of which the last ones may be missing (then zeros). They are
// copied to `copy` [keys][padded(dim)] where the tile cannot read them in place.
template <class Key, class Stored>
TileKeys<Key> fetch(const KeyRows& rows, Walk& walk, int64_t position, int64_t present,
                    int64_t keys, Key* copy) {
  const Stored* stored = reinterpret_cast<const Stored*>(rows.base);
  const int64_t width = padded<Key>(rows.dim);
  if constexpr (std::is_same_v<Key, Stored>) {
    const int64_t row = walk.row(position);
    if (present == keys && width == rows.dim && walk.left(position) >= keys)
      return {stored + row * rows.stride, rows.stride};
  }
  for (int64_t j = 0; j < keys; j++) {
    Key* to = copy + j * width;
    const int64_t filled = j < present ? rows.dim : 0;
    if (filled < width) std::memset(to + filled, 0, size_t(width - filled) * sizeof(Key));
    if (filled > 0) convert(stored + walk.row(position + j) * rows.stride, to, rows.dim);
  }
  return {copy, width};
}

}  // namespace g5
