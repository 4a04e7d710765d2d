// What Python passes; launch.py mirrors these structures.
#pragma once

#include <cstdint>

#include "emu/system.h"
#include "emu/work.h"

namespace emu {

enum class Role : int32_t { Input, Output, InOut, Workspace, Value };

struct Argument {
  void* data;  // null for a workspace, which has no host side
  uint64_t bytes;
  const char* name;
  int32_t role;
  int32_t reserved;
};

// What orders two statements, or one; `disabled` names one of them whose order a launch drops.
enum class Order : int32_t { None, Barrier, Flag, CrossFlag, Queue, Reuse, SyncAll };

struct Statement {
  int32_t kind;        // an Order
  int32_t reserved;
  const char* first;   // "file:line:column:api" as the report gives it
  const char* second;  // of the waiting side; empty for a barrier
};

struct Options {
  int32_t blocks;
  int32_t random;      // scheduler: 0 round robin, 1 seeded random
  uint64_t seed;
  int32_t shadow;      // 0: no hazards, no uninitialised reads
  int32_t bins;        // of the first model's timeline; 0: none
  int32_t isolated;    // run in a child process
  uint32_t reserved_ub;
  double timeout;      // seconds
  uint32_t most_findings;
  uint32_t block_limit;  // blocks that the chip runs at once
  Statement disabled;
  const Rates* rates;    // one for each model of time
  int32_t models;
  int32_t reserved;
};

}  // namespace emu
