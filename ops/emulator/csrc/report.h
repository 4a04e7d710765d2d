// Findings, counters and the statements that a launch executed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "launch.h"
#include "emu/types.h"
#include "emu/work.h"

namespace emu {

struct CoreState;

// Statements by number; 0 is what happened before the launch.
class Sites {
 public:
  struct Site {
    const char* api;
    const char* file;
    const char* function;
    uint32_t line, column;
  };
  Sites();
  uint32_t find(const char* api, const At& at);
  uint32_t find_at(const char* api, const char* file, uint32_t line, uint32_t column,
                   const char* function = "");
  const Site& operator[](uint32_t site) const { return sites_[site]; }
  size_t size() const { return sites_.size(); }
  std::string key(uint32_t site) const;

 private:
  struct Slot {
    const char* api = nullptr;
    const char* file = nullptr;
    uint64_t place = 0;
    uint32_t site = 0;
  };
  std::vector<Slot> table_;
  std::vector<Site> sites_;
  size_t used_ = 0;
  void grow();
};

// Where in memory; `region` names a GM argument.
struct Place {
  Mem mem = Mem::GM;
  uint64_t address = 0;
  bool known = false;
  const char* region = nullptr;
};

// The other side of a hazard.
struct Other {
  std::string core;
  int pipe = -1;
  uint32_t site = 0;
};

struct Finding {
  Class what;
  std::string text, core;
  int pipe;
  uint32_t site;
  Place place;
  Other other;
  uint64_t count = 1;
};

struct Counters {
  uint64_t instructions = 0;
  uint64_t moved[PATHS] = {}, transfers[PATHS] = {}, blocks[PATHS] = {};
  uint64_t elements[VECTOR_OPS] = {}, repeats[VECTOR_OPS] = {};
  uint64_t products[CUBE_TYPES] = {}, matmuls[CUBE_TYPES] = {};

  void add(const Work& work);
};

struct Report {
  Sites sites;
  std::vector<Finding> findings;
  uint64_t dropped = 0;  // findings beyond the limit
  std::map<std::tuple<Order, uint32_t, uint32_t>, uint64_t> orders;

  void add(Finding finding, size_t most);

 private:
  std::map<std::tuple<Class, uint32_t, uint32_t, Mem, int>, size_t> index_;
};

std::string core_name(const CoreState& core);

}  // namespace emu
