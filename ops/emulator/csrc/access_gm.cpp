// The order of accesses to GM, of all cores.
#include "access.h"

namespace emu {

namespace {

uint32_t keep(GmShadow& shadow, const std::vector<GmAccess>& list) {
  shadow.lists.push_back(list);
  return uint32_t(shadow.lists.size());
}

// Bytes from HBM: what the launch has not touched before. L2 serves the rest, and workspaces.
void traffic(Node& node, Region& region, uint64_t begin, uint64_t bytes, uint64_t count,
             uint64_t stride) {
  if (region.touched.empty()) region.touched.resize(region.bytes / UNIT + 2);
  uint64_t fresh = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t from = begin + i * stride;
    for (uint64_t u = from / UNIT; u * UNIT < from + bytes; ++u) {
      if (region.touched[u]) continue;
      region.touched[u] = true;
      fresh += UNIT;
    }
  }
  fresh = std::min(fresh, bytes * count);
  region.fresh += fresh;
  if (Role(region.role) == Role::Workspace) fresh = 0;
  node.hbm += fresh;
  node.l2 += bytes * count - fresh;
}

}  // namespace

std::byte* Touch::global(Range first, uint64_t count, uint64_t stride) {
  Machine& machine = *core.machine;
  const uint64_t span = (count - 1) * stride + first.bytes;
  Region* region = machine.region(first.address);
  if (region == nullptr) outside(Class::GM_OOB, first, span, "outside every argument");
  const uint64_t begin = first.address - uint64_t(region->base);
  if (begin + span > region->bytes) {
    outside(Class::GM_OOB, first, span, "beyond the end of the argument");
  }
  if (kind != GmAccess::Read) {
    ++machine.writes;
    if (Role(region->role) == Role::Input) {
      machine.find(Class::PARAM, core, int(pipe), site, "writes to an input",
                   place(region, first.address));
      stop();
    }
  }
  if (machine.trace) traffic(machine.trace->last(), *region, begin, first.bytes, count, stride);
  if (machine.options.shadow) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t from = begin + i * stride, to = from + first.bytes;
      if (region->cells) global_bytes(*region, from, to);
      if (machine.dirty_lines > 0) dirty(*region, from, to);
    }
  }
  return region->base + begin;
}

void Touch::global_bytes(Region& region, uint64_t begin, uint64_t end) {
  GmShadow& shadow = core.machine->gm;
  while (begin < end) {
    const uint64_t index = begin / UNIT, start = index * UNIT;
    const uint64_t stop = std::min(start + UNIT, end);
    GmCell& cell = region.cells[index];
    const bool whole = begin == start && stop == start + UNIT;
    if (whole && cell.bytes == 0) {
      unit(region, cell, start);
    } else {
      if (cell.bytes == 0) {
        shadow.split.push_back(std::make_unique<GmCell[]>(UNIT));
        for (uint32_t i = 0; i < UNIT; ++i) {
          GmCell& one = shadow.split.back()[i];
          one = cell;
          if (cell.more != 0) one.more = keep(shadow, shadow.lists[cell.more - 1]);
        }
        cell.bytes = uint32_t(shadow.split.size());
      }
      GmCell* bytes = shadow.split[cell.bytes - 1].get();
      for (uint64_t b = begin; b < stop; ++b) unit(region, bytes[b - start], b);
    }
    begin = stop;
  }
}

bool Touch::before(const GmAccess& access) const {
  const uint32_t lane = access.lane, p = lane % PIPES;
  if (lane / PIPES != core.index) return access.tick <= core.foreign[lane];
  return access.tick <= limit_[p] || (p == uint32_t(pipe) && access.tick == tick);
}

void Touch::unit(Region& region, GmCell& cell, uint64_t offset) {
  GmShadow& shadow = core.machine->gm;
  if (cell.write.kind == GmAccess::None && kind != GmAccess::Write && !region.given &&
      cell.other.kind != GmAccess::Atomic) {
    uninitialised(place(&region, uint64_t(region.base) + offset));
  }
  if (cell.write.kind != GmAccess::None && !before(cell.write)) race(region, offset, cell.write);
  // Reads do not conflict with reads, nor atomics with atomics.
  const auto conflicts = [&](const GmAccess& access) {
    return access.kind != GmAccess::None && access.kind != kind && !before(access);
  };
  if (conflicts(cell.other)) race(region, offset, cell.other);
  std::vector<GmAccess>* more = cell.more == 0 ? nullptr : &shadow.lists[cell.more - 1];
  if (more != nullptr) {
    for (const GmAccess& access : *more) {
      if (conflicts(access)) race(region, offset, access);
    }
  }
  const GmAccess now{tick, uint16_t(core.index * PIPES + int(pipe)), kind};
  if (kind != GmAccess::Read) cell.sequence = core.machine->writes;
  if (kind == GmAccess::Write) {
    cell.write = now;
    cell.other = {};
    if (more != nullptr) more->clear();
    return;
  }
  // A later access of the same pipe and kind stands for the earlier one, and a read for those that
  // it is ordered after.
  const auto replaces = [&](const GmAccess& old) {
    return old.kind == kind && (old.lane == now.lane || (kind == GmAccess::Read && before(old)));
  };
  if (cell.other.kind == GmAccess::None || replaces(cell.other)) {
    cell.other = now;
    return;
  }
  if (more == nullptr) {
    cell.more = keep(shadow, {now});
    return;
  }
  for (GmAccess& access : *more) {
    if (!replaces(access)) continue;
    access = now;
    return;
  }
  more->push_back(now);
}

void Touch::race(Region& region, uint64_t offset, const GmAccess& access) {
  Machine& machine = *core.machine;
  const CoreState& side = machine.cores[access.lane / PIPES];
  const int p = access.lane % PIPES;
  const bool same = side.index == core.index;
  const bool raw = kind == GmAccess::Read, war = access.kind == GmAccess::Read;
  const Class what = !same ? Class::GM_RACE : raw ? Class::RAW : war ? Class::WAR : Class::WAW;
  machine.find(what, core, int(pipe), site,
               raw   ? "reads what may not be written yet"
               : war ? "overwrites what may not have been read yet"
                     : "writes what an earlier write may still overwrite",
               place(&region, uint64_t(region.base) + offset),
               Other{core_name(side), p, side.lanes[p].sites[access.tick - 1]});
}

void Touch::dirty(Region& region, uint64_t begin, uint64_t end) {
  Machine& machine = *core.machine;
  const uint64_t base = uint64_t(region.base);
  for (CoreState& side : machine.cores) {
    for (const auto& [address, line] : side.cache) {
      if (line.dirty == 0 || (&side == &core && pipe == Pipe::S)) continue;
      for (int i = 0; i < 64; ++i) {
        const uint64_t byte = address + uint64_t(i) - base;
        if ((line.dirty >> i & 1) == 0 || byte < begin || byte >= end) continue;
        machine.find(Class::STALE, core, int(pipe), site,
                     "reaches GM past a scalar store that is still in the data cache",
                     place(&region, base + byte), Other{core_name(side), int(Pipe::S), line.site});
        break;
      }
    }
  }
}

}  // namespace emu
