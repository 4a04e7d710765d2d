// Buffers of TPipe, and queues.
#pragma once

#include <cstdint>

#include "emu/core.h"
#include "emu/types.h"

namespace emu {

// A buffer of a queue.
struct Block {
  uint32_t address, bytes;
};

// Where a queue's buffers lie, and which pipes hand them over; S as both: no hand-over.
struct Route {
  Mem mem;
  Pipe producer, consumer;
};

struct QueueState;

// The state belongs to the core, so that what a kernel leaves behind is seen at its end.
class Queue {
 public:
  void init(Route route, int depth, int count, uint32_t bytes, At at);
  int alloc(At at);  // index of the block
  void enqueue(int block, At at);
  int dequeue(At at);
  void release(int block, At at);
  Block block(int index) const;
  int find(Mem mem, uint64_t address) const;  // the block that holds the address, or -1
  bool can_alloc() const;
  int queued() const;

 private:
  QueueState* state_ = nullptr;
};

// TPipe: memory in the order of asking, 32-byte units.
uint32_t allocate(Mem mem, uint32_t bytes, At at);  // address; CAPACITY ends the launch
void free_all();                                    // TPipe::Reset
// A tensor that a kernel places itself.
void place(Mem mem, uint64_t address, uint64_t bytes, At at);

}  // namespace emu
