#include <cstring>
#include <vector>

#include "emu/atomic.h"
#include "emu/instruction.h"
#include "emu/move.h"

namespace emu {
namespace {

constexpr uint64_t UNIT = 32;

// A way between two memories. `unit` is what lengths and gaps of the destination count in.
struct Way {
  Mem src, dst;
  Pipe pipe;
  Path path;
  uint32_t unit;
};

constexpr Way WAYS[] = {
    {Mem::GM, Mem::UB, Pipe::MTE2, Path::GM_UB, 32},
    {Mem::GM, Mem::L1, Pipe::MTE2, Path::GM_L1, 32},
    {Mem::UB, Mem::GM, Pipe::MTE3, Path::UB_GM, 32},
    {Mem::UB, Mem::UB, Pipe::V, Path::UB_UB, 32},
    {Mem::L1, Mem::GM, Pipe::MTE3, Path::L1_GM, 32},
    {Mem::L1, Mem::BT, Pipe::MTE1, Path::L1_BT, 64},
    {Mem::L1, Mem::FB, Pipe::FIX, Path::L1_FB, 128},
};

const Way* find(Mem src, Mem dst) {
  for (const Way& way : WAYS)
    if (way.src == src && way.dst == dst) return &way;
  return nullptr;
}

[[noreturn]] void refuse(const char* api, Mem src, Mem dst, At at) {
  Instruction in(api, Pipe::S, at);
  in.supported(false, "%s from %s to %s: arch 2201 has no such path, or it is not emulated", api,
               name(src), name(dst));
  stop();
}

// GM takes any address of an element, BT and FB 64 bytes, UB and L1 a unit.
uint32_t alignment(Mem mem, Number number) {
  switch (mem) {
    case Mem::GM: return std::max(1u, bits_of(number) / 8);
    case Mem::BT:
    case Mem::FB: return 64;
    default: return 32;
  }
}

bool check_count(Instruction& in, uint64_t count) {
  return in.require(count >= 1 && count <= 4095, "blockCount is %llu, not 1 to 4095",
                    static_cast<unsigned long long>(count));
}

void move(Instruction& in, Range dst, Range src, Number number, const Blocks& blocks) {
  const uint32_t src_align = alignment(src.mem, number), dst_align = alignment(dst.mem, number);
  src.bytes = dst.bytes = blocks.bytes;
  if (src.mem == dst.mem) {
    const Range from{src.mem, src.address, (blocks.count - 1) * blocks.src_step + blocks.bytes};
    const Range to{dst.mem, dst.address, (blocks.count - 1) * blocks.dst_step + blocks.bytes};
    in.overlap(to, from, true);
  }
  const std::byte* from = in.stride_read(src, blocks.count, blocks.src_step, src_align);
  store(in, dst, blocks.count, blocks.dst_step, dst_align, number, from, blocks.src_step);
}

// L1 to the bias table with half or bfloat16 widened to float.
void widen(Instruction& in, Range dst, Range src, Number from, const Blocks& blocks) {
  src.bytes = blocks.bytes;
  dst.bytes = blocks.bytes * 2;
  const std::byte* at = in.stride_read(src, blocks.count, blocks.src_step, 32);
  std::vector<float> wide(blocks.count * blocks.bytes / 2);
  for (uint64_t block = 0; block < blocks.count; block++) {
    for (uint64_t i = 0; i < blocks.bytes / 2; i++) {
      const std::byte* value = at + block * blocks.src_step + i * 2;
      half narrow;
      bfloat16_t brain;
      std::memcpy(&narrow, value, 2);
      std::memcpy(&brain, value, 2);
      wide[block * blocks.bytes / 2 + i] =
          from == Number::F16 ? static_cast<float>(narrow) : static_cast<float>(brain);
    }
  }
  store(in, dst, blocks.count, blocks.dst_step, 64, Number::F32,
        reinterpret_cast<const std::byte*>(wide.data()), dst.bytes);
}

bool same_or_widened(Mem dst, Number to, Number from) {
  if (to == from) return true;
  return dst == Mem::BT && to == Number::F32 && (from == Number::F16 || from == Number::BF16);
}

// The bytes around a block that DataCopyPad leaves undefined: NaN, and 0xA5 in integers.
void poison(std::byte* to, uint64_t bytes, Number number) {
  const bool floating = number == Number::F16 || number == Number::BF16 || number == Number::F32;
  std::memset(to, floating ? 0xFF : 0xA5, bytes);
}

void repeat_value(std::byte* to, uint64_t bytes, const std::byte* value, uint64_t size) {
  for (uint64_t i = 0; i < bytes; i++) to[i] = value[i % size];
}

}  // namespace

void copy_count(Range dst, Range src, Number number, uint64_t elements, At at) {
  const Way* way = find(src.mem, dst.mem);
  if (way == nullptr) refuse("DataCopy", src.mem, dst.mem, at);
  Instruction in("DataCopy", way->pipe, at);
  const uint64_t bytes = elements * bits_of(number) / 8;
  if (bytes % way->unit != 0)
    in.report(Class::ALIGN, "%llu elements of %s are %llu bytes, not a multiple of %u",
              static_cast<unsigned long long>(elements), name(number),
              static_cast<unsigned long long>(bytes), way->unit);
  const uint64_t units = bytes / way->unit;  // hardware drops the rest
  if (!in.require(units >= 1 && units <= 65535, "%llu bytes: a copy moves 1 to 65535 units of %u",
                  static_cast<unsigned long long>(bytes), way->unit))
    return;
  const uint64_t whole = units * way->unit;
  in.work(Work::move(way->path, whole));
  move(in, dst, src, number, {1, whole, whole, whole});
}

void copy_blocks(Range dst, Range src, Number to, Number from, const Gaps& gaps, At at) {
  const Way* way = find(src.mem, dst.mem);
  if (way == nullptr) refuse("DataCopy", src.mem, dst.mem, at);
  Instruction in("DataCopy", way->pipe, at);
  if (!in.dtype(same_or_widened(dst.mem, to, from), "source and destination differ in type"))
    return;
  if (!check_count(in, gaps.count)) return;
  if (!in.require(gaps.length >= 1, "blockLen is 0")) return;
  const uint64_t bytes = static_cast<uint64_t>(gaps.length) * way->unit;
  const uint64_t written = to == from ? bytes : bytes * 2;
  const Blocks blocks{gaps.count, bytes, bytes + gaps.src * UNIT,
                      written + static_cast<uint64_t>(gaps.dst) * way->unit};
  in.work(Work::move(way->path, blocks.count * bytes, blocks.count));
  if (to == from) move(in, dst, src, to, blocks);
  else widen(in, dst, src, from, blocks);
}

void copy_pad_in(Range dst, Range src, Number number, const Gaps& gaps, const Padding& padding,
                 At at) {
  if (src.mem != Mem::GM || dst.mem != Mem::UB) refuse("DataCopyPad", src.mem, dst.mem, at);
  Instruction in("DataCopyPad", Pipe::MTE2, at);
  const uint64_t size = bits_of(number) / 8, length = gaps.length;
  if (!check_count(in, gaps.count)) return;
  if (!in.require(length >= 1 && length <= 2097151, "blockLen is %llu, not 1 to 2097151 bytes",
                  static_cast<unsigned long long>(length)) ||
      !in.require(length % size == 0, "blockLen is %llu bytes, no multiple of the element's %llu",
                  static_cast<unsigned long long>(length), static_cast<unsigned long long>(size)) ||
      !in.require(padding.left <= 32 && padding.right <= 32,
                  "paddings of %u and %u bytes: at most 32", padding.left, padding.right))
    return;
  const uint64_t filled = padding.left + length + padding.right;
  const uint64_t block = (filled + UNIT - 1) / UNIT * UNIT;
  const uint64_t src_step = length + gaps.src, dst_step = block + gaps.dst * UNIT;
  in.work(Work::move(Path::GM_UB, gaps.count * length, gaps.count));
  src.bytes = length;
  dst.bytes = block;
  const std::byte* from = in.stride_read(src, gaps.count, src_step, alignment(Mem::GM, number));
  std::byte* to = in.stride_write(dst, gaps.count, dst_step, 32);
  std::byte value[8];
  std::memcpy(value, &padding.value, sizeof value);
  const bool plain = padding.left == 0 && padding.right == 0;
  for (uint64_t i = 0; i < gaps.count; i++, from += src_step, to += dst_step) {
    poison(to, block, number);
    if (!plain && padding.given) repeat_value(to, filled, value, size);
    if (plain) repeat_value(to + length, block - length, from, size);
    std::memcpy(to + padding.left, from, length);
  }
}

void copy_pad_out(Range dst, Range src, Number number, const Gaps& gaps, At at) {
  if (src.mem != Mem::UB || dst.mem != Mem::GM) refuse("DataCopyPad", src.mem, dst.mem, at);
  Instruction in("DataCopyPad", Pipe::MTE3, at);
  const uint64_t size = bits_of(number) / 8, length = gaps.length;
  if (!check_count(in, gaps.count)) return;
  if (!in.require(length >= 1 && length <= 2097151, "blockLen is %llu, not 1 to 2097151 bytes",
                  static_cast<unsigned long long>(length)) ||
      !in.require(length % size == 0, "blockLen is %llu bytes, no multiple of the element's %llu",
                  static_cast<unsigned long long>(length), static_cast<unsigned long long>(size)))
    return;
  const uint64_t block = (length + UNIT - 1) / UNIT * UNIT;
  in.work(Work::move(Path::UB_GM, gaps.count * length, gaps.count));
  move(in, dst, src, number, {gaps.count, length, block + gaps.src * UNIT, length + gaps.dst});
}

}  // namespace emu
