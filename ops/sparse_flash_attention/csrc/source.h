// Where the numbers of a tile come from: rows of the caches as they are, or converted copies.
#pragma once

#include "call.h"
#include "element.h"

namespace g5 {

// Pointers to the parts of one key in E's numbers.
struct Key {
  const char* part[PARTS];
  const char* value;
};

// Asks for the cache lines of a row. They go to the second level: a tile's rows fill the first.
inline void ask(const Rows& rows, int64_t at, int64_t bytes) {
  constexpr int64_t LINE = 64;
  const char* from = rows.data + at * rows.row;
  for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(from + i, 0, 2);
}

// Caches that hold E's numbers already: nothing is copied. Nor is anything asked for ahead, which
// was never faster: the scores reach their rows in time.
struct Direct {
  static int64_t bytes(const Call&) { return 0; }
  static void ahead(const Call&, int64_t) {}
  static void fetch(const Call& call, int64_t at, char*, Key* key) {
    for (int64_t p = 0; p < call.parts; p++) {
      key->part[p] = call.key[p].data + at * call.key[p].row;
    }
    key->value = call.value.data + at * call.value.row;
  }
};

template <class T>
G5_INLINE void widen(const char* from, int64_t n, float* to) {
  const T* x = reinterpret_cast<const T*>(from);
  int64_t i = 0;
  for (; i + W <= n; i += W) store(to + i, load(x + i));
  for (; i < n; i++) to[i] = to_f32(x[i]);
}

// Caches of T, widened to F32.
template <class T>
struct Widened {
  static bool shared(const Call& call) {
    return call.value.data == call.key[0].data && call.value.row == call.key[0].row &&
           call.value.width <= call.key[0].width;
  }
  static int64_t bytes(const Call& call) {
    int64_t width = shared(call) ? 0 : call.value.width;
    for (int64_t p = 0; p < call.parts; p++) width += call.key[p].width;
    return 4 * width;
  }
  static void ahead(const Call& call, int64_t at) {
    for (int64_t p = 0; p < call.parts; p++) {
      ask(call.key[p], at, call.key[p].width * int64_t(sizeof(T)));
    }
    if (!shared(call)) ask(call.value, at, call.value.width * int64_t(sizeof(T)));
  }
  static void fetch(const Call& call, int64_t at, char* copy, Key* key) {
    float* to = reinterpret_cast<float*>(copy);
    for (int64_t p = 0; p < call.parts; p++) {
      const Rows& rows = call.key[p];
      widen<T>(rows.data + at * rows.row, rows.width, to);
      key->part[p] = reinterpret_cast<const char*>(to);
      to += rows.width;
    }
    key->value = key->part[0];
    if (shared(call)) return;
    widen<T>(call.value.data + at * call.value.row, call.value.width, to);
    key->value = reinterpret_cast<const char*>(to);
  }
};

// Numbers of a packed row share one scale per SCALED columns.
constexpr int64_t SCALED = 128;

// W int8 codes.
G5_INLINE F load_codes(const char* p) {
#if G5_AVX512
  return F(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))));
#elif G5_AVX2
  return F(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))));
#else
  I codes;
  for (int i = 0; i < W; i++) codes[i] = int8_t(p[i]);
  return __builtin_convertvector(codes, F);
#endif
}

// SCALED codes times their scale, rounded to BF16 and kept in the numbers of the arithmetic.
template <class E>
G5_INLINE void decode(const char* codes, float scale, typename E::Number* to) {
  for (int64_t i = 0; i < SCALED; i += W) E::store_rounded(to + i, load_codes(codes + i) * scale);
}
G5_INLINE void copy_rope(const char* from, int64_t n, bf16* to) { std::memcpy(to, from, 2 * n); }
G5_INLINE void copy_rope(const char* from, int64_t n, float* to) { widen<bf16>(from, n, to); }

// Packed rows: int8 latent, BF16 rope, one F32 scale per SCALED columns of the latent; dequantised
// to BF16 whatever the arithmetic is.
template <class E>
struct Packed {
  using Number = typename E::Number;
  static int64_t bytes(const Call& call) { return call.key[0].width * sizeof(Number); }
  static void ahead(const Call& call, int64_t at) {
    const int64_t latent = call.value.width;
    ask(call.key[0], at, latent + 2 * call.packed_rope + latent / SCALED * 4);
  }
  static void fetch(const Call& call, int64_t at, char* copy, Key* key) {
    const char* row = call.key[0].data + at * call.key[0].row;
    const int64_t latent = call.value.width;
    const char* scales = row + latent + 2 * call.packed_rope;
    Number* to = reinterpret_cast<Number*>(copy);
    for (int64_t i = 0; i < latent; i += SCALED) {
      float scale;
      std::memcpy(&scale, scales + i / SCALED * 4, sizeof scale);
      decode<E>(row + i, scale, to + i);
    }
    copy_rope(row + latent, call.packed_rope, to + latent);
    key->part[0] = key->value = copy;
  }
};

}  // namespace g5
