// Sizes of one call, and how its work splits. Plain C++17 for the host, the emulator and the NPU.
//
// Nothing here depends on the values of lengths or indices: kernels read those from GM, so that a
// captured graph may be replayed with others.
#pragma once

#include <cstdint>

namespace sfa {

constexpr int32_t GROUP = 64;         // heads that a task takes at most
constexpr int32_t COLUMNS = 128;      // of the result that one product makes
constexpr int32_t ROW_TILES = 3;      // of unpacked rows in the workspace
constexpr int32_t PRODUCTION_TILE = 128;  // keys of a tile of the kernels for the NPU
constexpr int32_t PARTS = 64;         // of a row at most
constexpr int32_t REQUEST_WORDS = 4;  // first query row, query rows, first key row, keys

struct Tiling {
  // Filled by the caller. Strides in elements, of packed rows in bytes.
  int32_t rows, heads, slots, sparse_block, requests, causal;
  int32_t page_size, table_stride;  // page_size 0: keys of a request are contiguous
  int32_t width;                    // of query and key: latent, or latent and rotated part
  int32_t query_row, query_head, rope_row, rope_head, key_row, key_rope_row;
  int32_t key_rows;  // of the whole cache
  float scale;
  // Filled by split_work. Tasks are (row, group of heads, part of the slots), parts fastest.
  int32_t group, groups, parts, part_slots, tasks, blocks;
  int32_t direct;  // parts of one tile: products of the cube are their results
};

// Bytes of a core's own part of the workspace: scores, weights and products of two tiles.
constexpr uint64_t block_bytes(int32_t tile, int32_t latent, bool packed, int32_t width) {
  const uint64_t pairs = uint64_t(2) * tile * GROUP;
  const uint64_t rows = packed ? uint64_t(ROW_TILES) * tile * width * 2 : 0;
  return pairs * 4 + pairs * 2 + uint64_t(2) * GROUP * latent * 4 + rows;
}

// Bytes of a part's result: sums of F32 [latent / COLUMNS][GROUP][COLUMNS], maxima and totals.
constexpr uint64_t part_bytes(int32_t latent) { return uint64_t(GROUP) * 4 * (latent + 2); }

// Splits the work over `cores` blocks; a part has `least` slots at least, all but the last a
// multiple of 8. Returns the bytes of workspace.
inline uint64_t split_work(Tiling& t, int32_t cores, int32_t least, int32_t tile, int32_t latent,
                           bool packed) {
  t.group = t.heads > GROUP / 2 ? GROUP : GROUP / 2;
  t.groups = (t.heads + t.group - 1) / t.group;
  const int64_t pairs = int64_t(t.rows) * t.groups;
  int64_t parts = pairs > 0 ? cores / pairs : 1;
  if (parts > t.slots / least) parts = t.slots / least;
  if (parts > PARTS) parts = PARTS;
  if (parts < 1) parts = 1;
  t.part_slots = int32_t((t.slots + parts - 1) / parts + 7) / 8 * 8;
  if (t.part_slots < 8) t.part_slots = 8;
  t.parts = t.slots > 0 ? (t.slots + t.part_slots - 1) / t.part_slots : 1;
  t.tasks = int32_t(pairs) * t.parts;
  t.blocks = t.tasks < cores ? t.tasks : cores;
  if (t.blocks < 1) t.blocks = 1;
  t.direct = t.parts > 1 && int64_t(t.part_slots) * t.sparse_block <= tile;
  const uint64_t results = t.parts > 1 ? uint64_t(t.tasks) * part_bytes(latent) : 0;
  return uint64_t(t.blocks) * block_bytes(tile, latent, packed, latent + 64) + results;
}

}  // namespace sfa
