// Tile sizes, and what they take of the memories of a core.
#pragma once

#include "tiling.h"

namespace mlapo {

// One or two blocks of at most ROWS tokens go through the stages together. L1: SLOTS buffers of SLOT
// bytes for weights, with two blocks MORE_SLOTS of LESS_SLOT, and ACTIVATIONS bytes in two buffers for
// what they multiply. L0: bytes of one half of L0A and of L0B; SUMS: of one half of L0C. ROW: most
// elements of a row of x; LATENT: of the q latent; COLUMNS: of the first product; VALUES: most values
// in a tile of heads; ABSORB: columns of W_UK in one product.
template <int32_t ROWS_, int32_t SLOTS_, int32_t SLOT_, int32_t ACTIVATIONS_, int32_t L0_,
          int32_t SUMS_, int32_t ROW_, int32_t LATENT_, int32_t COLUMNS_, int32_t VALUES_,
          int32_t ABSORB_>
struct Tiles {
  static constexpr int32_t ROWS = ROWS_, SLOTS = SLOTS_, SLOT = SLOT_, ACTIVATIONS = ACTIVATIONS_,
                           L0 = L0_, SUMS = SUMS_, ROW = ROW_, LATENT = LATENT_, COLUMNS = COLUMNS_,
                           VALUES = VALUES_, ABSORB = ABSORB_;
  static constexpr int32_t SPLIT_K = 4, UP_SPLIT = 2, BLOCK = 32, MAX_ROPE = 64;

  static constexpr int32_t MORE_SLOTS = SLOTS * 3 / 2, LESS_SLOT = SLOT * 2 / 3 / 512 * 512;

  static constexpr int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

  // UB, in bytes.
  static constexpr int32_t EXTRA = 512;  // of an input: row scale, angles
  static constexpr int32_t INPUT =
      larger(larger(ROW * 2, SPLIT_K * (LATENT + MAX_ROPE) * 4), (UP_SPLIT + 2) * VALUES * 4) + EXTRA;
  static constexpr int32_t OUTPUT = larger(larger(ROW, LATENT * 3 + MAX_ROPE * 4), VALUES * 4) + EXTRA;
  static constexpr int32_t WIDE = larger(larger(ROW, LATENT + MAX_ROPE), VALUES) * 4;
  static constexpr int32_t CONSTANTS = COLUMNS * 4 * 3 + VALUES * 4 + MAX_ROPE * 16 + 2048;
  static constexpr int32_t UB = 2 * INPUT + 2 * OUTPUT + 2 * WIDE + CONSTANTS;

  // The compiler takes 8 KiB unless it is told not to.
  static_assert(UB <= 192 * 1024 - 256 - 8192, "the vector cores' buffers are more than UB");
  static_assert(SLOTS * SLOT + ACTIVATIONS <= 512 * 1024 - 256, "weights and activations exceed L1");
  static_assert(2 * L0 <= 64 * 1024, "two halves exceed L0A and L0B");
  static_assert(2 * SUMS <= 128 * 1024, "two halves exceed L0C");
  static_assert(MORE_SLOTS + 2 <= 8, "slots and both buffers of activations need an event each");
  static_assert(BLOCKS * ROWS * BLOCK <= ACTIVATIONS / 2, "a column block exceeds L1's activations");
  static_assert(ROWS % 16 == 0 && ROWS * BLOCK <= L0, "a column block of activations exceeds L0A");
  static_assert(ABSORB * BLOCK <= LESS_SLOT && ABSORB * BLOCK <= L0 && ABSORB * ROWS * 4 <= SUMS,
                "a product of W_UK is too large");

  static constexpr Limits limits() {
    return {ROWS, ROW, COLUMNS, LATENT, VALUES, ABSORB, SPLIT_K, UP_SPLIT, SUMS, ACTIVATIONS};
  }
};

}  // namespace mlapo
