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
};

// Bytes of a core's own part of the workspace: scores and weights of two tiles, sums of two tasks.
constexpr uint64_t block_bytes(int32_t tile, int32_t latent, bool packed, int32_t width) {
  const uint64_t pairs = uint64_t(2) * tile * GROUP;
  const uint64_t rows = packed ? uint64_t(ROW_TILES) * tile * width * 2 : 0;
  return pairs * 4 + pairs * 2 + uint64_t(2) * GROUP * latent * 4 + rows;
}

// Bytes of a part's result: sums of F32 [latent / COLUMNS][GROUP][COLUMNS], maxima, references and
// totals.
constexpr uint64_t part_bytes(int32_t latent) { return uint64_t(GROUP) * 4 * (latent + 3); }

// Estimated time of `pairs` rows (times groups of heads) in `parts` each, in slots of one block:
// a task costs START slots beside its own, and parts have to be merged.
inline int64_t split_cost(int64_t pairs, int64_t parts, int64_t slots, int64_t cores) {
  constexpr int64_t START = 64, MERGE = 100, MERGE_PART = 2;
  const int64_t turns = (pairs * parts + cores - 1) / cores;
  const int64_t merge = parts > 1 ? MERGE + MERGE_PART * pairs * parts : 0;
  return turns * ((slots + parts - 1) / parts + START) + merge;
}

// Splits the work over `cores` blocks; a part has `least` slots at least, all but the last a
// multiple of 8. Returns the bytes of workspace.
inline uint64_t split_work(Tiling& t, int32_t cores, int32_t least, int32_t tile, int32_t latent,
                           bool packed) {
  t.group = t.heads > GROUP / 2 ? GROUP : GROUP / 2;
  t.groups = (t.heads + t.group - 1) / t.group;
  const int64_t pairs = int64_t(t.rows) * t.groups;
  int64_t parts = 1;
  for (int64_t more = 2; more <= PARTS && more <= t.slots / least && pairs < cores; ++more)
    if (split_cost(pairs, more, t.slots, cores) < split_cost(pairs, parts, t.slots, cores))
      parts = more;
  t.part_slots = int32_t((t.slots + parts - 1) / parts + 7) / 8 * 8;
  if (t.part_slots < 8) t.part_slots = 8;
  t.parts = t.slots > 0 ? (t.slots + t.part_slots - 1) / t.part_slots : 1;
  t.tasks = int32_t(pairs) * t.parts;
  t.blocks = t.tasks < cores ? t.tasks : cores;
  if (t.blocks < 1) t.blocks = 1;
  const uint64_t results = t.parts > 1 ? uint64_t(t.tasks) * part_bytes(latent) : 0;
  return uint64_t(t.blocks) * block_bytes(tile, latent, packed, latent + 64) + results;
}

}  // namespace sfa
