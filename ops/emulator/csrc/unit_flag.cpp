#include "emu/cube.h"
#include "emu/instruction.h"
#include "machine.h"
#include "snapshot.h"

namespace emu {
namespace {

constexpr uint64_t BYTES = 512;  // of L0C, which share a flag

struct Flag {
  bool filled = false;
  uint32_t site = 0;                     // of the Mmad that set it
  std::shared_ptr<const Snapshot> last;  // of the pipe that set or left it
};

struct UnitFlags {
  std::vector<Flag> flags = std::vector<Flag>(capacity(Mem::L0C) / BYTES);
  bool used = false;

  // What the kernel leaves set makes the next one wait forever.
  void finish() {
    for (size_t i = 0; i < flags.size(); i++) {
      if (!flags[i].filled) continue;
      here().machine->find(Class::EVENT_PAIR, here(), static_cast<int>(Pipe::M), flags[i].site,
                           "unitFlag is left set: no Fixpipe with unitFlag 3 took the result",
                           {Mem::L0C, i * BYTES, true, nullptr});
      return;
    }
  }
};

struct Part {
  uint64_t first, end;
};

Part part_of(const Range& c, const UnitFlags& all) {
  const uint64_t end = (c.address + c.bytes + BYTES - 1) / BYTES;
  return {c.address / BYTES, std::min<uint64_t>(end, all.flags.size())};
}

const char* misuse(bool fixpipe, bool filled, int flag) {
  if (flag == 0 && filled) return "unitFlag was set by a Mmad with 3, but this instruction has 0";
  if (flag != 0 && filled && !fixpipe)
    return "unitFlag is still set: no Fixpipe with 3 took the last result";
  if (flag != 0 && !filled && fixpipe)
    return "unitFlag is not set by a Mmad with 3: Fixpipe waits forever";
  return nullptr;
}

}  // namespace

void unit_wait(Range c, bool fixpipe, int flag, const char* api, At at) {
  UnitFlags& all = core().state<UnitFlags>();
  if (flag == 1 || (flag == 0 && !all.used)) return;  // 1 is refused elsewhere
  all.used = true;
  const Pipe pipe = fixpipe ? Pipe::FIX : Pipe::M;
  const Part part = part_of(c, all);
  bool told = false;
  const Snapshot* joined = nullptr;
  for (uint64_t i = part.first; i < part.end; i++) {
    const Flag& unit = all.flags[i];
    const char* why = misuse(fixpipe, unit.filled, flag);
    if (why != nullptr && !told) {
      told = true;
      here().machine->find(Class::EVENT_PAIR, here(), static_cast<int>(pipe),
                           here().machine->site(api, at), why,
                           {Mem::L0C, i * BYTES, true, nullptr});
    }
    if (flag != 0 && unit.last && unit.last.get() != joined) {
      joined = unit.last.get();
      join(here(), pipe, *joined, Delay::None);
    }
  }
}

void unit_done(Range c, bool fixpipe, int flag, const char* api, At at) {
  if (flag < 2) return;
  UnitFlags& all = core().state<UnitFlags>();
  const Part part = part_of(c, all);
  const Snapshot now = completed(here(), fixpipe ? Pipe::FIX : Pipe::M);
  const auto shared = std::make_shared<const Snapshot>(now);
  const uint32_t site = here().machine->site(api, at);
  for (uint64_t i = part.first; i < part.end; i++) {
    Flag& unit = all.flags[i];
    if (flag == 3) unit.filled = !fixpipe;
    unit.site = site;
    unit.last = shared;
  }
}

}  // namespace emu
