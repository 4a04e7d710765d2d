// TPipe, TBuf, TQue and TQueBind.
#pragma once

#include "ascendc/sync.h"
#include "ascendc/tensor.h"

namespace emu {

// Who fills and who empties a queue's buffers (ascendc.md 4.1).
constexpr Route route_of(AscendC::TPosition from, AscendC::TPosition to) {
  using enum AscendC::TPosition;
  using enum Pipe;
  const Mem mem = memory_of(from == GM ? to : from);
  if (from == VECIN && to == VECOUT) return {mem, MTE2, MTE3};
  if (from == VECCALC) return {mem, V, V};
  if (from == GM) {
    switch (to) {
      case VECIN: return {mem, MTE2, V};
      case A2: case B2: case C2: return {mem, MTE1, M};
      case C2PIPE2GM: return {mem, FIX, FIX};
      default: return {mem, MTE2, MTE1};
    }
  }
  return from == CO1 ? Route{mem, M, FIX} : Route{mem, V, MTE3};
}

}  // namespace emu

namespace AscendC {

template <TPosition source, TPosition target, int depth>
class TQueBind {
 public:
  template <class T>
  LocalTensor<T> AllocTensor(emu::At at = emu::At::current()) {
    return tensor<T>(queue_.alloc(at));
  }
  template <class T>
  bool EnQue(const LocalTensor<T>& tensor, emu::At at = emu::At::current()) {
    queue_.enqueue(queue_.find(tensor.memory(), tensor.GetPhyAddr()), at);
    return true;
  }
  template <class T>
  LocalTensor<T> DeQue(emu::At at = emu::At::current()) {
    return tensor<T>(queue_.dequeue(at));
  }
  template <class T>
  void FreeTensor(LocalTensor<T>& tensor, emu::At at = emu::At::current()) {
    queue_.release(queue_.find(tensor.memory(), tensor.GetPhyAddr()), at);
  }
  template <class T>
  void FreeTensor(LocalTensor<T>&& tensor, emu::At at = emu::At::current()) {
    queue_.release(queue_.find(tensor.memory(), tensor.GetPhyAddr()), at);
  }
  bool HasTensorInQue() const { return queue_.queued() > 0; }
  bool VacantInQue() const { return queue_.queued() < depth; }
  bool HasIdleBuffer() const { return queue_.can_alloc(); }
  int GetTensorCountInQue() const { return queue_.queued(); }

 private:
  friend class TPipe;
  static constexpr TPosition kept = source == TPosition::GM ? target : source;

  template <class T>
  LocalTensor<T> tensor(int index) const {
    const emu::Block block = queue_.block(index);
    return LocalTensor<T>::at(kept, block.address, block.bytes);
  }

  emu::Queue queue_;
};

namespace queue_ends {
constexpr bool filled_from_gm(TPosition position) {
  return position != TPosition::VECOUT && position != TPosition::VECCALC && position != TPosition::CO1;
}
}  // namespace queue_ends

template <TPosition position, int depth, int mask = 0>
using TQue = TQueBind<queue_ends::filled_from_gm(position) ? TPosition::GM : position,
                      queue_ends::filled_from_gm(position) ? position
                      : position == TPosition::CO1         ? TPosition::CO2
                      : position == TPosition::VECCALC     ? TPosition::VECCALC
                                                           : TPosition::GM,
                      depth>;

template <TPosition position = TPosition::VECCALC>
class TBuf {
 public:
  template <class T>
  LocalTensor<T> Get() const {
    return LocalTensor<T>::at(position, address_, bytes_);
  }
  template <class T>
  LocalTensor<T> Get(uint32_t elements) const {
    return LocalTensor<T>::at(position, address_, emu::bytes_of<T>(elements));
  }
  template <class T>
  LocalTensor<T> GetWithOffset(uint32_t elements, uint32_t offset_bytes) const {
    return LocalTensor<T>::at(position, address_ + offset_bytes, emu::bytes_of<T>(elements));
  }

 private:
  friend class TPipe;
  uint32_t address_ = 0, bytes_ = 0;
};

class TPipe {
 public:
  explicit TPipe(emu::At at = emu::At::current());
  ~TPipe();
  TPipe(const TPipe&) = delete;
  TPipe& operator=(const TPipe&) = delete;

  template <TPosition source, TPosition target, int depth>
  bool InitBuffer(TQueBind<source, target, depth>& queue, uint8_t count, uint32_t bytes,
                  emu::At at = emu::At::current()) {
    queue.queue_.init(emu::route_of(source, target), depth, count, bytes, at);
    return true;
  }
  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, uint32_t bytes, emu::At at = emu::At::current()) {
    buffer.address_ = emu::allocate(emu::memory_of(position), bytes, at);
    buffer.bytes_ = (bytes + 31) / 32 * 32;
    return true;
  }
  void Init() {}
  void Reset() { emu::free_all(); }
  void Destroy() { emu::free_all(); }

  template <HardEvent event>
  TEventID AllocEventID(emu::At at = emu::At::current()) {
    return TEventID(emu::alloc_event(emu::pair_of(event).from, emu::pair_of(event).to, at));
  }
  template <HardEvent event>
  void ReleaseEventID(TEventID id, emu::At at = emu::At::current()) {
    emu::release_event(emu::pair_of(event).from, emu::pair_of(event).to, id, at);
  }
  TEventID FetchEventID(HardEvent event, emu::At at = emu::At::current()) {
    return TEventID(emu::fetch_event(emu::pair_of(event).from, emu::pair_of(event).to, at));
  }
  template <HardEvent event>
  TEventID FetchEventID(emu::At at = emu::At::current()) {
    return FetchEventID(event, at);
  }
};

TPipe* GetTPipePtr();

}  // namespace AscendC
