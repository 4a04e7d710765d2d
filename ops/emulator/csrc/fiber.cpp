#include "fiber.h"

#include <sys/mman.h>

#include <new>

namespace emu {

namespace {
constexpr size_t guard = 4096 * 4;
}

Fiber::~Fiber() {
  if (stack_ != nullptr) munmap(stack_, size_ + guard);
}

void Fiber::prepare(void (*body)()) {
  void* memory = mmap(nullptr, size_ + guard, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  stack_ = static_cast<std::byte*>(memory);
  mprotect(stack_, guard, PROT_NONE);
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_ + guard;
  inside_.uc_stack.ss_size = size_;
  inside_.uc_link = nullptr;
  makecontext(&inside_, body, 0);
}

void Fiber::resume() { swapcontext(&outside_, &inside_); }
void Fiber::suspend() { swapcontext(&inside_, &outside_); }

bool Fiber::overflowed(const void* fault) const {
  const auto* at = static_cast<const std::byte*>(fault);
  return stack_ != nullptr && at >= stack_ && at < stack_ + guard;
}

}  // namespace emu
