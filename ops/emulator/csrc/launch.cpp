// The entry that Python calls: arguments into GM, one launch, the report.
#include "launch.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "child.h"
#include "json.h"
#include "machine.h"
#include "write_report.h"

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

namespace emu {

namespace {

constexpr uint64_t PAGE = 4096;

// GM of one launch, shared with the child process. Arguments lie apart, so that what runs over the
// end of one does not land in the next.
class Arena {
 public:
  explicit Arena(uint64_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }
  ~Arena() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::byte* base() const { return base_; }

 private:
  uint64_t bytes_;
  std::byte* base_;
};

uint64_t room(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE + PAGE; }

void fill(Region& region, const Argument& argument, bool shadow) {
  const auto role = Role(argument.role);
  const bool given = argument.data != nullptr && (role == Role::Input || role == Role::InOut);
  if (given) std::memcpy(region.base, argument.data, argument.bytes);
  else poison(region.base, (argument.bytes + 63) / 64 * 64);
  if (role == Role::Input || !shadow) return;
  region.given = given;
  region.make_cells();
}

char* copy_of(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

char* launch(const Entry& entry, const Argument* arguments, int count, const Options& options) {
  uint64_t bytes = PAGE;
  for (int i = 0; i < count; ++i) {
    if (Role(arguments[i].role) != Role::Value) bytes += room(arguments[i].bytes);
  }
  Arena arena(bytes);
  if (arena.base() == nullptr) return nullptr;
  std::vector<Region> regions;
  std::vector<void*> pointers(count), addresses(count);
  std::byte* next = arena.base() + PAGE;
  for (int i = 0; i < count; ++i) {
    const Argument& argument = arguments[i];
    if (Role(argument.role) == Role::Value) {
      addresses[i] = argument.data;
      continue;
    }
    Region& region = regions.emplace_back();
    region.base = next;
    region.bytes = argument.bytes;
    region.name = argument.name;
    region.role = argument.role;
    next += room(argument.bytes);
    fill(region, argument, options.shadow != 0);
    pointers[i] = region.base;
    addresses[i] = &pointers[i];
  }
  const auto work = [&] {
    auto machine = std::make_unique<Machine>(options, entry, regions, addresses.data());
    watch(machine.get());
    machine->run();
    std::string report = write_report(*machine);
    watch(nullptr);
    return report;
  };
  const std::string report = options.isolated ? in_child(work, options.timeout) : work();
  size_t r = 0;
  for (int i = 0; i < count; ++i) {
    const auto role = Role(arguments[i].role);
    if (role == Role::Value) continue;
    const Region& region = regions[r++];
    if (arguments[i].data != nullptr && (role == Role::Output || role == Role::InOut)) {
      std::memcpy(arguments[i].data, region.base, region.bytes);
    }
  }
  return copy_of(report);
}

}  // namespace

void poison(std::byte* memory, uint64_t bytes) {
  for (uint64_t i = 0; i + 1 < bytes; i += 2) std::memcpy(memory + i, &POISON, 2);
}

}  // namespace emu

// JSON text, to be returned to emu_free; null where there is not enough memory.
EMU_EXPORT char* emu_launch(int entry, const emu::Argument* arguments, int count,
                            const emu::Options* options) {
  try {
    return emu::launch(emu_entries[entry], arguments, count, *options);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The kernels of this library, as JSON.
EMU_EXPORT char* emu_describe() {
  constexpr const char* kinds[] = {"mix12", "vector", "cube", "mix01"};
  emu::Json json;
  json.open('[');
  for (int i = 0; i < emu_entry_count; ++i) {
    const emu::Entry& entry = emu_entries[i];
    json.open('{').key("name").string(entry.name).key("core").string(kinds[int(entry.launch)]);
    json.key("sizes").open('[');
    for (uint32_t a = 0; a < entry.count; ++a) json.integer(entry.sizes[a]);
    json.close(']').close('}');
  }
  json.close(']');
  return emu::copy_of(json.text);
}

EMU_EXPORT void emu_stop() { emu::stop_child(); }

EMU_EXPORT void emu_free(char* text) { std::free(text); }
