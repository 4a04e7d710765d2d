// The checks of one instruction's access to memory.
#pragma once

#include "machine.h"

namespace emu {

struct Touch {
  Touch(CoreState& core, Pipe pipe, uint32_t tick, uint32_t site, bool ordered, GmAccess::Kind kind)
      : core(core), pipe(pipe), tick(tick), site(site), ordered(ordered), kind(kind) {}

  CoreState& core;
  Pipe pipe;
  uint32_t tick;
  uint32_t site;
  bool ordered;  // after earlier instructions of the same pipe
  GmAccess::Kind kind;

  // Host memory of `first`; out of bounds ends the launch.
  std::byte* all(Range first, uint64_t count, uint64_t stride, uint32_t align);

 private:
  std::byte* local(Range first, uint64_t count, uint64_t stride);
  void local_units(Mem mem, uint64_t begin, uint64_t end);
  void local_hazard(Mem mem, uint64_t unit);
  std::byte* global(Range first, uint64_t count, uint64_t stride);
  void global_bytes(Region& region, uint64_t begin, uint64_t end);
  void unit(Region& region, GmCell& cell, uint64_t offset);
  void dirty(Region& region, uint64_t begin, uint64_t end);
  bool before(const GmAccess& access) const;
  void race(Region& region, uint64_t offset, const GmAccess& access);
  void uninitialised(Place place);
  void misaligned(Range range, uint32_t align);
  [[noreturn]] void outside(Class what, Range range, uint64_t bytes, const char* why);
  Place place(const Region* region, uint64_t address) const;

  uint32_t limit_[8];  // latest ticks of this core's pipes that are complete
  bool reported_ = false;
};

}  // namespace emu
