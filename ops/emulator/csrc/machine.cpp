// Cores of a launch, and who runs when.
#include "machine.h"

#include <time.h>

#include <algorithm>
#include <exception>

namespace emu {

Core* current = nullptr;

namespace {

constexpr uint64_t RESERVED = 256;  // bytes at the end of UB and L1 (ascendc.md 4.1)
constexpr uint64_t KI = 1024;

uint64_t size_of(Type type, Mem mem, uint32_t reserved_ub) {
  if (type == Type::AIV) return mem == Mem::UB ? 192 * KI - RESERVED - reserved_ub : 0;
  switch (mem) {
    case Mem::L1: return 512 * KI - RESERVED;
    case Mem::L0A:
    case Mem::L0B: return 64 * KI;
    case Mem::L0C: return 128 * KI;
    case Mem::BT: return 1 * KI;
    case Mem::FB: return 2 * KI;
    default: return 0;
  }
}

void fiber_main() {
  CoreState& core = here();
  Machine& machine = *core.machine;
  try {
    machine.entry.call(machine.arguments);
  } catch (const Stop&) {
    // Its reason is in the findings.
  } catch (const std::exception& error) {
    machine.find(Class::CRASH, core, -1, core.last_site, std::string("exception: ") + error.what());
  } catch (...) {
    machine.find(Class::CRASH, core, -1, core.last_site, "exception of an unknown type");
  }
  core.finished = true;
  for (;;) core.fiber.suspend();
}

}  // namespace

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

size_t Core::next_slot() {
  static size_t slots = 0;
  return slots++;
}

uint64_t capacity(Mem mem) { return here().memories[int(mem)].bytes; }
std::byte* local(Mem mem) { return here().memories[int(mem)].data.get(); }

void stop() {
  here().machine->end();
  throw Stop();
}

int64_t block_count() { return here().machine->options.blocks; }
int64_t sub_count() { return here().machine->entry.launch == Launch::MIX12 ? 2 : 1; }

bool CoreState::has(Pipe pipe) const {
  if (type == Type::AIC) return pipe != Pipe::V;
  return pipe == Pipe::S || pipe == Pipe::V || pipe == Pipe::MTE2 || pipe == Pipe::MTE3;
}

Machine::Machine(const Options& options, const Entry& entry, std::vector<Region>& regions,
                 void* const* arguments)
    : options(options),
      entry(entry),
      regions(regions),
      arguments(arguments),
      deadline_(seconds() + options.timeout),
      random_(options.seed) {
  make_cores();
  if (options.models > 0) trace = std::make_unique<Trace>(cores.size() * PIPES);
}

void Machine::make_cores() {
  const int cubes = entry.launch == Launch::MIX12 || entry.launch == Launch::CUBE ? 1 : 0;
  const int vectors = entry.launch == Launch::MIX12 ? 2 : entry.launch == Launch::CUBE ? 0 : 1;
  const int total = options.blocks * (cubes + vectors);
  for (int block = 0; block < options.blocks; ++block) {
    for (int i = 0; i < cubes + vectors; ++i) {
      CoreState& core = cores.emplace_back();
      core.type = i < cubes ? Type::AIC : Type::AIV;
      core.index = uint16_t(cores.size() - 1);
      core.block = uint16_t(block);
      core.sub = uint16_t(i < cubes ? 0 : i - cubes);
      core.block_idx = uint16_t(i < cubes ? block : block * vectors + core.sub);
      core.machine = this;
      core.foreign.resize(size_t(total) * PIPES);
      for (int mem = 0; mem < MEMORIES; ++mem) {
        LocalMemory& memory = core.memories[mem];
        memory.bytes = size_of(core.type, Mem(mem), options.reserved_ub);
        if (memory.bytes == 0) continue;
        memory.data = std::make_unique_for_overwrite<std::byte[]>(memory.bytes);
        poison(memory.data.get(), memory.bytes);
        if (options.shadow) memory.cells = std::make_unique<Cell[]>(memory.bytes / UNIT + 1);
      }
      core.fiber.prepare(fiber_main);
    }
  }
}

CoreState* Machine::next() {
  const size_t count = cores.size();
  const size_t first = options.random ? random_() % count : turn_;
  for (size_t i = 0; i < count; ++i) {
    CoreState& core = cores[(first + i) % count];
    if (!core.runnable()) continue;
    turn_ = (first + i + 1) % count;
    return &core;
  }
  return nullptr;
}

void Machine::run() {
  while (!ended_) {
    CoreState* core = next();
    if (core == nullptr) break;
    current = core;
    core->fiber.resume();
  }
  if (!ended_ && std::any_of(cores.begin(), cores.end(), [](auto& c) { return !c.finished; })) {
    deadlock();
    ended_ = true;
  }
  if (!ended_) check_end();
  current = nullptr;
}

void Machine::switch_point() {
  if (ended_) return;
  CoreState& core = here();
  if ((++instructions & 1023) == 0 && seconds() > deadline_) {
    find(Class::TIMEOUT, core, -1, core.last_site, "the launch takes longer than its time limit");
    stop();
  }
  if (options.random && cores.size() > 1 && (random_() & 7) == 0) core.fiber.suspend();
}

void Machine::wait(CoreState& core, int flag, uint32_t site) {
  if (!core.flags[flag].empty() && !options.random) return;
  core.waits_for = flag;
  core.waiting_site = site;
  core.fiber.suspend();
  core.waits_for = -1;
}

Region* Machine::region(uint64_t address) {
  for (Region& region : regions) {
    if (region.holds(address)) return &region;
  }
  return nullptr;
}

bool Machine::orders(Order kind, uint32_t first, uint32_t second) {
  ++report.orders[{kind, first, second}];
  const Statement& off = options.disabled;
  if (Order(off.kind) != kind) return true;
  // Kept by number: comparing text at every statement would be slow.
  const auto [at, is_new] = disabled_.try_emplace(uint64_t(first) << 32 | second);
  if (is_new) {
    at->second = report.sites.key(first) == off.first &&
                 (second == 0 ? "" : report.sites.key(second)) == std::string(off.second);
  }
  return !at->second;
}

void Machine::find(Class what, CoreState& core, int pipe, uint32_t site, std::string text,
                   Place place, Other other) {
  Finding finding{what, std::move(text), core_name(core), pipe, site, place, std::move(other)};
  report.add(std::move(finding), options.most_findings);
}

void Machine::deadlock() {
  for (CoreState& core : cores) {
    if (core.finished) continue;
    find(Class::DEADLOCK, core, int(Pipe::S), core.waiting_site,
         core.waits_for < 16 ? "waits for flag " + std::to_string(core.waits_for) +
                                   ", which nobody will set"
                             : "waits in SyncAll for cores that do not arrive");
  }
}

}  // namespace emu
