// Entry point: chooses the arithmetic and shares out rows and heads among the threads.
#include <algorithm>
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

// Whether `units` of equal work leave some of the threads without any for long.
bool uneven(int64_t units, int64_t threads) { return 8 * (up(units, threads) - units) > units; }

// How rows are cut into tasks. With few rows no thread shall wait long for another, so the keys of
// a row are shared out, and its heads where that is not enough: each piece of them reads the row's
// keys again.
struct Cuts {
  int64_t parts = 1, pieces = 1;  // of the keys, of the panels
  int64_t per_piece;              // panels

  Cuts(const Call& call, int64_t threads) {
    const int64_t panels = up(call.heads, W) / W;
    if (call.rows <= 2 * threads && uneven(call.rows, threads))
      parts = parts_of(call.index_count * call.sparse_block);
    while (2 * pieces <= panels && uneven(call.rows * parts * pieces, threads)) pieces *= 2;
    // The score kernel takes PANELS at once.
    per_piece = up(panels, PANELS * pieces) / pieces;
    pieces = (panels + per_piece - 1) / per_piece;
  }
};

// The tasks of a call.
template <class E, class T, class Source>
class Tasks {
 public:
  Tasks(const Call& call, int64_t threads) : call_(call), cuts_(call, threads) {}

  int run(bool threads) {
    sight_ = scratch<Sight>(1, size_t(call_.rows));
    if (sight_ == nullptr || (cuts_.parts > 1 && !share())) return NO_MEMORY;
    look(call_, sight_);
    const auto task = [](void* self, int64_t i, int) { static_cast<Tasks*>(self)->one(i); };
    const int64_t tasks = call_.rows * cuts_.pieces * cuts_.parts;
    if (threads) {
      g5_run(tasks, task, this);
    } else {
      for (int64_t i = 0; i < tasks; i++) one(i);
    }
    return error_;
  }

 private:
  using Worker = Attend<E, T, Source>;

  // Memory for what parts of rows give, and for how many of them are missing.
  bool share() {
    Worker form;
    form.lay_out(call_, cuts_.per_piece, nullptr);
    group_bytes_ = int64_t(form.result_bytes()) * cuts_.parts;
    const int64_t groups = call_.rows * cuts_.pieces;
    results_ = scratch<char>(3, size_t(groups * (group_bytes_ + int64_t(sizeof *missing_))));
    if (results_ == nullptr) return false;
    missing_ = reinterpret_cast<int64_t*>(results_ + groups * group_bytes_);
    std::fill(missing_, missing_ + groups, cuts_.parts);
    return true;
  }

  void one(int64_t index) {
    const int64_t group = index / cuts_.parts, part = index % cuts_.parts;
    const int64_t row = group / cuts_.pieces, panel = group % cuts_.pieces * cuts_.per_piece;
    const int64_t left = up(call_.heads, W) / W - panel;
    const int64_t panels = left < cuts_.per_piece ? left : cuts_.per_piece;
    Worker worker;
    char* memory = scratch<char>(0, worker.lay_out(call_, panels, nullptr));
    if (memory == nullptr) {
      error_ = NO_MEMORY;
      return;
    }
    worker.lay_out(call_, panels, memory);
    const bool inside = cuts_.parts == 1 ? worker.row(row, panel * W, sight_[row])
                                         : shared(worker, group, part, row, panel * W);
    if (!inside) error_ = OUTSIDE;
  }

  // One part of a row's keys; who is the last of a group folds the others' results.
  bool shared(Worker& worker, int64_t group, int64_t part, int64_t row, int64_t head) {
    if (!worker.begin(row, head, sight_[row])) return false;
    char* results = results_ + group * group_bytes_;
    if (part < worker.parts()) worker.part(part, worker.result(results, part));
    if (__atomic_sub_fetch(missing_ + group, 1, __ATOMIC_ACQ_REL) > 0) return true;
    const Result first = worker.result(results, 0);
    for (int64_t p = 1; p < worker.parts(); p++) worker.fold(first, worker.result(results, p));
    worker.finish(row, head, first);
    return true;
  }

  const Call& call_;
  const Cuts cuts_;
  Sight* sight_ = nullptr;
  char* results_ = nullptr;      // [groups][parts]
  int64_t* missing_ = nullptr;   // [groups]
  int64_t group_bytes_ = 0;
  std::atomic<int> error_{OK};
};

template <class E, class T, class Source>
int attend(const Call& call) {
  const int64_t threads = useful_threads(call);
  return Tasks<E, T, Source>(call, threads).run(threads > 1);
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
