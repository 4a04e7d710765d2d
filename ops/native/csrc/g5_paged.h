// Lengths and block table of a call as torch holds them: TND queries, PA_BSND keys.
#pragma once

#include "g5.h"

namespace g5 {

// An error beside those of g5.h: a value that the contract refuses; the caller finds out which.
constexpr int REFUSED = 4;

// Filled in by ops/native/paged.py, field by field in this order; every field has eight bytes.
struct Paged {
  const void* query_ends;   // [requests] prefix sums of the numbers of query tokens
  const void* key_lengths;  // [requests]
  const int32_t* table;     // [requests][table_row], of which `columns` count
  int64_t wide_ends, wide_lengths;  // whether they are int64; else int32
  int64_t requests, table_row, columns;
  int64_t block_size, blocks;
  int64_t rows;  // of the query
};

G5_INLINE int64_t integer(const void* data, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
}

// First query row, query rows and keys of request b into start, count and keys [b * step]; false
// where lengths or entries in use are not what ops/layout.py accepts.
inline bool read_requests(const Paged& p, int64_t step, int64_t* start, int64_t* count,
                          int64_t* keys) {
  int64_t end = 0;
  for (int64_t b = 0; b < p.requests; b++) {
    const int64_t first = end, length = integer(p.key_lengths, p.wide_lengths, b);
    end = integer(p.query_ends, p.wide_ends, b);
    if (end < first || end > p.rows) return false;
    if (length < 0 || length > p.columns * p.block_size) return false;
    const int32_t* entries = p.table + b * p.table_row;
    for (int64_t i = 0; i * p.block_size < length; i++)
      if (entries[i] < 0 || entries[i] >= p.blocks) return false;
    start[b * step] = first;
    count[b * step] = end - first;
    keys[b * step] = length;
  }
  return true;
}

}  // namespace g5
