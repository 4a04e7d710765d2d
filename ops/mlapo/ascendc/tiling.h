// Sizes of a call and how its work is laid out: plain C++, shared by emulator and NPU.
#pragma once

#include <cstdint>

namespace mlapo {

// What the kernel gets by value. The caller fills the part up to kr_row; plan() the rest.
struct Tiling {
  int32_t tokens, hidden, q_lora, kv_lora, heads, nope, rope;
  int32_t cores;          // AICs; two AIVs go with each
  int32_t quantise_x;     // x is float and its weights are int8
  int32_t x_static;       // its scale and offset are given
  int32_t latent_static;  // those of the q latent are given
  int32_t keep_latent;    // write the normalised q latent in float beside its codes
  int32_t packed;         // rows of kv_cache: int8 codes, key, scales; kr_cache is not used
  int32_t int8_query;     // the absorbed query is quantised per token and head
  float eps_q, eps_kv;
  int64_t kv_row, kr_row;  // elements from one slot of the caches to the next

  int32_t group;        // tokens that go through the stages together
  int32_t block;        // of these, rows that the cube multiplies at once
  int32_t split_k;      // cores that share the columns of the first product, each a part of K
  int32_t up_split;     // the same of the second product
  int32_t down_waves;   // 2: columns of the q latent first, the others behind
  int32_t up_waves;     // parts of the heads, one after the other, of the second product
  int32_t nope_waves;   // and of the third one; a multiple
  int32_t tile_heads;   // heads in one tile of the vector cores' last stage
  int32_t absorb_tile;  // columns of W_UK in one product
  int64_t codes_at, scales_at, down_at, up_at, nope_at, query_at;  // bytes in the workspace
  int64_t workspace;
};

// Capacities of a set of tile sizes, as tiles.h has them.
struct Limits {
  int32_t block, row, columns, latent, tile_values, absorb_tile, split_k, up_split, sums, activations;
};

constexpr int32_t BLOCKS = 2, UP_WAVES = 2, NOPE_WAVES = 4;

enum Refusal : int32_t {
  TAKEN = 0,
  TOKENS,        // 1 to 1024
  HIDDEN,        // rows of x: whole blocks of 32 bytes, within the buffers
  Q_LORA,        // likewise
  KV_LORA,       // whole tiles of W_UK
  HEAD,          // nope and rope: multiples of 16; rope at most 64
  COLUMNS,       // of the fused first weight
  HEADS,         // columns of the second weight
};

constexpr int32_t DOWN_SLOTS = 3, UP_SLOTS = 2, NOPE_SLOTS = 2, QUERY_SLOTS = 2;
// Packed rows: kv_lora codes with a scale for each PACK_TILE of them.
constexpr int32_t PACK_LATENT = 512, PACK_ROPE = 64, PACK_TILE = 128;

inline int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t parts(int32_t whole, int32_t part) { return (whole + part - 1) / part; }
inline int32_t groups_of(const Tiling& t) { return parts(t.tokens, t.group); }
inline int32_t tokens_of(const Tiling& t, int32_t group) {
  return least(t.group, t.tokens - group * t.group);
}
// Rows that the cube multiplies for so many tokens. A single one of a block is loaded twice: with
// m = 1 Mmad would want another layout.
inline int32_t rows_of(const Tiling& t, int32_t tokens) {
  return tokens % t.block == 1 ? tokens + 1 : tokens;
}
inline int64_t slots(int64_t groups, int64_t most) { return groups < most ? groups : most; }
inline int64_t aligned(int64_t bytes) { return (bytes + 511) / 512 * 512; }

inline int32_t check(const Tiling& t, const Limits& limits, int32_t x_bytes, int32_t latent_bytes) {
  const int32_t columns = t.q_lora + t.kv_lora + t.rope;
  const int64_t up_columns = int64_t(t.heads) * (t.nope + t.rope);
  if (t.tokens < 1 || t.tokens > 1024) return TOKENS;
  if (t.hidden < 32 || t.hidden > limits.row || t.hidden * x_bytes % 32 != 0 || t.hidden % 16 != 0)
    return HIDDEN;
  if (t.q_lora < 32 || t.q_lora > limits.latent || t.q_lora * latent_bytes % 32 != 0 ||
      t.q_lora % 16 != 0)
    return Q_LORA;
  if (t.kv_lora < 16 || t.kv_lora > limits.latent ||
      t.kv_lora % least(t.kv_lora, limits.absorb_tile) != 0 || t.kv_lora % 16 != 0)
    return KV_LORA;
  if (t.packed && (t.kv_lora != PACK_LATENT || t.rope != PACK_ROPE)) return KV_LORA;
  if (t.nope < 16 || t.nope % 16 != 0 || t.rope < 16 || t.rope > 64 || t.rope % 16 != 0 ||
      t.nope + t.rope > limits.tile_values)
    return HEAD;
  if (columns > limits.columns) return COLUMNS;
  if (t.heads < 1 || up_columns > 65535) return HEADS;
  return TAKEN;
}

// Bytes that an AIC moves for the first product of a group in `split` parts of K: x, of which two
// buffers stay in L1 from one pass over columns to the next, and sums.
inline int64_t down_bytes(const Tiling& t, const Limits& limits, int32_t x_bytes, int32_t split) {
  const int32_t columns = t.q_lora + t.kv_lora + t.rope;
  const int32_t fractals = parts(columns / 16 * split, t.cores);
  const int64_t passes = parts(fractals, limits.sums / (t.block * 64));
  const int64_t x = int64_t(t.group) * t.hidden * x_bytes / split;
  const int64_t again = x > limits.activations ? x - limits.activations : 0;
  return x + (passes - 1) * again + int64_t(t.group) * columns * 4 * split / t.cores;
}

// Groups of tokens, and in how many parts their products are made.
inline void split(Tiling& t, const Limits& limits, int32_t x_bytes, int32_t latent_bytes) {
  // Groups of one size, whole rows of fractals where there are several.
  const int32_t groups = parts(t.tokens, BLOCKS * limits.block);
  t.group = groups == 1 ? t.tokens : parts(parts(t.tokens, groups), 16) * 16;
  const int32_t blocks = parts(t.group, limits.block);
  t.block = parts(parts(t.group, blocks), 16) * 16;
  // Float sums of a token are made in one order, whatever other tokens there are.
  t.split_k = 1;
  for (int32_t more = 2; more <= limits.split_k; more *= 2)
    if (t.cores % more == 0 &&
        (x_bytes > 1 || (t.group > limits.block / 8 && down_bytes(t, limits, x_bytes, more) <
                                                           down_bytes(t, limits, x_bytes, t.split_k))))
      t.split_k = more;
  // Where several passes over columns would read the q latent again, parts of K that stay in L1;
  // not of float sums.
  t.up_split = 1;
  while (latent_bytes == 1 && blocks > 1 && t.up_split < limits.up_split && t.cores % (2 * t.up_split) == 0 &&
         int64_t(t.group) * t.q_lora * latent_bytes > int64_t(limits.activations) * t.up_split)
    t.up_split *= 2;
  t.down_waves = blocks;
  const bool waves = blocks > 1 && t.heads % NOPE_WAVES == 0;
  t.up_waves = waves ? UP_WAVES : 1;
  t.nope_waves = waves ? NOPE_WAVES : 1;
}

// Fills the second part of the tiling. x_bytes and latent_bytes: of an element of what the first
// and the second weight multiply.
inline int32_t plan(Tiling& t, const Limits& limits, int32_t x_bytes, int32_t latent_bytes) {
  if (const int32_t refusal = check(t, limits, x_bytes, latent_bytes)) return refusal;
  split(t, limits, x_bytes, latent_bytes);
  const int32_t columns = t.q_lora + t.kv_lora + t.rope, width = t.nope + t.rope;
  // As many heads as leave a tile for every AIV, within the buffers.
  const int32_t heads = t.heads / t.nope_waves, most = least(heads, limits.tile_values / width);
  int32_t tile = 1;
  while (tile * 2 <= most && heads % (tile * 2) == 0 &&
         int64_t(t.group) * (heads / (tile * 2)) >= int64_t(2) * t.cores)
    tile *= 2;
  t.tile_heads = tile;
  t.absorb_tile = least(t.kv_lora, limits.absorb_tile);
  const int64_t groups = groups_of(t), rows = int64_t(t.group) * t.heads;
  t.codes_at = 0;
  t.scales_at = aligned(t.codes_at + (t.quantise_x ? int64_t(t.tokens) * t.hidden : 0));
  t.down_at = aligned(t.scales_at + int64_t(t.tokens) * 4);
  t.up_at = aligned(t.down_at + slots(groups, DOWN_SLOTS) * t.split_k * t.group * columns * 4);
  t.nope_at = aligned(t.up_at + slots(groups, UP_SLOTS) * t.up_split * rows * width * 4);
  t.query_at = aligned(t.nope_at + slots(groups, NOPE_SLOTS) * rows * t.nope * 2);
  const int64_t queries = slots(groups, QUERY_SLOTS) * rows * t.kv_lora * 2;
  t.workspace = aligned(t.query_at + (t.int8_query ? queries : 0));
  return TAKEN;
}

}  // namespace mlapo
