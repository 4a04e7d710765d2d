// Entry point: chooses the arithmetic and shares out rows and heads among the threads.
#include <atomic>

#include "attend.h"

namespace g5 {
namespace {

// Waking a thread takes as long as some million multiplications.
int64_t useful_threads(const Call& call) {
  const int64_t keys = call.index_count * call.sparse_block;
  const int64_t width = call.query[0].width + call.query[1].width + call.value.width;
  return call.rows * call.heads * keys * width < (4 << 20) ? 1 : g5_threads();
}

// Pieces into which the heads of a row are cut: with few rows no thread shall wait long for
// another. Each piece reads the row's keys again, so not more than needed.
int64_t pieces_per_row(int64_t rows, int64_t panels, int64_t threads) {
  int64_t pieces = 1;
  const auto idle = [&](int64_t n) { return up(rows * n, threads) - rows * n; };
  while (2 * pieces <= panels && 8 * idle(pieces) > rows * pieces) pieces *= 2;
  return pieces;
}

template <class E, class T, class Source>
int attend(const Call& call) {
  Sight* sight = scratch<Sight>(1, size_t(call.rows));
  if (sight == nullptr) return NO_MEMORY;
  look(call, sight);
  const int64_t threads = useful_threads(call), panels = up(call.heads, W) / W;
  const int64_t pieces = pieces_per_row(call.rows, panels, threads);
  // The score kernel takes PANELS at once.
  const int64_t per_piece = up(panels, PANELS * pieces) / pieces;
  struct Context {
    const Call& call;
    const Sight* sight;
    int64_t panels, per_piece, pieces;
    std::atomic<int> error;
  } context{call, sight, panels, per_piece, (panels + per_piece - 1) / per_piece, {OK}};
  const auto task = [](void* raw, int64_t index, int) {
    Context& c = *static_cast<Context*>(raw);
    const int64_t row = index / c.pieces, panel = index % c.pieces * c.per_piece;
    const int64_t n = c.panels - panel < c.per_piece ? c.panels - panel : c.per_piece;
    Attend<E, T, Source> work;
    char* memory = scratch<char>(0, work.lay_out(c.call, n, nullptr));
    if (memory == nullptr) {
      c.error = NO_MEMORY;
      return;
    }
    work.lay_out(c.call, n, memory);
    if (!work.row(row, panel * W, c.sight[row])) c.error = OUTSIDE;
  };
  const int64_t tasks = call.rows * context.pieces;
  if (threads > 1) {
    g5_run(tasks, task, &context);
  } else {
    for (int64_t i = 0; i < tasks; i++) task(&context, i, 0);
  }
  return context.error;
}

#if G5_AVX512
// Whether rows of BF16 can be read as whole pairs.
bool in_pairs(const Call& call) {
  for (int64_t p = 0; p < call.parts; p++) {
    if (call.query[p].width % 2 != 0) return false;
  }
  return true;
}
#endif

template <class T>
int attend_packed(const Call& call) {
#if G5_AVX512
  if (std::is_same_v<T, bf16> && in_pairs(call)) return attend<Pair, bf16, Packed<Pair>>(call);
#endif
  return attend<Single, T, Packed<Single>>(call);
}

}  // namespace
}  // namespace g5

G5_EXPORT int g5_sparse_flash_attention(const g5::Call* call) {
  using namespace g5;
  const bool packed = call->packed_rope >= 0;
  switch (call->dtype) {
    case F32:
      return packed ? attend_packed<float>(*call) : attend<Single, float, Direct>(*call);
    case F16:
      return packed ? attend_packed<f16>(*call) : attend<Single, f16, Widened<f16>>(*call);
    case BF16:
      if (packed) return attend_packed<bf16>(*call);
#if G5_AVX512
      if (in_pairs(*call)) return attend<Pair, bf16, Direct>(*call);
#endif
      return attend<Single, bf16, Widened<bf16>>(*call);
  }
  return UNSUPPORTED;
}
