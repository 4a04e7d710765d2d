#include <algorithm>
#include <cstring>

#include "emu/instruction.h"
#include "emu/move.h"

namespace emu {
namespace {

constexpr uint64_t FRACTAL = 512, ROWS = 16;

bool is_l0(Mem mem) { return mem == Mem::L0A || mem == Mem::L0B; }

Path path_of(Mem src, Mem dst) {
  if (src == Mem::GM)
    return dst == Mem::L0A ? Path::GM_L0A : dst == Mem::L0B ? Path::GM_L0B : Path::GM_L1;
  return dst == Mem::L0A ? Path::L1_L0A : Path::L1_L0B;
}

// out[c][r] = in[r][c] of a 16 x 16 matrix.
template <class T>
void transpose_square(std::byte* to, const std::byte* from) {
  T in[ROWS][ROWS], out[ROWS][ROWS];
  std::memcpy(in, from, sizeof in);
  for (uint64_t r = 0; r < ROWS; r++)
    for (uint64_t c = 0; c < ROWS; c++) out[c][r] = in[r][c];
  std::memcpy(to, out, sizeof out);
}

// One 4-bit value of a packed row.
uint8_t nibble(const std::byte* row, uint64_t index) {
  return static_cast<uint8_t>(row[index / 2]) >> index % 2 * 4 & 15;
}

// Squares of LoadDataWithTranspose. `piece` gives the start of a fractal of the destination.
template <class T, class Piece>
void transpose_stacked(const std::byte* from, const Piece& piece) {  // b8: 32 x 32
  constexpr uint64_t C0 = 32 / sizeof(T);
  for (uint64_t c = 0; c < C0; c++)
    for (uint64_t r = 0; r < C0; r++)
      std::memcpy(piece(c / ROWS) + (c % ROWS * C0 + r) * sizeof(T),
                  from + (r * C0 + c) * sizeof(T), sizeof(T));
}

template <class Piece>
void transpose_nibbles(const std::byte* from, const Piece& piece) {  // 64 x 64
  for (uint64_t c = 0; c < 64; c++)
    for (uint64_t r = 0; r < 64; r += 2) {
      const uint8_t low = nibble(from + r * 32, c), high = nibble(from + (r + 1) * 32, c);
      piece(c / ROWS)[c % ROWS * 32 + r / 2] = std::byte(low | high << 4);
    }
}

template <class Piece>
void transpose_beside(const std::byte* from, const Piece& piece) {  // b32: 16 x (8 | 8)
  for (uint64_t c = 0; c < ROWS; c++)
    for (uint64_t r = 0; r < ROWS; r++)
      std::memcpy(piece(r / 8) + (c * 8 + r % 8) * 4, from + c / 8 * FRACTAL + (r * 8 + c % 8) * 4,
                  4);
}

template <class Piece>
void transpose(Number number, const std::byte* from, const Piece& piece) {
  switch (bits_of(number)) {
    case 4: return transpose_nibbles(from, piece);
    case 8: return transpose_stacked<uint8_t>(from, piece);
    case 16: return transpose_square<uint16_t>(piece(0), from);
    default: return transpose_beside(from, piece);
  }
}

// Address of iteration i's source, in fractals; below 0 where a backward load leaves its tensor.
int64_t source(const Load2D& load, uint64_t i) {
  const int64_t step = static_cast<int64_t>(i) * load.src_step;
  return static_cast<int64_t>(load.start) + (load.backwards ? -step : step);
}

// Declares what all iterations read, `fractals` at a time.
bool declare_source(Instruction& in, Range src, const Load2D& load, uint64_t fractals,
                    uint32_t align) {
  const int64_t last = source(load, load.repeat - 1);
  if (!in.require(last >= 0, "a load backwards from fractal %u goes below the start", load.start))
    return false;
  const uint64_t lowest = std::min<uint64_t>(load.start, last);
  in.stride_read({src.mem, src.address + lowest * fractals * FRACTAL, fractals * FRACTAL},
                 load.repeat, load.src_step * fractals * FRACTAL, align);
  return true;
}

const std::byte* host(const Range& range) {
  if (range.mem == Mem::GM) return reinterpret_cast<const std::byte*>(range.address);
  return local(range.mem) + range.address;
}

}  // namespace

void load_2d(Range dst, Range src, Number number, const Load2D& load, At at) {
  const bool from_gm = src.mem == Mem::GM;
  Instruction in("LoadData", from_gm ? Pipe::MTE2 : Pipe::MTE1, at);
  in.supported(
      from_gm ? is_l0(dst.mem) || dst.mem == Mem::L1 : src.mem == Mem::L1 && is_l0(dst.mem),
      "LoadData from %s to %s", name(src.mem), name(dst.mem));
  if (load.repeat == 0) return;
  if (!in.require(!(from_gm && load.transpose), "ifTranspose does not work from GM") ||
      !in.dtype(!load.transpose || bits_of(number) == 16, "ifTranspose takes 16-bit types alone"))
    return;
  in.work(Work::move(path_of(src.mem, dst.mem), load.repeat * FRACTAL, load.repeat));
  if (!declare_source(in, src, load, 1, from_gm ? 1 : 32)) return;
  const uint64_t step = (load.dst_gap + 1ull) * FRACTAL;
  std::byte* to = in.stride_write({dst.mem, dst.address, FRACTAL}, load.repeat, step,
                                  dst.mem == Mem::L1 ? 32 : 512);
  const std::byte* from = host(src);
  for (uint64_t i = 0; i < load.repeat; i++, to += step) {
    const std::byte* fractal = from + source(load, i) * static_cast<int64_t>(FRACTAL);
    if (load.transpose) transpose_square<uint16_t>(to, fractal);
    else std::memcpy(to, fractal, FRACTAL);
  }
}

void load_transposed(Range dst, Range src, Number number, const Load2D& load, At at) {
  Instruction in("LoadDataWithTranspose", Pipe::MTE1, at);
  in.supported(src.mem == Mem::L1 && is_l0(dst.mem), "LoadDataWithTranspose from %s to %s",
               name(src.mem), name(dst.mem));
  const uint32_t bits = bits_of(number);
  if (!in.dtype(bits >= 4 && bits <= 32, "LoadDataWithTranspose takes types of 4 to 32 bits") ||
      !in.dtype(bits != 4 || dst.mem == Mem::L0B, "int4b_t is transposed to L0B alone"))
    return;
  if (load.repeat == 0) return;
  const uint64_t fractals = bits == 4 ? 4 : bits == 16 ? 1 : 2;
  const uint64_t inner = (load.fractal_gap + 1ull) * FRACTAL,
                 step = (load.dst_gap + 1ull) * FRACTAL;
  in.work(Work::move(path_of(src.mem, dst.mem), load.repeat * fractals * FRACTAL, load.repeat));
  if (!declare_source(in, src, load, fractals, 32)) return;
  // Iterations must not write what another one wrote: their fractals lie i * step + j * inner
  // apart.
  for (uint64_t i = 1; i < load.repeat; i++)
    for (uint64_t j = 1; j < fractals; j++)
      if (!in.require(i * step != j * inner, "iterations overlap: dstGap %u, dstFracGap %u",
                      load.dst_gap, load.fractal_gap))
        return;
  std::byte* to = nullptr;
  for (uint64_t j = fractals; j-- > 0;)
    to = in.stride_write({dst.mem, dst.address + j * inner, FRACTAL}, load.repeat, step, 512);
  const std::byte* from = host(src);
  for (uint64_t i = 0; i < load.repeat; i++, to += step)
    transpose(number, from + source(load, i) * static_cast<int64_t>(fractals * FRACTAL),
              [&](uint64_t j) { return to + j * inner; });
}

void fill(Range dst, Number number, const Fill& fill, At at) {
  Instruction in("InitConstValue", dst.mem == Mem::L1 ? Pipe::MTE2 : Pipe::MTE1, at);
  in.supported(dst.mem == Mem::L1 || is_l0(dst.mem), "InitConstValue of %s", name(dst.mem));
  const uint32_t bits = bits_of(number);
  if (!in.dtype(bits == 16 || bits == 32, "InitConstValue takes types of 16 or 32 bits") ||
      !in.require(fill.repeat <= 32767 && fill.blocks <= 32767 && fill.gap <= 32767,
                  "repeatTimes %u, blockNum %u, dstGap %u: at most 32767", fill.repeat, fill.blocks,
                  fill.gap))
    return;
  const uint64_t unit = dst.mem == Mem::L1 ? 32 : FRACTAL;
  const uint64_t bytes = fill.blocks * unit, step = bytes + fill.gap * unit;
  if (fill.repeat == 0 || bytes == 0) return;
  in.work(Work::move(Path::FILL, fill.repeat * bytes, fill.repeat));
  std::byte* to = in.stride_write({dst.mem, dst.address, bytes}, fill.repeat, step,
                                  static_cast<uint32_t>(unit));
  for (uint64_t i = 0; i < fill.repeat; i++, to += step)
    for (uint64_t at_byte = 0; at_byte < bytes; at_byte += bits / 8)
      std::memcpy(to + at_byte, &fill.value, bits / 8);
}

}  // namespace emu
