// Buffers of TPipe, and queues.
#pragma once

#include <cstdint>
#include <vector>

#include "emu/core.h"
#include "emu/types.h"

namespace emu {

struct Snapshot {  // of a pipe's clock and time
  uint32_t known[PIPES] = {};
  double time = 0;
};

// One buffer of a queue.
struct Block {
  enum State : uint8_t { Free, Allocated, Queued, Taken };
  uint32_t address = 0, bytes = 0;
  State state = Free;
  bool used = false;       // was freed at least once
  int event = -1;          // id that the queue holds for this block between set and wait
  uint32_t site = 0;       // of the statement that gave it its state
  Snapshot ready;
};

// Where a queue's buffers lie, and which pipes hand them over; S as both: no hand-over.
struct Route {
  Mem mem;
  Pipe producer, consumer;
};

class Queue {
 public:
  void init(Route route, int depth, int count, uint32_t bytes, At at);
  int alloc(At at);                 // index of the block
  void enqueue(int block, At at);
  int dequeue(At at);
  void release(int block, At at);
  const Block& block(int index) const { return blocks_[index]; }
  int find(Mem mem, uint64_t address) const;  // the block that starts there, or -1
  bool has_queued() const { return !order_.empty(); }
  bool can_alloc() const;
  int queued() const { return int(order_.size()); }
  void finish();                    // LEAK of what was not returned

 private:
  Route route_{};
  int depth_ = 0;
  uint32_t site_ = 0;
  std::vector<Block> blocks_;
  std::vector<int> order_;
};

// TPipe: memory in the order of asking, 32-byte units.
uint32_t allocate(Mem mem, uint32_t bytes, At at);  // address; CAPACITY ends the launch
void free_all();                                    // TPipe::Reset
// A tensor that a kernel places itself.
void place(Mem mem, uint64_t address, uint64_t bytes, At at);

}  // namespace emu
