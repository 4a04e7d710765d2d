// Sizes of a lightning indexer launch, and how the kernel cuts them. No device header is needed.
#pragma once

#include <cstdint>

namespace lightning_indexer {

// How a lengths tensor gives the tokens of request b.
enum LengthForm : int32_t {
  EVERY = 0,        // no tensor: `tokens` each, `tokens` apart
  PER_REQUEST = 1,  // lengths[b], `tokens` apart
  PREFIX_SUMS = 2,  // lengths[b] - lengths[b - 1], one after the other
};

// Types of head weights and of scales.
enum Number : int32_t { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2 };

// By value; what depends on lengths is worked out in the kernel, so that a captured graph stays
// valid when they change.
struct Tiling {
  int32_t requests;
  int32_t heads;         // 16, 32, 48 or 64
  int32_t group;         // query tokens that share a product: group_rows(heads)
  int32_t rows;          // of query, over all requests, those of no request included
  int32_t count;         // positions per row
  int32_t query_form, query_tokens;  // LengthForm, and the distance of requests
  int32_t key_form, key_tokens;
  int32_t page;          // keys of a page, 0: contiguous
  int32_t table_stride;  // entries of a row of the block table
  int32_t causal;
  int32_t by_score;      // order of the result: descending by score instead of ascending
  int32_t weights_type, query_scale_type, key_scale_type;  // Number
};

// Rows of one product, and rows that one AIV selects for.
constexpr int32_t MOST_ROWS = 128, ROWS_PER_VECTOR = 2, VECTORS = 2;

// Lists are sampled at every SAMPLE_STEP-th record to bound the score of the last one kept.
constexpr int32_t SAMPLE_STEP = 32;

// Cross-core flags of a block: a step's scores are in GM; its buffer may be written again. Of all
// AIVs: samples of the first keys are in GM.
constexpr uint16_t READY = 0, FREE = 1, SAMPLED = 2;

// Query tokens that share a product.
constexpr int32_t group_rows(int32_t heads) {
  const int32_t fit = MOST_ROWS / heads;
  return fit < VECTORS * ROWS_PER_VECTOR ? fit : VECTORS * ROWS_PER_VECTOR;
}

// UNIT: keys of one product. STEP: units that an AIV takes at once. TOP: positions kept, at most.
template <int32_t UNIT_, int32_t STEP_, int32_t TOP_>
struct Tiles {
  static constexpr int32_t UNIT = UNIT_, STEP = STEP_, TOP = TOP_;
  static constexpr int32_t KEYS = UNIT * STEP;
  static constexpr int64_t SCORES = int64_t(MOST_ROWS) * KEYS;  // of one buffer of one block
  static constexpr int32_t BUFFERS = 4;
  // Partial lists of a block: of the rows that it shares with the block before it and after it.
  // Each place holds a list, a merged list, samples and the merged list's size, in words.
  static constexpr int32_t LISTS = 2 * VECTORS * ROWS_PER_VECTOR;
  static constexpr int32_t LIST = 2 * TOP, SAMPLES = TOP >= 512 ? 8 : TOP / 64;
  static constexpr int32_t MERGED_AT = LIST, SAMPLES_AT = 2 * LIST;
  static constexpr int32_t SIZE_AT = SAMPLES_AT + 8 * SAMPLES, PLACE = SIZE_AT + 8;

  static constexpr int64_t scores_bytes(int64_t blocks) { return blocks * BUFFERS * SCORES * 4; }
  static constexpr int64_t lists_bytes(int64_t blocks) { return blocks * LISTS * PLACE * 4; }
};

using Production = Tiles<128, 4, 2048>;
using Reduced = Tiles<16, 4, 128>;

}  // namespace lightning_indexer
