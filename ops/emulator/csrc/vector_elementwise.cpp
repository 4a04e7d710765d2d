// Instructions whose result at a lane depends on that lane alone.
// The loops want vectors, whatever the rest of the emulator is compiled with.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include <cinttypes>
#include <cstring>

#include "vector_cast.h"
#include "vector_formats.h"
#include "vector_loops.h"
#include "vector_walk.h"

namespace emu::vec {
namespace {

VectorOp class_of(Op op) {
  switch (op) {
    case Op::Div:
    case Op::Exp:
    case Op::Ln:
    case Op::Sqrt:
    case Op::Rsqrt:
    case Op::Reciprocal: return VectorOp::Transcendental;
    case Op::Copy: return VectorOp::Copy;
    default: return VectorOp::Simple;
  }
}

void charge(Instruction& ins, VectorOp op, const Walk& walk, Elem widest) {
  ins.work(Work::vector(op, walk.repeats(), walk.elements(), bits_of(widest) / 8));
}

Elem wider(Elem a, Elem b) { return bits_of(a) >= bits_of(b) ? a : b; }

bool strides_fit(Instruction& ins, std::initializer_list<const Operand*> operands, int64_t block,
                 int64_t repeat) {
  for (const Operand* operand : operands)
    if (!ranged(ins, "block stride", operand->block, block) ||
        !ranged(ins, "repeat stride", operand->repeat, repeat))
      return false;
  return true;
}

// Several blocks of a repeat must not be written to the same place.
bool dst_advances(Instruction& ins, const Operand& dst, const Walk& walk) {
  const uint32_t per = 256 / bits_of(dst.elem);
  bool later = false;
  if (walk.repeats() > 0)
    for (uint32_t lane = per; lane < walk.lanes(); lane++) later |= walk.active(0, lane);
  return ins.require(dst.block != 0 || !later, "dstBlkStride is 0 with more than one block");
}

bool accumulating(Op op, Elem elem) {
  return (op == Op::Add || op == Op::Sub || op == Op::Mul || op == Op::Max || op == Op::Min) &&
         (elem == Elem::F16 || elem == Elem::F32);
}

void lane_by_lane(Issue issue, Op op, Operand dst, Operand a, const Operand* second,
                  uint64_t scalar, Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  const Loop step = dst.elem == a.elem ? loop(op, dst.elem) : mixed_loop(op);
  if (!ins.dtype(step != nullptr, "operation does not exist for this type")) return;
  Operand b = second ? *second : a;
  if (!in_ub(ins, {&dst, &a, &b}) ||
      !strides_fit(ins, {&dst, &a, &b}, op == Op::Copy ? 65535 : 255, op == Op::Copy ? 65535 : 255))
    return;
  const Elem widest = wider(dst.elem, a.elem);
  const Walk walk(ins, lanes, bits_of(widest));
  if (!walk.ok()) return;
  dst = walk.placed(dst), a = walk.placed(a), b = walk.placed(b);
  if (!dst_advances(ins, dst, walk)) return;
  walk.overlap(ins, dst, a, false);
  if (second) walk.overlap(ins, dst, b, accumulating(op, dst.elem));
  const std::byte* x = walk.read(ins, a);
  const std::byte* y = second ? walk.read(ins, b) : x;
  const bool updates = op == Op::Axpy || op >= Op::MulAddDst;
  if (updates) walk.read(ins, dst);
  std::byte* to = walk.write(ins, dst);
  walk.runs({&dst, &a, &b}, [&](uint64_t r, uint32_t lane, uint64_t n) {
    step(to + offset_of(dst, r, lane), x + offset_of(a, r, lane), y + offset_of(b, r, lane), scalar,
         n);
  });
  charge(ins, class_of(op), walk, widest);
}

bool shift_fits(Issue issue, Op op, Elem elem, Scalar scalar) {
  if (op != Op::ShiftLeft && op != Op::ShiftRight && op != Op::ShiftRightRound) return true;
  const bool is_signed = elem == Elem::S16 || elem == Elem::S32;
  const int64_t by = elem == Elem::S16   ? static_cast<int16_t>(scalar.bits)
                     : elem == Elem::S32 ? static_cast<int32_t>(scalar.bits)
                                         : static_cast<int64_t>(scalar.bits);
  const bool rounds = op != Op::ShiftRightRound || is_signed;
  if (by >= 0 && by <= int64_t{bits_of(elem)} && rounds) return true;
  Instruction ins(issue.api, Pipe::V, issue.at);
  ranged(ins, "shift", by, bits_of(elem));
  return ins.require(rounds, "rounding shifts exist for signed types only") && false;
}

}  // namespace

void unary(Issue issue, Op op, Operand dst, Operand a, Scalar scalar, Lanes lanes) {
  if (shift_fits(issue, op, dst.elem, scalar))
    lane_by_lane(issue, op, dst, a, nullptr, scalar.bits, lanes);
}

void binary(Issue issue, Op op, Operand dst, Operand a, Operand b, Lanes lanes) {
  lane_by_lane(issue, op, dst, a, &b, 0, lanes);
}

void cast(Issue issue, Operand dst, Operand src, int rounding, Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  const uint32_t modes = cast_modes(src.elem, dst.elem);
  if (!ins.dtype(modes != 0, "Cast does not know this pair of types")) return;
  if (!ins.require(modes >> rounding & 1, "rounding mode %d does not exist for this pair of types",
                   rounding) ||
      !in_ub(ins, {&dst, &src}) || !strides_fit(ins, {&dst, &src}, 255, 255))
    return;
  const MaskState& state = core().state<MaskState>();
  const bool scaled = src.elem == Elem::S32 && dst.elem == Elem::F16;
  if (!ins.require(!scaled || state.scaleKnown, "int32 to half needs SetDeqScale before it"))
    return;
  const Elem widest = wider(dst.elem, src.elem);
  const Walk walk(ins, lanes, bits_of(widest));
  if (!walk.ok()) return;
  dst = walk.placed(dst), src = walk.placed(src);
  if (!dst_advances(ins, dst, walk)) return;
  walk.overlap(ins, dst, src, false);
  const std::byte* from = walk.read(ins, src);
  std::byte* to = walk.write(ins, dst);
  const bool packed = dst.elem == Elem::S4 || src.elem == Elem::S4;
  walk.runs({&dst, &src}, [&](uint64_t r, uint32_t lane, uint64_t n) {
    if (packed && !ins.require(lane % 2 == 0 && n % 2 == 0, "lanes of int4 come in pairs")) return;
    convert(to + offset_of(dst, r, lane), dst.elem, from + offset_of(src, r, lane), src.elem,
            rounding, state.scale, n);
  });
  charge(ins, VectorOp::Cast, walk, widest);
}

namespace {

template <class T>
void repeat_value(std::byte* to, uint64_t bits, uint64_t n) {
  std::fill_n(reinterpret_cast<T*>(to), n, static_cast<T>(bits));
}

// first + index, first + index + 1, ...; half is added up in float and rounded once.
void ramp(std::byte* to, Elem elem, uint64_t first, uint64_t index, uint64_t n) {
  const auto each = [&]<class T>(T* out, auto fn) {
    for (uint64_t i = 0; i < n; i++) out[i] = fn(index + i);
  };
  const float half = half_value(static_cast<uint16_t>(first));
  const float single = std::bit_cast<float>(static_cast<uint32_t>(first));
  switch (elem) {
    case Elem::F16:
      return each(reinterpret_cast<uint16_t*>(to),
                  [&](uint64_t i) { return half_bits(half + float(int64_t(i))); });
    case Elem::F32:
      return each(reinterpret_cast<float*>(to),
                  [&](uint64_t i) { return single + float(int64_t(i)); });
    case Elem::S16:
      return each(reinterpret_cast<uint16_t*>(to), [&](uint64_t i) { return uint16_t(first + i); });
    default:
      return each(reinterpret_cast<uint32_t*>(to), [&](uint64_t i) { return uint32_t(first + i); });
  }
}

}  // namespace

void duplicate(Issue issue, Operand dst, Scalar scalar, Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  if (!in_ub(ins, {&dst}) || !strides_fit(ins, {&dst}, 65535, 255)) return;
  const Walk walk(ins, lanes, bits_of(dst.elem));
  if (!walk.ok()) return;
  dst = walk.placed(dst);
  if (!dst_advances(ins, dst, walk)) return;
  std::byte* to = walk.write(ins, dst);
  const auto fill = bits_of(dst.elem) == 16 ? repeat_value<uint16_t> : repeat_value<uint32_t>;
  walk.runs({&dst}, [&](uint64_t r, uint32_t lane, uint64_t n) {
    fill(to + offset_of(dst, r, lane), scalar.bits, n);
  });
  charge(ins, VectorOp::Copy, walk, dst.elem);
}

void index_ramp(Issue issue, Operand dst, Scalar first, Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  if (!in_ub(ins, {&dst}) || !strides_fit(ins, {&dst}, 65535, 255)) return;
  const Walk walk(ins, lanes, bits_of(dst.elem));
  if (!walk.ok()) return;
  dst = walk.placed(dst);
  if (!dst_advances(ins, dst, walk)) return;
  std::byte* to = walk.write(ins, dst);
  walk.runs({&dst}, [&](uint64_t r, uint32_t lane, uint64_t n) {
    ramp(to + offset_of(dst, r, lane), dst.elem, first.bits, r * walk.lanes() + lane, n);
  });
  charge(ins, VectorOp::Copy, walk, dst.elem);
}

void brcb(Issue issue, Operand dst, Operand src, int64_t repeats) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  if (!in_ub(ins, {&dst, &src}) || !ranged(ins, "repeatTime", repeats, 254) ||
      !ranged(ins, "dstBlkStride", dst.block, 65535) ||
      !ranged(ins, "dstRepStride", dst.repeat, 65535))
    return;
  core().state<MaskState>().bitsKnown = false;
  if (!ins.require(dst.block > 0, "dstBlkStride is 0 with more than one block")) return;
  const uint64_t n = uint64_t(repeats) * 8, bytes = bits_of(src.elem) / 8;
  const Lanes all{Lanes::First, 256 * 8 / bits_of(dst.elem) / 8 * 8, 0, repeats};
  const Walk walk(ins, all, bits_of(dst.elem));
  if (!walk.ok()) return;
  const uint64_t end = repeats == 0 ? 0 : ((repeats - 1) * dst.repeat + 7 * dst.block + 1) * BLOCK;
  ins.overlap({dst.mem, dst.address, end}, {src.mem, src.address, n * bytes}, false);
  inside(ins, src, n * bytes);
  const std::byte* from = ins.read({src.mem, src.address, n * bytes}, BLOCK);
  std::byte* to = walk.write(ins, dst);
  const auto fill = bytes == 2 ? repeat_value<uint16_t> : repeat_value<uint32_t>;
  for (uint64_t i = 0; i < n; i++) {
    uint64_t bits = 0;
    std::memcpy(&bits, from + i * bytes, bytes);
    fill(to + (i / 8 * dst.repeat + i % 8 * dst.block) * BLOCK, bits, BLOCK / bytes);
  }
  ins.work(
      Work::vector(VectorOp::Broadcast, uint64_t(repeats), n * BLOCK / bytes, uint32_t(bytes)));
}

void transpose16(Issue issue, Operand dst, Operand src) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  if (!in_ub(ins, {&dst, &src})) return;
  const Range from{src.mem, src.address, 512}, into{dst.mem, dst.address, 512};
  ins.overlap(into, from, true);
  inside(ins, src, 512), inside(ins, dst, 512);
  const auto* x = reinterpret_cast<const uint16_t*>(ins.read(from, BLOCK));
  auto* to = reinterpret_cast<uint16_t*>(ins.write(into, BLOCK));
  uint16_t copy[256];
  std::memcpy(copy, x, sizeof copy);
  for (int i = 0; i < 256; i++) to[i] = copy[i % 16 * 16 + i / 16];
  ins.work(Work::vector(VectorOp::Transpose, 1, 256, 2));
}

void set_mask_mode(Issue issue, bool counter) {
  Instruction ins(issue.api, Pipe::S, issue.at);
  MaskState& state = core().state<MaskState>();
  if (counter != state.counter || !state.modeKnown) state.bitsKnown = false;
  state.counter = counter;
  state.modeKnown = true;
  ins.work(Work::scalar());
}

void set_mask(Issue issue, uint32_t elementBytes, bool counter, uint64_t high, uint64_t low) {
  Instruction ins(issue.api, Pipe::S, issue.at);
  MaskState& state = core().state<MaskState>();
  if (!ins.require(!state.modeKnown || state.counter == counter,
                   "SetVectorMask for %s mode, but the core is in the other one",
                   counter ? "counter" : "normal") ||
      !ins.require(counter || elementBytes == 2 || high == 0, "lanes beyond the 64 of a repeat") ||
      !ins.require(!counter || high == 0, "counter mode takes the count in the low word"))
    return;
  state.low = low, state.high = high;
  state.bitsKnown = true;
  ins.work(Work::scalar());
}

void set_mask_length(Issue issue, uint32_t elementBytes, bool counter, int64_t length) {
  if (counter) return set_mask(issue, elementBytes, true, 0, uint64_t(length));
  const int64_t lanes = 256 / elementBytes;
  if (length < 1 || length > lanes) {
    Instruction ins(issue.api, Pipe::S, issue.at);
    ranged(ins, "length", length, lanes, 1);
    return;
  }
  const auto ones = [](int64_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; };
  set_mask(issue, elementBytes, false, length > 64 ? ones(length - 64) : 0,
           ones(std::min<int64_t>(length, 64)));
}

void reset_mask(Issue issue) {
  Instruction ins(issue.api, Pipe::S, issue.at);
  MaskState& state = core().state<MaskState>();
  state.low = state.high = ~uint64_t{0};
  state.bitsKnown = !state.counter;
  ins.work(Work::scalar());
}

void set_deq_scale(Issue issue, uint16_t half) {
  Instruction ins(issue.api, Pipe::S, issue.at);
  MaskState& state = core().state<MaskState>();
  state.scale = half_value(half);
  state.scaleKnown = true;
  ins.work(Work::scalar());
}

}  // namespace emu::vec
