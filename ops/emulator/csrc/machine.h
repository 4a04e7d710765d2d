// The machine of one launch: cores, their pipes, memories and shadows, and the scheduler.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "fiber.h"
#include "launch.h"
#include "report.h"
#include "shadow.h"
#include "trace.h"
#include "emu/core.h"
#include "emu/queue.h"
#include "emu/work.h"

namespace emu {

// What a pipe of a core knows to be complete, of its own core's pipes.
struct Clock {
  uint32_t known[PIPES] = {};

  void join(const Clock& other) {
    for (int i = 0; i < PIPES; ++i) known[i] = std::max(known[i], other.known[i]);
  }
};

struct Snapshot {
  Clock clock;
  uint32_t node = 0;  // of the trace, plus 1
};

struct Lane {  // one pipe of one core
  uint32_t ticks = 0;           // instructions issued
  Clock clock;                  // own component: what a barrier or a detour has completed
  std::vector<uint32_t> sites;  // of instruction tick - 1
  Counters counters;
};

struct Event {
  enum Owner : uint8_t { Nobody, Kernel, Queues };
  bool set = false;
  Owner owner = Nobody;
  uint32_t site = 0;
  Snapshot snapshot;
};

// One core's part of a cross-core release: everything that was complete at its set.
struct Contribution {
  std::vector<uint32_t> known;  // of every lane of the launch
  uint32_t node;                // of the trace, plus 1
  uint32_t site;
};
using Release = std::shared_ptr<const std::vector<Contribution>>;

// Ids 0 to 15 are the kernel's; the rest serve SyncAll.
inline constexpr int FLAG_IDS = 18, SYNC_VECTOR = 16, SYNC_ALL = 17;

struct Line {  // of the scalar data cache
  std::byte data[64];
  uint64_t dirty = 0;
  uint64_t filled = 0;  // Machine::writes at that time
  uint32_t site = 0;    // of the last store
};

struct Buffer {
  Mem mem;
  uint64_t begin, end;
};

struct CoreState : Core {
  Lane lanes[PIPES];
  std::vector<uint32_t> foreign;  // known of other cores' lanes; every pipe has it from S
  LocalMemory memories[MEMORIES];
  uint64_t allocated[MEMORIES] = {};
  bool placed[MEMORIES] = {};
  std::vector<Buffer> buffers;
  std::vector<std::shared_ptr<QueueState>> queues;
  Event events[PIPES][PIPES][8];
  std::deque<Release> flags[FLAG_IDS];
  std::deque<Contribution> sets[3][FLAG_IDS];  // by mode, not yet matched
  std::map<uint64_t, Line> cache;
  Fiber fiber;
  bool finished = false;
  int waits_for = -1;  // flag id
  uint32_t waiting_site = 0;
  uint32_t last_site = 0;

  Lane& lane(Pipe pipe) { return lanes[int(pipe)]; }
  bool has(Pipe pipe) const;
  uint32_t lane_number(Pipe pipe) const { return uint32_t(index) * PIPES + uint32_t(pipe); }
  bool runnable() const { return !finished && (waits_for < 0 || !flags[waits_for].empty()); }
};

class Machine {
 public:
  Machine(const Options& options, const Entry& entry, std::vector<Region>& regions,
          void* const* arguments);
  void run();

  uint32_t site(const char* api, const At& at) { return report.sites.find(api, at); }
  // Lets other cores run, as the scheduler likes.
  void switch_point();
  void wait(CoreState& core, int flag, uint32_t site);
  Region* region(uint64_t address);
  void end() { ended_ = true; }
  // Notes that `kind` orders these statements; false where this launch drops that order.
  bool orders(Order kind, uint32_t first, uint32_t second = 0);
  void find(Class what, CoreState& core, int pipe, uint32_t site, std::string text, Place place = {},
            Other other = {});

  const Options& options;
  const Entry& entry;
  std::vector<Region>& regions;
  void* const* arguments;
  std::deque<CoreState> cores;
  Report report;
  GmShadow gm;
  std::unique_ptr<Trace> trace;  // where times are asked for
  uint64_t writes = 0;       // to GM, so far
  uint64_t instructions = 0;
  uint32_t dirty_lines = 0;
  bool uses_sync_all = false, uses_reserved_ids = false;

 private:
  void make_cores();
  CoreState* next();
  void deadlock();
  void check_end();
  void check_core_end(CoreState& core);

  double deadline_;
  std::mt19937_64 random_;
  size_t turn_ = 0;
  bool ended_ = false;
  std::unordered_map<uint64_t, bool> disabled_;  // pairs of statements seen
};

inline CoreState& here() { return static_cast<CoreState&>(*current); }

struct Stop {};  // thrown by stop(), caught where the fiber began

double seconds();  // of a steady clock

}  // namespace emu
