// Sorting the few chosen positions by their scores.
#pragma once

#include <utility>

#include "g5.h"

namespace g5 {

// Whole numbers in the opposite order of the scores: -0 as +0, no NaN.
G5_INLINE uint32_t descending(float score) {
  const uint32_t bits = bit_cast<uint32_t>(score + 0.0f);
  return bits >> 31 ? bits : ~bits & 0x7fffffff;
}

// Sorts `keys`, position in the low half and descending(score) in the high half, by the latter.
// Equal scores stay in their order. `other` holds n numbers; returns the buffer of the result.
inline uint64_t* sort_by_score(uint64_t* keys, uint64_t* other, int64_t n) {
  constexpr int BITS = 11;
  for (int shift = 32; shift < 64; shift += BITS) {
    int64_t start[1 << BITS] = {};
    constexpr uint64_t digit = (1 << BITS) - 1;
    for (int64_t i = 0; i < n; i++) start[keys[i] >> shift & digit]++;
    int64_t sum = 0;
    for (int64_t& s : start) sum += std::exchange(s, sum);
    for (int64_t i = 0; i < n; i++) other[start[keys[i] >> shift & digit]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

}  // namespace g5
