// A stack of its own to run a core on, with a page below it that must not be touched.
#pragma once

#include <ucontext.h>

#include <cstddef>

namespace emu {

class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void prepare(void (*body)());  // `body` runs at the first resume and must not return
  void resume();                 // from outside: runs until the fiber suspends
  void suspend();                // from inside
  bool overflowed(const void* fault) const;

 private:
  static constexpr size_t size_ = size_t(1) << 20;
  std::byte* stack_ = nullptr;
  ucontext_t inside_, outside_;
};

}  // namespace emu
