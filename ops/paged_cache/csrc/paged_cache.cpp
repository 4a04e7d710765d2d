// Rows of a paged cache: plain copies, and packed rows of int8 codes, BF16 and F32 scales.
//
// One thread: rows are bound by memory, and so the last of two rows for one slot stays.
#include "g5_paged.h"
#include "g5_vec.h"

namespace g5 {
namespace {

// One scale per TILE codes of the latent; ops/paged_cache/rows.py has the same numbers.
constexpr int64_t LATENT = 512, TILE = 128, ROPE = 64, SCALES_AT = LATENT + 2 * ROPE;

// Slot t of int32 or int64 [tokens]; -1 is padding.
struct Slots {
  const void* data;
  int wide;
  int64_t operator[](int64_t t) const {
    return wide ? static_cast<const int64_t*>(data)[t] : static_cast<const int32_t*>(data)[t];
  }
};

// Codes of one tile and their scale, max|x| / 127; an infinity or NaN makes all codes 0.
template <class T>
float encode(const T* from, int8_t* codes) {
  F largest = {};
  I nan = {};
  for (int64_t i = 0; i < TILE; i += W) {
    const F x = load(from + i);
    largest = max(largest, F(I(x) & 0x7fffffff));
    nan |= x != x;
  }
  float lanes[W];
  int32_t bad[W];
  store(lanes, largest);
  std::memcpy(bad, &nan, sizeof bad);
  float scale = 0;
  for (float lane : lanes) scale = lane > scale ? lane : scale;
  for (int32_t lane : bad) scale = lane != 0 ? __builtin_nanf("") : scale;
  scale /= 127;
  const F divisor = splat(scale == 0 ? 1.0f : scale);
  for (int64_t i = 0; i < TILE; i += W) {
    F x = load(from + i) / divisor;
    x = x == x ? x : F{};
    // A subnormal scale is coarse: quotients may exceed 127.
    store(lanes, min(max(rint(x), splat(-127.0f)), splat(127.0f)));
    for (int j = 0; j < W; j++) codes[i + j] = int8_t(lanes[j]);
  }
  return scale;
}

void decode(const int8_t* codes, float scale, bf16* to) {
  for (int64_t i = 0; i < TILE; i += W) {
    float lanes[W];
    for (int j = 0; j < W; j++) lanes[j] = codes[i + j];
    store(to + i, load(lanes) * scale);
  }
}

template <class T>
void write(char* cache, int64_t cache_row, const char* latent, int64_t latent_row,
           const char* rope, int64_t rope_row, Slots slots, int64_t tokens) {
  for (int64_t t = 0; t < tokens; t++) {
    if (slots[t] < 0) continue;
    char* to = cache + slots[t] * cache_row;
    const T* from = reinterpret_cast<const T*>(latent + t * latent_row);
    for (int64_t i = 0; i < LATENT; i += TILE) {
      const float scale = encode(from + i, reinterpret_cast<int8_t*>(to) + i);
      std::memcpy(to + SCALES_AT + i / TILE * sizeof scale, &scale, sizeof scale);
    }
    std::memcpy(to + LATENT, rope + t * rope_row, 2 * ROPE);
  }
}

}  // namespace
}  // namespace g5

// Strides of all functions are in bytes. `wide`: the slots are int64 rather than int32.

G5_EXPORT int g5_write_rows(char* cache, int64_t cache_row, const char* rows, int64_t row,
                            int64_t row_bytes, const void* slot_mapping, int wide,
                            int64_t tokens) {
  const g5::Slots slots{slot_mapping, wide};
  for (int64_t t = 0; t < tokens; t++) {
    if (slots[t] >= 0) std::memcpy(cache + slots[t] * cache_row, rows + t * row, size_t(row_bytes));
  }
  return g5::OK;
}

// The same for slots that it checks itself: -1 or below `total`, else nothing is written. Filled in
// by cpu.py; every field has eight bytes.
struct Writing {
  int64_t cache_row, row, row_bytes, wide, tokens, total;
};
G5_EXPORT int g5_write_checked_rows(char* cache, const char* rows, const void* slot_mapping,
                                    const Writing* w) {
  const g5::Slots slots{slot_mapping, w->wide != 0};
  for (int64_t t = 0; t < w->tokens; t++)
    if (slots[t] < -1 || slots[t] >= w->total) return g5::REFUSED;
  return g5_write_rows(cache, w->cache_row, rows, w->row, w->row_bytes, slot_mapping, w->wide != 0,
                       w->tokens);
}

// latent [tokens][512] of `dtype`, rope BF16 [tokens][64].
G5_EXPORT int g5_write_kv_rows(char* cache, int64_t cache_row, int dtype, const char* latent,
                               int64_t latent_row, const char* rope, int64_t rope_row,
                               const void* slot_mapping, int wide, int64_t tokens) {
  using namespace g5;
  const Slots slots{slot_mapping, wide};
  const auto go = [&](auto kind) {
    write<decltype(kind)>(cache, cache_row, latent, latent_row, rope, rope_row, slots, tokens);
    return OK;
  };
  if (dtype == F32) return go(float{});
  if (dtype == BF16) return go(bf16{});
  if (dtype == F16) return go(f16{});
  return UNSUPPORTED;
}

// latent BF16 [tokens][512], rope BF16 [tokens][64], dense; zeros for slot -1.
G5_EXPORT int g5_read_kv_rows(const char* cache, int64_t cache_row, const void* slot_mapping,
                              int wide, int64_t tokens, char* latent, char* rope) {
  using namespace g5;
  const Slots slots{slot_mapping, wide};
  for (int64_t t = 0; t < tokens; t++, latent += 2 * LATENT, rope += 2 * ROPE) {
    if (slots[t] < 0) {
      std::memset(latent, 0, 2 * LATENT);
      std::memset(rope, 0, 2 * ROPE);
      continue;
    }
    const char* row = cache + slots[t] * cache_row;
    for (int64_t i = 0; i < LATENT; i += TILE) {
      float scale;
      std::memcpy(&scale, row + SCALES_AT + i / TILE * sizeof scale, sizeof scale);
      decode(reinterpret_cast<const int8_t*>(row) + i, scale, reinterpret_cast<bf16*>(latent) + i);
    }
    std::memcpy(rope, row + LATENT, 2 * ROPE);
  }
  return OK;
}
