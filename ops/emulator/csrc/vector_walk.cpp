#include "vector_walk.h"

#include <cinttypes>
#include <unordered_map>

namespace emu::vec {
namespace {

uint64_t ones(uint64_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// The number of leading ones where no other bit is set, else 0.
uint32_t leading(uint64_t low, uint64_t high, uint32_t lanes) {
  const uint64_t first = std::countr_one(low), second = std::countr_one(high);
  if (lanes <= 64) return (low & ones(lanes)) == ones(first) ? uint32_t(first) : 0;
  if (first < 64) return low == ones(first) && high == 0 ? uint32_t(first) : 0;
  return high == ones(second) ? uint32_t(64 + second) : 0;
}

// First byte after the operand's last block of 32 bytes.
uint64_t end_of(const Operand& operand, uint64_t repeats, uint64_t blocks) {
  return operand.address +
         ((repeats - 1) * operand.repeat + (blocks - 1) * operand.block + 1) * BLOCK;
}

}  // namespace

void inside(Instruction& ins, const Operand& operand, uint64_t end) {
  if (end > operand.bytes)
    ins.report(Class::OOB, "%" PRIu64 " bytes from UB+0x%" PRIx64 ", but the tensor has %" PRIu64,
               end, operand.address, operand.bytes);
}

void aligned(Instruction& ins, const Operand& operand, uint64_t bytes) {
  if (operand.address % bytes != 0)
    ins.report(Class::ALIGN, "UB+0x%" PRIx64 " is no multiple of %" PRIu64 " bytes",
               operand.address, bytes);
}

std::byte* host(const Operand& operand) { return local(operand.mem) + operand.address; }

bool ranged(Instruction& ins, const char* what, int64_t value, int64_t limit, int64_t least) {
  return ins.require(value >= least && value <= limit,
                     "%s is %" PRId64 ", outside %" PRId64 " to %" PRId64, what, value, least,
                     limit);
}

bool in_ub(Instruction& ins, std::initializer_list<const Operand*> operands) {
  for (const Operand* operand : operands)
    if (!ins.require(operand->mem == Mem::UB, "operand in %s: vector instructions work on UB",
                     name(operand->mem)))
      return false;
  return true;
}

Walk::Walk(Instruction& ins, const Lanes& lanes, uint32_t widest) : lanes_(256 * 8 / widest) {
  MaskState& state = core().state<MaskState>();
  Lanes now = lanes;
  if (now.form == Lanes::Current) {
    if (!ins.require(state.modeKnown && state.bitsKnown,
                     "isSetMask is false, but no SetVectorMask or ResetMask came after the last "
                     "instruction that sets its own mask"))
      return;
    now = {Lanes::Bits, state.low, state.high, lanes.repeats};
  } else {
    if (now.form != Lanes::Count &&
        !ins.require(state.modeKnown,
                     "mask mode unspecified after a form with a count: call "
                     "SetMaskNorm or SetMaskCount first"))
      return;
    if (now.form == Lanes::Count && state.counter) state.modeKnown = false;
    state.bitsKnown = false;
  }
  const bool counter = now.form == Lanes::Count || state.counter;
  if (counter) {
    if (!ins.require(now.high == 0 && int64_t(now.low) > 0 && now.low <= UINT32_MAX,
                     "count is %" PRId64 ", which is not a positive number", int64_t(now.low)))
      return;
    natural_ = now.form == Lanes::Count;
    repeats_ = (now.low + lanes_ - 1) / lanes_;
    prefix_ = lanes_;
    last_ = uint32_t(now.low - (repeats_ - 1) * lanes_);
    ok_ = true;
    return;
  }
  if (!ranged(ins, "repeatTime", now.repeats, 255)) return;
  repeats_ = uint64_t(now.repeats);
  if (now.form == Lanes::First) {
    if (!ranged(ins, "mask", int64_t(now.low), lanes_, 1)) return;
    prefix_ = last_ = uint32_t(now.low);
    ok_ = true;
    return;
  }
  if (lanes.form == Lanes::Bits &&
      !ins.require(lanes_ > 64 || (now.high == 0 && (now.low & ~ones(lanes_)) == 0),
                   "mask {0x%" PRIx64 ", 0x%" PRIx64 "} names more than %u lanes", now.low,
                   now.high, lanes_))
    return;
  low_ = now.low & ones(lanes_);
  high_ = lanes_ > 64 ? now.high & ones(lanes_ - 64) : 0;
  if (!ins.require((low_ | high_) != 0, "mask without a lane")) return;
  prefix_ = last_ = leading(low_, high_, lanes_);
  ok_ = true;
}

uint64_t Walk::elements() const {
  if (repeats_ == 0) return 0;
  if (prefix_ != 0) return (repeats_ - 1) * prefix_ + last_;
  return repeats_ * (std::popcount(low_) + std::popcount(high_));
}

bool Walk::active(uint64_t r, uint32_t lane) const {
  if (const uint32_t first = prefix(r); first != 0) return lane < first;
  return (lane < 64 ? low_ >> lane : high_ >> (lane - 64)) & 1;
}

Operand Walk::placed(Operand operand) const {
  if (natural_) {
    operand.block = 1;
    operand.repeat = lanes_ * bits_of(operand.elem) / 256;
  }
  return operand;
}

bool Walk::dense(std::initializer_list<const Operand*> operands) const {
  if (prefix_ == 0 || (repeats_ > 1 && prefix_ != lanes_)) return false;
  return std::all_of(operands.begin(), operands.end(), [&](const Operand* operand) {
    const uint32_t bits = bits_of(operand->elem);
    const bool one = operand->block == 1 || elements() * bits <= 256;
    return one && (repeats_ <= 1 || operand->repeat == lanes_ * bits / 256);
  });
}

template <bool Write>
std::byte* Walk::touch(Instruction& ins, const Operand& operand) const {
  const uint32_t bits = bits_of(operand.elem), per = 256 / bits;
  const auto mark = [&](uint64_t offset, uint64_t bytes, uint64_t count, uint64_t stride) {
    inside(ins, operand, count == 0 ? 0 : offset + (count - 1) * stride + bytes);
    const Range first{operand.mem, operand.address + offset, bytes};
    if constexpr (Write)
      ins.stride_write(first, count, stride);
    else
      ins.stride_read(first, count, stride);
  };
  aligned(ins, operand, BLOCK);
  std::byte* base = host(operand);
  if (repeats_ == 0) return base;
  const auto whole = [&](uint32_t n) { return (uint64_t{n} * bits + 7) / 8; };
  if (dense({&operand})) {
    mark(0, (elements() * bits + 7) / 8, 1, 0);
    return base;
  }
  const bool compact = prefix_ != 0 && (operand.block == 1 || prefix_ <= per);
  if (compact) {
    mark(0, whole(prefix_), last_ == prefix_ ? repeats_ : repeats_ - 1, operand.repeat * BLOCK);
    if (last_ != prefix_) mark((repeats_ - 1) * operand.repeat * BLOCK, whole(last_), 1, 0);
    return base;
  }
  for (uint64_t r = 0; r < repeats_; r++) {
    if (prefix(r) == lanes_) {
      // Every block of the repeat; a stride of 0 names one.
      mark(r * operand.repeat * BLOCK, BLOCK, operand.block == 0 ? 1 : lanes_ / per,
           operand.block * BLOCK);
      continue;
    }
    for (uint32_t lane = 0; lane < lanes_; lane += per) {
      uint32_t first = lane, end = std::min(lane + per, lanes_);
      while (first < end && !active(r, first)) first++;
      while (first < end && !active(r, end - 1)) end--;
      if (first < end) mark(offset_of(operand, r, first), whole(end - first), 1, 0);
    }
  }
  return base;
}

const std::byte* Walk::read(Instruction& ins, const Operand& operand) const {
  return touch<false>(ins, operand);
}
std::byte* Walk::write(Instruction& ins, const Operand& operand) const {
  return touch<true>(ins, operand);
}

void Walk::overlap(Instruction& ins, const Operand& dst, const Operand& src,
                   bool accumulate) const {
  if (repeats_ == 0) return;
  const auto blocks = [&](const Operand& operand) {
    const uint64_t most = prefix_ == 0 ? lanes_ : std::max(repeats_ > 1 ? prefix_ : 0, last_);
    return (most * bits_of(operand.elem) + 255) / 256;
  };
  const uint64_t written = blocks(dst), taken = blocks(src);
  if (dst.address >= end_of(src, repeats_, taken) || src.address >= end_of(dst, repeats_, written))
    return;
  const bool same = dst.address == src.address && bits_of(dst.elem) == bits_of(src.elem) &&
                    (written == 1 || dst.block == src.block) &&
                    (repeats_ == 1 || dst.repeat == src.repeat);
  if (same && (repeats_ == 1 || dst.repeat >= int64_t((written - 1) * dst.block + 1))) return;
  if (same && accumulate) return;
  const auto place = [](const Operand& operand, uint64_t r, uint64_t block) {
    return operand.address + (r * operand.repeat + block * operand.block) * BLOCK;
  };
  std::unordered_map<uint64_t, uint64_t> first;  // block of dst -> repeat that writes it first
  for (uint64_t r = repeats_; r-- > 0;)
    for (uint64_t block = 0; block < written; block++) first[place(dst, r, block)] = r;
  for (uint64_t r = 0; r < repeats_; r++)
    for (uint64_t block = 0; block < taken; block++) {
      const auto found = first.find(place(src, r, block));
      if (found == first.end() || found->second > r || (found->second == r && same)) continue;
      ins.overlap({dst.mem, found->first, BLOCK}, {src.mem, found->first, BLOCK}, false);
      return;
    }
}

}  // namespace emu::vec
