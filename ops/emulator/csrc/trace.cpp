#include "trace.h"

#include <algorithm>

namespace emu {

void Trace::add(uint32_t lane, uint32_t site) {
  Lane& own = lanes_[lane];
  Lane& s = lanes_[scalar(lane)];
  nodes.push_back({lane, site, s.last, s.issues, uint32_t(edges.size()),
                   uint32_t(own.pending.size()), 0, 0, {}});
  edges.insert(edges.end(), own.pending.begin(), own.pending.end());
  own.pending.clear();
  own.last = uint32_t(nodes.size());
  if (&own == &s) s.issues = 0;
}

// What S waits for holds back everything that it issues later.
void Trace::settle(uint32_t lane, uint32_t site) {
  if (!lanes_[scalar(lane)].pending.empty()) add(scalar(lane), site);
}

uint32_t Trace::issue(uint32_t lane, uint32_t site) {
  if (lane != scalar(lane)) {
    settle(lane, site);
    statement(lane);
  }
  add(lane, site);
  return uint32_t(nodes.size());
}

void Trace::join(uint32_t lane, Edge edge) {
  if (edge.from == 0) return;
  std::vector<Edge>& pending = lanes_[lane].pending;
  const bool known = std::any_of(pending.begin(), pending.end(), [&](const Edge& other) {
    return other.from == edge.from && other.delay == edge.delay;
  });
  if (!known) pending.push_back(edge);
}

uint32_t Trace::completed(uint32_t lane, uint32_t site) {
  settle(lane, site);
  Lane& own = lanes_[lane];
  const uint32_t before = lanes_[scalar(lane)].last;
  // The lane's last node will do where S has waited for nothing since.
  if (own.pending.empty() && own.last != 0 &&
      (lane == scalar(lane) || nodes[own.last - 1].scalar == before)) {
    return own.last;
  }
  if (own.pending.empty() && own.last == 0 && before == 0) return 0;
  add(lane, site);
  return uint32_t(nodes.size());
}

}  // namespace emu
