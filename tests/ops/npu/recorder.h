// What `kernel<<<blocks, nullptr, stream>>>(arguments)` becomes on a host: the arguments must be
// those of the kernel, and are kept in their order for Python. The kernel itself is not called.
#pragma once

#include <cstdint>
#include <cstring>

struct Launch {
  char name[48];
  uint32_t blocks, addresses_count;
  void* stream;
  uint8_t* addresses[32];
  uint8_t tiling[512];
};

extern "C" Launch* test_last();

namespace recorder {

inline void keep(Launch& last, uint8_t* address) {
  last.addresses[last.addresses_count++] = address;
}

template <class Tiling>
void keep(Launch& last, const Tiling& tiling) {
  static_assert(sizeof tiling <= sizeof last.tiling);
  std::memcpy(last.tiling, &tiling, sizeof tiling);
}

template <class Kernel>
struct Of;

template <class... Parameters>
struct Of<void(Parameters...)> {
  static void launch(const char* name, uint32_t blocks, void* stream, Parameters... arguments) {
    Launch& last = *test_last();
    std::memset(&last, 0, sizeof last);
    std::strncpy(last.name, name, sizeof last.name - 1);
    last.blocks = blocks;
    last.stream = stream;
    (keep(last, arguments), ...);
  }
};

}  // namespace recorder
