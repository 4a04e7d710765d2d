// Entry points of the lightning indexer, and how its work is split over threads.
#include <atomic>
#include <new>
#include <vector>

#include "choose.h"
#include "score.h"

namespace g5 {
namespace {

// Query tokens of one request that are scored in one pass over its keys.
constexpr int64_t TOKENS = 8;

struct Request {
  int64_t row, rows, key, keys;  // first query row, query rows, first key row, keys
};

struct Call {
  const void *query, *weights;
  int weights_dtype;
  const void* query_scale;  // null, or F32 or F16 by scale_dtype
  int scale_dtype;
  int64_t rows, heads, dim;
  const Request* requests;
  int64_t count_requests;
  KeyRows keys;  // of the whole tensor; first and table are set per request
  int64_t table_stride;
  const KeyScales* key_scales;
  RowForm form;
  bool causal;
  int32_t* indices;
  float* values;  // null if not wanted
};

// Up to TOKENS query tokens of one request.
struct Item {
  int64_t request, first, tokens;
};

float number(const void* data, int dtype, int64_t i) {
  if (dtype == F32) return static_cast<const float*>(data)[i];
  return dtype == BF16 ? to_f32(static_cast<const bf16*>(data)[i])
                       : to_f32(static_cast<const f16*>(data)[i]);
}

template <class L, class Stored>
class Indexer {
 public:
  explicit Indexer(const Call& call)
      : call_(call), shape_(PanelShape::of<L>(call.heads, call.dim)) {}

  Error run() {
    std::vector<Item> split, whole;
    int64_t total = 0;
    std::vector<Item> items;
    for (int64_t r = 0; r < call_.count_requests; r++)
      for (int64_t i = 0; i < call_.requests[r].rows; i += TOKENS) {
        items.push_back({r, i, std::min(TOKENS, call_.requests[r].rows - i)});
        total += cost(items.back());
      }
    // What is more than a quarter of one thread's share would leave the others waiting.
    const int64_t threads = g5_threads();
    for (const Item& item : items)
      (threads > 1 && cost(item) * threads * 4 > total ? split : whole).push_back(item);
    for (const Item& item : split) each(item, true);
    struct Context {
      Indexer* self;
      const Item* items;
    } context{this, whole.data()};
    const auto task = [](void* raw, int64_t i, int) {
      const Context& c = *static_cast<Context*>(raw);
      c.self->each(c.items[i], false);
    };
    if (!whole.empty()) g5_run(int64_t(whole.size()), task, &context);
    return Error(error_.load());
  }

 private:
  int64_t cost(const Item& item) const {
    return item.tokens * (call_.requests[item.request].keys + 1);
  }

  // Keys that token i of a request sees.
  int64_t visible(const Request& r, int64_t i) const {
    return call_.causal ? std::max<int64_t>(0, r.keys - r.rows + i + 1) : r.keys;
  }

  KeyRows keys_of(const Item& item) const {
    KeyRows keys = call_.keys;
    keys.first = call_.requests[item.request].key;
    if (keys.table != nullptr) keys.table += item.request * call_.table_stride;
    return keys;
  }

  void each(const Item& item, bool split) {
    const Request& r = call_.requests[item.request];
    const bool ranked = call_.form.sorted || call_.values != nullptr;
    // A later token never sees less, so those without a choice come first.
    int64_t easy = 0;
    while (!ranked && easy < item.tokens && visible(r, item.first + easy) <= call_.form.count)
      easy++;
    const int64_t tokens = item.tokens - easy, first = item.first + easy;
    const int64_t most = visible(r, item.first + item.tokens - 1);
    const int64_t row = (most + CHUNK - 1) / CHUNK * CHUNK;
    float* scores = nullptr;
    if (tokens > 0 && most > 0) {
      scores = scratch<float>(SCORES, size_t(tokens * row));
      if (scores == nullptr || !score(item, r.row + first, tokens, most, scores, row, split)) {
        error_ = NO_MEMORY;
        return;
      }
    }
    const auto finish = [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        const int64_t out = (r.row + item.first + i) * call_.form.count;
        const Error error =
            choose(scores + std::max<int64_t>(0, i - easy) * row, visible(r, item.first + i),
                   call_.form, call_.indices + out,
                   call_.values == nullptr ? nullptr : call_.values + out);
        if (error != OK) error_ = error;
      }
    };
    if (split)
      parallel_for(item.tokens, 1, finish);
    else
      finish(0, item.tokens, 0);
  }

  // scores[t][0 .. most) of query rows first .. first + tokens - 1; false without memory.
  bool score(const Item& item, int64_t first, int64_t tokens, int64_t most, float* scores,
             int64_t row, bool split) {
    std::vector<Panel> panels;
    const size_t lanes = size_t(shape_.lanes() + 15) / 16 * 16;
    uint32_t* memory = scratch<uint32_t>(PANELS, lanes * size_t(tokens));
    if (memory == nullptr) return false;
    for (int64_t t = 0; t < tokens; t++) {
      panels.emplace_back(shape_, memory + size_t(t) * lanes);
      if (!fill(panels.back(), first + t)) return false;
    }
    const KeyRows keys = keys_of(item);
    const auto pass = [&](int64_t begin, int64_t end, int) {
      void* raw = g5_scratch(WORKSPACE, Workspace<typename L::Key>::bytes(call_.dim));
      if (raw == nullptr) {
        error_ = NO_MEMORY;
        return;
      }
      Scorer<L, Stored> scorer(keys, call_.key_scales, panels, shape_, most, scores, row, raw);
      for (int64_t c = begin; c < end; c++) scorer.chunk(c * CHUNK);
    };
    const int64_t chunks = row / CHUNK;
    if (split)
      parallel_for(chunks, std::max<int64_t>(1, 32 / tokens), pass);
    else
      pass(0, chunks, 0);
    return error_ == OK;
  }

  bool fill(Panel& panel, int64_t row) {
    const int64_t heads = shape_.heads;
    const size_t bytes = size_t(shape_.width) * sizeof(typename L::Key);
    float* weights = scratch<float>(ORDER, size_t(heads) + bytes / sizeof(float) + 16);
    if (weights == nullptr) return false;
    for (int64_t h = 0; h < heads; h++) {
      weights[h] = number(call_.weights, call_.weights_dtype, row * heads + h);
      if (call_.query_scale != nullptr)
        weights[h] *= number(call_.query_scale, call_.scale_dtype, row * heads + h);
    }
    const Stored* query = static_cast<const Stored*>(call_.query) + row * heads * shape_.dim;
    float* behind = weights + (heads + 15) / 16 * 16;
    panel.fill<L>(query, weights, reinterpret_cast<typename L::Key*>(behind));
    return true;
  }

  const Call& call_;
  const PanelShape shape_;
  std::atomic<int> error_{OK};
};

// Rows of no request hold -1 only.
void clear_unowned(const Call& call) {
  int64_t owned = 0;
  for (int64_t r = 0; r < call.count_requests; r++) owned += call.requests[r].rows;
  if (owned == call.rows) return;
  const int64_t size = call.rows * call.form.count;
  std::fill(call.indices, call.indices + size, -1);
  if (call.values != nullptr) std::fill(call.values, call.values + size, -__builtin_inff());
}

template <class L, class Stored>
int run(const Call& call) {
  try {
    clear_unowned(call);
    return Indexer<L, Stored>(call).run();
  } catch (const std::bad_alloc&) {
    return NO_MEMORY;
  }
}

#if G5_AVX512
using NarrowLanes = Bf16Lanes;
#else
using NarrowLanes = F32Lanes;
#endif

}  // namespace
}  // namespace g5

// indices [rows, count] and values [rows, count] or null, of query [rows, heads, dim] and weights
// [rows, heads], dense, and of keys `key_stride` elements apart. `requests` [n][4]: first query
// row, query rows, first key row (0 with a block table), keys.
G5_EXPORT int g5_lightning_indexer(int dtype, const void* query, const void* key,
                                   int64_t key_stride, int weights_dtype, const void* weights,
                                   int64_t rows, int64_t heads, int64_t dim, int64_t n,
                                   const int64_t* requests, const int32_t* table,
                                   int64_t table_stride, int64_t block_size, int64_t count,
                                   int causal, int sorted, int32_t* indices, float* values) {
  using namespace g5;
  const KeyRows keys{static_cast<const char*>(key), key_stride, dim, 0, table, block_size};
  const Call call{query, weights, weights_dtype, nullptr, F32, rows, heads, dim,
                  reinterpret_cast<const Request*>(requests), n, keys, table_stride, nullptr,
                  {count, sorted != 0}, causal != 0, indices, values};
  if (dtype == F32) return run<F32Lanes, float>(call);
  if (dtype == BF16) return run<NarrowLanes, bf16>(call);
  return dtype == F16 ? run<F32Lanes, f16>(call) : int(UNSUPPORTED);
}

// The same for int8 query and key with a scale per query head [rows, heads] and per key row,
// `key_scale_stride` elements apart. dim must be below 1024.
G5_EXPORT int g5_lightning_indexer_quant(
    const void* query, const void* key, int64_t key_stride, int weights_dtype, const void* weights,
    int query_scale_dtype, const void* query_scale, int key_scale_dtype, const void* key_scale,
    int64_t key_scale_stride, int64_t rows, int64_t heads, int64_t dim, int64_t n,
    const int64_t* requests, const int32_t* table, int64_t table_stride, int64_t block_size,
    int64_t count, int causal, int sorted, int32_t* indices) {
  using namespace g5;
  if (dim > 1023) return UNSUPPORTED;
  const KeyRows keys{static_cast<const char*>(key), key_stride, dim, 0, table, block_size};
  const KeyScales scales{key_scale, key_scale_dtype, key_scale_stride};
  const Call call{query, weights, weights_dtype, query_scale, query_scale_dtype, rows, heads, dim,
                  reinterpret_cast<const Request*>(requests), n, keys, table_stride, &scales,
                  {count, sorted != 0}, causal != 0, indices, nullptr};
  return run<IntLanes, int8_t>(call);
}
