// The buffers of one queue of a core.
#pragma once

#include <vector>

#include "machine.h"

namespace emu {

struct Slot {
  enum State : uint8_t { Free, Allocated, Queued, Taken };
  Block block{};
  State state = Free;
  int event = -1;     // id that the queue holds until the next DeQue or AllocTensor
  uint32_t site = 0;  // of the statement that gave it its state
  Snapshot ready;
};

struct QueueState {
  bool alive = true;  // until TPipe gives its memory up
  Route route;
  int depth;
  size_t next = 0;  // buffers are handed out in turn
  std::vector<Slot> slots;
  std::vector<int> order;  // queued ones
};

void leaks(CoreState& core);

}  // namespace emu
