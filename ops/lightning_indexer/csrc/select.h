// Exact choice of the k largest of n scores, without sorting them.
//
// A threshold taken from a sample leaves a few thousand candidates after one pass over the scores;
// vectorised quickselect finds the k-th largest among them. Equal scores are taken lowest position
// first. No score may be NaN.
#pragma once

#include <algorithm>
#include <functional>

#include "compress.h"

namespace g5 {

// Value of x[0 .. n), n >= 16, with about `above` of n values above it: from 16 samples each is
// ranked by comparing it with all of them, which takes fewer cycles than sorting.
inline float pivot_of(const float* x, int64_t n, int64_t above, uint32_t& seed) {
  alignas(64) float sample[16];
  for (float& s : sample) {
    seed = seed * 1664525u + 1013904223u;
    s = x[int64_t((uint64_t(seed) * uint64_t(n)) >> 32)];
  }
  const int64_t wanted = std::min<int64_t>(15, 16 * above / n);
  float best = sample[0];
  int64_t nearest = -1;
  for (float s : sample) {
    const int64_t rank = count<ABOVE>(sample, 16, s);
    if (rank <= wanted && rank > nearest) nearest = rank, best = s;
  }
  return best;
}

// Keeps the values of x[0 .. n) that pass the test against y, in place; returns how many.
template <Test T>
int64_t keep(float* x, int64_t n, float y) {
  const F limit = splat(y);
  int64_t kept = 0;
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const F v = load(x + i);
    kept += pack(x + kept, v, mask<T>(v, limit));
  }
  for (; i < n; i++) {
    const float v = x[i];
    x[kept] = v;
    kept += T == ABOVE ? v > y : v < y;
  }
  return kept;
}

// The k-th largest of x[0 .. n), 1 <= k <= n; x is overwritten.
inline float kth_largest(float* x, int64_t n, int64_t k) {
  uint32_t seed = 1;
  // The limit holds only for values that were made to mislead the pivots.
  for (int round = 0; n > 64 && round < 64; round++) {
    const float pivot = pivot_of(x, n, k - 1, seed);
    const int64_t above = count<ABOVE>(x, n, pivot);
    if (above >= k) {
      n = keep<ABOVE>(x, n, pivot);
      continue;
    }
    const int64_t reached = above + count<EQUAL>(x, n, pivot);
    if (reached >= k) return pivot;
    n = keep<BELOW>(x, n, pivot);
    k -= reached;
  }
  std::nth_element(x, x + k - 1, x + n, std::greater<float>());
  return x[k - 1];
}

// Scratch of one selection: `values` and `work` hold n + W floats, `where` and `chosen` integers.
struct Selection {
  float *values, *work;
  int32_t *where, *chosen;
};

// Positions of values above `limit`, and of the first `room` equal to it, into chosen, ascending,
// until there are k of them. The position of values[i] is where[i], or i without `where`.
inline void emit(const float* values, const int32_t* where, int64_t n, float limit, int64_t room,
                 int64_t k, int32_t* chosen) {
  I step{};
  for (int i = 0; i < W; i++) step[i] = i;
  const F bound = splat(limit);
  int64_t done = 0;
  for (int64_t i = 0; i < n && done < k; i += W) {
    const int rest = n - i < W ? int(n - i) : W;
    const F x = rest < W ? load_part(values + i, rest) : load(values + i);
    const unsigned valid = rest < W ? (1u << rest) - 1 : (1u << (W - 1)) * 2 - 1;
    unsigned equal = room > 0 ? mask<EQUAL>(x, bound) & valid : 0;
    if (__builtin_popcount(equal) > room) equal = lowest(equal, room);
    room -= __builtin_popcount(equal);
    const I position = where != nullptr ? load(where + i) : step + splat(int32_t(i));
    done += pack(chosen + done, position, (mask<ABOVE>(x, bound) & valid) | equal);
  }
}

// Positions of x[0 .. n) above `limit`, into `where`; returns how many.
inline int64_t candidates(const float* x, int64_t n, float limit, int32_t* where) {
  I position{};
  for (int i = 0; i < W; i++) position[i] = i;
  const F bound = splat(limit);
  int64_t found = 0;
  int64_t i = 0;
  for (; i + W <= n; i += W, position += W)
    found += pack(where + found, position, mask<ABOVE>(load(x + i), bound));
  for (; i < n; i++) {
    where[found] = int32_t(i);
    found += x[i] > limit;
  }
  return found;
}

// A sample of x in `sample`, in an order that does not follow x; returns its size.
inline int64_t draw(const float* x, int64_t n, float* sample) {
  constexpr int64_t SIZE = 1024;
  uint32_t seed = 12345;
  for (int64_t i = 0; i < SIZE; i++) {
    // One from each of 1024 equal pieces, at a place that no period of the data can follow.
    seed = seed * 1664525u + 1013904223u;
    const int64_t first = n * i / SIZE, length = n * (i + 1) / SIZE - first;
    sample[i] = x[first + int64_t((uint64_t(seed) * uint64_t(length)) >> 32)];
  }
  return SIZE;
}

// Leaves the positions of the k largest of x[0 .. n) in s.chosen, ascending; 1 <= k < n.
inline void select(const float* x, int64_t n, int64_t k, const Selection& s) {
  if (n < 4096 || n < 3 * k) {
    std::memcpy(s.work, x, size_t(n) * sizeof(float));
    const float limit = kth_largest(s.work, n, k);
    return emit(x, nullptr, n, limit, k - count<ABOVE>(x, n, limit), k, s.chosen);
  }
  const int64_t size = draw(x, n, s.values);
  const int64_t mean = size * k / n;
  // Three standard deviations above the expected rank of the k-th largest.
  int64_t spread = 4;
  while (spread * spread < 9 * mean) spread++;
  for (int64_t rank = mean + spread + 4;; rank *= 4) {
    float limit = -__builtin_inff();
    if (rank < size) {
      std::memcpy(s.work, s.values, size_t(size) * sizeof(float));
      limit = kth_largest(s.work, size, rank);
    }
    const int64_t found = candidates(x, n, limit, s.where);
    if (found >= k) {
      for (int64_t i = 0; i < found; i++) s.work[i] = x[s.where[i]];
      std::memcpy(s.values, s.work, size_t(found) * sizeof(float));
      limit = kth_largest(s.work, found, k);
      const int64_t room = k - count<ABOVE>(s.values, found, limit);
      return emit(s.values, s.where, found, limit, room, k, s.chosen);
    }
    // Only values equal to the threshold are missing, or it was too high.
    if (found + count<EQUAL>(x, n, limit) >= k)
      return emit(x, nullptr, n, limit, k - found, k, s.chosen);
  }
}

}  // namespace g5
