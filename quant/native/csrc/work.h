// A matrix on its way: what is read, what is done to it, what is written, and how a row ends.
#pragma once

#include <atomic>

#include "axis.h"
#include "search.h"
#include "source.h"

namespace g5 {

enum Kind : int { AS_F32 = 0, AS_BF16 = 1, INT8 = 2, INT4 = 3 };
constexpr int NOT_FINITE = 3;

struct Output {
  int kind;
  bool search;   // else the scale that clips nothing
  void* data;    // [rows][columns], INT4: [rows / 2][columns]
  float* scale;  // [rows]
  float* bias;   // [rows][slices], INT4
  int64_t slices;
};

struct Work {
  Source source;
  Axis columns, rows;
  Output out;
  float* matrix = nullptr;  // [rows][stride], where rows are rotated
  int64_t stride = 0;
  std::atomic<int> error{OK};

  void fail(int code) { error.store(code); }
};

// Memory of a thread for two rows.
struct Rows {
  float* x;
  float* room;
  int16_t* words;
  int8_t* codes;
};

inline bool take_rows(int64_t columns, int64_t count, Rows* rows) {
  const size_t wide = size_t(padded(columns));
  rows->x = scratch<float>(1, wide * size_t(count));
  rows->room = scratch<float>(2, wide);
  rows->words = scratch<int16_t>(3, wide);
  rows->codes = scratch<int8_t>(4, wide * 2);
  return rows->x && rows->room && rows->words && rows->codes;
}

inline void clear_padding(float* x, int64_t n) {
  std::memset(x + n, 0, size_t(padded(n) - n) * sizeof(float));
}

// 8 * sum of codes * scale per slice, the constant that undoes the kernel's offset of 8.
inline void sum_codes(const int8_t* codes, int64_t n, float scale, int64_t slices, float* bias) {
  const int64_t wide = n / slices;
  for (int64_t s = 0; s < slices; s++) {
    int32_t sum = 0;
    for (int64_t i = 0; i < wide; i++) sum += codes[s * wide + i];
    bias[s] = float(8.0 * double(sum) * double(scale));
  }
}

// Writes row `index`, whose padding is zero.
inline void finish(Work& work, int64_t index, float* x, const Rows& rows, int8_t* codes) {
  const Output& out = work.out;
  const int64_t n = work.source.columns;
  if (work.columns.after != nullptr)
    for (int64_t i = 0; i < n; i++) x[i] *= work.columns.after[i];
  if (work.rows.after != nullptr)
    for (int64_t i = 0; i < n; i++) x[i] *= work.rows.after[index];
  if (out.kind == AS_F32) {
    std::memcpy(static_cast<float*>(out.data) + index * n, x, size_t(n) * sizeof(float));
  } else if (out.kind == AS_BF16) {
    bf16* to = static_cast<bf16*>(out.data) + index * n;
    int64_t i = 0;
    for (; i + W <= n; i += W) store(to + i, load(x + i));
    if (i < n) store_part(to + i, load(x + i), int(n - i));
  } else if (out.kind == INT8) {
    out.scale[index] = round_row<8>(x, n, out.search, rows.words, codes);
    std::memcpy(static_cast<int8_t*>(out.data) + index * n, codes, size_t(n));
  } else {
    const float scale = round_row<4>(x, n, out.search, rows.words, codes);
    out.scale[index] = scale;
    sum_codes(codes, n, scale, out.slices, out.bias + index * out.slices);
  }
}

// Writes rows `index` and `index` + 1, the latter only where there is one.
inline void finish_pair(Work& work, int64_t index, float* x, int64_t apart, bool both,
                        const Rows& rows) {
  const int64_t n = work.source.columns;
  int8_t* const odd = rows.codes + padded(n);
  finish(work, index, x, rows, rows.codes);
  if (both) finish(work, index + 1, x + apart, rows, odd);
  if (work.out.kind != INT4) return;
  int8_t* const to = static_cast<int8_t*>(work.out.data) + index / 2 * n;
  for (int64_t i = 0; i < n; i++)
    to[i] = int8_t((uint8_t(odd[i]) << 4) | (uint8_t(rows.codes[i]) & 15));
}

// Reads a whole row, folds its norm in and rotates along it.
inline void read_and_rotate(Work& work, int64_t row, float* x, float* room) {
  if (!read_row(work.source, row, 0, work.source.columns, work.columns.factors, x))
    work.fail(NOT_FINITE);
  along(work.columns, x, room);
}

}  // namespace g5
