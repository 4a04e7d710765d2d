// One call of the operator: tensors, requests, and where a position of a request lies.
#pragma once

#include "g5.h"

namespace g5 {

constexpr int PARTS = 2;
constexpr int OUTSIDE = 3;  // beside the errors of g5.h: a block table leads out of the cache

// A query or cache of rows; strides in bytes, the numbers of a row are adjacent.
struct Rows {
  const char* data;
  int64_t row;
  int64_t head;
  int64_t width;
};

// Filled in by cpu.py, field by field in this order; every field has eight bytes.
struct Call {
  Rows query[PARTS];
  Rows key[PARTS];
  Rows value;
  int64_t parts;        // 1, or 2 with a rotated part of its own
  int64_t dtype;        // DType of query, key, value and out
  int64_t packed_rope;  // -1, or the rope width of packed rows of int8 in key[0]
  int64_t rows;
  int64_t heads;
  int64_t cache_rows;
  const int32_t* indices;
  int64_t index_row;  // entries from row to row
  int64_t index_count;
  int64_t sparse_block;
  int64_t causal;
  int64_t requests;
  const int64_t* query_start;
  const int64_t* query_length;
  const int64_t* key_length;
  const int64_t* key_start;    // first cache row of a request, unless there is a block table
  const int32_t* block_table;  // null, or [requests][table_row]
  int64_t table_row;
  int64_t block_size;
  double scale;
  void* out;     // [rows][heads][value.width]
  float* peak;   // [rows][heads]; null if not wanted,
  float* total;  // [rows][heads]; together
};

// Whose a query row is and how many keys it sees; a row of no request sees none.
struct Sight {
  int64_t request;
  int64_t visible;
};

// Causal and right aligned: query i of n sees the keys up to key_length - n + i.
inline void look(const Call& call, Sight* sight) {
  for (int64_t r = 0; r < call.rows; r++) sight[r] = {0, 0};
  for (int64_t b = 0; b < call.requests; b++) {
    const int64_t queries = call.query_length[b], keys = call.key_length[b];
    for (int64_t i = 0; i < queries; i++) {
      const int64_t seen = call.causal ? keys - queries + i + 1 : keys;
      sight[call.query_start[b] + i] = {b, seen < 0 ? 0 : seen};
    }
  }
}

// Cache rows that query row `row` attends to, in the order of its indices: entry i of the indices
// names positions i * sparse_block and following; -1 and invisible positions are left out.
// Returns how many, or -1 where the block table leads outside the cache.
inline int64_t choose(const Call& call, int64_t row, Sight sight, int64_t* chosen) {
  const int32_t* indices = call.indices + row * call.index_row;
  const int32_t* table = call.block_table + sight.request * call.table_row;
  int64_t count = 0;
  // The block that was looked up last: its positions, and the cache row of position 0 in them.
  int64_t begin = 0, stop = 0, base = 0;
  if (call.block_table == nullptr && sight.visible > 0) {
    stop = INT64_MAX;
    base = call.key_start[sight.request];
  }
  for (int64_t i = 0; i < call.index_count; i++) {
    if (indices[i] < 0) continue;
    const int64_t first = indices[i] * call.sparse_block;
    int64_t end = first + call.sparse_block;
    if (end > sight.visible) end = sight.visible;
    for (int64_t position = first; position < end; position++) {
      if (position < begin || position >= stop) {
        const int64_t block = position / call.block_size;
        begin = block * call.block_size;
        stop = begin + call.block_size;
        base = table[block] * call.block_size - begin;
      }
      const int64_t at = base + position;
      if (at < 0 || at >= call.cache_rows) return -1;
      chosen[count++] = at;
    }
  }
  return count;
}

}  // namespace g5
