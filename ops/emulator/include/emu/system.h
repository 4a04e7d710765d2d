// Launch-wide facts, printing and the entry of a kernel.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "emu/core.h"
#include "emu/types.h"

namespace emu {

int64_t block_count();
int64_t sub_count();  // AIV per block; 1 in a launch without mixing
void declare_type(int kernel_meta_type, At at);
void print(const char* format, ...);
[[noreturn]] void fail_assertion(const char* condition, At at);

// How blocks are made of cores.
enum class Launch : int { MIX12, VECTOR, CUBE, MIX01 };

struct Entry {
  const char* name;
  Launch launch;
  void (*call)(void* const* arguments);  // of each: a pointer to its bytes
  const uint32_t* sizes;                 // bytes of each argument; 0: a pointer to GM
  uint32_t count;
};

template <class T>
T argument(void* const* arguments, size_t index) {
  std::remove_cv_t<T> value;
  std::memcpy(&value, arguments[index], sizeof value);
  return value;
}

template <auto function, class... Args, size_t... I>
void call(void* const* arguments, void (*)(Args...), std::index_sequence<I...>) {
  function(argument<Args>(arguments, I)...);
}

template <auto function, class Signature = decltype(function)>
struct Caller;

template <auto function, class... Args>
struct Caller<function, void (*)(Args...)> {
  static constexpr uint32_t sizes[] = {
      (std::is_pointer_v<Args> ? 0u : uint32_t(sizeof(Args)))..., 0u};
  static void invoke(void* const* arguments) {
    call<function>(arguments, function, std::index_sequence_for<Args...>());
  }
  static constexpr Entry entry(const char* name, Launch launch) {
    return {name, launch, invoke, sizes, uint32_t(sizeof...(Args))};
  }
};

}  // namespace emu

// The table of kernels of a library; build.py writes it.
extern "C" const emu::Entry emu_entries[];
extern "C" const int emu_entry_count;
#define EMU_ENTRY(name, launch, ...) emu::Caller<&__VA_ARGS__>::entry(name, emu::Launch::launch)
