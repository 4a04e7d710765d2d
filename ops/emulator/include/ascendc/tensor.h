// LocalTensor and GlobalTensor.
#pragma once

#include "ascendc/types.h"
#include "emu/cache.h"
#include "emu/instruction.h"
#include "emu/queue.h"

namespace AscendC {

// A view of a local memory; positions and sizes are in bytes, so that a view of int4 starts at an
// even element.
template <class T>
class LocalTensor {
 public:
  using PrimType = T;

  LocalTensor() = default;
  // A tensor at a place that the kernel chose itself, without TPipe.
  LocalTensor(TPosition position, uint32_t address, uint32_t elements, emu::At at = emu::At::current())
      : position_(position), address_(address), bytes_(uint32_t(emu::bytes_of<T>(elements))) {
    emu::place(memory(), address_, bytes_, at);
  }
  static LocalTensor at(TPosition position, uint64_t address, uint64_t bytes) {
    LocalTensor tensor;
    tensor.position_ = position;
    tensor.address_ = uint32_t(address);
    tensor.bytes_ = uint32_t(bytes);
    return tensor;
  }

  LocalTensor operator[](uint32_t offset) const {
    const uint64_t skip = emu::bytes_of<T>(offset);
    return at(position_, address_ + skip, bytes_ > skip ? bytes_ - skip : 0);
  }
  template <class U>
  LocalTensor<U> ReinterpretCast() const {
    return LocalTensor<U>::at(position_, address_, bytes_);
  }

  T GetValue(uint32_t index, emu::At at = emu::At::current()) const {
    emu::Instruction in("GetValue", emu::Pipe::S, at);
    in.work(emu::Work::scalar());
    inside(in, index);
    return *reinterpret_cast<const T*>(in.read(range(index, 1), sizeof(T)));
  }
  void SetValue(uint32_t index, T value, emu::At at = emu::At::current()) const {
    emu::Instruction in("SetValue", emu::Pipe::S, at);
    in.work(emu::Work::scalar());
    inside(in, index);
    *reinterpret_cast<T*>(in.write(range(index, 1), sizeof(T))) = value;
  }

  uint32_t GetSize() const { return uint32_t(emu::elements_in<T>(bytes_)); }
  uint32_t GetLength() const { return bytes_; }
  void SetSize(uint32_t elements) { bytes_ = uint32_t(emu::bytes_of<T>(elements)); }
  uint64_t GetPhyAddr() const { return address_; }
  uint64_t GetPhyAddr(uint32_t offset) const { return address_ + emu::bytes_of<T>(offset); }
  TPosition GetPosition() const { return position_; }

  // For the emulator: what `count` elements from `offset` cover.
  emu::Mem memory() const { return emu::memory_of(position_); }
  emu::Range range(uint64_t offset, uint64_t count) const {
    return {memory(), address_ + emu::bytes_of<T>(offset), emu::bytes_of<T>(count)};
  }

 private:
  // The next buffer may begin where this tensor ends, so the memory's own check would not do.
  void inside(emu::Instruction& in, uint32_t index) const {
    if (index < GetSize()) return;
    in.report(emu::Class::OOB, "element %u of a tensor of %u", index, GetSize());
    emu::stop();
  }

  TPosition position_ = TPosition::MAX;
  uint32_t address_ = 0, bytes_ = 0;
};

enum class CacheMode { CACHE_MODE_DISABLE, CACHE_MODE_NORMAL, CACHE_MODE_LAST, CACHE_MODE_PERSISTENT };
enum class CacheRwMode { READ = 1, WRITE = 2, RW = 3 };

template <class T>
class GlobalTensor {
 public:
  using PrimType = T;

  void SetGlobalBuffer(T* buffer, uint64_t elements = 0) {
    address_ = buffer;
    elements_ = elements;
  }
  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor tensor = *this;
    tensor.address_ = reinterpret_cast<T*>(uint64_t(address_) + emu::bytes_of<T>(offset));
    tensor.elements_ = elements_ > offset ? elements_ - offset : 0;
    return tensor;
  }
  const T* GetPhyAddr() const { return address_; }
  T* GetPhyAddr(uint64_t offset) const { return (*this)[offset].address_; }
  uint64_t GetSize() const { return elements_; }
  template <CacheRwMode rw = CacheRwMode::RW>
  void SetL2CacheHint(CacheMode) {}

  // Through the core's scalar data cache.
  T GetValue(uint64_t index, emu::At at = emu::At::current()) const {
    T value;
    emu::scalar_load(address_ + index, &value, sizeof(T), at);
    return value;
  }
  void SetValue(uint64_t index, T value, emu::At at = emu::At::current()) {
    emu::scalar_store(address_ + index, &value, sizeof(T), at);
  }

  // For the emulator.
  emu::Range range(uint64_t offset, uint64_t count) const {
    return {emu::Mem::GM, uint64_t(address_) + emu::bytes_of<T>(offset), emu::bytes_of<T>(count)};
  }

 private:
  T* address_ = nullptr;
  uint64_t elements_ = 0;
};

}  // namespace AscendC
