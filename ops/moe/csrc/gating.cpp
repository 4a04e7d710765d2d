// Choice of experts: sigmoid scores, best by score + bias, weights from the score alone.
#include "sigmoid.h"

using namespace g5;

namespace {

// Integers that compare like the floats; NaN above all, as in torch's sort. -0 and 0 are equal.
G5_INLINE int32_t sort_key(float x) {
  const int32_t bits = bit_cast<int32_t>(x + 0.0f);
  const int32_t key = bits ^ int32_t(uint32_t(bits >> 31) >> 1);
  return x == x ? key : INT32_MAX;
}
G5_INLINE int64_t sort_key(double x) {
  const int64_t bits = bit_cast<int64_t>(x + 0.0);
  const int64_t key = bits ^ int64_t(uint64_t(bits >> 63) >> 1);
  return x == x ? key : INT64_MAX;
}

template <class Wide, class T, class B>
void gate_row(const T* logits, const B* bias, int64_t experts, int64_t top_k, double factor,
              bool normalise, Wide* score, Wide* weights, int32_t* ids) {
  using Key = decltype(sort_key(Wide{}));
  Key* key = reinterpret_cast<Key*>(score + experts);
  for (int64_t e = 0; e < experts; e++) score[e] = sigmoid(Wide(wide(logits[e])));
  for (int64_t e = 0; e < experts; e++) key[e] = sort_key(score[e] + Wide(wide(bias[e])));
  Wide sum = 0;
  for (int64_t j = 0; j < top_k; j++) {
    Key best = key[0];
    for (int64_t e = 1; e < experts; e++) best = key[e] > best ? key[e] : best;
    int64_t chosen = 0;
    while (key[chosen] != best) chosen++;
    // Below every key of a number; nothing is chosen twice since top_k <= experts.
    key[chosen] = sizeof(Key) == 4 ? Key(INT32_MIN) : Key(INT64_MIN);
    ids[j] = int32_t(chosen);
    weights[j] = score[chosen];
    sum += weights[j];
  }
  for (int64_t j = 0; j < top_k; j++) {
    if (normalise) weights[j] = weights[j] / (sum + Wide(1e-20));
    weights[j] = weights[j] * Wide(factor);
  }
}

template <class Wide, class T, class B>
int gate(const T* logits, int64_t rows, int64_t experts, int64_t stride, const B* bias,
         int64_t top_k, double factor, bool normalise, Wide* weights, int32_t* ids) {
  bool failed = false;
  parallel_for(rows, row_grain(experts * (4 + top_k)), [&](int64_t begin, int64_t end, int) {
    Wide* room = scratch<Wide>(0, 2 * experts);
    if (room == nullptr) {
      failed = true;
      return;
    }
    for (int64_t r = begin; r < end; r++)
      gate_row(logits + r * stride, bias, experts, top_k, factor, normalise, room,
               weights + r * top_k, ids + r * top_k);
  });
  return failed ? NO_MEMORY : OK;
}

}  // namespace

// weights [rows, top_k] (F64 for F64 logits, else F32) and ids int32 [rows, top_k] of logits
// [rows, experts], rows `stride` elements apart; bias is F64 for F64 logits, else F32.
G5_EXPORT int g5_moe_gating(const void* logits, int dtype, int64_t rows, int64_t experts,
                            int64_t stride, const void* bias, int64_t top_k, double factor,
                            int normalise, void* weights, int32_t* ids) {
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    using Wide = decltype(wide(zero));
    return gate<Wide>(static_cast<const T*>(logits), rows, experts, stride,
                      static_cast<const Wide*>(bias), top_k, factor, normalise != 0,
                      static_cast<Wide*>(weights), ids);
  });
}
