// Where the keys of a request lie, and how they get to the tiles.
#pragma once

#include <algorithm>

#include "g5_vec.h"

namespace g5 {

// Keys of one request: rows `stride` elements apart, `first` + position, or found in a block table.
struct KeyRows {
  const char* base;
  int64_t stride, dim, first;
  const int32_t* table;
  int64_t block_size;

  int64_t row(int64_t position) const {
    if (table == nullptr) return first + position;
    return int64_t(table[position / block_size]) * block_size + position % block_size;
  }

  // How many keys from `position` on are neighbours at least.
  int64_t run(int64_t position) const {
    return table == nullptr ? INT64_MAX : block_size - position % block_size;
  }

  // Whether n <= block_size keys from `position` on are neighbours in memory.
  bool together(int64_t position, int64_t n) const {
    if (table == nullptr) return true;
    const int64_t block = position / block_size, last = (position + n - 1) / block_size;
    return block == last || table[last] == table[block] + 1;
  }
};

// Numbers of a key or query head as the lanes want them.
template <class To, class From>
G5_INLINE void convert(const From* from, To* to, int64_t n) {
  if constexpr (sizeof(To) == sizeof(From) && sizeof(To) < 4) {
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
TileKeys<Key> fetch(const KeyRows& rows, int64_t position, int64_t present, int64_t keys,
                    Key* copy) {
  const Stored* stored = reinterpret_cast<const Stored*>(rows.base);
  const int64_t width = padded<Key>(rows.dim);
  if constexpr (sizeof(Key) == sizeof(Stored)) {
    const bool whole = present == keys && width == rows.dim;
    if (whole && rows.together(position, keys))
      return {reinterpret_cast<const Key*>(stored + rows.row(position) * rows.stride), rows.stride};
  }
  for (int64_t j = 0; j < keys; j++) {
    Key* to = copy + j * width;
    const int64_t filled = j < present ? rows.dim : 0;
    std::memset(to + filled, 0, size_t(width - filled) * sizeof(Key));
    if (j >= present) continue;
    const Stored* from = stored + rows.row(position + j) * rows.stride;
    const char* later = reinterpret_cast<const char*>(from + keys * rows.stride);
    for (int64_t i = 0; i < rows.dim * int64_t(sizeof(Stored)); i += 64)
      __builtin_prefetch(later + i);
    convert(from, to, rows.dim);
  }
  return {copy, width};
}

}  // namespace g5
