// One query token, arranged for the tiles.
#pragma once

#include <vector>

#include "keys.h"
#if G5_AVX512
#include "tile_avx512.h"
#else
#include "tile.h"
#endif

namespace g5 {

// Sizes of a panel: heads in vectors, vectors in groups of VECTORS and then of one.
struct PanelShape {
  int64_t heads, dim, width, vectors, steps;

  template <class L>
  static PanelShape of(int64_t heads, int64_t dim) {
    const int64_t width = padded<typename L::Key>(dim);
    return {heads, dim, width, (heads + W - 1) / W, width * int64_t(sizeof(typename L::Key)) / 4};
  }
  // Lanes of the query, then weights, starts and validity of each head.
  int64_t lanes() const { return vectors * W * (steps + 3); }
};

// A view of `lanes()` lanes of memory, 64-byte aligned.
class Panel {
 public:
  Panel(const PanelShape& shape, uint32_t* memory) : shape_(shape), query_(memory) {
    weights_ = reinterpret_cast<float*>(memory + shape.vectors * W * shape.steps);
    start_ = reinterpret_cast<int32_t*>(weights_ + shape.vectors * W);
    valid_ = start_ + shape.vectors * W;
  }

  // From a query token [heads][dim] and its weights [heads]; `row` holds `width` Keys.
  template <class L, class Stored>
  void fill(const Stored* query, const float* weights, typename L::Key* row) {
    for (int64_t h = 0; h < shape_.vectors * W; h++) {
      const bool present = h < shape_.heads;
      weights_[h] = present ? weights[h] : 0.0f;
      valid_[h] = present ? -1 : 0;
      std::memset(row, 0, size_t(shape_.width) * sizeof *row);
      if (present) convert(query + h * shape_.dim, row, shape_.dim);
      start_[h] = 0;
      if constexpr (sizeof(Stored) == 1)
        for (int64_t d = 0; d < shape_.dim; d++) start_[h] -= int32_t(128 * row[d]);
      place(h, row);
    }
    for (int64_t v = 0; v + VECTORS <= shape_.vectors; v += VECTORS) wide_.push_back(group(v));
    for (int64_t v = wide_end(); v < shape_.vectors; v++) narrow_.push_back(group(v));
  }

  // Groups of VECTORS vectors, and of the one vector that the others leave.
  const std::vector<Group>& wide() const { return wide_; }
  const std::vector<Group>& narrow() const { return narrow_; }

 private:
  int64_t wide_end() const { return shape_.vectors / VECTORS * VECTORS; }

  // The group that starts with this vector.
  Group group(int64_t vector) const {
    Group g{query_ + vector * W * shape_.steps, weights_ + vector * W, start_ + vector * W, {}};
#if G5_AVX512
    for (int v = 0; v < 2 && vector + v < shape_.vectors; v++)
      g.valid[v] = _mm512_movepi32_mask(_mm512_loadu_si512(valid_ + (vector + v) * W));
#else
    g.valid = valid_ + vector * W;
#endif
    return g;
  }

  // Lanes of head h: [group][step][vector of the group][lane].
  void place(int64_t h, const void* row) {
    const int64_t vector = h / W, size = vector < wide_end() ? VECTORS : 1;
    uint32_t* to = query_ + vector / size * size * W * shape_.steps + vector % size * W + h % W;
    for (int64_t s = 0; s < shape_.steps; s++)
      std::memcpy(to + s * size * W, static_cast<const char*>(row) + 4 * s, 4);
  }

  PanelShape shape_;
  uint32_t* query_;
  float* weights_;
  int32_t *start_, *valid_;
  std::vector<Group> wide_, narrow_;
};

}  // namespace g5
