// One issued instruction: it declares the memory that it touches, which checks it, and its work.
#pragma once

#include "emu/core.h"
#include "emu/types.h"
#include "emu/work.h"

namespace emu {

class Instruction {
 public:
  // `api` is a literal. Other cores may run before this returns.
  Instruction(const char* api, Pipe pipe, At at);
  ~Instruction();
  Instruction(const Instruction&) = delete;
  Instruction& operator=(const Instruction&) = delete;

  // Check bounds, alignment of the address to `align` bytes, initialisation and order, and record
  // the access; they return host memory of the range. Out of bounds ends the launch. An instruction
  // declares its reads before its writes. bytes = 0 touches nothing.
  const std::byte* read(Range range, uint32_t align = 1);
  std::byte* write(Range range, uint32_t align = 1);
  // `count` ranges of first.bytes, whose addresses are `stride` bytes apart (0: the same again).
  const std::byte* stride_read(Range first, uint64_t count, uint64_t stride, uint32_t align = 1);
  std::byte* stride_write(Range first, uint64_t count, uint64_t stride, uint32_t align = 1);
  // A read-modify-write of GM that is indivisible: not a race with others of its kind.
  std::byte* atomic(Range range, uint32_t align = 1);

  // Findings. `require` and `dtype` return their condition: where it is false the instruction
  // should do nothing further unless it has a meaning all the same.
  [[gnu::format(printf, 3, 4)]] bool require(bool ok, const char* format, ...);  // PARAM
  bool dtype(bool ok, const char* what);                                          // DTYPE
  // OVERLAP where the ranges share bytes, unless they are equal and `equal_allowed`.
  bool overlap(Range dst, Range src, bool equal_allowed);
  // Ends the launch with UNSUPPORTED where the emulator lacks this form.
  [[gnu::format(printf, 3, 4)]] void supported(bool ok, const char* format, ...);
  // Any other class; goes on.
  [[gnu::format(printf, 3, 4)]] void report(Class what, const char* format, ...);

  // The hardware orders this instruction after earlier ones of its pipe (default: S and M yes, all
  // others no). Mmad sets it by the size of its product.
  void in_order(bool ordered);
  // What it costs.
  void work(const Work& work);

 private:
  std::byte* access(Range first, uint64_t count, uint64_t stride, uint32_t align, int kind);

  Pipe pipe_;
  bool ordered_;
  uint32_t tick_;
  uint32_t site_;
};

}  // namespace emu
