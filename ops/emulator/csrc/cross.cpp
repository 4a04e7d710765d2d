// Flags between cores, and SyncAll.
#include <cstdio>

#include "emu/sync.h"
#include "machine.h"
#include "snapshot.h"

namespace emu {

namespace {

constexpr size_t MOST = 15;  // of a flag's counter

void find(int pipe, uint32_t site, std::string text, Other other = {}) {
  here().machine->find(Class::XFLAG, here(), pipe, site, std::move(text), {}, std::move(other));
}

const char* set_name(int mode, int pipe) {
  static std::string names[8][PIPES + 1];
  std::string& text = names[mode & 7][pipe];
  if (text.empty()) {
    text = "CrossCoreSetFlag<" + std::to_string(mode) + ", PIPE_" +
           (pipe == PIPES ? "ALL" : name(Pipe(pipe))) + ">";
  }
  return text.c_str();
}

// Everything that the given pipes of the running core have completed.
Contribution contribution(CoreState& core, int pipe, uint32_t site) {
  Contribution part{core.foreign, 0, site};
  uint32_t* own = part.known.data() + size_t(core.index) * PIPES;
  uint32_t nodes[PIPES] = {};
  for (int p = 0; p < PIPES; ++p) {
    if (pipe != PIPES && p != pipe) continue;
    const Snapshot done = completed(core, Pipe(p));
    for (int i = 0; i < PIPES; ++i) own[i] = std::max(own[i], done.clock.known[i]);
    nodes[p] = part.node = done.node;
  }
  if (pipe != PIPES || !core.machine->trace) return part;
  // SyncAll: S waits for all pipes of its own core, and then for the other cores.
  const uint32_t scalar = core.lane_number(Pipe::S);
  for (const uint32_t node : nodes) core.machine->trace->join(scalar, {node, Delay::None});
  part.node = core.machine->trace->completed(scalar, site);
  return part;
}

// Whether `other` takes part in a set of `core`.
bool together(const CoreState& core, const CoreState& other, int mode) {
  if (mode == 0) return core.type == other.type;
  return core.block == other.block && core.type == other.type;
}

bool released(const CoreState& core, const CoreState& other, int mode) {
  if (mode != 2) return together(core, other, mode);
  return core.block == other.block && core.type != other.type;
}

// Gives the flag to its receivers once all members have set it.
template <class Member, class Receiver>
void release(CoreState& core, int mode, int id, uint32_t site, Member member, Receiver receiver) {
  Machine& machine = *core.machine;
  for (CoreState& other : machine.cores) {
    if (member(other) && other.sets[mode][id].empty()) return;
  }
  auto parts = std::make_shared<std::vector<Contribution>>();
  for (CoreState& other : machine.cores) {
    if (!member(other)) continue;
    parts->push_back(std::move(other.sets[mode][id].front()));
    other.sets[mode][id].pop_front();
  }
  for (CoreState& other : machine.cores) {
    if (!receiver(other)) continue;
    other.flags[id].push_back(parts);
    if (id < 16 && other.flags[id].size() > MOST) {
      find(int(Pipe::S), site, "flag " + std::to_string(id) + " of " + core_name(other) +
                                   " is set more than 15 times without a wait");
      stop();
    }
  }
}

void join(CoreState& core, Order order, const Release& parts, uint32_t site) {
  Machine& machine = *core.machine;
  Lane& scalar = core.lane(Pipe::S);
  for (const Contribution& part : *parts) {
    const bool ordered = order == Order::SyncAll ? machine.orders(order, site)
                                                 : machine.orders(order, part.site, site);
    if (!ordered) continue;
    for (size_t i = 0; i < core.foreign.size(); ++i) {
      core.foreign[i] = std::max(core.foreign[i], part.known[i]);
    }
    const uint32_t* own = part.known.data() + size_t(core.index) * PIPES;
    for (int p = 0; p < PIPES; ++p) {
      scalar.clock.known[p] = std::max(scalar.clock.known[p], own[p]);
    }
    if (machine.trace) {
      machine.trace->join(core.lane_number(Pipe::S), {part.node, Delay::Cross});
    }
  }
}

bool mixed(CoreState& core, uint32_t site) {
  const Launch launch = core.machine->entry.launch;
  if (launch == Launch::MIX12 || launch == Launch::MIX01) return true;
  find(int(Pipe::S), site, "cross-core synchronisation needs a mix kernel");
  return false;
}

void reserved_ids(CoreState& core, uint32_t site) {
  Machine& machine = *core.machine;
  if (machine.uses_sync_all && machine.uses_reserved_ids) {
    find(int(Pipe::S), site, "ids 11 to 14 belong to SyncAll, which this kernel uses too");
  }
}

void blocks_at_once(CoreState& core, uint32_t site) {
  const Options& options = core.machine->options;
  // The chip has two AIV per AIC.
  const uint32_t most = options.block_limit * (core.machine->entry.launch == Launch::MIX01 ? 2 : 1);
  if (most == 0 || uint32_t(options.blocks) <= most) return;
  find(int(Pipe::S), site,
       "waits for all blocks, of which only " + std::to_string(most) + " run at once");
}

}  // namespace

void cross_set(int mode, int pipe, int id, At at) {
  here().machine->switch_point();
  CoreState& core = here();
  const uint32_t site = core.last_site = core.machine->site(set_name(mode, pipe), at);
  if (core.machine->trace) core.machine->trace->statement(core.lane_number(Pipe::S));
  mixed(core, site);
  const bool legal = mode >= 0 && mode <= 2 && id >= 0 && id <= 15 && pipe != int(Pipe::S) &&
                     pipe != PIPES && core.has(Pipe(pipe)) && (mode != 1 || !is_cube());
  if (!legal || (mode == 2 && core.machine->entry.launch != Launch::MIX12)) {
    find(pipe == PIPES ? int(Pipe::S) : pipe, site,
         "mode " + std::to_string(mode) + ", id " + std::to_string(id) +
             " and this pipe are no flag of an " + (is_cube() ? "AIC" : "AIV"));
    stop();
  }
  if (id >= 11 && id <= 14) {
    core.machine->uses_reserved_ids = true;
    reserved_ids(core, site);
  }
  if (mode == 0) blocks_at_once(core, site);
  core.sets[mode][id].push_back(contribution(core, pipe, site));
  release(
      core, mode, id, site, [&](const CoreState& other) { return together(core, other, mode); },
      [&](const CoreState& other) { return released(core, other, mode); });
}

void cross_wait(int id, At at) {
  here().machine->switch_point();
  CoreState& core = here();
  const uint32_t site = core.last_site = core.machine->site("CrossCoreWaitFlag", at);
  if (core.machine->trace) core.machine->trace->statement(core.lane_number(Pipe::S));
  mixed(core, site);
  if (id < 0 || id > 15) {
    find(int(Pipe::S), site, "flag " + std::to_string(id) + " is not 0 to 15");
    stop();
  }
  core.machine->wait(core, id, site);
  const Release parts = core.flags[id].front();
  core.flags[id].pop_front();
  join(core, Order::CrossFlag, parts, site);
}

void sync_all(bool vector_only, At at) {
  here().machine->switch_point();
  CoreState& core = here();
  const uint32_t site =
      core.last_site = core.machine->site(vector_only ? "SyncAll<true>" : "SyncAll<false>", at);
  core.machine->uses_sync_all = true;
  mixed(core, site);
  reserved_ids(core, site);
  blocks_at_once(core, site);
  if (vector_only && is_cube()) {
    find(int(Pipe::S), site, "SyncAll<true> is for AIVs only");
    return;
  }
  const int id = vector_only ? SYNC_VECTOR : SYNC_ALL;
  core.sets[0][id].push_back(contribution(core, PIPES, site));
  const auto member = [&](const CoreState& other) {
    return !vector_only || other.type == Type::AIV;
  };
  release(core, 0, id, site, member, member);
  core.machine->wait(core, id, site);
  const Release parts = core.flags[id].front();
  core.flags[id].pop_front();
  // It ends with a barrier of all pipes of the core itself.
  join(core, Order::SyncAll, parts, site);
}

}  // namespace emu
