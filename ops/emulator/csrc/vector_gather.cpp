// The loops want vectors, whatever the rest of the emulator is compiled with.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include <bitset>
#include <cinttypes>
#include <cstring>
#include <vector>

#include "vector_walk.h"

namespace emu::vec {
namespace {

constexpr uint64_t UB_BLOCKS = 192 * 1024 / BLOCK;

// Declares the reads of scattered elements, each block once, neighbours together.
class Blocks {
 public:
  void add(uint64_t address, uint64_t bytes) {
    for (uint64_t block = address / BLOCK; block <= (address + bytes - 1) / BLOCK; block++)
      if (block < UB_BLOCKS) marked_[block] = true;
  }
  void read(Instruction& ins) const {
    for (uint64_t start = 0, end; start < UB_BLOCKS; start = end + 1) {
      for (end = start; end < UB_BLOCKS && marked_[end]; end++) {
      }
      if (end > start) ins.read({Mem::UB, start * BLOCK, (end - start) * BLOCK});
    }
  }

 private:
  std::bitset<UB_BLOCKS> marked_;
};

bool builtin_keeps(int pattern, uint64_t i) {
  switch (pattern) {
    case 1: return i % 2 == 0;
    case 2: return i % 2 == 1;
    case 7: return true;
    default: return i % 4 == uint64_t(pattern - 3);
  }
}

bool tensor_keeps(const std::byte* bits, uint64_t i) { return uint8_t(bits[i / 8]) >> i % 8 & 1; }

template <class T, class Keeps>
uint64_t pack(std::byte* to, const std::byte* from, uint64_t n, const Keeps& keeps) {
  T* out = reinterpret_cast<T*>(to);
  const T* x = reinterpret_cast<const T*>(from);
  uint64_t kept = 0;
  for (uint64_t i = 0; i < n; i++)
    if (keeps(i)) out[kept++] = x[i];
  return kept;
}

// The elements that a built-in pattern keeps of n contiguous ones.
template <class T>
uint64_t every(std::byte* to, const std::byte* from, uint64_t n, int pattern) {
  const uint64_t step = pattern == 7 ? 1 : pattern < 3 ? 2 : 4;
  const uint64_t start = pattern == 7 ? 0 : pattern < 3 ? pattern - 1 : pattern - 3;
  T* out = reinterpret_cast<T*>(to);
  const T* x = reinterpret_cast<const T*>(from);
  uint64_t kept = 0;
  for (uint64_t i = start; i < n; i += step) out[kept++] = x[i];
  return kept;
}

struct Source {
  uint64_t per, perRepeat, blocks;  // elements of a block and of a repeat, blocks of a repeat
  uint64_t end(const GatherMaskShape& shape) const {
    return ((shape.repeats - 1) * shape.repeatStride + (blocks - 1) * shape.blockStride + 1) *
           BLOCK;
  }
};

void read_source(Instruction& ins, const Operand& src, const GatherMaskShape& shape,
                 const Source& layout, uint64_t bytes) {
  for (uint64_t r = 0; r < uint64_t(shape.repeats); r++) {
    const uint64_t start = src.address + r * shape.repeatStride * BLOCK;
    if (shape.blockStride == 1) {
      ins.read({src.mem, start, layout.perRepeat * bytes});
      continue;
    }
    const uint64_t rest = layout.perRepeat % layout.per, full = layout.blocks - (rest != 0);
    const uint64_t stride = shape.blockStride * BLOCK;
    if (full > 0) ins.stride_read({src.mem, start, BLOCK}, full, stride);
    if (rest > 0) ins.read({src.mem, start + full * stride, rest * bytes});
  }
}

}  // namespace

uint64_t gather_mask(Issue issue, Operand dst, Operand src, const Operand* pattern, int builtin,
                     GatherMaskShape shape) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  core().state<MaskState>().bitsKnown = false;
  const uint64_t bytes = bits_of(src.elem) / 8;
  if (!in_ub(ins, {&dst, &src}) || (pattern && !in_ub(ins, {pattern})) ||
      !ranged(ins, "src0BlockStride", shape.blockStride, 255) ||
      !ranged(ins, "repeatTimes", shape.repeats, 65535) ||
      !ranged(ins, "src0RepeatStride", shape.repeatStride, 65535) ||
      !ranged(ins, "src1RepeatStride", shape.patternRepeatStride, 255) ||
      (!pattern && !ranged(ins, "pattern", builtin, 7, 1)))
    return 0;
  if (!ins.require(shape.counter ? shape.mask > 0 : shape.mask == 0,
                   shape.counter ? "reduceMode is true and mask is 0"
                                 : "reduceMode is false: mask has no meaning and must be 0"))
    return 0;
  if (shape.repeats == 0) return 0;
  Source layout{BLOCK / bytes, shape.counter ? shape.mask : REPEAT / bytes, 0};
  layout.blocks = (layout.perRepeat + layout.per - 1) / layout.per;
  const uint64_t span = layout.end(shape), patternBytes = (layout.perRepeat + 7) / 8;
  inside(ins, src, span - BLOCK + ((layout.perRepeat - 1) % layout.per + 1) * bytes);
  aligned(ins, src, BLOCK);
  read_source(ins, src, shape, layout, bytes);
  const std::byte* from = host(src);
  const std::byte* bits = nullptr;
  const uint64_t patternEnd =
      (shape.repeats - 1) * shape.patternRepeatStride * BLOCK + patternBytes;
  if (pattern) {
    inside(ins, *pattern, patternEnd);
    bits = ins.stride_read({pattern->mem, pattern->address, patternBytes}, shape.repeats,
                           shape.patternRepeatStride * BLOCK, BLOCK);
  }
  // The kept elements first, for their number decides what is written.
  std::vector<std::byte> kept(shape.repeats * layout.perRepeat * bytes);
  uint64_t count = 0;
  for (uint64_t r = 0; r < uint64_t(shape.repeats); r++) {
    const std::byte* repeat = from + r * shape.repeatStride * BLOCK;
    const std::byte* set = bits ? bits + r * shape.patternRepeatStride * BLOCK : nullptr;
    if (!pattern && shape.blockStride == 1) {
      std::byte* to = kept.data() + count * bytes;
      count += bytes == 2 ? every<uint16_t>(to, repeat, layout.perRepeat, builtin)
                          : every<uint32_t>(to, repeat, layout.perRepeat, builtin);
      continue;
    }
    for (uint64_t first = 0; first < layout.perRepeat; first += layout.per) {
      const uint64_t n = std::min(layout.per, layout.perRepeat - first);
      const std::byte* block = repeat + first / layout.per * shape.blockStride * BLOCK;
      const auto keeps = [&](uint64_t i) {
        return set ? tensor_keeps(set, first + i) : builtin_keeps(builtin, first + i);
      };
      std::byte* to = kept.data() + count * bytes;
      count +=
          bytes == 2 ? pack<uint16_t>(to, block, n, keeps) : pack<uint32_t>(to, block, n, keeps);
    }
  }
  const Range into{dst.mem, dst.address, count * bytes};
  ins.overlap(into, {src.mem, src.address, span}, false);
  if (pattern) ins.overlap(into, {pattern->mem, pattern->address, patternEnd}, false);
  inside(ins, dst, into.bytes);
  aligned(ins, dst, BLOCK);
  if (count > 0) std::memcpy(ins.write(into), kept.data(), into.bytes);
  const uint64_t elements = shape.repeats * layout.perRepeat;
  ins.work(Work::vector(VectorOp::GatherMask, (elements * bytes + REPEAT - 1) / REPEAT, elements,
                        uint32_t(bytes)));
  return count;
}

namespace {

// Whether [base + offset, + bytes) lies inside the tensor and is aligned.
bool reaches(Instruction& ins, const Operand& src, uint64_t place, uint64_t bytes) {
  if (place % bytes != 0) {
    ins.report(Class::ALIGN, "offset %" PRIu64 " is no multiple of %" PRIu64 " bytes", place,
               bytes);
    return false;
  }
  if (place + bytes <= src.bytes) return true;
  ins.report(Class::OOB, "offset %" PRIu64 " of a tensor of %" PRIu64 " bytes", place, src.bytes);
  return false;
}

}  // namespace

void gather(Issue issue, Operand dst, Operand src, Operand offsets, uint32_t base, Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  if (!in_ub(ins, {&dst, &src, &offsets}) || !ranged(ins, "dstRepStride", dst.repeat, 65535))
    return;
  const uint32_t width = bits_of(dst.elem), bytes = width / 8;
  const Walk walk(ins, lanes, width);
  if (!walk.ok() || walk.repeats() == 0) return;
  dst = walk.placed(dst);
  offsets.repeat = int64_t(walk.lanes()) * 4 / int64_t(BLOCK);
  const std::byte* table = walk.read(ins, offsets);
  Blocks blocks;
  bool good = true;
  walk.runs({&dst, &offsets}, [&](uint64_t r, uint32_t lane, uint64_t n) {
    const auto* run = reinterpret_cast<const uint32_t*>(table + offset_of(offsets, r, lane));
    for (uint64_t i = 0; good && i < n; i++) {
      good = reaches(ins, src, uint64_t{base} + run[i], bytes);
      if (good) blocks.add(src.address + base + run[i], bytes);
    }
  });
  if (!good) return;
  aligned(ins, src, BLOCK);
  blocks.read(ins);
  const std::byte* from = host(src) + base;
  const uint64_t end = ((walk.repeats() - 1) * dst.repeat + 8) * BLOCK;
  const Range into{dst.mem, dst.address, walk.dense({&dst}) ? walk.elements() * bytes : end};
  ins.overlap(into, {src.mem, src.address, src.bytes}, false);
  ins.overlap(into, {offsets.mem, offsets.address, walk.repeats() * walk.lanes() * 4}, false);
  std::byte* to = walk.write(ins, dst);
  walk.runs({&dst, &offsets}, [&](uint64_t r, uint32_t lane, uint64_t n) {
    const auto* run = reinterpret_cast<const uint32_t*>(table + offset_of(offsets, r, lane));
    std::byte* out = to + offset_of(dst, r, lane);
    for (uint64_t i = 0; i < n; i++) std::memcpy(out + i * bytes, from + run[i], bytes);
  });
  ins.work(Work::vector(VectorOp::Gather, walk.repeats(), walk.elements(), bytes));
}

void gather_blocks(Issue issue, Operand dst, Operand src, Operand offsets, int64_t repeats) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  if (!in_ub(ins, {&dst, &src, &offsets}) || !ranged(ins, "repeatTime", repeats, 255) ||
      !ranged(ins, "dstBlkStride", dst.block, 255, 1) ||
      !ranged(ins, "dstRepStride", dst.repeat, 255) || repeats == 0)
    return;
  const Range table{offsets.mem, offsets.address, uint64_t(repeats) * 32};
  inside(ins, offsets, table.bytes);
  const auto* places = reinterpret_cast<const uint32_t*>(ins.read(table, BLOCK));
  Blocks blocks;
  for (int64_t i = 0; i < repeats * 8; i++) {
    if (!reaches(ins, src, places[i], BLOCK)) return;
    blocks.add(src.address + places[i], BLOCK);
  }
  aligned(ins, src, BLOCK);
  blocks.read(ins);
  const std::byte* from = host(src);
  const Lanes all{Lanes::First, REPEAT * 8 / bits_of(dst.elem), 0, repeats};
  const Walk walk(ins, all, bits_of(dst.elem));
  if (!walk.ok()) return;
  const uint64_t end = ((repeats - 1) * dst.repeat + 7 * dst.block + 1) * BLOCK;
  ins.overlap({dst.mem, dst.address, end}, {src.mem, src.address, src.bytes}, false);
  ins.overlap({dst.mem, dst.address, end}, table, false);
  std::byte* to = walk.write(ins, dst);
  for (int64_t i = 0; i < repeats * 8; i++)
    std::memcpy(to + (i / 8 * dst.repeat + i % 8 * dst.block) * BLOCK, from + places[i], BLOCK);
  ins.work(
      Work::vector(VectorOp::Gather, uint64_t(repeats), walk.elements(), bits_of(dst.elem) / 8));
}

}  // namespace emu::vec
