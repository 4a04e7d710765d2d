// Who touched which 32 bytes last. Times are instruction numbers of a pipe (ticks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "emu/types.h"

namespace emu {

inline constexpr uint32_t UNIT = 32;
// NaN in every float format, and no value that a kernel uses by accident.
inline constexpr uint16_t POISON = 0xffa5;
void poison(std::byte* memory, uint64_t bytes);

// A unit of a local memory, which only its core reaches.
struct Cell {
  uint32_t read[PIPES];  // last tick of each pipe since the last write
  uint32_t write;        // tick << 3 | pipe; 0: never
};

struct LocalMemory {
  uint64_t bytes = 0;
  std::unique_ptr<std::byte[]> data;
  std::unique_ptr<Cell[]> cells;
};

struct GmAccess {
  enum Kind : uint16_t { None, Read, Write, Atomic };
  uint32_t tick = 0;
  uint16_t lane = 0;  // core * PIPES + pipe
  Kind kind = None;
};

// A unit of GM, or one byte of a unit that was accessed in part.
struct GmCell {
  GmAccess write;         // the last one
  GmAccess other;         // a read or atomic since then
  uint32_t more = 0;      // further ones: 1 + index into GmShadow::lists
  uint32_t bytes = 0;     // 1 + index into GmShadow::split
  uint64_t sequence = 0;  // of the last write or atomic in the launch
};

struct GmShadow {
  std::vector<std::vector<GmAccess>> lists;
  std::vector<std::unique_ptr<GmCell[]>> split;  // UNIT of them
};

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

struct Region {  // an argument in GM
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  std::string name;
  int32_t role = 0;
  bool given = false;  // holds data when the launch begins
  std::vector<bool> touched;  // units, where times are asked for
  uint64_t fresh = 0;         // bytes of those
  std::unique_ptr<GmCell[], FreeMemory> cells;  // null for inputs, which nobody writes

  bool holds(uint64_t address) const {
    return address >= uint64_t(base) && address < uint64_t(base) + bytes;
  }
  // Zero is an untouched cell, and pages that are never touched cost nothing.
  void make_cells() {
    void* memory = std::calloc(bytes / UNIT + 2, sizeof(GmCell));
    if (memory == nullptr) throw std::bad_alloc();
    cells.reset(static_cast<GmCell*>(memory));
  }
};

}  // namespace emu
