// Statements and findings.
#include "report.h"

#include <cstring>

#include "machine.h"
#include "queue_state.h"

namespace emu {

Sites::Sites() : table_(1024), sites_{{"", "", "", 0, 0}} {}

uint32_t Sites::find(const char* api, const At& at) {
  const uint64_t place = uint64_t(at.line()) << 32 | at.column();
  const size_t mask = table_.size() - 1;
  size_t i = ((place * 0x9e3779b97f4a7c15) ^ (uint64_t(api) >> 3) ^ (uint64_t(at.file_name()) >> 4));
  for (i = (i ^ i >> 29) & mask;; i = (i + 1) & mask) {
    Slot& slot = table_[i];
    if (slot.api == nullptr) break;
    if (slot.api == api && slot.file == at.file_name() && slot.place == place) return slot.site;
  }
  const uint32_t site =
      find_at(api, at.file_name(), at.line(), at.column(), at.function_name());
  table_[i] = {api, at.file_name(), place, site};
  if (++used_ * 2 > table_.size()) grow();
  return site;
}

// The same statement may come with other pointers, from another instance of a template.
uint32_t Sites::find_at(const char* api, const char* file, uint32_t line, uint32_t column,
                        const char* function) {
  for (uint32_t s = 1; s < sites_.size(); ++s) {
    const Site& known = sites_[s];
    if (known.line == line && known.column == column && std::strcmp(known.api, api) == 0 &&
        std::strcmp(known.file, file) == 0) {
      return s;
    }
  }
  sites_.push_back({api, file, function, line, column});
  return uint32_t(sites_.size() - 1);
}

void Sites::grow() {
  std::vector<Slot> old(table_.size() * 4);
  old.swap(table_);
  used_ = 0;
  const size_t mask = table_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.api == nullptr) continue;
    size_t i = ((slot.place * 0x9e3779b97f4a7c15) ^ (uint64_t(slot.api) >> 3) ^
                (uint64_t(slot.file) >> 4));
    for (i = (i ^ i >> 29) & mask; table_[i].api != nullptr; i = (i + 1) & mask) {
    }
    table_[i] = slot;
    ++used_;
  }
}

std::string Sites::key(uint32_t site) const {
  const Site& s = sites_[site];
  return std::string(s.file) + ":" + std::to_string(s.line) + ":" + std::to_string(s.column) + ":" +
         s.api;
}

void Report::add(Finding finding, size_t most) {
  const auto key = std::tuple(finding.what, finding.site, finding.other.site, finding.place.mem,
                              finding.pipe);
  const auto [at, is_new] = index_.try_emplace(key, findings.size());
  if (!is_new) {
    if (at->second < findings.size()) ++findings[at->second].count;
    else ++dropped;
    return;
  }
  if (findings.size() < most) {
    findings.push_back(std::move(finding));
  } else {
    at->second = size_t(-1);
    ++dropped;
  }
}

std::string core_name(const CoreState& core) {
  if (core.type == Type::AIC) return "AIC" + std::to_string(core.block);
  if (core.machine->entry.launch != Launch::MIX12) return "AIV" + std::to_string(core.block);
  return "AIV" + std::to_string(core.block) + "." + std::to_string(core.sub);
}

void Machine::check_core_end(CoreState& core) {
  current = &core;
  try {
    core.finish_states();
  } catch (const Stop&) {
    // Its finding is in the report.
  }
  leaks(core);
  for (int from = 0; from < PIPES; ++from) {
    for (int to = 0; to < PIPES; ++to) {
      for (const Event& event : core.events[from][to]) {
        if (!event.set) continue;
        find(Class::EVENT_PAIR, core, from, event.site, "the flag is still set at the end");
      }
    }
  }
  for (int id = 0; id < 16; ++id) {
    if (!core.flags[id].empty()) {
      const uint32_t site = core.flags[id].front()->front().site;
      find(Class::XFLAG, core, int(Pipe::S), site,
           "flag " + std::to_string(id) + " is set at the end and nobody waits for it");
    }
    for (const auto& mode : core.sets) {
      if (mode[id].empty()) continue;
      find(Class::XFLAG, core, int(Pipe::S), mode[id].front().site,
           "flag " + std::to_string(id) + " is not set by all cores that take part");
    }
  }
  for (const auto& [address, line] : core.cache) {
    if (line.dirty == 0) continue;
    const Region* at = region(address);
    find(Class::STALE, core, int(Pipe::S), line.site,
         "the store is still in the data cache at the end; DataCacheCleanAndInvalid is missing",
         at == nullptr ? Place{} : Place{Mem::GM, address - uint64_t(at->base), true, at->name.c_str()});
  }
}

void Machine::check_end() {
  ended_ = true;  // nothing switches cores from here on
  for (CoreState& core : cores) check_core_end(core);
}

}  // namespace emu
