// Names, and the cycles of an instruction.
#include <algorithm>
#include <cmath>

#include "emu/types.h"
#include "emu/work.h"
#include "report.h"

namespace emu {

const char* name(Pipe pipe) {
  constexpr const char* names[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"};
  return names[int(pipe)];
}

const char* name(Mem mem) {
  constexpr const char* names[] = {"GM", "UB", "L1", "L0A", "L0B", "L0C", "BT", "FB"};
  return names[int(mem)];
}

const char* name(Class what) {
  constexpr const char* names[] = {
      "CAPACITY", "OOB",     "ALIGN",    "UNINIT", "RAW",   "WAR",     "WAW",   "EVENT-PAIR",
      "QUEUE",    "XFLAG",   "GM-OOB",   "GM-RACE", "DEADLOCK", "PARAM", "DTYPE", "OVERLAP",
      "STALE",    "LEAK",    "UNSUPPORTED", "ASSERT", "UNDEFINED", "CRASH", "TIMEOUT"};
  return names[int(what)];
}

double fixed_cycles(const Work& work, const Rates& rates) {
  const auto at = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  switch (work.kind) {
    case Work::None: return 0;
    case Work::Scalar: return rates.issue;
    case Work::Vector: {
      const auto op = VectorOp(work.op);
      const double rate = rates.elements[work.op];
      const bool by_element =
          op == VectorOp::Gather || op == VectorOp::Sort || op == VectorOp::GatherMask;
      // A repeat is 256 bytes, 64 elements of four bytes, however many of them the mask lets by.
      return rates.vector_start +
             at(by_element ? double(work.amount) : double(work.repeats) * 64, rate);
    }
    case Work::Cube: {
      const auto ceil16 = [](uint32_t x) { return double((x + 15) / 16); };
      const double depth = rates.cube_k[work.op];
      if (depth <= 0) return rates.cube_start;
      return rates.cube_start + ceil16(work.m) * ceil16(work.n) * std::ceil(work.k / depth);
    }
    case Work::Move:
      return rates.move_start[work.op] + rates.move_block[work.op] * double(work.repeats);
  }
  return 0;
}

double cycles(const Work& work, const Rates& rates) {
  const bool moves = work.kind == Work::Move && rates.move_bytes[work.op] > 0;
  return fixed_cycles(work, rates) +
         (moves ? double(work.amount) / rates.move_bytes[work.op] : 0);
}

void Counters::add(const Work& work) {
  if (work.kind == Work::Vector) {
    elements[work.op] += work.amount;
    repeats[work.op] += work.repeats;
  } else if (work.kind == Work::Cube) {
    products[work.op] += work.amount;
    ++matmuls[work.op];
  } else if (work.kind == Work::Move) {
    moved[work.op] += work.amount;
    blocks[work.op] += work.repeats;
    ++transfers[work.op];
  }
}

}  // namespace emu
