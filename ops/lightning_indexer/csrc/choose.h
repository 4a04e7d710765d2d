// From the scores of a query token to its row of the result.
#pragma once

#include "order.h"
#include "select.h"

namespace g5 {

// What a row of the result looks like.
struct RowForm {
  int64_t count;
  bool sorted;
};

// Scratch slots of one thread.
enum Slot : int { SCORES = 0, PANELS = 1, WORKSPACE = 2, SELECTION = 3, ORDER = 4, REQUESTS = 5 };

// Positions of the `count` best of scores[0 .. visible) into row, scores into values if that is not
// null. With no more than `count` keys all are taken, and scores may be null if nothing needs them.
inline Error choose(const float* scores, int64_t visible, const RowForm& form, int32_t* row,
                    float* values) {
  const int64_t taken = std::min(visible, form.count);
  if (visible <= form.count) {
    for (int64_t i = 0; i < taken; i++) row[i] = int32_t(i);
  } else {
    const size_t each = size_t(visible) + 64;
    int32_t* memory = scratch<int32_t>(SELECTION, 4 * each);
    if (memory == nullptr) return NO_MEMORY;
    float* floats = reinterpret_cast<float*>(memory + 2 * each);
    select(scores, visible, form.count, {floats, floats + each, memory, memory + each});
    std::memcpy(row, memory + each, size_t(taken) * sizeof *row);
  }
  if (form.sorted && taken > 1) {
    uint64_t* keys = scratch<uint64_t>(ORDER, size_t(2 * taken));
    if (keys == nullptr) return NO_MEMORY;
    for (int64_t i = 0; i < taken; i++)
      keys[i] = uint64_t(descending(scores[row[i]])) << 32 | uint32_t(row[i]);
    const uint64_t* ordered = sort_by_score(keys, keys + taken, taken);
    for (int64_t i = 0; i < taken; i++) row[i] = int32_t(uint32_t(ordered[i]));
  }
  if (values != nullptr)
    for (int64_t i = 0; i < form.count; i++)
      values[i] = i < taken ? scores[row[i]] : -__builtin_inff();
  std::fill(row + taken, row + form.count, -1);
  return OK;
}

}  // namespace g5
