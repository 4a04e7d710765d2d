// What every kernel includes: number formats, errors, threads and scratch memory.
//
// One shared library is built per operator folder and instruction set; all of its files are
// compiled with that set's flags, and exactly one of G5_AVX512, G5_AVX2, G5_NEON, G5_PORTABLE is 1.
// Entry points are `G5_EXPORT int g5_<name>(...)` with plain pointers and int64_t sizes; strides
// count elements. They return an Error; none of them throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef G5_AVX512
#define G5_AVX512 0
#endif
#ifndef G5_AVX2
#define G5_AVX2 0
#endif
#ifndef G5_NEON
#define G5_NEON 0
#endif
#ifndef G5_PORTABLE
#define G5_PORTABLE 0
#endif
#if G5_AVX512 + G5_AVX2 + G5_NEON + G5_PORTABLE != 1
#error "exactly one instruction set must be chosen with -DG5_<name>=1"
#endif

#define G5_EXPORT extern "C" __attribute__((visibility("default")))
#define G5_INLINE inline __attribute__((always_inline))

namespace g5 {

enum DType : int { F32 = 0, BF16 = 1, F16 = 2 };
enum Error : int { OK = 0, UNSUPPORTED = 1, NO_MEMORY = 2 };

// Stored 16-bit floats; the structs keep them apart from integers and from each other.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class To, class From>
G5_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

G5_INLINE float to_f32(float x) { return x; }
G5_INLINE float to_f32(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }

// Exact, subnormals included: the exponent is moved by a multiplication with 2^112.
G5_INLINE float to_f32(f16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16;
  const uint32_t rest = uint32_t(x.bits & 0x7fff) << 13;
  const bool special = (x.bits & 0x7c00) == 0x7c00;
  const float scaled = bit_cast<float>(rest) * 0x1p112f;
  const uint32_t magnitude = special ? (rest | 0x7f800000) : bit_cast<uint32_t>(scaled);
  return bit_cast<float>(sign | magnitude);
}

// Nearest, ties to even; NaN stays NaN.
G5_INLINE bf16 to_bf16(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return {uint16_t(bits >> 16 | 0x40)};
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// Nearest, ties to even; beyond 65504 infinity; NaN stays NaN.
G5_INLINE f16 to_f16(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {uint16_t(sign | 0x7e00)};
  if (magnitude >= 0x477ff000) return {uint16_t(sign | 0x7c00)};
  if (magnitude < 0x38800000) {
    // Adding 0.5 leaves the result in the low bits, rounded by the addition itself.
    const float shifted = bit_cast<float>(magnitude) + 0.5f;
    return {uint16_t(sign | (bit_cast<uint32_t>(shifted) - 0x3f000000))};
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000;
  return {uint16_t(sign | rounded >> 13)};
}

G5_INLINE void from_f32(float x, float* to) { *to = x; }
G5_INLINE void from_f32(float x, bf16* to) { *to = to_bf16(x); }
G5_INLINE void from_f32(float x, f16* to) { *to = to_f16(x); }

}  // namespace g5

// From pool.cpp, which is a library of its own that all operators share.
extern "C" {
// Runs `task(context, index, thread)` for index 0 .. tasks - 1, `thread` below g5_threads().
// Returns when all are done. Inside a task, or while another thread uses the pool, it runs them in
// the calling thread as thread 0.
void g5_run(int64_t tasks, void (*task)(void*, int64_t, int), void* context);
int g5_threads();
void* g5_scratch(int slot, size_t bytes);
}

namespace g5 {

// Memory of the calling thread that lives until the thread ends, 64-byte aligned, not cleared.
// A slot (0 to 7) holds one buffer: asking again for the same slot ends the life of the former.
// Null when there is no memory.
template <class T>
T* scratch(int slot, size_t count) {
  return static_cast<T*>(g5_scratch(slot, count * sizeof(T)));
}

// fn(begin, end, thread) over [0, n) in equal pieces of at least `grain`. There are up to four for
// every thread, so that one which has to share its processor does less of the work.
template <class Fn>
void parallel_for(int64_t n, int64_t grain, const Fn& fn) {
  if (n <= 0) return;
  int64_t pieces = g5_threads() == 1 ? 1 : 4 * int64_t(g5_threads());
  const int64_t most = grain > 1 ? n / grain : n;
  if (pieces > most) pieces = most;
  if (pieces <= 1) return fn(int64_t(0), n, 0);
  struct Context {
    const Fn* fn;
    int64_t n, pieces;
  } context{&fn, n, pieces};
  auto task = [](void* raw, int64_t i, int thread) {
    const Context& c = *static_cast<Context*>(raw);
    (*c.fn)(c.n * i / c.pieces, c.n * (i + 1) / c.pieces, thread);
  };
  g5_run(pieces, task, &context);
}

}  // namespace g5
