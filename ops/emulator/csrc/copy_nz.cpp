#include <algorithm>
#include <cstring>

#include "emu/instruction.h"
#include "emu/move.h"

namespace emu {
namespace {

struct Steps {  // in bytes
  uint64_t size, blocks, src_row, src_matrix, dst_block, dst_row, dst_matrix;
};

bool check(Instruction& in, const Nz& nz, uint64_t size) {
  const auto within = [&in](const char* what, uint32_t value, uint32_t low, uint32_t high) {
    return in.require(value >= low && value <= high, "%s is %u, not %u to %u", what, value, low,
                      high);
  };
  if (!in.dtype(size == 1 || size == 2 || size == 4, "Nd2Nz moves elements of 1, 2 or 4 bytes"))
    return false;
  if (!within("ndNum", nz.matrices, 0, 4095) || !within("nValue", nz.rows, 0, 16384) ||
      !within("srcDValue", nz.src_row, 1, 65535) ||
      !within("dstNzC0Stride", nz.dst_block, 1, 16384) ||
      !within("dstNzNStride", nz.dst_row, 1, 16384))
    return false;
  if (nz.matrices > 1 && nz.dst_matrix * size % 32 != 0)
    in.report(Class::ALIGN, "dstNzMatrixStride is %u elements of %llu bytes, no multiple of 32",
              nz.dst_matrix, static_cast<unsigned long long>(size));
  return true;
}

// Declares the column blocks of one matrix in L1 and returns its start.
std::byte* declare(Instruction& in, uint64_t base, uint64_t rows, const Steps& steps) {
  if (steps.dst_row == 32)
    return in.stride_write({Mem::L1, base, rows * 32}, steps.blocks, steps.dst_block, 32);
  std::byte* start = in.stride_write({Mem::L1, base, 32}, rows, steps.dst_row, 32);
  for (uint64_t block = 1; block < steps.blocks; block++)
    in.stride_write({Mem::L1, base + block * steps.dst_block, 32}, rows, steps.dst_row, 32);
  return start;
}

void place(std::byte* to, const std::byte* from, const Nz& nz, const Steps& steps) {
  for (uint64_t block = 0; block < steps.blocks; block++) {
    const uint64_t bytes = std::min<uint64_t>(32, nz.columns * steps.size - block * 32);
    for (uint64_t row = 0; row < nz.rows; row++) {
      std::byte* cell = to + block * steps.dst_block + row * steps.dst_row;
      std::memcpy(cell, from + row * steps.src_row + block * 32, bytes);
      std::memset(cell + bytes, 0, 32 - bytes);
    }
  }
}

}  // namespace

void copy_nz(Range dst, Range src, Number number, const Nz& nz, At at) {
  Instruction in("DataCopy(Nd2Nz)", Pipe::MTE2, at);
  in.supported(src.mem == Mem::GM && dst.mem == Mem::L1, "Nd2Nz from %s to %s", name(src.mem),
               name(dst.mem));
  const uint64_t size = bits_of(number) / 8;
  if (!check(in, nz, size) || nz.matrices == 0 || nz.rows == 0 || nz.columns == 0) return;
  const Steps steps{size,
                    (nz.columns * size + 31) / 32,
                    nz.src_row * size,
                    nz.src_matrix * size,
                    nz.dst_block * 32ull,
                    nz.dst_row * 32ull,
                    nz.dst_matrix * size};
  in.work(Work::move(Path::GM_L1, nz.matrices * size * nz.rows * nz.columns,
                     static_cast<uint64_t>(nz.matrices) * nz.rows));
  const std::byte* from = nullptr;
  for (uint64_t i = 0; i < nz.matrices; i++) {
    const Range row{Mem::GM, src.address + i * steps.src_matrix, nz.columns * size};
    const std::byte* start =
        in.stride_read(row, nz.rows, steps.src_row, static_cast<uint32_t>(size));
    if (i == 0) from = start;
  }
  for (uint64_t i = 0; i < nz.matrices; i++)
    place(declare(in, dst.address + i * steps.dst_matrix, nz.rows, steps),
          from + i * steps.src_matrix, nz, steps);
}

}  // namespace emu
