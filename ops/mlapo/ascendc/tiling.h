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
  int32_t split_k;      // cores that share the columns of the first product, each a part of K
  int32_t tile_heads;   // heads in one tile of the vector cores' last stage
  int32_t absorb_tile;  // columns of W_UK in one product
  int64_t codes_at, scales_at, down_at, up_at, nope_at, query_at;  // bytes in the workspace
  int64_t workspace;
};

// Capacities of a set of tile sizes, as tiles.h has them.
struct Limits {
  int32_t group, row, columns, latent, tile_values, absorb_tile, split_k, sums, activations;
};

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

// Fills the second part of the tiling. x_bytes and latent_bytes: of an element of what the first
// and the second weight multiply.
inline int32_t plan(Tiling& t, const Limits& limits, int32_t x_bytes, int32_t latent_bytes) {
  if (const int32_t refusal = check(t, limits, x_bytes, latent_bytes)) return refusal;
  const int32_t columns = t.q_lora + t.kv_lora + t.rope, width = t.nope + t.rope;
  // Groups of one size, whole rows of fractals where there are several.
  const int32_t groups = (t.tokens + limits.group - 1) / limits.group;
  t.group = groups == 1 ? t.tokens : ((t.tokens + groups - 1) / groups + 15) / 16 * 16;
  // Every core reads its part of x. With many tokens a part of K costs less than the additional
  // sums, where it stays in L1 for all columns that it brings, or these fit one product.
  t.split_k = 1;
  for (int32_t parts = limits.split_k; parts > 1; parts /= 2) {
    const int64_t wide = (columns / 16 * parts + t.cores - 1) / t.cores * 16;
    const bool stays = int64_t(t.group) * t.hidden * x_bytes <= int64_t(limits.activations) * parts;
    const bool fits = wide * ((t.group + 15) / 16 * 16) * 4 <= limits.sums;
    if (t.cores % parts != 0 || t.group <= limits.group / 8 || !(stays || fits)) continue;
    t.split_k = parts;
    break;
  }
  // As many heads as leave a tile for every AIV, within the buffers.
  const int32_t most = least(t.heads, limits.tile_values / width);
  int32_t tile = 1;
  while (tile * 2 <= most && t.heads % (tile * 2) == 0 &&
         int64_t(t.group) * (t.heads / (tile * 2)) >= int64_t(2) * t.cores)
    tile *= 2;
  t.tile_heads = tile;
  t.absorb_tile = least(t.kv_lora, limits.absorb_tile);
  t.codes_at = 0;
  t.scales_at = aligned(t.codes_at + (t.quantise_x ? int64_t(t.tokens) * t.hidden : 0));
  t.down_at = aligned(t.scales_at + int64_t(t.tokens) * 4);
  t.up_at = aligned(t.down_at + int64_t(DOWN_SLOTS) * t.split_k * t.group * columns * 4);
  t.nope_at = aligned(t.up_at + int64_t(UP_SLOTS) * t.group * t.heads * width * 4);
  t.query_at = aligned(t.nope_at + int64_t(NOPE_SLOTS) * t.heads * t.group * t.nope * 2);
  const int64_t queries = int64_t(QUERY_SLOTS) * t.group * t.heads * t.kv_lora * 2;
  t.workspace = aligned(t.query_at + (t.int8_query ? queries : 0));
  return TAKEN;
}

}  // namespace mlapo
