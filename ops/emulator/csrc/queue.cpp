// Buffers of TPipe, and queues.
#include "emu/queue.h"

#include <exception>

#include "ascendc/queue.h"
#include "machine.h"
#include "queue_state.h"
#include "snapshot.h"

namespace emu {

namespace {

uint32_t statement(const char* api, At at) {
  here().machine->switch_point();
  return here().last_site = here().machine->site(api, at);
}

void fault(Class what, int pipe, uint32_t site, std::string text, Place place = {},
          uint32_t other = 0) {
  Other side;
  if (other != 0) side = {core_name(here()), -1, other};
  here().machine->find(what, here(), pipe, site, std::move(text), place, std::move(side));
}

bool crosses(const Route& route) { return route.producer != route.consumer; }

// Takes an event id as TPipe does and sets it.
int hold(Pipe from, Pipe to, uint32_t site) {
  CoreState& core = here();
  for (int id = 0; id < 8; ++id) {
    Event& event = core.events[int(from)][int(to)][id];
    if (event.owner != Event::Nobody) continue;
    if (event.set) {
      fault(Class::EVENT_PAIR, int(from), site,
           "a queue takes event id " + std::to_string(id) +
               ", which is set by hand; ask TPipe for an id",
           {}, event.site);
    }
    event.owner = Event::Queues;
    event.site = site;
    return id;
  }
  fault(Class::QUEUE, int(from), site,
       std::string("no event id of ") + name(from) + "_" + name(to) + " is free");
  stop();
}

void give_back(Pipe from, Pipe to, int id) {
  here().events[int(from)][int(to)][id].owner = Event::Nobody;
}

Buffer& take(Mem mem, uint32_t bytes, uint32_t site) {
  CoreState& core = here();
  uint64_t& used = core.allocated[int(mem)];
  const uint64_t rounded = (uint64_t(bytes) + UNIT - 1) / UNIT * UNIT, most = capacity(mem);
  if (most == 0) {
    fault(Class::PARAM, -1, site,
         std::string("an ") + (is_cube() ? "AIC" : "AIV") + " has no " + name(mem));
    stop();
  }
  if (bytes == 0) {
    fault(Class::PARAM, -1, site, "a buffer of 0 bytes");
    stop();
  }
  if (used + rounded > most) {
    fault(Class::CAPACITY, -1, site,
         std::string(name(mem)) + " holds " + std::to_string(most) + " bytes, " +
             std::to_string(used) + " are taken, and " + std::to_string(rounded) + " do not fit",
         Place{mem, used, true, nullptr});
    stop();
  }
  core.buffers.push_back({mem, used, used + rounded});
  used += rounded;
  return core.buffers.back();
}

QueueState& checked(QueueState* state, uint32_t site) {
  if (state == nullptr || !state->alive) {
    fault(Class::QUEUE, -1, site, "the queue has no buffers: InitBuffer is missing, or TPipe was reset");
    stop();
  }
  return *state;
}

// The slot, or null with a finding where the tensor is not one of this queue.
Slot* owned(QueueState& state, int block, uint32_t site, const char* what) {
  if (block >= 0) return &state.slots[block];
  fault(Class::QUEUE, -1, site, std::string(what) + " of a tensor that is not of this queue");
  return nullptr;
}

}  // namespace

uint32_t allocate(Mem mem, uint32_t bytes, At at) {
  return uint32_t(take(mem, bytes, statement("InitBuffer", at)).begin);
}

void free_all() {
  CoreState& core = here();
  leaks(core);
  for (const auto& state : core.queues) state->alive = false;
  core.buffers.clear();
  std::fill(std::begin(core.allocated), std::end(core.allocated), 0);
}

void place(Mem mem, uint64_t address, uint64_t bytes, At at) {
  const uint32_t site = statement("LocalTensor", at);
  if (address + bytes > capacity(mem)) {
    fault(Class::CAPACITY, -1, site, "the tensor ends beyond the memory",
         Place{mem, address, true, nullptr});
    stop();
  }
  here().placed[int(mem)] = true;
}

void Queue::init(Route route, int depth, int count, uint32_t bytes, At at) {
  const uint32_t site = statement("InitBuffer", at);
  auto state = std::make_shared<QueueState>();
  state->route = route;
  state->depth = std::max(depth, 1);
  for (int i = 0; i < count; ++i) {
    const Buffer& buffer = take(route.mem, bytes, site);
    Slot& slot = state->slots.emplace_back();
    slot.block = {uint32_t(buffer.begin), uint32_t(buffer.end - buffer.begin)};
  }
  state_ = state.get();
  here().queues.push_back(std::move(state));
}

int Queue::alloc(At at) {
  const uint32_t site = statement("AllocTensor", at);
  QueueState& state = checked(state_, site);
  for (size_t n = 0; n < state.slots.size(); ++n) {
    const size_t i = (state.next + n) % state.slots.size();
    Slot& slot = state.slots[i];
    if (slot.state != Slot::Free) continue;
    if (slot.event >= 0) {
      give_back(state.route.consumer, state.route.producer, slot.event);
      slot.event = -1;
      if (here().machine->orders(Order::Reuse, slot.site, site)) {
        join(here(), state.route.producer, slot.ready, Delay::Flag);
      }
    }
    slot.state = Slot::Allocated;
    slot.site = site;
    state.next = (i + 1) % state.slots.size();
    return int(i);
  }
  fault(Class::QUEUE, -1, site, "every buffer of the queue is in use", {}, state.slots[0].site);
  stop();
}

void Queue::enqueue(int block, At at) {
  const uint32_t site = statement("EnQue", at);
  QueueState& state = checked(state_, site);
  Slot* slot = owned(state, block, site, "EnQue");
  if (slot == nullptr) return;
  if (slot->state == Slot::Free || slot->state == Slot::Queued) {
    fault(Class::QUEUE, -1, site,
         slot->state == Slot::Free ? "EnQue of a tensor that was not allocated, or was freed"
                                   : "EnQue of a tensor that is in the queue already",
         {}, slot->site);
    return;
  }
  if (int(state.order.size()) >= state.depth) {
    fault(Class::QUEUE, -1, site,
         "more tensors in the queue than its depth of " + std::to_string(state.depth), {},
         state.slots[state.order.back()].site);
  }
  if (crosses(state.route)) {
    slot->event = hold(state.route.producer, state.route.consumer, site);
    slot->ready = completed(here(), state.route.producer);
  }
  slot->state = Slot::Queued;
  slot->site = site;
  state.order.push_back(block);
}

int Queue::dequeue(At at) {
  const uint32_t site = statement("DeQue", at);
  QueueState& state = checked(state_, site);
  if (state.order.empty()) {
    fault(Class::QUEUE, -1, site, "DeQue of an empty queue");
    stop();
  }
  const int block = state.order.front();
  state.order.erase(state.order.begin());
  Slot& slot = state.slots[block];
  if (slot.event >= 0) {
    give_back(state.route.producer, state.route.consumer, slot.event);
    slot.event = -1;
    if (here().machine->orders(Order::Queue, slot.site, site)) {
      join(here(), state.route.consumer, slot.ready, Delay::Flag);
    }
  }
  slot.state = Slot::Taken;
  slot.site = site;
  return block;
}

void Queue::release(int block, At at) {
  const uint32_t site = statement("FreeTensor", at);
  QueueState& state = checked(state_, site);
  Slot* slot = owned(state, block, site, "FreeTensor");
  if (slot == nullptr) return;
  if (slot->state == Slot::Free || slot->state == Slot::Queued) {
    fault(Class::QUEUE, -1, site,
         slot->state == Slot::Free ? "FreeTensor of a tensor that is free"
                                   : "FreeTensor of a tensor that is still in the queue",
         {}, slot->site);
    return;
  }
  if (crosses(state.route)) {
    slot->event = hold(state.route.consumer, state.route.producer, site);
    slot->ready = completed(here(), state.route.consumer);
  }
  slot->state = Slot::Free;
  slot->site = site;
}

Block Queue::block(int index) const { return state_->slots[index].block; }

int Queue::find(Mem mem, uint64_t address) const {
  if (state_ == nullptr || mem != state_->route.mem) return -1;
  for (size_t i = 0; i < state_->slots.size(); ++i) {
    const Block& block = state_->slots[i].block;
    if (address >= block.address && address < block.address + block.bytes) return int(i);
  }
  return -1;
}

bool Queue::can_alloc() const {
  if (state_ == nullptr) return false;
  for (const Slot& slot : state_->slots) {
    if (slot.state == Slot::Free) return true;
  }
  return false;
}

int Queue::queued() const { return state_ == nullptr ? 0 : int(state_->order.size()); }

void leaks(CoreState& core) {
  for (const auto& state : core.queues) {
    if (!state->alive) continue;
    for (Slot& slot : state->slots) {
      if (slot.state != Slot::Free) {
        core.machine->find(Class::LEAK, core, -1, slot.site,
                           slot.state == Slot::Queued ? "the tensor is never taken from the queue"
                                                      : "the tensor is never freed");
      }
      if (slot.event < 0) continue;
      const Route& route = state->route;
      const bool queued = slot.state == Slot::Queued;
      core.events[int(queued ? route.producer : route.consumer)]
                 [int(queued ? route.consumer : route.producer)][slot.event]
                     .owner = Event::Nobody;
    }
  }
}

}  // namespace emu

namespace AscendC {

namespace {
struct Pipes {
  TPipe* alive = nullptr;
};
}  // namespace

TPipe::TPipe(emu::At at) {
  TPipe*& alive = emu::core().state<Pipes>().alive;
  if (alive != nullptr) {
    emu::here().machine->find(emu::Class::PARAM, emu::here(), -1,
                              emu::here().machine->site("TPipe", at),
                              "a second TPipe while the first one lives");
  }
  alive = this;
}

TPipe::~TPipe() {
  // Also runs while stop() unwinds, when nothing is left to check.
  if (std::uncaught_exceptions() == 0) emu::free_all();
  emu::core().state<Pipes>().alive = nullptr;
}

TPipe* GetTPipePtr() { return emu::core().state<Pipes>().alive; }

}  // namespace AscendC
