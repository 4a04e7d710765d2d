// Names of the machine: pipes, memories, ranges. No kernel uses these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>

namespace emu {

using At = std::source_location;

enum class Pipe : uint8_t { S, V, M, MTE1, MTE2, MTE3, FIX };
inline constexpr int PIPES = 7;
enum class Mem : uint8_t { GM, UB, L1, L0A, L0B, L0C, BT, FB };
inline constexpr int MEMORIES = 8;

// Classes of findings; ../../README.md describes them.
enum class Class : uint8_t {
  CAPACITY, OOB, ALIGN, UNINIT, RAW, WAR, WAW, EVENT_PAIR, QUEUE, XFLAG, GM_OOB, GM_RACE,
  DEADLOCK, PARAM, DTYPE, OVERLAP, STALE, LEAK, UNSUPPORTED, ASSERT, UNDEFINED, CRASH,
  TIMEOUT
};

// `address` is a host address in GM, and elsewhere an offset in that memory of the issuing core.
struct Range {
  Mem mem;
  uint64_t address;
  uint64_t bytes;
};

const char* name(Pipe pipe);
const char* name(Mem mem);
const char* name(Class what);

}  // namespace emu
