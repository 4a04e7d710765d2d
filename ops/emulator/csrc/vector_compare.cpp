// The loops want vectors, whatever the rest of the emulator is compiled with.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include <cinttypes>
#include <cstring>

#include "vector_formats.h"
#include "vector_walk.h"

namespace emu::vec {
namespace {

constexpr int EQ = 2;

template <int mode, class T>
bool holds(T a, T b) {
  switch (mode) {
    case 0: return a < b;
    case 1: return a > b;
    case EQ: return a == b;
    case 3: return a <= b;
    case 4: return a >= b;
    default: return a != b;
  }
}

template <class T>
T loaded(const std::byte* from, uint64_t i) {
  if constexpr (std::is_same_v<T, uint16_t>)
    return reinterpret_cast<const uint16_t*>(from)[i];
  else
    return reinterpret_cast<const T*>(from)[i];
}

template <class T>
auto comparable(T x) {
  if constexpr (std::is_same_v<T, uint16_t>)
    return half_value(x);
  else
    return x;
}

// Bits of n elements, a multiple of 8; b null: against the scalar.
template <int mode, class T>
void bits_of_mode(uint8_t* to, const std::byte* a, const std::byte* b, uint64_t scalar,
                  uint64_t n) {
  T fixed;
  std::memcpy(&fixed, &scalar, sizeof fixed);
  for (uint64_t i = 0; i < n; i += 8) {
    uint8_t flags[8];
    if (b)
      for (unsigned k = 0; k < 8; k++)
        flags[k] = holds<mode>(comparable(loaded<T>(a, i + k)), comparable(loaded<T>(b, i + k)));
    else
      for (unsigned k = 0; k < 8; k++)
        flags[k] = holds<mode>(comparable(loaded<T>(a, i + k)), comparable(fixed));
    unsigned byte = 0;
    for (unsigned k = 0; k < 8; k++) byte |= unsigned(flags[k]) << k;
    to[i / 8] = uint8_t(byte);
  }
}

template <class T>
void bits_of_run(int mode, uint8_t* to, const std::byte* a, const std::byte* b, uint64_t scalar,
                 uint64_t n) {
  switch (mode) {
    case 0: return bits_of_mode<0, T>(to, a, b, scalar, n);
    case 1: return bits_of_mode<1, T>(to, a, b, scalar, n);
    case EQ: return bits_of_mode<EQ, T>(to, a, b, scalar, n);
    case 3: return bits_of_mode<3, T>(to, a, b, scalar, n);
    case 4: return bits_of_mode<4, T>(to, a, b, scalar, n);
    default: return bits_of_mode<5, T>(to, a, b, scalar, n);
  }
}

template <class T>
void choose(std::byte* d, const uint8_t* bits, uint64_t first, const std::byte* a,
            const std::byte* b, uint64_t scalar, uint64_t n) {
  T fixed;
  std::memcpy(&fixed, &scalar, sizeof fixed);
  T* to = reinterpret_cast<T*>(d);
  uint64_t done = 0;
  for (; first % 8 == 0 && done + 8 <= n; done += 8) {
    const unsigned byte = bits[(first + done) / 8];
    T other[8];
    for (unsigned k = 0; k < 8; k++) other[k] = b ? loaded<T>(b, done + k) : fixed;
    for (unsigned k = 0; k < 8; k++)
      to[done + k] = byte >> k & 1 ? loaded<T>(a, done + k) : other[k];
  }
  for (uint64_t i = done; i < n; i++) {
    const uint64_t bit = first + i;
    to[i] = bits[bit / 8] >> bit % 8 & 1 ? loaded<T>(a, i) : b ? loaded<T>(b, i) : fixed;
  }
}

bool strides_fit(Instruction& ins, std::initializer_list<const Operand*> operands) {
  for (const Operand* operand : operands)
    if (!ranged(ins, "block stride", operand->block, 255) ||
        !ranged(ins, "repeat stride", operand->repeat, 255))
      return false;
  return true;
}

}  // namespace

void compare(Issue issue, int mode, Operand bits, Operand a, const Operand* second, Scalar scalar,
             Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  Operand b = second ? *second : a;
  if (!ins.dtype(a.elem != Elem::S32 || mode == EQ, "int32_t compares with EQ only") ||
      !in_ub(ins, {&bits, &a, &b}) || !strides_fit(ins, {&a, &b}))
    return;
  const uint32_t width = bits_of(a.elem), full = 256 * 8 / width;
  if (lanes.form == Lanes::Count && lanes.low % full != 0) {
    ins.require(false,
                "count * sizeof is %" PRIu64 ", not a multiple of 256: the last %" PRIu64
                " elements are not compared",
                lanes.low * width / 8, lanes.low % full);
    lanes.low -= lanes.low % full;
    if (lanes.low == 0) return;
  }
  const Walk walk(ins, lanes, width);
  if (!walk.ok() || walk.repeats() == 0) return;
  if (!ins.require(walk.elements() == walk.repeats() * full,
                   "the mask of Compare must name every lane"))
    return;
  a = walk.placed(a), b = walk.placed(b);
  const Range to{bits.mem, bits.address, walk.elements() / 8};
  const std::byte* x = walk.read(ins, a);
  const std::byte* y = second ? walk.read(ins, b) : nullptr;
  for (const Operand* source : {&a, &b})
    ins.overlap(to,
                {source->mem, source->address,
                 walk.dense({source})
                     ? walk.elements() * width / 8
                     : ((walk.repeats() - 1) * source->repeat + 7 * source->block + 1) * BLOCK},
                false);
  inside(ins, bits, to.bytes);
  uint8_t* out = reinterpret_cast<uint8_t*>(ins.write(to, BLOCK));
  const auto run = a.elem == Elem::F32   ? bits_of_run<float>
                   : a.elem == Elem::F16 ? bits_of_run<uint16_t>
                                         : bits_of_run<int32_t>;
  walk.runs({&a, &b}, [&](uint64_t r, uint32_t lane, uint64_t n) {
    run(mode, out + (r * full + lane) / 8, x + offset_of(a, r, lane),
        y ? y + offset_of(b, r, lane) : nullptr, scalar.bits, n);
  });
  ins.work(Work::vector(VectorOp::Compare, walk.repeats(), walk.elements(), width / 8));
}

void select(Issue issue, int mode, Operand dst, Operand bits, Operand a, const Operand* second,
            Scalar scalar, Lanes lanes) {
  enum { Register, TensorScalar, TensorTensor };
  Instruction ins(issue.api, Pipe::V, issue.at);
  Operand b = second ? *second : a;
  if (!ins.require((mode == TensorScalar) == (second == nullptr),
                   "VSEL_TENSOR_SCALAR_MODE goes with a scalar, the other modes with a tensor") ||
      !in_ub(ins, {&dst, &bits, &a, &b}) || !strides_fit(ins, {&dst, &a, &b}))
    return;
  const uint32_t width = bits_of(dst.elem), full = 256 * 8 / width;
  const Walk walk(ins, lanes, width);
  if (!walk.ok() || walk.repeats() == 0) return;
  dst = walk.placed(dst), a = walk.placed(a), b = walk.placed(b);
  walk.overlap(ins, dst, a, false);
  if (second) walk.overlap(ins, dst, b, false);
  uint64_t used = walk.repeats() * full;  // bits, as far as the last active lane
  for (uint32_t lane = full; lane > 0 && !walk.active(walk.repeats() - 1, lane - 1); lane--) used--;
  if (mode == Register) used = std::min<uint64_t>(used, full);
  const uint64_t bytes = (used + 7) / 8;
  inside(ins, bits, bytes);
  const auto* mask =
      reinterpret_cast<const uint8_t*>(ins.read({bits.mem, bits.address, bytes}, BLOCK));
  const std::byte* x = walk.read(ins, a);
  const std::byte* y = second ? walk.read(ins, b) : nullptr;
  const uint64_t written = ((walk.repeats() - 1) * dst.repeat + 7 * dst.block + 1) * BLOCK;
  ins.overlap({dst.mem, dst.address, walk.dense({&dst}) ? walk.elements() * width / 8 : written},
              {bits.mem, bits.address, bytes}, false);
  std::byte* to = walk.write(ins, dst);
  const auto run = width == 32 ? choose<uint32_t> : choose<uint16_t>;
  const bool again = mode == Register && walk.repeats() > 1;
  walk.runs({&dst, &a, &b}, [&](uint64_t r, uint32_t lane, uint64_t n) {
    for (uint64_t done = 0, part; done < n; done += part) {
      part = again ? std::min<uint64_t>(full - (lane + done) % full, n - done) : n;
      const uint64_t first = again ? (lane + done) % full : r * full + lane;
      const uint64_t skip = done * width / 8;
      run(to + offset_of(dst, r, lane) + skip, mask, first, x + offset_of(a, r, lane) + skip,
          y ? y + offset_of(b, r, lane) + skip : nullptr, scalar.bits, part);
    }
  });
  ins.work(Work::vector(VectorOp::Compare, walk.repeats(), walk.elements(), width / 8));
}

}  // namespace emu::vec
