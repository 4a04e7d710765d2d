// The kernel of program.py: image of UB in and out, four result words for each command.
#pragma once

#include "elementwise.h"
#include "types_check.h"
#include "whole.h"

namespace program {

inline const Row* find(const Command& c) {
  const auto is = [&](const Row& row) {
    return std::strcmp(row.name, c.name) == 0 && row.dst == c.dst_type && row.src == c.src_type;
  };
  for (const Row& row : elementwise)
    if (is(row)) return &row;
  for (const Row& row : whole)
    if (is(row)) return &row;
  return nullptr;
}

}  // namespace program

inline void vector_program(__gm__ uint8_t* image, __gm__ uint8_t* left, __gm__ uint64_t* results,
                           program::Program commands) {
  using namespace AscendC;
  GlobalTensor<uint8_t> from, to;
  from.SetGlobalBuffer(image, commands.bytes);
  to.SetGlobalBuffer(left, commands.bytes);
  GlobalTensor<uint64_t> words;
  words.SetGlobalBuffer(results, 4 * program::MOST);
  const auto ub = LocalTensor<uint8_t>::at(TPosition::VECCALC, 0, commands.bytes);
  DataCopy(ub, from, commands.bytes);
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
  for (int i = 0; i < commands.count; i++) {
    const program::Command& c = commands.commands[i];
    const program::Row* row = program::find(c);
    uint64_t result[4] = {};
    assert(row != nullptr);
    row->run(c, result);
    if (c.barrier) PipeBarrier<PIPE_V>();
    for (int k = 0; k < 4; k++) words.SetValue(4 * i + k, result[k]);
  }
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  DataCopy(to, ub, commands.bytes);
  DataCacheCleanAndInvalid<uint64_t, CacheLine::ENTIRE_DATA_CACHE, DcciDst::CACHELINE_OUT>(words);
}
