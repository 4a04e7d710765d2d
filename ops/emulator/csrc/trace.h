// What a launch issued, kept so that its time can be modelled afterwards with any rates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emu/types.h"
#include "emu/work.h"

namespace emu {

enum class Delay : uint8_t { None, Flag, Cross };

// What follows begins no earlier than the end of `from`, a node's number plus 1 (0: nothing).
struct Edge {
  uint32_t from = 0;
  Delay delay = Delay::None;
};

// An instruction, or a point of a pipe's queue at which others wait.
struct Node {
  uint32_t lane;          // core * PIPES + pipe
  uint32_t site;
  uint32_t scalar;        // last node of S before it, plus 1
  uint32_t issues;        // statements that S executed since that node
  uint32_t first, edges;  // in Trace::edges
  uint64_t hbm = 0, l2 = 0;  // bytes of GM that it moves
  Work work;
};

class Trace {
 public:
  explicit Trace(size_t lanes) : lanes_(lanes) {}

  // A new instruction, which stays last() until the core changes.
  uint32_t issue(uint32_t lane, uint32_t site);
  // What `lane` does from now on follows `edge`.
  void join(uint32_t lane, Edge edge);
  // Number plus 1 of a node that ends once all of the lane has ended and S has come here.
  uint32_t completed(uint32_t lane, uint32_t site);
  // S executes a statement of synchronisation.
  void statement(uint32_t lane) {
    ++lanes_[scalar(lane)].issues;
    ++lanes_[scalar(lane)].statements;
  }
  // Of the core of `lane`, those that are no instructions of S.
  uint64_t statements(uint32_t lane) const { return lanes_[scalar(lane)].statements; }

  Node& last() { return nodes.back(); }
  size_t lanes() const { return lanes_.size(); }

  std::vector<Node> nodes;
  std::vector<Edge> edges;

 private:
  struct Lane {
    uint32_t last = 0;
    uint32_t issues = 0;  // of S, since its last node
    uint64_t statements = 0;
    std::vector<Edge> pending;
  };
  static uint32_t scalar(uint32_t lane) { return lane / PIPES * PIPES; }
  void add(uint32_t lane, uint32_t site);
  void settle(uint32_t lane, uint32_t site);

  std::vector<Lane> lanes_;
};

}  // namespace emu
