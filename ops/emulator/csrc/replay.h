// The time of a recorded launch: cores share the bandwidth of HBM and of L2.
#pragma once

#include <cstdint>
#include <vector>

#include "trace.h"

namespace emu {

struct Occupation {  // of one pipe of one core, in cycles
  uint64_t nodes = 0;
  double work = 0;  // at the core's own rates
  double busy = 0;  // waits for shared bandwidth included
  double end = 0;
  std::vector<float> bins;  // busy part of each bin of the launch
};

struct Model {
  double cycles = 0;
  uint64_t hbm = 0, l2 = 0;  // bytes
  std::vector<Occupation> lanes;
};

Model replay(const Trace& trace, const Rates& rates, int bins);

}  // namespace emu
