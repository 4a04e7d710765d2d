// The scalar data cache of a core: lines of 64 bytes that stay until they are invalidated.
#include "emu/cache.h"

#include <cstring>

#include "access.h"
#include "emu/instruction.h"
#include "machine.h"

namespace emu {

namespace {

constexpr uint64_t LINE = 64;

Line& fetch(CoreState& core, uint64_t address) {
  const auto [at, is_new] = core.cache.try_emplace(address / LINE * LINE);
  if (is_new) {
    std::memcpy(at->second.data, reinterpret_cast<const void*>(at->first), LINE);
    at->second.filled = core.machine->writes;
  }
  return at->second;
}

// Whether someone wrote the bytes since the line was filled.
bool overtaken(Machine& machine, uint64_t address, uint32_t bytes, const Line& line) {
  Region* region = machine.region(address);
  if (region == nullptr || !region->cells) return false;
  for (uint64_t a = address; a < address + bytes; ++a) {
    const uint64_t offset = a - uint64_t(region->base);
    const GmCell* cell = &region->cells[offset / UNIT];
    if (cell->bytes != 0) cell = &machine.gm.split[cell->bytes - 1][offset % UNIT];
    if (cell->sequence > line.filled && (line.dirty >> (a % LINE) & 1) == 0) return true;
  }
  return false;
}

void aligned(Instruction& in, uint64_t address, uint32_t bytes) {
  // A value in two lines cannot be; of a misaligned one the hardware takes other bytes.
  if (address % bytes == 0) return;
  in.report(Class::ALIGN, "a scalar of %u bytes is not aligned", bytes);
  stop();
}

// Writes the dirty bytes, as an access of the scalar pipe.
void clean(Instruction& in, CoreState& core, uint64_t address, Line& line) {
  if (line.dirty == 0) return;
  const uint64_t dirty = line.dirty;
  line.dirty = 0;
  --core.machine->dirty_lines;
  for (uint64_t i = 0; i < LINE;) {
    uint64_t n = 0;
    while (i + n < LINE && (dirty >> (i + n) & 1) != 0) ++n;
    if (n > 0) std::memcpy(in.write({Mem::GM, address + i, n}), line.data + i, n);
    i += n + 1;
  }
}

}  // namespace

void scalar_load(const void* gm, void* value, uint32_t bytes, At at) {
  Instruction in("GlobalTensor::GetValue", Pipe::S, at);
  in.work(Work::scalar());
  CoreState& core = here();
  const uint64_t address = uint64_t(gm);
  aligned(in, address, bytes);
  const auto known = core.cache.find(address / LINE * LINE);
  const bool stored = known != core.cache.end() && known->second.dirty != 0;
  // What this core stored itself is in the line, whatever GM holds.
  const uint64_t mask = (bytes == 8 ? 0xffull : (1ull << bytes) - 1) << (address % LINE);
  if (!stored || (known->second.dirty & mask) != mask) in.read({Mem::GM, address, bytes});
  Line& line = fetch(core, address);
  if (overtaken(*core.machine, address, bytes, line)) {
    in.report(Class::STALE,
              "the data cache holds what these bytes were before somebody wrote them; "
              "DataCacheCleanAndInvalid is missing");
  }
  std::memcpy(value, line.data + address % LINE, bytes);
}

void scalar_store(void* gm, const void* value, uint32_t bytes, At at) {
  Instruction in("GlobalTensor::SetValue", Pipe::S, at);
  in.work(Work::scalar());
  CoreState& core = here();
  const uint64_t address = uint64_t(gm);
  aligned(in, address, bytes);
  const Region* region = core.machine->region(address);
  if (region == nullptr || address + bytes > uint64_t(region->base) + region->bytes) {
    in.report(Class::GM_OOB, "a scalar store outside every argument");
    stop();
  }
  Line& line = fetch(core, address);
  if (line.dirty == 0) ++core.machine->dirty_lines;
  std::memcpy(line.data + address % LINE, value, bytes);
  for (uint32_t i = 0; i < bytes; ++i) line.dirty |= 1ull << (address % LINE + i);
  line.site = core.last_site;
}

void clean_and_invalidate(const void* gm, bool whole, At at) {
  Instruction in("DataCacheCleanAndInvalid", Pipe::S, at);
  in.work(Work::scalar());
  CoreState& core = here();
  if (!whole) {
    const auto line = core.cache.find(uint64_t(gm) / LINE * LINE);
    if (line == core.cache.end()) return;
    clean(in, core, line->first, line->second);
    core.cache.erase(line);
    return;
  }
  for (auto& [address, line] : core.cache) clean(in, core, address, line);
  core.cache.clear();
}

}  // namespace emu
