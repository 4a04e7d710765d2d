// The tile of tile.h for AVX-512: twelve keys times one or two vectors of heads, in registers.
//
// Written in assembly since GCC 12 keeps some of the 24 sums in memory when it has the choice,
// which halves the speed. Registers: zmm0-23 sums (key j: 2j and 2j + 1), zmm24-25 heads, zmm26 a
// constant, zmm27-29 broadcast keys (int8).
#pragma once

#include <immintrin.h>

#include "g5_vec.h"

namespace g5 {

constexpr int KEYS = 12, VECTORS = 2;

struct Group {
  const void* query;      // [steps][V][16] lanes
  const float* weights;   // [V][16]; 0 where there is no head
  const int32_t* start;   // [V][16]; where the sums begin (int8 only)
  uint16_t valid[2];      // a bit per head
};

// A lane holds one F32, two bf16 or four int8. Subnormal bf16 numbers count as zero.
struct F32Lanes {
  using Key = float;
};
struct Bf16Lanes {
  using Key = bf16;
};
// The instruction multiplies unsigned by signed bytes. Flipping the top bit of a key's bytes adds
// 128 to each, which `start` takes back: -128 times the sum of the head's numbers.
struct IntLanes {
  using Key = int8_t;
};

#define G5_FLIPPED(at, t) "vpxord " at "%{1to16%}, %%zmm26, %%zmm" t "\n\t"
// Broadcast by the multiplication itself: an instruction of its own would take a turn of the vector
// units, a third of the time where a key meets one vector of heads.
#define G5_DOT_F32(q, at, sum) "vfmadd231ps " at "%{1to16%}, %%zmm" q ", %%zmm" sum "\n\t"
#define G5_DOT_BF16(q, at, sum) "vdpbf16ps " at "%{1to16%}, %%zmm" q ", %%zmm" sum "\n\t"
#define G5_DOT_INT8(q, k, sum) "vpdpbusd %%zmm" q ", %%zmm" k ", %%zmm" sum "\n\t"

#define G5_KEY1(LOAD, DOT, at, t, a, b) LOAD(at, t) DOT("24", t, a)
#define G5_KEY2(LOAD, DOT, at, t, a, b) LOAD(at, t) DOT("24", t, a) DOT("25", t, b)
#define G5_KEY1_AT(LOAD, DOT, at, t, a, b) DOT("24", at, a)
#define G5_KEY2_AT(LOAD, DOT, at, t, a, b) DOT("24", at, a) DOT("25", at, b)
#define G5_LOAD_HEADS1(at0, at1) "vmovaps " at0 ", %%zmm24\n\t"
#define G5_LOAD_HEADS2(at0, at1) "vmovaps " at0 ", %%zmm24\n\tvmovaps " at1 ", %%zmm25\n\t"

#define G5_THREE(KEY, LOAD, DOT, k, base, a, b, c, d, e, f)            \
  KEY(LOAD, DOT, k "(%[" base "])", "27", a, b)                        \
  KEY(LOAD, DOT, k "(%[" base "], %[stride])", "28", c, d)             \
  KEY(LOAD, DOT, k "(%[" base "], %[stride], 2)", "29", e, f)

#define G5_STEP(HEADS, KEY, LOAD, DOT, k, q0, q1)                            \
  HEADS(q0 "(%[query])", q1 "(%[query])")                                    \
  G5_THREE(KEY, LOAD, DOT, k, "key0", "0", "1", "2", "3", "4", "5")          \
  G5_THREE(KEY, LOAD, DOT, k, "key3", "6", "7", "8", "9", "10", "11")        \
  G5_THREE(KEY, LOAD, DOT, k, "key6", "12", "13", "14", "15", "16", "17")    \
  G5_THREE(KEY, LOAD, DOT, k, "key9", "18", "19", "20", "21", "22", "23")

// A round uses 192 bytes of keys and asks for as many of a later tile.
#define G5_ADVANCE(bytes)                                                                   \
  "prefetcht0 (%[ahead])\n\tprefetcht0 64(%[ahead])\n\tprefetcht0 128(%[ahead])\n\t"        \
  "addq $192, %[ahead]\n\t"                                                                 \
  "addq $16, %[key0]\n\taddq $16, %[key3]\n\taddq $16, %[key6]\n\taddq $16, %[key9]\n\t"    \
  "addq $" bytes ", %[query]\n\tdecq %[rounds]\n\tjnz 1b\n\t"

#define G5_LOOP1(KEY, LOAD, DOT)                                                    \
  "1:\n\t" G5_STEP(G5_LOAD_HEADS1, KEY, LOAD, DOT, "0", "0", "0")                   \
  G5_STEP(G5_LOAD_HEADS1, KEY, LOAD, DOT, "4", "64", "64")                          \
  G5_STEP(G5_LOAD_HEADS1, KEY, LOAD, DOT, "8", "128", "128")                        \
  G5_STEP(G5_LOAD_HEADS1, KEY, LOAD, DOT, "12", "192", "192") G5_ADVANCE("256")
#define G5_LOOP2(KEY, LOAD, DOT)                                                    \
  "1:\n\t" G5_STEP(G5_LOAD_HEADS2, KEY, LOAD, DOT, "0", "0", "64")                  \
  G5_STEP(G5_LOAD_HEADS2, KEY, LOAD, DOT, "4", "128", "192")                        \
  G5_STEP(G5_LOAD_HEADS2, KEY, LOAD, DOT, "8", "256", "320")                        \
  G5_STEP(G5_LOAD_HEADS2, KEY, LOAD, DOT, "12", "384", "448") G5_ADVANCE("512")

#define G5_BEGIN_AT_ZERO(a, b) \
  "vpxord %%zmm" a ", %%zmm" a ", %%zmm" a "\n\tvpxord %%zmm" b ", %%zmm" b ", %%zmm" b "\n\t"
#define G5_BEGIN_AT_START(a, b) \
  "vmovdqa64 %%zmm24, %%zmm" a "\n\tvmovdqa64 %%zmm25, %%zmm" b "\n\t"

// max(0, x) gives x where x is NaN, since the second source (the first here) wins then.
#define G5_RELU_F32(a, mask) "vmaxps %%zmm" a ", %%zmm26, %%zmm" a "%{%%" mask "%}%{z%}\n\t"
#define G5_RELU_INT(a, mask)                                          \
  "vpmaxsd %%zmm" a ", %%zmm26, %%zmm" a "%{%%" mask "%}%{z%}\n\t"    \
  "vcvtdq2ps %%zmm" a ", %%zmm" a "\n\t"
#define G5_WEIGH1(RELU, a, b) RELU(a, "k1") "vmulps %%zmm" a ", %%zmm24, %%zmm" a "\n\t"
#define G5_WEIGH2(RELU, a, b)                                                       \
  RELU(a, "k1") RELU(b, "k2") "vmulps %%zmm" a ", %%zmm24, %%zmm" a "\n\t"           \
  "vfmadd231ps %%zmm" b ", %%zmm25, %%zmm" a "\n\t"
// The sixteen terms of each of four keys, in every second register, become four.
#define G5_ADD(UNPACK, a, b, to)                                                    \
  UNPACK("l", a, b, "27") UNPACK("h", a, b, "28") "vaddps %%zmm27, %%zmm28, %%zmm" to "\n\t"
#define G5_UNPACK_PS(half, a, b, to) "vunpck" half "ps %%zmm" b ", %%zmm" a ", %%zmm" to "\n\t"
#define G5_UNPACK_PD(half, a, b, to) "vunpck" half "pd %%zmm" b ", %%zmm" a ", %%zmm" to "\n\t"
#define G5_FOUR(WEIGH, RELU, at, a, b, c, d, e, f, g, h)                            \
  WEIGH(RELU, a, b) WEIGH(RELU, c, d) WEIGH(RELU, e, f) WEIGH(RELU, g, h)           \
  G5_ADD(G5_UNPACK_PS, a, c, a) G5_ADD(G5_UNPACK_PS, e, g, e)                       \
  G5_ADD(G5_UNPACK_PD, a, e, a)                                                     \
  "vmovaps " at "(%[partial]), %%zmm29%{%%k3%}%{z%}\n\t"                            \
  "vaddps %%zmm29, %%zmm" a ", %%zmm" a "\n\tvmovaps %%zmm" a ", " at "(%[partial])\n\t"
#define G5_FINISH(WEIGH, RELU)                                                      \
  G5_FOUR(WEIGH, RELU, "0", "0", "1", "2", "3", "4", "5", "6", "7")                 \
  G5_FOUR(WEIGH, RELU, "64", "8", "9", "10", "11", "12", "13", "14", "15")          \
  G5_FOUR(WEIGH, RELU, "128", "16", "17", "18", "19", "20", "21", "22", "23")

#define G5_TWELVE(DO)                                                       \
  DO("0", "1") DO("2", "3") DO("4", "5") DO("6", "7") DO("8", "9") DO("10", "11")   \
  DO("12", "13") DO("14", "15") DO("16", "17") DO("18", "19") DO("20", "21") DO("22", "23")

#define G5_CLEAR "vpxord %%zmm26, %%zmm26, %%zmm26\n\t"
#define G5_WEIGHTS                                                            \
  G5_CLEAR "kmovw %[mask0], %%k1\n\tkmovw %[mask1], %%k2\n\tkmovw %[old], %%k3\n\t" \
  "vmovaps (%[weights]), %%zmm24\n\tvmovaps %c[second](%[weights]), %%zmm25\n\t"
#define G5_PREPARE_FLIP                                                       \
  "vmovaps (%[start]), %%zmm24\n\tvmovaps %c[second](%[start]), %%zmm25\n\t"  \
  G5_TWELVE(G5_BEGIN_AT_START) "vpbroadcastd %[flip], %%zmm26\n\t"

#define G5_TILE(BEGIN, LOOP, FINISH)                                                          \
  asm volatile(BEGIN LOOP G5_WEIGHTS FINISH                                                   \
               : [query] "+r"(query), [key0] "+r"(key0), [key3] "+r"(key3), [key6] "+r"(key6),\
                 [key9] "+r"(key9), [rounds] "+r"(rounds), [ahead] "+r"(ahead)                \
               : [stride] "r"(bytes), [partial] "r"(partial), [weights] "r"(g.weights),       \
                 [start] "r"(g.start), [mask0] "m"(g.valid[0]), [mask1] "m"(g.valid[1]),      \
                 [old] "m"(old), [flip] "m"(flip), [second] "i"(V == 2 ? 64 : 0)              \
               : "cc", "memory", "k1", "k2", "k3", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",\
                 "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", \
                 "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22",      \
                 "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29")

template <class L>
constexpr bool is_f32 = sizeof(typename L::Key) == 4;
template <class L>
constexpr bool is_bf16 = sizeof(typename L::Key) == 2;

// The lanes in which tile() leaves the terms of neighbouring keys that are still to be added: four
// of each of four keys side by side. W keys take the room of `SUMMANDS` vectors.
constexpr int SUMMANDS = 4;

G5_INLINE F reduce(const float* partial) {
  const auto halves = [&](int i) {
    const F x = load(partial + i * W), y = load(partial + (i + 1) * W);
    return _mm512_shuffle_f32x4(x, y, 0x44) + _mm512_shuffle_f32x4(x, y, 0xee);
  };
  const F x = halves(0), y = halves(2);
  return _mm512_shuffle_f32x4(x, y, 0x88) + _mm512_shuffle_f32x4(x, y, 0xdd);
}

// As in tile.h; `steps` must be a multiple of 4. `ahead` is where a later tile lies in memory.
template <class L, int V>
void tile(const Group& g, const typename L::Key* key, int64_t stride, int64_t steps, bool first,
          float* partial, const void* ahead) {
  const int64_t bytes = stride * int64_t(sizeof(typename L::Key));
  const char* query = static_cast<const char*>(g.query);
  const char* key0 = reinterpret_cast<const char*>(key);
  const char *key3 = key0 + 3 * bytes, *key6 = key0 + 6 * bytes, *key9 = key0 + 9 * bytes;
  int64_t rounds = steps / 4;
  const uint16_t old = first ? 0 : 0xffff;
  const uint32_t flip = 0x80808080;
  if constexpr (is_f32<L> && V == 1)
    G5_TILE(G5_TWELVE(G5_BEGIN_AT_ZERO), G5_LOOP1(G5_KEY1_AT, , G5_DOT_F32),
            G5_FINISH(G5_WEIGH1, G5_RELU_F32));
  else if constexpr (is_f32<L>)
    G5_TILE(G5_TWELVE(G5_BEGIN_AT_ZERO), G5_LOOP2(G5_KEY2_AT, , G5_DOT_F32),
            G5_FINISH(G5_WEIGH2, G5_RELU_F32));
  else if constexpr (is_bf16<L> && V == 1)
    G5_TILE(G5_TWELVE(G5_BEGIN_AT_ZERO), G5_LOOP1(G5_KEY1_AT, , G5_DOT_BF16),
            G5_FINISH(G5_WEIGH1, G5_RELU_F32));
  else if constexpr (is_bf16<L>)
    G5_TILE(G5_TWELVE(G5_BEGIN_AT_ZERO), G5_LOOP2(G5_KEY2_AT, , G5_DOT_BF16),
            G5_FINISH(G5_WEIGH2, G5_RELU_F32));
  else if constexpr (V == 1)
    G5_TILE(G5_PREPARE_FLIP, G5_LOOP1(G5_KEY1, G5_FLIPPED, G5_DOT_INT8),
            G5_FINISH(G5_WEIGH1, G5_RELU_INT));
  else
    G5_TILE(G5_PREPARE_FLIP, G5_LOOP2(G5_KEY2, G5_FLIPPED, G5_DOT_INT8),
            G5_FINISH(G5_WEIGH2, G5_RELU_INT));
}

}  // namespace g5
