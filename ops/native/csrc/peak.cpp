// How fast one thread multiplies and adds with everything in registers: the limit that
// measurements of the kernels are set against.
#include <atomic>

#include "g5_vec.h"

namespace {

#if defined(__x86_64__)
#define G5_IN_REGISTER "+v"
#else
#define G5_IN_REGISTER "+w"
#endif

// Twelve sums that do not depend on each other hide the latency of an addition. They are no array,
// since GCC would keep that in memory; the empty asm keeps it from folding the loop.
template <class V, class Step>
int64_t repeat(int64_t rounds, const Step& step, V x) {
  V a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};
  for (int64_t round = 0; round < rounds; round++) {
    a = step(a, x), b = step(b, x), c = step(c, x), d = step(d, x);
    e = step(e, x), f = step(f, x), g = step(g, x), h = step(h, x);
    i = step(i, x), j = step(j, x), k = step(k, x), l = step(l, x);
    asm volatile("" : G5_IN_REGISTER(a), G5_IN_REGISTER(b), G5_IN_REGISTER(c), G5_IN_REGISTER(d),
                      G5_IN_REGISTER(e), G5_IN_REGISTER(f));
    asm volatile("" : G5_IN_REGISTER(g), G5_IN_REGISTER(h), G5_IN_REGISTER(i), G5_IN_REGISTER(j),
                      G5_IN_REGISTER(k), G5_IN_REGISTER(l));
  }
  return rounds * 12;
}

}  // namespace

// Runs about `rounds` x 12 instructions of `kind` 0 (F32 FMA), 1 (bf16 dot), 2 (int8 dot), and
// writes how many multiplications plus additions that were. UNSUPPORTED where the instruction set
// has no such instruction.
G5_EXPORT int g5_peak(int kind, int64_t rounds, int64_t* operations) {
  using namespace g5;
  if (kind == 0) {
    const auto step = [](F s, F x) { return fma(x, x, s); };
    *operations = repeat(rounds, step, splat(0.5f)) * 2 * W;
    return OK;
  }
#if G5_AVX512
  if (kind == 1) {
    const auto step = [](__m512 s, __m512 x) {
      return _mm512_dpbf16_ps(s, __m512bh(x), __m512bh(x));
    };
    *operations = repeat(rounds, step, _mm512_set1_ps(0.5f)) * 4 * W;
    return OK;
  }
  if (kind == 2) {
    const auto step = [](__m512i s, __m512i x) { return _mm512_dpbusd_epi32(s, x, x); };
    *operations = repeat(rounds, step, _mm512_set1_epi8(1)) * 8 * W;
    return OK;
  }
#elif G5_NEON
  if (kind == 2) {
    const auto step = [](int32x4_t s, int32x4_t x) {
      return vdotq_s32(s, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(x));
    };
    *operations = repeat(rounds, step, vdupq_n_s32(0x01010101)) * 8 * W;
    return OK;
  }
#endif
  return UNSUPPORTED;
}

// The same in each of g5_threads() threads at once; `operations` of all together.
G5_EXPORT int g5_peak_everywhere(int kind, int64_t rounds, int64_t* operations) {
  struct Context {
    int kind;
    int64_t rounds;
    std::atomic<int64_t> operations{0};
    std::atomic<int> error{g5::OK};
  } context{kind, rounds};
  const auto task = [](void* raw, int64_t, int) {
    Context& c = *static_cast<Context*>(raw);
    int64_t done = 0;
    const int error = g5_peak(c.kind, c.rounds, &done);
    if (error != g5::OK) c.error = error;
    c.operations += done;
  };
  g5_run(g5_threads(), task, &context);
  *operations = context.operations;
  return context.error;
}
