// The lanes, repeats and strides of a vector instruction: which bytes it touches, in what order.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "emu/vector_engine.h"

namespace emu::vec {

// Mask registers of a core. An instruction that sets its own mask leaves them unspecified.
struct MaskState {
  bool counter = false, modeKnown = true, bitsKnown = false;
  uint64_t low = 0, high = 0;
  bool scaleKnown = false;  // SetDeqScale
  float scale = 0;
};

class Walk {
 public:
  // Resolves `lanes` for elements of `widest` bits; ok() is false after a PARAM finding.
  Walk(Instruction& ins, const Lanes& lanes, uint32_t widest);

  bool ok() const { return ok_; }
  uint64_t repeats() const { return repeats_; }
  uint64_t elements() const;  // active ones
  uint32_t lanes() const { return lanes_; }
  // Active lanes of repeat r: their number where they are the first ones, else 0.
  uint32_t prefix(uint64_t r) const { return r + 1 == repeats_ ? last_ : prefix_; }
  bool active(uint64_t r, uint32_t lane) const;

  // An operand as this form walks it: count forms take strides from nowhere.
  Operand placed(Operand operand) const;
  // Whether the whole walk is one contiguous run in each operand.
  bool dense(std::initializer_list<const Operand*> operands) const;

  const std::byte* read(Instruction& ins, const Operand& operand) const;
  std::byte* write(Instruction& ins, const Operand& operand) const;
  // OVERLAP findings of dst with src; `accumulate`: repeats may read what earlier ones wrote.
  void overlap(Instruction& ins, const Operand& dst, const Operand& src, bool accumulate) const;

  // fn(r, lane, n): runs of n lanes that are contiguous in every operand, in order.
  template <class Fn>
  void runs(std::initializer_list<const Operand*> operands, const Fn& fn) const {
    if (dense(operands)) return fn(uint64_t{0}, 0u, elements());
    bool blocks = false;
    uint32_t step = lanes_;
    for (const Operand* operand : operands) {
      blocks |= operand->block != 1;
      step = std::min(step, 256 / bits_of(operand->elem));
    }
    if (!blocks) step = lanes_;
    for (uint64_t r = 0; r < repeats_; r++)
      for (uint32_t lane = 0; lane < lanes_; lane += step) sections(r, lane, step, fn);
  }

 private:
  template <class Fn>
  void sections(uint64_t r, uint32_t first, uint32_t size, const Fn& fn) const {
    if (const uint32_t active = prefix(r); active != 0) {
      if (active > first) fn(r, first, uint64_t{std::min(size, active - first)});
      return;
    }
    for (uint32_t lane = first, end; lane < first + size; lane = end) {
      for (end = lane; end < first + size && active(r, end); end++) {
      }
      if (end > lane)
        fn(r, lane, uint64_t{end - lane});
      else
        end++;
    }
  }
  template <bool Write>
  std::byte* touch(Instruction& ins, const Operand& operand) const;

  bool ok_ = false, natural_ = false;
  uint32_t lanes_ = 0, prefix_ = 0, last_ = 0;
  uint64_t repeats_ = 0, low_ = 0, high_ = 0;
};

// Byte offset of a lane from the operand's address.
inline uint64_t offset_of(const Operand& operand, uint64_t r, uint32_t lane) {
  const uint32_t bits = bits_of(operand.elem), shift = 8 - uint32_t(std::countr_zero(bits));
  const uint64_t blocks = r * operand.repeat + (lane >> shift) * operand.block;
  return blocks * BLOCK + (lane & ((1u << shift) - 1)) * bits / 8;
}

// Local tensors of a vector instruction lie in UB.
bool in_ub(Instruction& ins, std::initializer_list<const Operand*> operands);
// OOB where an access ends beyond the tensor, though inside the memory.
void inside(Instruction& ins, const Operand& operand, uint64_t end);
// ALIGN where the address is no multiple of `bytes`.
void aligned(Instruction& ins, const Operand& operand, uint64_t bytes);
std::byte* host(const Operand& operand);
// least <= value <= limit, else PARAM.
bool ranged(Instruction& ins, const char* what, int64_t value, int64_t limit, int64_t least = 0);

}  // namespace emu::vec
