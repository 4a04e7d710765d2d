#include "emu/atomic.h"

#include <cstring>

namespace emu {
namespace {

template <class T>
T sum(T a, T b) {
  if constexpr (std::is_same_v<T, float>) return a + b;
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  else return T(static_cast<float>(a) + static_cast<float>(b));
}

template <class T>
void add_as(std::byte* to, const std::byte* from, uint64_t bytes) {
  for (uint64_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + i, sizeof a);
    std::memcpy(&b, from + i, sizeof b);
    a = sum(a, b);
    std::memcpy(to + i, &a, sizeof a);
  }
}

void add(Number number, std::byte* to, const std::byte* from, uint64_t bytes) {
  switch (number) {
    case Number::S8: return add_as<int8_t>(to, from, bytes);
    case Number::S16: return add_as<int16_t>(to, from, bytes);
    case Number::S32: return add_as<int32_t>(to, from, bytes);
    case Number::F16: return add_as<half>(to, from, bytes);
    case Number::BF16: return add_as<bfloat16_t>(to, from, bytes);
    default: return add_as<float>(to, from, bytes);
  }
}

}  // namespace

const char* name(Number number) {
  static const char* const names[] = {"none",     "int4b_t", "int8_t",     "uint8_t", "int16_t",
                                      "uint16_t", "half",    "bfloat16_t", "int32_t", "uint32_t",
                                      "float",    "int64_t", "uint64_t",   "double"};
  return names[static_cast<int>(number)];
}

void set_atomic(const char* api, Number number, At at) {
  Instruction in(api, Pipe::S, at);
  in.work(Work::scalar());
  core().state<AtomicMode>().number = number;
}

void store(Instruction& in, Range first, uint64_t count, uint64_t stride, uint32_t align,
           Number number, const std::byte* values, uint64_t value_stride) {
  const Number mode = core().state<AtomicMode>().number;
  if (first.mem == Mem::GM && mode != Number::None) {
    if (!in.dtype(mode == number, "SetAtomicAdd was given another type than the copy has")) return;
    for (uint64_t i = 0; i < count; i++) {
      const Range block{Mem::GM, first.address + i * stride, first.bytes};
      add(number, in.atomic(block, align), values + i * value_stride, block.bytes);
    }
    return;
  }
  std::byte* to = in.stride_write(first, count, stride, align);
  if (stride == first.bytes && value_stride == first.bytes) {
    std::memmove(to, values, count * first.bytes);
    return;
  }
  for (uint64_t i = 0; i < count; i++)
    std::memmove(to + i * stride, values + i * value_stride, first.bytes);
}

}  // namespace emu
