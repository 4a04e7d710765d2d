// Bounds, alignment, and the order of accesses to local memories.
#include "access.h"

#include <cstdio>
#include <cstring>

namespace emu {

namespace {

std::string format(const char* text, unsigned long long a, unsigned long long b = 0) {
  char buffer[160];
  std::snprintf(buffer, sizeof buffer, text, a, b);
  return buffer;
}

}  // namespace

std::byte* Touch::all(Range first, uint64_t count, uint64_t stride, uint32_t align) {
  if (first.bytes == 0 || count == 0) return nullptr;
  const Clock& clock = core.lane(pipe).clock;
  std::copy(std::begin(clock.known), std::end(clock.known), limit_);
  limit_[PIPES] = ~0u;
  if (ordered) limit_[int(pipe)] = tick;
  if (align > 1 && (first.address % align != 0 || (count > 1 && stride % align != 0))) {
    misaligned(first, align);
  }
  if (stride == 0 || count == 1) count = 1, stride = first.bytes;
  if (stride == first.bytes) first.bytes *= count, count = 1, stride = first.bytes;
  return first.mem == Mem::GM ? global(first, count, stride) : local(first, count, stride);
}

void Touch::misaligned(Range range, uint32_t align) {
  Place where{range.mem, range.address, true, nullptr};
  if (range.mem == Mem::GM) where = place(core.machine->region(range.address), range.address);
  core.machine->find(Class::ALIGN, core, int(pipe), site,
                     format("the address is not a multiple of %llu bytes", align), where);
}

Place Touch::place(const Region* region, uint64_t address) const {
  if (region == nullptr) {
    // Most likely one ran over the end of the argument before it.
    for (const Region& each : core.machine->regions) {
      if (uint64_t(each.base) <= address) region = &each;
    }
  }
  if (region == nullptr) return {Mem::GM, 0, false, nullptr};
  return {Mem::GM, address - uint64_t(region->base), true, region->name.c_str()};
}

void Touch::outside(Class what, Range range, uint64_t bytes, const char* why) {
  Place where{range.mem, range.address, range.mem != Mem::GM, nullptr};
  if (range.mem == Mem::GM) where = place(core.machine->region(range.address), range.address);
  core.machine->find(what, core, int(pipe), site, format("%llu bytes: ", bytes) + why, where);
  stop();
}

std::byte* Touch::local(Range first, uint64_t count, uint64_t stride) {
  LocalMemory& memory = core.memories[int(first.mem)];
  const uint64_t span = (count - 1) * stride + first.bytes, end = first.address + span;
  if (memory.bytes == 0) {
    outside(Class::PARAM, first, span,
            core.type == Type::AIC ? "an AIC has no such memory" : "an AIV has no such memory");
  }
  if (end > memory.bytes) outside(Class::OOB, first, span, "beyond the end of the memory");
  if (core.allocated[int(first.mem)] > 0 && !core.placed[int(first.mem)]) {
    const Buffer* found = nullptr;
    for (const Buffer& buffer : core.buffers) {
      if (buffer.mem == first.mem && first.address >= buffer.begin && first.address < buffer.end) {
        found = &buffer;
        break;
      }
    }
    if (found == nullptr) outside(Class::OOB, first, span, "outside every buffer");
    if (end > found->end) outside(Class::OOB, first, span, "beyond the end of its buffer");
  }
  if (memory.cells) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t begin = first.address + i * stride;
      local_units(first.mem, begin / UNIT, (begin + first.bytes + UNIT - 1) / UNIT);
    }
  }
  return memory.data.get() + first.address;
}

void Touch::local_units(Mem mem, uint64_t begin, uint64_t end) {
  Cell* cells = core.memories[int(mem)].cells.get();
  const uint32_t own = uint32_t(pipe);
  if (kind == GmAccess::Read) {
    for (uint64_t u = begin; u < end; ++u) {
      Cell& cell = cells[u];
      if (cell.write == 0 || cell.write >> 3 > limit_[cell.write & 7]) local_hazard(mem, u);
      cell.read[own] = tick;
    }
    return;
  }
  for (uint64_t u = begin; u < end; ++u) {
    Cell& cell = cells[u];
    uint32_t late = cell.write >> 3 > limit_[cell.write & 7];
    for (int i = 0; i < PIPES; ++i) late |= cell.read[i] > limit_[i];
    if (late) local_hazard(mem, u);
    cell = {};
    cell.write = tick << 3 | own;
  }
}

void Touch::local_hazard(Mem mem, uint64_t unit) {
  const Cell& cell = core.memories[int(mem)].cells[unit];
  const Place where{mem, unit * UNIT, true, nullptr};
  const auto other = [&](int q, uint32_t t) {
    const bool known = t > 0 && t <= core.lanes[q].sites.size();
    return Other{core_name(core), q, known ? core.lanes[q].sites[t - 1] : 0};
  };
  const auto unordered = [&](int q, uint32_t t) {
    return t > limit_[q] && !(q == int(pipe) && t == tick);
  };
  if (cell.write == 0 && kind == GmAccess::Read) return uninitialised(where);
  const int q = int(cell.write & 7);
  if (cell.write != 0 && unordered(q, cell.write >> 3)) {
    const bool read = kind == GmAccess::Read;
    core.machine->find(read ? Class::RAW : Class::WAW, core, int(pipe), site,
                       read ? "reads what may not be written yet"
                            : "writes what an earlier write may still overwrite",
                       where, other(q, cell.write >> 3));
  }
  if (kind == GmAccess::Read) return;
  for (int r = 0; r < PIPES; ++r) {
    if (!unordered(r, cell.read[r])) continue;
    core.machine->find(Class::WAR, core, int(pipe), site,
                       "overwrites what may not have been read yet", where, other(r, cell.read[r]));
  }
}

void Touch::uninitialised(Place where) {
  if (reported_) return;
  reported_ = true;
  core.machine->find(Class::UNINIT, core, int(pipe), site, "reads memory that nobody wrote", where);
}

}  // namespace emu
