// Flags, barriers and cross-core synchronisation.
#pragma once

#include "ascendc/types.h"
#include "emu/sync.h"

namespace emu {

struct Pair {
  Pipe from, to;
};

constexpr Pair pair_of(AscendC::HardEvent event) {
  using enum AscendC::HardEvent;
  using enum Pipe;
  constexpr Pair pairs[] = {
      {MTE2, MTE1}, {MTE1, MTE2}, {MTE1, M},    {M, MTE1},    {MTE2, V},  {V, MTE2},  {MTE3, V},
      {V, MTE3},    {M, V},       {V, M},       {V, V},       {MTE3, MTE1}, {MTE1, MTE3}, {MTE1, V},
      {V, MTE1},    {MTE2, M},    {M, MTE2},    {M, FIX},     {FIX, M},   {MTE3, MTE2}, {MTE2, MTE3},
      {S, V},       {V, S},       {S, MTE2},    {MTE2, S},    {S, MTE3},  {MTE3, S},  {MTE2, FIX},
      {FIX, MTE2},  {FIX, S},     {S, FIX},     {M, S},       {S, M},     {FIX, MTE3}, {MTE3, FIX},
      {MTE1, FIX},  {FIX, MTE1},  {MTE1, S},    {S, MTE1},    {M, MTE3},  {MTE3, M}};
  static_assert(sizeof pairs / sizeof *pairs == size_t(MAX));
  return pairs[int(event)];
}

}  // namespace emu

namespace AscendC {

template <HardEvent event>
void SetFlag(int32_t id, emu::At at = emu::At::current()) {
  emu::set_flag(emu::pair_of(event).from, emu::pair_of(event).to, id, at);
}
template <HardEvent event>
void WaitFlag(int32_t id, emu::At at = emu::At::current()) {
  emu::wait_flag(emu::pair_of(event).from, emu::pair_of(event).to, id, at);
}
template <pipe_t pipe>
void PipeBarrier(emu::At at = emu::At::current()) {
  static_assert(pipe != PIPE_S, "PIPE_S has no barrier");
  emu::barrier(pipe, at);
}

// mode 0: all AIC or all AIV of the launch; 1: the two AIV of a block; 2: the AIC and both AIV.
template <uint8_t mode, pipe_t pipe>
void CrossCoreSetFlag(uint16_t id, emu::At at = emu::At::current()) {
  emu::cross_set(mode, pipe, id, at);
}
template <uint8_t mode = 0, pipe_t pipe = PIPE_S>
void CrossCoreWaitFlag(uint16_t id, emu::At at = emu::At::current()) {
  emu::cross_wait(id, at);
}
template <bool isAIVOnly = true>
void SyncAll(emu::At at = emu::At::current()) {
  emu::sync_all(isAIVOnly, at);
}

}  // namespace AscendC
