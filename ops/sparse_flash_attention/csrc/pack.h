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

// fn(integral_constant) with n, which is 1 to N.
template <int N, class Fn>
G5_INLINE void with_constant(int64_t n, const Fn& fn) {
  if constexpr (N > 1) {
    if (n < N) return with_constant<N - 1>(n, fn);
  }
  fn(std::integral_constant<int, N>{});
}

// N registers of value columns of the keys of one unit; `b` is the second key of a pair. Of the
// last register only `bytes` exist, zeros follow.
template <class E, int N>
G5_INLINE void pack_columns(const char* a, const char* b, size_t bytes, Unit* to) {
  using Number = typename E::Number;
  constexpr size_t FULL = W * sizeof(Number);
#pragma GCC unroll 4
  for (int i = 0; i < N; i++, a += FULL, b += FULL) {
    Number x[W] = {}, y[W] = {};
    std::memcpy(x, a, i == N - 1 ? bytes : FULL);
    std::memcpy(y, b, i == N - 1 ? bytes : FULL);
    store_units(to + i * W, E::join(x, y));
  }
}

// Columns of the values in blocks of COLUMNS registers, the last one narrower:
// panel[block][unit][register][lane]. `zeros` stands for the key that the last pair may lack.
template <class E>
void pack_values(const Key* keys, int64_t count, int64_t width, const char* zeros, Unit* panel) {
  constexpr int64_t SIZE = sizeof(typename E::Number), STEP = COLUMNS * W, PAIR = E::PER_UNIT - 1;
  const int64_t units = (count + PAIR) / E::PER_UNIT, whole = width / STEP, rest = width % STEP;
  for (int64_t u = 0; u < units; u++) {
    const int64_t k = u * E::PER_UNIT;
    const char* a = keys[k].value;
    const char* b = k + PAIR < count ? keys[k + PAIR].value : zeros;
    Unit* to = panel + u * STEP;
    for (int64_t i = 0; i < whole; i++, to += units * STEP) {
      pack_columns<E, COLUMNS>(a + i * STEP * SIZE, b + i * STEP * SIZE, W * SIZE, to);
    }
    if (rest == 0) continue;
    with_constant<COLUMNS>(up(rest, W) / W, [&](auto n) {
      pack_columns<E, n>(a + whole * STEP * SIZE, b + whole * STEP * SIZE,
                         size_t((rest - (n - 1) * W) * SIZE),
                         panel + (whole * units * COLUMNS + u * n) * W);
    });
  }
}

}  // namespace g5
