#include "emu/cube.h"
#include "emu/instruction.h"
#include "machine.h"

namespace emu {
namespace {

constexpr uint64_t UNIT = 512;

struct Unit {
  bool filled = false;
  std::shared_ptr<const Snapshot> last;  // of the pipe that set or left the bit
};

struct UnitFlags {
  std::vector<Unit> units = std::vector<Unit>(capacity(Mem::L0C) / UNIT);
  bool used = false;
};

struct Part {
  uint64_t first, end;
};

// Everything that `pipe` has issued.
Snapshot snapshot(Pipe pipe) {
  const Lane& lane = here().lane(pipe);
  Snapshot now{lane.clock, lane.time};
  now.clock.known[static_cast<int>(pipe)] = lane.ticks;
  return now;
}

void join(Pipe pipe, const Snapshot& earlier) {
  Lane& lane = here().lane(pipe);
  lane.clock.join(earlier.clock);
  lane.time = std::max(lane.time, earlier.time);
}

Part part_of(const Range& c, const UnitFlags& flags) {
  const uint64_t end = (c.address + c.bytes + UNIT - 1) / UNIT;
  return {c.address / UNIT, std::min<uint64_t>(end, flags.units.size())};
}

void complain(const char* api, Pipe pipe, At at, const char* why, uint64_t unit) {
  Instruction in(api, pipe, at);
  in.report(Class::EVENT_PAIR, "unitFlag of L0C + 0x%llx: %s",
            static_cast<unsigned long long>(unit * UNIT), why);
}

const char* misuse(bool fixpipe, bool filled, int flag) {
  if (flag == 0 && filled)
    return "set by a Mmad with unitFlag 3, but this has unitFlag 0";
  if (flag != 0 && filled && !fixpipe)
    return "still set, since no Fixpipe with unitFlag 3 took the last result";
  if (flag != 0 && !filled && fixpipe)
    return "not set by a Mmad with unitFlag 3, so Fixpipe waits forever";
  return nullptr;
}

}  // namespace

void unit_wait(Range c, bool fixpipe, int flag, const char* api, At at) {
  UnitFlags& flags = core().state<UnitFlags>();
  if (flag == 0 && !flags.used) return;
  flags.used = true;
  const Pipe pipe = fixpipe ? Pipe::FIX : Pipe::M;
  const Part part = part_of(c, flags);
  const char* why = nullptr;
  uint64_t where = 0;
  const Snapshot* joined = nullptr;
  for (uint64_t i = part.first; i < part.end; i++) {
    const Unit& unit = flags.units[i];
    if (why == nullptr) {
      why = misuse(fixpipe, unit.filled, flag);
      where = i;
    }
    if (flag != 0 && unit.last && unit.last.get() != joined) {
      joined = unit.last.get();
      join(pipe, *joined);
    }
  }
  if (why != nullptr) complain(api, pipe, at, why, where);
}

void unit_done(Range c, bool fixpipe, int flag) {
  if (flag == 0) return;
  UnitFlags& flags = core().state<UnitFlags>();
  const Part part = part_of(c, flags);
  const auto now = std::make_shared<const Snapshot>(snapshot(fixpipe ? Pipe::FIX : Pipe::M));
  for (uint64_t i = part.first; i < part.end; i++) {
    Unit& unit = flags.units[i];
    if (flag == 3) unit.filled = !fixpipe;
    unit.last = now;
  }
}

}  // namespace emu
