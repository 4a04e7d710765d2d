#include <algorithm>
#include <cstring>

#include "emu/instruction.h"
#include "emu/move.h"

namespace emu {
namespace {

constexpr uint64_t FRACTAL = 512;

struct Tile {
  const std::byte* from;   // row `row` of the first column block
  uint64_t block_bytes;    // from one column block in L1 to the next
  uint64_t height, width;  // valid rows and columns
};

uint64_t blocks_of(uint64_t extent, uint64_t size) { return (extent + size - 1) / size; }

// Fractals [height/16][width/C0], each as it lies in L1. Rows below the tile stay as they are.
void plain(std::byte* to, const Tile& tile, uint64_t size) {
  const uint64_t c0 = 32 / size, across = blocks_of(tile.width, c0);
  for (uint64_t row = 0; row < tile.height; row += 16) {
    const uint64_t rows = std::min<uint64_t>(16, tile.height - row);
    for (uint64_t block = 0; block < across; block++) {
      const uint64_t bytes = std::min<uint64_t>(32, (tile.width - block * c0) * size);
      const std::byte* from = tile.from + block * tile.block_bytes + row * 32;
      std::byte* fractal = to + (row / 16 * across + block) * FRACTAL;
      if (bytes == 32) {
        std::memcpy(fractal, from, rows * 32);
        continue;
      }
      for (uint64_t r = 0; r < rows; r++) std::memcpy(fractal + r * 32, from + r * 32, bytes);
    }
  }
}

// Value (row, column) becomes row `column`, place `row`; `fractal_of(row / C0, column / 16)` is the
// index of its fractal.
template <class T, class FractalOf>
void transposed(std::byte* to, const Tile& tile, const FractalOf& fractal_of) {
  constexpr uint64_t C0 = 32 / sizeof(T);
  for (uint64_t block = 0; block < blocks_of(tile.width, C0); block++) {
    const uint64_t columns = std::min<uint64_t>(C0, tile.width - block * C0);
    for (uint64_t row = 0; row < tile.height; row++) {
      T values[C0];
      std::memcpy(values, tile.from + block * tile.block_bytes + row * 32, sizeof values);
      const uint64_t first = block * C0;
      std::byte* fractal = to + fractal_of(row / C0, first / 16) * FRACTAL;
      T* cell = reinterpret_cast<T*>(fractal) + first % 16 * C0 + row % C0;
      for (uint64_t c = 0; c < columns; c++) cell[c * C0] = values[c];
    }
  }
}

template <class T>
void transposed_to(Mem mem, std::byte* to, const Tile& tile) {
  const uint64_t across = blocks_of(tile.height, 32 / sizeof(T)), down = blocks_of(tile.width, 16);
  if (mem == Mem::L0A)  // rows of fractals: the transposed matrix in ZZ
    transposed<T>(to, tile, [across](uint64_t k, uint64_t n) { return n * across + k; });
  else  // the matrix itself in ZN
    transposed<T>(to, tile, [down](uint64_t k, uint64_t n) { return k * down + n; });
}

bool check(Instruction& in, Mem mem, Number number, const Load3D& load) {
  const uint32_t bits = bits_of(number), c0 = 256 / std::max(bits, 1u);
  if (!in.dtype(bits == 8 || bits == 16 || bits == 32,
                "LoadData 3D takes types of 8, 16 or 32 bits") ||
      !in.dtype(bits != 8 || mem == Mem::L0A, "8-bit types do not go to L0B by LoadData 3D") ||
      !in.dtype(bits != 8 || !load.transpose, "enTranspose takes types of 16 or 32 bits"))
    return false;
  in.supported(load.columns % c0 == 0, "channelSize %u is no multiple of %u", load.columns, c0);
  return in.require(load.row % 16 == 0, "mStartPt %u is no multiple of 16", load.row) &&
         in.require(load.column % c0 == 0, "kStartPt %u is no multiple of %u", load.column, c0) &&
         in.require(load.height >= 1 && load.width >= 1, "mExtension %u, kExtension %u",
                    load.height, load.width) &&
         in.require(load.row + load.height <= load.rows,
                    "rows %u to %u of a matrix with l1H * l1W = %u", load.row,
                    load.row + load.height, load.rows) &&
         in.require(load.column + load.width <= load.columns,
                    "columns %u to %u of a matrix with channelSize %u", load.column,
                    load.column + load.width, load.columns);
}

}  // namespace

void load_3d(Range dst, Range src, Number number, const Load3D& load, At at) {
  Instruction in("LoadData(3D)", Pipe::MTE1, at);
  in.supported(src.mem == Mem::L1 && (dst.mem == Mem::L0A || dst.mem == Mem::L0B),
               "LoadData 3D from %s to %s", name(src.mem), name(dst.mem));
  in.supported(load.plain,
               "LoadData 3D with a filter, stride or dilation other than 1, or padding");
  if (!check(in, dst.mem, number, load)) return;
  const uint64_t size = bits_of(number) / 8, c0 = 32 / size;
  const bool transpose = load.transpose || dst.mem == Mem::L0B;
  const uint64_t block_bytes = load.rows * 32ull;
  const uint64_t start = src.address + load.column / c0 * block_bytes + load.row * 32ull;
  const uint64_t fractals = transpose ? blocks_of(load.height, c0) * blocks_of(load.width, 16)
                                      : blocks_of(load.height, 16) * blocks_of(load.width, c0);
  in.work(Work::move(dst.mem == Mem::L0A ? Path::L1_L0A : Path::L1_L0B, fractals * FRACTAL, 1));
  const std::byte* from = in.stride_read({Mem::L1, start, load.height * 32ull},
                                         blocks_of(load.width, c0), block_bytes, 32);
  std::byte* to = in.write({dst.mem, dst.address, fractals * FRACTAL}, 512);
  if (load.height % 16 != 0 || load.height % c0 != 0 || load.width % 16 != 0 ||
      load.width % c0 != 0)
    std::memset(to, number == Number::S8 || number == Number::U8 ? 0xA5 : 0xFF, fractals * FRACTAL);
  const Tile tile{from, block_bytes, load.height, load.width};
  if (!transpose) plain(to, tile, size);
  else if (size == 2) transposed_to<uint16_t>(dst.mem, to, tile);
  else transposed_to<uint32_t>(dst.mem, to, tile);
}

}  // namespace emu
