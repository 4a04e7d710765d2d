#include "replay.h"

#include <algorithm>
#include <queue>

#include "flows.h"

namespace emu {

namespace {

struct Event {
  enum Kind : uint8_t { Begin, Started, End };
  double time;
  uint32_t node;
  Kind kind;
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : node > other.node;
  }
};

struct Step {
  uint32_t to;
  float delay;
};

class Replay {
 public:
  Replay(const Trace& trace, const Rates& rates)
      : trace_(trace), rates_(rates), flows_(rates), waits_(trace.nodes.size()),
        ready_(trace.nodes.size()), start_(trace.nodes.size()), end_(trace.nodes.size()) {
    link();
  }

  Model run(int bins) {
    for (uint32_t n = 0; n < waits_.size(); ++n) {
      if (waits_[n] == 0) events_.push({ready_[n], n, Event::Begin});
    }
    std::vector<uint32_t> done;
    while (!events_.empty() || flows_.next() < NEVER) {
      const double now = flows_.next();
      if (events_.empty() || now <= events_.top().time) {
        done.clear();
        flows_.finish(done);
        for (const uint32_t n : done) finish(n, now);
        continue;
      }
      const Event event = events_.top();
      events_.pop();
      if (event.kind == Event::Begin) begin(event.node, event.time);
      else if (event.kind == Event::Started) started(event.node, event.time);
      else finish(event.node, event.time);
    }
    return model(bins);
  }

 private:
  template <class Use>
  void each_edge(Use use) const {
    std::vector<uint32_t> before(trace_.lanes());  // last node of each lane, plus 1
    for (uint32_t n = 0; n < trace_.nodes.size(); ++n) {
      const Node& node = trace_.nodes[n];
      uint32_t& last = before[node.lane];
      const double issue = rates_.issue * node.issues;
      if (node.scalar != 0) use(node.scalar - 1, n, issue);
      else use(n, n, issue);
      if (last != 0) use(last - 1, n, 0.0);
      for (uint32_t e = node.first; e < node.first + node.edges; ++e) {
        const Edge& edge = trace_.edges[e];
        use(edge.from - 1, n,
            edge.delay == Delay::Flag    ? rates_.flag
            : edge.delay == Delay::Cross ? rates_.cross_flag
                                         : 0.0);
      }
      last = n + 1;
    }
  }

  // Edges by the node where they begin.
  void link() {
    begin_.resize(waits_.size() + 1);
    each_edge([&](uint32_t from, uint32_t to, double delay) {
      if (from == to) ready_[to] = delay;
      else ++begin_[from + 1], ++waits_[to];
    });
    for (size_t n = 1; n < begin_.size(); ++n) begin_[n] += begin_[n - 1];
    steps_.resize(begin_.back());
    std::vector<uint64_t> next(begin_.begin(), begin_.end() - 1);
    each_edge([&](uint32_t from, uint32_t to, double delay) {
      if (from != to) steps_[next[from]++] = {to, float(delay)};
    });
  }

  void begin(uint32_t n, double now) {
    start_[n] = now;
    const Node& node = trace_.nodes[n];
    if (node.work.kind == Work::None) return finish(n, now);
    const bool flows = node.hbm + node.l2 > 0 && most(node) > 0;
    const double cost = flows ? fixed_cycles(node.work, rates_) : cycles(node.work, rates_);
    events_.push({now + cost, n, flows ? Event::Started : Event::End});
  }

  void started(uint32_t n, double now) {
    const Node& node = trace_.nodes[n];
    flows_.add(now, {n, {double(node.hbm), double(node.l2)}, most(node)});
  }

  double most(const Node& node) const {
    return node.work.kind == Work::Move ? rates_.move_bytes[node.work.op] : 0;
  }

  void finish(uint32_t n, double now) {
    end_[n] = now;
    for (uint64_t s = begin_[n]; s < begin_[n + 1]; ++s) {
      const Step& step = steps_[s];
      ready_[step.to] = std::max(ready_[step.to], now + double(step.delay));
      if (--waits_[step.to] == 0) events_.push({ready_[step.to], step.to, Event::Begin});
    }
  }

  Model model(int bins) const {
    Model result;
    result.lanes.resize(trace_.lanes());
    for (const double end : end_) result.cycles = std::max(result.cycles, end);
    const double width = bins > 0 ? result.cycles / bins : 0;
    for (size_t n = 0; n < end_.size(); ++n) {
      const Node& node = trace_.nodes[n];
      Occupation& lane = result.lanes[node.lane];
      ++lane.nodes;
      lane.work += cycles(node.work, rates_);
      lane.busy += end_[n] - start_[n];
      lane.end = std::max(lane.end, end_[n]);
      if (most(node) > 0) result.hbm += node.hbm, result.l2 += node.l2;
      if (width > 0) fill(lane, start_[n] / width, end_[n] / width, size_t(bins));
    }
    for (uint32_t lane = 0; lane < trace_.lanes(); lane += PIPES) {
      const double issued = rates_.issue * double(trace_.statements(lane));
      Occupation& scalar = result.lanes[lane + uint32_t(Pipe::S)];
      scalar.nodes += trace_.statements(lane);
      scalar.work += issued;
      scalar.busy += issued;
    }
    return result;
  }

  static void fill(Occupation& lane, double start, double end, size_t bins) {
    lane.bins.resize(bins);
    for (size_t b = size_t(start); b < bins && double(b) < end; ++b) {
      lane.bins[b] += float(std::min(end, double(b + 1)) - std::max(start, double(b)));
    }
  }

  const Trace& trace_;
  const Rates& rates_;
  Flows flows_;
  std::vector<uint32_t> waits_;
  std::vector<double> ready_, start_, end_;
  std::vector<uint64_t> begin_;
  std::vector<Step> steps_;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
};

}  // namespace

Model replay(const Trace& trace, const Rates& rates, int bins) {
  return Replay(trace, rates).run(bins);
}

}  // namespace emu
