// Flags between pipes and between cores, barriers.
#include "emu/sync.h"

#include "machine.h"
#include "snapshot.h"

namespace emu {

namespace {

// Statements have no instruction of their own: they are queued in a pipe like one, take no time and
// touch no memory.
uint32_t statement(const char* api, At at) {
  here().machine->switch_point();
  const uint32_t site = here().machine->site(api, at);
  CoreState& core = here();
  core.last_site = site;
  if (core.machine->trace) core.machine->trace->statement(core.lane_number(Pipe::S));
  return site;
}

void find(Class what, Pipe pipe, uint32_t site, std::string text, Other other = {}) {
  here().machine->find(what, here(), int(pipe), site, std::move(text), {}, std::move(other));
}

std::string pair_name(Pipe from, Pipe to) { return std::string(name(from)) + "_" + name(to); }

// The names "SetFlag<MTE2_V>" and so on, made once: a statement's name is kept by address.
const char* flag_name(bool set, Pipe from, Pipe to) {
  static std::string names[2][PIPES][PIPES];
  std::string& text = names[set][int(from)][int(to)];
  if (text.empty()) text = (set ? "SetFlag<" : "WaitFlag<") + pair_name(from, to) + ">";
  return text.c_str();
}

const char* barrier_name(int pipe) {
  static std::string names[PIPES + 1];
  std::string& text = names[pipe];
  if (text.empty()) {
    text = std::string("PipeBarrier<PIPE_") + (pipe == PIPES ? "ALL" : name(Pipe(pipe))) + ">";
  }
  return text.c_str();
}

bool legal(Pipe from, Pipe to, int id, uint32_t site) {
  CoreState& core = here();
  if (from == to || !core.has(from) || !core.has(to)) {
    find(Class::EVENT_PAIR, from, site,
         pair_name(from, to) + " is no event of an " + (is_cube() ? "AIC" : "AIV"));
    return false;
  }
  if (id < 0 || id > 7) {
    find(Class::EVENT_PAIR, from, site, "event id " + std::to_string(id) + " is not 0 to 7");
    return false;
  }
  return true;
}

}  // namespace

// What is complete when everything issued to the pipe so far is.
Snapshot completed(CoreState& core, Pipe pipe) {
  Lane& lane = core.lane(pipe);
  lane.clock.join(core.lane(Pipe::S).clock);
  Snapshot done{lane.clock, 0};
  if (core.machine->trace) {
    done.node = core.machine->trace->completed(core.lane_number(pipe), core.last_site);
  }
  done.clock.known[int(pipe)] = lane.ticks;
  return done;
}

void join(CoreState& core, Pipe pipe, const Snapshot& done, Delay delay) {
  core.lane(pipe).clock.join(done.clock);
  if (core.machine->trace) core.machine->trace->join(core.lane_number(pipe), {done.node, delay});
}

void set_flag(Pipe from, Pipe to, int id, At at) {
  const uint32_t site = statement(flag_name(true, from, to), at);
  if (!legal(from, to, id, site)) return;
  CoreState& core = here();
  Event& event = core.events[int(from)][int(to)][id];
  if (event.owner == Event::Queues) {
    find(Class::EVENT_PAIR, from, site,
         "event id " + std::to_string(id) + " is in use by a queue; ask TPipe for an id",
         {core_name(core), int(from), event.site});
    return;
  }
  if (event.set) {
    find(Class::EVENT_PAIR, from, site, "event id " + std::to_string(id) + " is set twice before a wait",
         {core_name(core), int(from), event.site});
  }
  event.set = true;
  event.site = site;
  event.snapshot = completed(core, from);
}

void wait_flag(Pipe from, Pipe to, int id, At at) {
  const uint32_t site = statement(flag_name(false, from, to), at);
  if (!legal(from, to, id, site)) return;
  CoreState& core = here();
  Event& event = core.events[int(from)][int(to)][id];
  if (!event.set || event.owner == Event::Queues) {
    find(Class::EVENT_PAIR, to, site,
         "waits for event id " + std::to_string(id) + ", which is not set");
    stop();
  }
  event.set = false;
  if (core.machine->orders(Order::Flag, event.site, site)) {
    join(core, to, event.snapshot, Delay::Flag);
  }
}

void barrier(int pipe, At at) {
  const uint32_t site = statement(barrier_name(pipe), at);
  CoreState& core = here();
  if (pipe != ALL_PIPES && !core.has(Pipe(pipe))) {
    find(Class::PARAM, Pipe(pipe), site,
         std::string("an ") + (is_cube() ? "AIC" : "AIV") + " has no pipe " + name(Pipe(pipe)));
    return;
  }
  if (!core.machine->orders(Order::Barrier, site)) return;
  if (pipe != ALL_PIPES) {
    core.lane(Pipe(pipe)).clock = completed(core, Pipe(pipe)).clock;
    return;
  }
  Snapshot all;
  uint32_t nodes[PIPES];
  for (int p = 0; p < PIPES; ++p) {
    const Snapshot done = completed(core, Pipe(p));
    all.clock.join(done.clock);
    nodes[p] = done.node;
  }
  for (int p = 0; p < PIPES; ++p) {
    core.lane(Pipe(p)).clock.join(all.clock);
    // S waits, and whatever it issues later begins later.
    join(core, Pipe::S, {{}, nodes[p]}, Delay::None);
  }
}

int alloc_event(Pipe from, Pipe to, At at) {
  const uint32_t site = statement("AllocEventID", at);
  const int id = fetch_event(from, to, at);
  Event& event = here().events[int(from)][int(to)][id];
  event.owner = Event::Kernel;
  event.site = site;
  return id;
}

int fetch_event(Pipe from, Pipe to, At at) {
  const uint32_t site = statement("FetchEventID", at);
  if (!legal(from, to, 0, site)) stop();
  for (int id = 0; id < 8; ++id) {
    const Event& event = here().events[int(from)][int(to)][id];
    if (event.owner == Event::Nobody && !event.set) return id;
  }
  find(Class::EVENT_PAIR, from, site, "no event id of " + pair_name(from, to) + " is free");
  stop();
}

void release_event(Pipe from, Pipe to, int id, At at) {
  const uint32_t site = statement("ReleaseEventID", at);
  if (!legal(from, to, id, site)) return;
  Event& event = here().events[int(from)][int(to)][id];
  if (event.owner != Event::Kernel) {
    find(Class::EVENT_PAIR, from, site,
         "releases event id " + std::to_string(id) + ", which AllocEventID did not give");
    return;
  }
  event.owner = Event::Nobody;
}

}  // namespace emu
