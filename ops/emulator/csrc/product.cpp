// The loops below want unrolling and vectors, whatever the rest of the emulator is compiled with.
// Products are exact before they are added, so that fusing changes no result.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "fp-contract=fast")
#endif
#include "emu/product.h"

#include <cstring>
#include <type_traits>
#include <vector>

// The inner loops are compiled for several instruction sets, the processor's is chosen when the
// library is loaded. A build for one set needs no choice.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__AVX512F__) && \
    !defined(__SANITIZE_ADDRESS__)
#define EMU_CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define EMU_CLONES
#endif
#define EMU_FORCE inline __attribute__((always_inline))

namespace emu {
namespace {

constexpr int LANES = 16;  // columns of a fractal of C
constexpr int PAIR = 2;    // column blocks that one pass computes

template <class T>
using Lanes __attribute__((vector_size(LANES * sizeof(T)))) = T;

EMU_FORCE float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Without branches, so that it becomes vector code; subnormal numbers are kept.
EMU_FORCE float widen_half(uint16_t h) {
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fff) << 13;
  const float scaled = from_bits(magnitude) * 0x1p112f;
  uint32_t bits;
  std::memcpy(&bits, &scaled, sizeof bits);
  bits = (h & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000u : bits;
  return from_bits(bits | static_cast<uint32_t>(h & 0x8000) << 16);
}

template <Operand TYPE>
struct Format {
  using Stored = uint16_t;
  using Value = float;
  static EMU_FORCE float value(const Stored* row, int i) {
    return TYPE == Operand::F16 ? widen_half(row[i])
                                : from_bits(static_cast<uint32_t>(row[i]) << 16);
  }
};
template <>
struct Format<Operand::F32> {
  using Stored = float;
  using Value = float;
  static EMU_FORCE float value(const Stored* row, int i) { return row[i]; }
};
// Sums of integers wrap, as unsigned arithmetic does.
template <>
struct Format<Operand::S8> {
  using Stored = int8_t;
  using Value = uint32_t;
  static EMU_FORCE uint32_t value(const Stored* row, int i) {
    return static_cast<uint32_t>(static_cast<int32_t>(row[i]));
  }
};
template <>
struct Format<Operand::S4> {
  using Stored = int8_t;
  using Value = uint32_t;
  static EMU_FORCE uint32_t value(const Stored* row, int i) {
    const int32_t both = row[i / 2];
    return static_cast<uint32_t>(i % 2 ? both >> 4 : static_cast<int8_t>(both << 4) >> 4);
  }
};

struct Panels {
  std::vector<uint32_t> a, b;  // floats or integers, both four bytes
};

Panels& panels() {
  static thread_local Panels kept;
  return kept;
}

// Row-major [m][k] of A's fractals.
template <Operand TYPE>
EMU_FORCE void unpack_a(const Product& p, typename Format<TYPE>::Value* out) {
  using F = Format<TYPE>;
  constexpr int C0 = operand_c0(TYPE);
  const auto row_bytes = [&](int row, int block) {
    if (p.m == 1) return p.a + block * 32;
    return p.a + (static_cast<size_t>(row / 16) * p.k_fractals + block) * 512 + row % 16 * 32;
  };
  for (int row = 0; row < p.m; row++) {
    for (int k = 0; k < p.k; k += C0) {
      const auto* from = reinterpret_cast<const typename F::Stored*>(row_bytes(row, k / C0));
      const int count = p.k - k < C0 ? p.k - k : C0;
      auto* to = out + static_cast<size_t>(row) * p.k + k;
      if (count == C0) {
        for (int i = 0; i < C0; i++) to[i] = F::value(from, i);
      } else {
        for (int i = 0; i < count; i++) to[i] = F::value(from, i);
      }
    }
  }
}

// [k][BLOCKS * 16] of B's column blocks from `first` on.
template <Operand TYPE, int BLOCKS>
EMU_FORCE void unpack_b(const Product& p, int first, typename Format<TYPE>::Value* out) {
  using F = Format<TYPE>;
  constexpr int C0 = operand_c0(TYPE);
  const size_t column_blocks = (p.n + LANES - 1) / LANES;
  for (int k = 0; k < p.k; k += C0) {
    const int count = p.k - k < C0 ? p.k - k : C0;
    for (int block = 0; block < BLOCKS; block++) {
      const std::byte* fractal = p.b + (k / C0 * column_blocks + first + block) * 512;
      typename F::Value wide[LANES][C0];
      for (int n = 0; n < LANES; n++) {
        const auto* row = reinterpret_cast<const typename F::Stored*>(fractal + n * 32);
        for (int i = 0; i < C0; i++) wide[n][i] = F::value(row, i);
      }
      auto* to = out + (static_cast<size_t>(k) * BLOCKS + block) * LANES;
      for (int i = 0; i < count; i++)
        for (int n = 0; n < LANES; n++)
          to[static_cast<size_t>(i) * BLOCKS * LANES + n] = wide[n][i];
    }
  }
}

// ROWS x BLOCKS * 16 sums.
template <bool PRECISE, int ROWS, int BLOCKS, class T>
EMU_FORCE void block(const T* a, const T* b, int k, T* const (&c)[BLOCKS]) {
  Lanes<T> sum[ROWS][BLOCKS];
  for (int r = 0; r < ROWS; r++)
    for (int j = 0; j < BLOCKS; j++) std::memcpy(&sum[r][j], c[j] + r * LANES, sizeof sum[r][j]);
  for (int i = 0; i < k; i++) {
    Lanes<T> row[BLOCKS];
    for (int j = 0; j < BLOCKS; j++)
      std::memcpy(&row[j], b + (static_cast<size_t>(i) * BLOCKS + j) * LANES, sizeof row[j]);
    for (int r = 0; r < ROWS; r++) {
      const T x = a[static_cast<size_t>(r) * k + i];
      for (int j = 0; j < BLOCKS; j++) {
        if constexpr (PRECISE) {
          for (int n = 0; n < LANES; n++)
            sum[r][j][n] = static_cast<T>(static_cast<double>(sum[r][j][n]) +
                                          static_cast<double>(x) * static_cast<double>(row[j][n]));
        } else {
          sum[r][j] += x * row[j];
        }
      }
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int j = 0; j < BLOCKS; j++) std::memcpy(c[j] + r * LANES, &sum[r][j], sizeof sum[r][j]);
}

template <Operand TYPE, int BLOCKS>
EMU_FORCE void columns(const Product& p, const typename Format<TYPE>::Value* a, int first) {
  using T = typename Format<TYPE>::Value;
  constexpr bool PRECISE = TYPE == Operand::F32;
  constexpr int ROWS = 4;
  T* b = reinterpret_cast<T*>(panels().b.data());
  unpack_b<TYPE, BLOCKS>(p, first, b);
  T* c[BLOCKS];
  for (int j = 0; j < BLOCKS; j++)
    c[j] = reinterpret_cast<T*>(p.c) + static_cast<size_t>(first + j) * p.c_rows * LANES;
  int row = 0;
  for (; row + ROWS <= p.m; row += ROWS) {
    block<PRECISE, ROWS, BLOCKS>(a + static_cast<size_t>(row) * p.k, b, p.k, c);
    for (auto& at : c) at += ROWS * LANES;
  }
  for (; row < p.m; row++) {
    block<PRECISE, 1, BLOCKS>(a + static_cast<size_t>(row) * p.k, b, p.k, c);
    for (auto& at : c) at += LANES;
  }
}

template <Operand TYPE>
EMU_FORCE void multiply_as(const Product& p) {
  using T = typename Format<TYPE>::Value;
  panels().a.resize(static_cast<size_t>(p.m) * p.k);
  panels().b.resize(static_cast<size_t>(p.k) * PAIR * LANES);
  T* a = reinterpret_cast<T*>(panels().a.data());
  unpack_a<TYPE>(p, a);
  const int blocks = (p.n + LANES - 1) / LANES;
  int first = 0;
  for (; first + PAIR <= blocks; first += PAIR) columns<TYPE, PAIR>(p, a, first);
  if (first < blocks) columns<TYPE, 1>(p, a, first);
}

EMU_CLONES void multiply_s4(const Product& p) { multiply_as<Operand::S4>(p); }
EMU_CLONES void multiply_s8(const Product& p) { multiply_as<Operand::S8>(p); }
EMU_CLONES void multiply_f16(const Product& p) { multiply_as<Operand::F16>(p); }
EMU_CLONES void multiply_bf16(const Product& p) { multiply_as<Operand::BF16>(p); }
EMU_CLONES void multiply_f32(const Product& p) { multiply_as<Operand::F32>(p); }

bool whole(Operand type) { return type == Operand::S4 || type == Operand::S8; }

// What the sums start from, in the m rows that count.
void start(const Product& p) {
  const int blocks = (p.n + LANES - 1) / LANES;
  for (int block = 0; block < blocks; block++) {
    std::byte* to = p.c + static_cast<size_t>(block) * p.c_rows * LANES * 4;
    const int columns = p.n - block * LANES < LANES ? p.n - block * LANES : LANES;
    if (p.bias != nullptr) {
      std::byte row[LANES * 4] = {};
      std::memcpy(row, p.bias + static_cast<size_t>(block) * LANES * 4, columns * 4);
      for (int r = 0; r < p.m; r++) std::memcpy(to + r * LANES * 4, row, sizeof row);
    } else {
      std::memset(to, 0, static_cast<size_t>(p.m) * LANES * 4);
    }
  }
}

// Rows and columns of the last fractals that are no result.
void poison_rest(const Product& p) {
  const uint32_t pattern = whole(p.type) ? 0xA5A5A5A5u : 0x7FC00000u;
  const int blocks = (p.n + LANES - 1) / LANES;
  const int rows = (p.m + 15) / 16 * 16;
  for (int block = 0; block < blocks; block++) {
    std::byte* to = p.c + static_cast<size_t>(block) * p.c_rows * LANES * 4;
    const int columns = p.n - block * LANES < LANES ? p.n - block * LANES : LANES;
    for (int row = 0; row < rows; row++)
      for (int column = row < p.m ? columns : 0; column < LANES; column++)
        std::memcpy(to + (row * LANES + column) * 4, &pattern, 4);
  }
}

}  // namespace

void multiply(const Product& p) {
  if (!p.accumulate) start(p);
  switch (p.type) {
    case Operand::S4: multiply_s4(p); break;
    case Operand::S8: multiply_s8(p); break;
    case Operand::F16: multiply_f16(p); break;
    case Operand::BF16: multiply_bf16(p); break;
    case Operand::F32: multiply_f32(p); break;
  }
  poison_rest(p);
}

}  // namespace emu
