// Transfers that run at the same moment share the bandwidth of HBM and of L2.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "emu/work.h"

namespace emu {

inline constexpr double NEVER = std::numeric_limits<double>::infinity();

inline constexpr double FLOW_END = 1e-6;  // bytes left that count as none

// Bytes on their way, first those of HBM, then those of L2.
struct Flow {
  uint32_t node;
  double left[2];
  double most;  // bytes per cycle of the core's own path
  double rate = 0;

  int memory() const { return left[0] > FLOW_END ? 0 : 1; }
};

// Transfers that run at the same time. Each memory's bandwidth is shared evenly, up to what each
// path takes (max-min).
class Flows {
 public:
  explicit Flows(const Rates& rates) : limit_{rates.hbm_bytes, rates.l2_bytes} {}

  void add(double now, const Flow& flow) {
    advance(now);
    flows_.push_back(flow);
    share();
  }
  double next() const { return next_; }
  // The transfers that end at next(); one that goes on to L2 is not among them.
  void finish(std::vector<uint32_t>& done) {
    advance(next_);
    for (size_t i = 0; i < flows_.size();) {
      if (flows_[i].left[0] > FLOW_END || flows_[i].left[1] > FLOW_END) {
        ++i;
        continue;
      }
      done.push_back(flows_[i].node);
      flows_[i] = flows_.back();
      flows_.pop_back();
    }
    share();
  }

 private:
  void advance(double now) {
    for (Flow& flow : flows_) {
      double& left = flow.left[flow.memory()];
      left -= flow.rate * (now - now_);
      // Times near the end of a long launch are no finer than this.
      if (left < flow.rate * now * 1e-15 + FLOW_END) left = 0;
    }
    now_ = now;
  }

  void share() {
    for (int memory = 0; memory < 2; ++memory) {
      order_.clear();
      for (Flow& flow : flows_) {
        if (flow.memory() == memory) order_.push_back(&flow);
      }
      std::sort(order_.begin(), order_.end(),
                [](const Flow* a, const Flow* b) { return a->most < b->most; });
      double rest = limit_[memory] > 0 ? limit_[memory] : NEVER;
      size_t count = order_.size();
      for (Flow* flow : order_) {
        flow->rate = std::min(flow->most, rest / double(count--));
        rest -= flow->rate;
      }
    }
    next_ = NEVER;
    for (const Flow& flow : flows_) {
      next_ = std::min(next_, now_ + flow.left[flow.memory()] / flow.rate);
    }
  }

  double limit_[2];
  double now_ = 0, next_ = NEVER;
  std::vector<Flow> flows_;
  std::vector<Flow*> order_;
};

}  // namespace emu
