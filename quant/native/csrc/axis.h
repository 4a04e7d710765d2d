// Rotations of one axis of a matrix, as quant/native/axis.py lays them out.
#pragma once

#include "hadamard.h"

namespace g5 {

// Blocks of order * n in a stretch of the axis; with a shift, twice with a cyclic shift in between.
struct Segment {
  int64_t offset, width, order, block, shift;
  int64_t power() const { return block / order; }
};

struct Axis {
  const Segment* segments;
  int64_t count;
  const float* factors;  // [size], before the rotation; null: ones
  const float* again;    // [block] of a shifted segment, before its second rotation
  const float* after;    // [size], after all rotations; null: ones
};

// Rotates a row; `room` for as many elements.
inline void along(const Axis& axis, float* x, float* room) {
  for (int64_t s = 0; s < axis.count; s++) {
    const Segment& g = axis.segments[s];
    float* p = x + g.offset;
    for (int64_t i = 0; i < g.width; i += g.block) kronecker(p + i, int(g.order), g.power());
    if (g.shift == 0) continue;
    std::memcpy(room + g.shift, p, size_t(g.width - g.shift) * sizeof(float));
    std::memcpy(room, p + g.width - g.shift, size_t(g.shift) * sizeof(float));
    for (int64_t i = 0; i < g.width; i += g.block) {
      for (int64_t k = 0; k < g.block; k++) p[i + k] = room[i + k] * axis.again[k];
      kronecker(p + i, int(g.order), g.power());
    }
  }
}

// The same down a strip of g.width rows, but for Paley's part.
inline void down(const Segment& g, const float* again, float* strip, float* room) {
  const int64_t n = g.power();
  for (int64_t i = 0; i < g.width; i += n) sylvester_down(strip + i * STRIP, n);
  if (g.shift == 0) return;
  for (int64_t i = 0; i < g.width; i++) {
    const int64_t to = (i + g.shift) % g.width;
    for (int lane = 0; lane < STRIP; lane++)
      room[to * STRIP + lane] = strip[i * STRIP + lane] * again[to % g.block];
  }
  std::memcpy(strip, room, size_t(g.width) * STRIP * sizeof(float));
  for (int64_t i = 0; i < g.width; i += n) sylvester_down(strip + i * STRIP, n);
}

}  // namespace g5
