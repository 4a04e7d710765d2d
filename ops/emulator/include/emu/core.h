// The core that runs at this moment.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emu/types.h"

namespace emu {

class Machine;

enum class Type : uint8_t { AIC, AIV };

// Identity and open state of a core; the machine derives its own class from this.
struct Core {
  Type type;
  uint16_t index;      // in the launch: all cores
  uint16_t block;      // of the launch
  uint16_t sub;        // 0 or 1 for an AIV
  uint16_t block_idx;  // what GetBlockIdx returns
  Machine* machine;

  // Per-core state of an instruction family (masks, atomic mode, Fixpipe registers): one T for each
  // type T, made with T{} at the first use in a launch. `void T::finish()`, where there is one, runs
  // when the core has ended, and may report what the kernel left behind.
  template <class T>
  T& state() {
    static const size_t slot = next_slot();
    if (slots.size() <= slot) slots.resize(slot + 1);
    State& state = slots[slot];
    if (!state.value) {
      state.value = std::make_shared<T>();
      if constexpr (requires(T& value) { value.finish(); }) {
        state.finish = [](void* value) { static_cast<T*>(value)->finish(); };
      }
    }
    return *static_cast<T*>(state.value.get());
  }
  void finish_states() {
    for (const State& state : slots) {
      if (state.finish != nullptr) state.finish(state.value.get());
    }
  }

 private:
  struct State {
    std::shared_ptr<void> value;
    void (*finish)(void*) = nullptr;
  };
  static size_t next_slot();
  std::vector<State> slots;
};

extern Core* current;
inline Core& core() { return *current; }
inline bool is_cube() { return current->type == Type::AIC; }

// Size of a memory of the running core as far as kernels may use it; 0 where it has none.
uint64_t capacity(Mem mem);
// Host memory behind a local memory of the running core: for tests and for instructions that have
// declared their ranges already.
std::byte* local(Mem mem);

// Ends the launch with the findings so far. For kernels that cannot go on.
[[noreturn]] void stop();

}  // namespace emu
