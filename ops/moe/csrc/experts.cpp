// Expert layers: pairs of token and expert sorted by expert, both products, sums in slot order.
#include "g5_quant.h"
#include "products.h"
#include "sigmoid.h"

using namespace g5;

namespace {

constexpr int BAD_EXPERT = 3;
constexpr int64_t PRODUCTS = 1 << 18;  // below that another thread does not pay

struct Problem {
  int64_t tokens, top_k, experts, hidden, inter;
  Scheme scheme;
  Layer up, down;
};

// Rows of one expert among the sorted pairs.
struct Group {
  int64_t expert, begin, rows;
};

struct Groups {
  int64_t pairs = 0, count = 0;
  Group* group;
  int64_t* token;  // of each sorted pair
  int64_t* place;  // of each slot among the sorted pairs, -1 without an expert
};

// Sorted by expert, slots in their order.
int sort_pairs(const Problem& p, const void* ids, int ids_bytes, Groups* out) {
  const int64_t slots = p.tokens * p.top_k;
  int64_t* room = scratch<int64_t>(0, 3 * slots + 2 * p.experts + 1);
  out->group = scratch<Group>(1, p.experts);
  if (room == nullptr || out->group == nullptr) return NO_MEMORY;
  out->token = room;
  out->place = room + slots;
  int64_t *expert = room + 2 * slots, *start = room + 3 * slots;
  for (int64_t e = 0; e <= p.experts; e++) start[e] = 0;
  for (int64_t i = 0; i < slots; i++) {
    const int64_t e = ids_bytes == 8 ? static_cast<const int64_t*>(ids)[i]
                                     : static_cast<const int32_t*>(ids)[i];
    if (e >= p.experts) return BAD_EXPERT;
    expert[i] = e < 0 ? -1 : e;
    if (e >= 0) start[e + 1]++;
  }
  for (int64_t e = 0; e < p.experts; e++) {
    if (start[e + 1] > 0) out->group[out->count++] = {e, start[e], start[e + 1]};
    start[e + 1] += start[e];
  }
  out->pairs = start[p.experts];
  for (int64_t i = 0; i < slots; i++) {
    out->place[i] = expert[i] < 0 ? -1 : start[expert[i]]++;
    if (expert[i] >= 0) out->token[out->place[i]] = i / p.top_k;
  }
  return OK;
}

int offset_of(Scheme scheme) { return scheme == W4A8 ? Nibbles::OFFSET : Bytes::OFFSET; }

// Rows of one layer's input: codes and scales, or the numbers themselves.
template <class Wide>
struct Rows {
  uint8_t* codes;
  float* scale;
  Wide* x;

  bool make(const Problem& p, int slot, int64_t rows, int64_t terms) {
    if (p.scheme == FLOAT) return (x = scratch<Wide>(slot, rows * terms + 1)) != nullptr;
    const int64_t bytes = rows * padded_terms(terms);
    codes = scratch<uint8_t>(slot, bytes + rows * sizeof(float) + 64);
    scale = reinterpret_cast<float*>(codes + bytes);
    return codes != nullptr;
  }
  template <class T>
  void set(const Problem& p, int64_t row, int64_t terms, const T* from) {
    if (p.scheme == FLOAT)
      for (int64_t k = 0; k < terms; k++) x[row * terms + k] = Wide(wide(from[k]));
    else
      scale[row] =
          quantise_row(from, terms, offset_of(p.scheme), codes + row * padded_terms(terms));
  }
  void copy(const Problem& p, int64_t row, int64_t terms, const Rows& from, int64_t other) {
    if (p.scheme == FLOAT) {
      std::memcpy(x + row * terms, from.x + other * terms, terms * sizeof(Wide));
      return;
    }
    const int64_t bytes = padded_terms(terms);
    std::memcpy(codes + row * bytes, from.codes + other * bytes, bytes);
    scale[row] = from.scale[other];
  }
};

int block(const Problem& p, const Layer& layer, int64_t expert, int64_t column, int64_t columns,
          const Rows<float>& in, int64_t row, int64_t rows, float* out) {
  out += row * layer.outputs;
  if (p.scheme == FLOAT) {
    const float* x = in.x + row * layer.terms;
    switch (layer.dtype) {
      case F32: float_block<float>(layer, expert, column, columns, x, rows, out); return OK;
      case BF16: float_block<bf16>(layer, expert, column, columns, x, rows, out); return OK;
      case F16: float_block<f16>(layer, expert, column, columns, x, rows, out); return OK;
      default: return UNSUPPORTED;
    }
  }
  const uint8_t* codes = in.codes + row * padded_terms(layer.terms);
  const float* scale = in.scale + row;
  if (p.scheme == W4A8)
    return integer_block<Nibbles>(layer, expert, column, columns, codes, scale, rows, out);
  return integer_block<Bytes>(layer, expert, column, columns, codes, scale, rows, out);
}

int block(const Problem& p, const Layer& layer, int64_t expert, int64_t column, int64_t columns,
          const Rows<double>& in, int64_t row, int64_t rows, double* out) {
  if (p.scheme != FLOAT || layer.dtype != F64) return UNSUPPORTED;
  double_block(layer, expert, column, columns, in.x + row * layer.terms, rows,
               out + row * layer.outputs);
  return OK;
}

// out [pairs, outputs] of one layer for all sorted pairs.
template <class Wide>
int apply(const Problem& p, const Layer& layer, const Groups& g, const Rows<Wide>& in, Wide* out) {
  const int64_t blocks = (layer.outputs + COLUMNS - 1) / COLUMNS;
  const int64_t each = COLUMNS * layer.terms * (g.pairs / (g.count + 1) + 1);
  int code = OK;
  parallel_for(g.count * blocks, PRODUCTS / each + 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      const Group& group = g.group[i / blocks];
      const int64_t column = i % blocks * COLUMNS;
      const int64_t left = layer.outputs - column, columns = left < COLUMNS ? left : COLUMNS;
      for (int64_t row = 0; row < group.rows; row += ROWS) {
        const int64_t rows = group.rows - row < ROWS ? group.rows - row : ROWS;
        const int c = block(p, layer, group.expert, column, columns, in, group.begin + row, rows,
                            out);
        if (c != OK) code = c;
      }
    }
  });
  return code;
}

template <class T>
int run(const Problem& p, const T* x, int64_t stride, const void* weights, const Groups& g,
        T* out) {
  using Wide = decltype(wide(T{}));
  const int64_t hidden = p.hidden, inter = p.inter, pairs = g.pairs;
  Rows<Wide> token, in, middle;
  const int64_t wider = 2 * inter > hidden ? 2 * inter : hidden;
  Wide* values = scratch<Wide>(5, pairs * (2 * inter + hidden) + wider);
  if (!token.make(p, 2, p.tokens, hidden) || !in.make(p, 3, pairs, hidden) ||
      !middle.make(p, 4, pairs, inter) || values == nullptr)
    return NO_MEMORY;
  Wide *lifted = values, *result = values + pairs * 2 * inter;
  parallel_for(p.tokens, row_grain(hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; t++) token.set(p, t, hidden, x + t * stride);
  });
  for (int64_t i = 0; i < pairs; i++) in.copy(p, i, hidden, token, g.token[i]);
  int code = apply(p, p.up, g, in, lifted);
  if (code != OK) return code;
  parallel_for(pairs, row_grain(4 * inter), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      Wide *gate = lifted + i * 2 * inter, *lift = gate + inter;
      for (int64_t k = 0; k < inter; k++) gate[k] = gate[k] * sigmoid(gate[k]) * lift[k];
      middle.set(p, i, inter, gate);
    }
  });
  code = apply(p, p.down, g, middle, result);
  if (code != OK) return code;
  parallel_for(p.tokens, row_grain(hidden * p.top_k), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; t++) {
      const Wide* weight = static_cast<const Wide*>(weights) + t * p.top_k;
      const int64_t* place = g.place + t * p.top_k;
      for (int64_t k = 0; k < hidden; k++) {
        Wide sum = 0;
        for (int64_t j = 0; j < p.top_k; j++) {
          const Wide term = (place[j] < 0 ? Wide(0) : result[place[j] * hidden + k]) * weight[j];
          sum = j == 0 ? term : sum + term;
        }
        narrow(sum, &out[t * hidden + k]);
      }
    }
  });
  return OK;
}

}  // namespace

// out [tokens, hidden] in x's format: sum over a token's slots of weight * down(silu(gate) * up).
//
// Rows of x lie `stride` elements apart; everything else is without gaps. ids [tokens, top_k] are
// int32 or int64 (`ids_bytes`), -1 for none. weights [tokens, top_k] are F64 for F64 x, else F32.
// Returns 3 for an id that names no expert.
G5_EXPORT int g5_moe_experts(const void* x, int dtype, int64_t tokens, int64_t hidden,
                             int64_t stride, const void* weights, const void* ids, int ids_bytes,
                             int64_t top_k, int64_t experts, int64_t inter, int scheme,
                             int weight_dtype, const void* w13, const void* w13_scale,
                             int w13_scale_dtype, const float* w13_bias, int64_t w13_bias_columns,
                             const void* w2, const void* w2_scale, int w2_scale_dtype,
                             const float* w2_bias, int64_t w2_bias_columns, void* out) {
  const Problem p{
      tokens,
      top_k,
      experts,
      hidden,
      inter,
      Scheme(scheme),
      {w13, weight_dtype, w13_scale, w13_scale_dtype, w13_bias, w13_bias_columns, 2 * inter, hidden},
      {w2, weight_dtype, w2_scale, w2_scale_dtype, w2_bias, w2_bias_columns, hidden, inter}};
  Groups groups;
  const int code = sort_pairs(p, ids, ids_bytes, &groups);
  if (code != OK) return code;
  return with_format(dtype, [&](auto zero) {
    using T = decltype(zero);
    return run(p, static_cast<const T*>(x), stride, weights, groups, static_cast<T*>(out));
  });
}
