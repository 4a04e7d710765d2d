// Panels: operands in the order in which the kernels read them.
#pragma once

#include <type_traits>

#include "kernel.h"
#include "source.h"

namespace g5 {

// Rounded up to a multiple of `step`.
constexpr int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Units of one head as they are, or widened to F32, `step` units apart.
template <class E, class T>
G5_INLINE void spread(const T* from, int64_t units, int64_t step, Unit* to) {
  for (int64_t u = 0; u < units; u++) {
    if constexpr (std::is_same_v<T, typename E::Number>) {
      std::memcpy(to + u * step, from + u * E::PER_UNIT, sizeof(Unit));
    } else {
      to[u * step] = bit_cast<Unit>(to_f32(from[u]));
    }
  }
}

// panel[unit][lane] of `lanes` heads from `head` on; lanes without a head are zero.
template <class E, class T>
void pack_query(const Call& call, int64_t row, int64_t head, int64_t lanes, Unit* panel) {
  for (int64_t p = 0; p < call.parts; p++) {
    const Rows& rows = call.query[p];
    const int64_t units = rows.width / E::PER_UNIT;
    if (head + lanes > call.heads) std::memset(panel, 0, size_t(units * lanes) * sizeof(Unit));
    for (int64_t lane = 0; lane < lanes && head + lane < call.heads; lane++) {
      const char* from = rows.data + row * rows.row + (head + lane) * rows.head;
      spread<E>(reinterpret_cast<const T*>(from), units, lanes, panel + lane);
    }
    panel += units * lanes;
  }
}

// N registers of value columns of the keys of one unit; `b` is the second key of a pair.
template <class E, int N>
G5_INLINE void pack_columns(const char* a, const char* b, Unit* to) {
  using Number = typename E::Number;
#pragma GCC unroll 3
  for (int i = 0; i < N; i++) {
    const auto* x = reinterpret_cast<const Number*>(a) + i * W;
    const auto* y = reinterpret_cast<const Number*>(b) + i * W;
    store_units(to + i * W, E::join(x, y));
  }
}

// The last columns, N registers that are not full: zeros follow.
template <class E, int N>
void pack_rest(const char* a, const char* b, size_t bytes, Unit* to) {
  typename E::Number x[N * W] = {}, y[N * W] = {};
  std::memcpy(x, a, bytes);
  std::memcpy(y, b, bytes);
  pack_columns<E, N>(reinterpret_cast<const char*>(x), reinterpret_cast<const char*>(y), to);
}

// Columns of the values in blocks of COLUMNS registers, the last one narrower:
// panel[block][unit][register][lane]. `zeros` stands for the key that the last pair may lack.
template <class E>
void pack_values(const Key* keys, int64_t count, int64_t width, const char* zeros, Unit* panel) {
  const int64_t size = sizeof(typename E::Number), step = COLUMNS * W;
  const int64_t units = (count + E::PER_UNIT - 1) / E::PER_UNIT, whole = width / step;
  for (int64_t u = 0; u < units; u++) {
    const int64_t k = u * E::PER_UNIT;
    const char* a = keys[k].value;
    const char* b = k + E::PER_UNIT - 1 < count ? keys[k + E::PER_UNIT - 1].value : zeros;
    Unit* to = panel + u * step;
    for (int64_t i = 0; i < whole; i++, to += units * step) {
      pack_columns<E, COLUMNS>(a + i * step * size, b + i * step * size, to);
    }
    const int64_t done = whole * step, rest = width - done;
    if (rest == 0) continue;
    const char *x = a + done * size, *y = b + done * size;
    to = panel + whole * units * step;
    if (rest == W) pack_columns<E, 1>(x, y, to + u * W);
    else if (rest == 2 * W) pack_columns<E, 2>(x, y, to + u * 2 * W);
    else if (rest < W) pack_rest<E, 1>(x, y, size_t(rest * size), to + u * W);
    else if (rest < 2 * W) pack_rest<E, 2>(x, y, size_t(rest * size), to + u * 2 * W);
    else pack_rest<E, 3>(x, y, size_t(rest * size), to + u * 3 * W);
  }
}

}  // namespace g5
