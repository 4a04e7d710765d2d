// The loops want vectors, whatever the rest of the emulator is compiled with.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include <cinttypes>
#include <cstring>
#include <limits>
#include <vector>

#include "vector_formats.h"
#include "vector_walk.h"

namespace emu::vec {
namespace {

constexpr uint32_t MOST = 128;  // lanes of a repeat

float value_at(const std::byte* from, Elem elem, uint64_t i) {
  if (elem == Elem::F32) return reinterpret_cast<const float*>(from)[i];
  return half_value(reinterpret_cast<const uint16_t*>(from)[i]);
}

void put(std::byte* to, Elem elem, uint64_t i, float value) {
  if (elem == Elem::F32)
    reinterpret_cast<float*>(to)[i] = value;
  else
    reinterpret_cast<uint16_t*>(to)[i] = half_bits(value);
}

void put_index(std::byte* to, Elem elem, uint64_t i, uint64_t index) {
  if (elem == Elem::F32)
    reinterpret_cast<uint32_t*>(to)[i] = uint32_t(index);
  else
    reinterpret_cast<uint16_t*>(to)[i] = uint16_t(index);
}

// Sums of n pairs of neighbours.
void add_pairs(const float* x, float* to, uint32_t n, Elem elem) {
  for (uint32_t i = 0; i < n; i++) to[i] = x[2 * i] + x[2 * i + 1];
  if (elem == Elem::F32) return;
  uint16_t halves[MOST / 2];
  narrow(to, halves, n);
  widen(halves, to, n);
}

// Binary tree of neighbours; n is a power of two. Overwrites x.
float tree(float* x, uint32_t n, Elem elem) {
  float other[MOST / 2];
  float *from = x, *to = other;
  for (; n > 1; n /= 2, std::swap(from, to)) add_pairs(from, to, n / 2, elem);
  return from[0];
}

// The lanes of repeat r; those that take no part are +0.
void gather_lanes(const Walk& walk, const Operand& src, const std::byte* from, uint64_t r,
                  float* x) {
  const uint32_t prefix = walk.prefix(r), per = 256 / bits_of(src.elem);
  if (prefix == walk.lanes() && src.block == 1) {
    const std::byte* start = from + offset_of(src, r, 0);
    if (src.elem == Elem::F32)
      std::memcpy(x, start, REPEAT);
    else
      widen(reinterpret_cast<const uint16_t*>(start), x, prefix);
    return;
  }
  std::fill_n(x, walk.lanes(), 0.0f);
  for (uint32_t lane = 0; lane < walk.lanes(); lane += per) {
    const std::byte* block = from + offset_of(src, r, lane);
    if (prefix >= lane + per) {
      if (src.elem == Elem::F32)
        std::memcpy(x + lane, block, BLOCK);
      else
        widen(reinterpret_cast<const uint16_t*>(block), x + lane, per);
      continue;
    }
    for (uint32_t i = 0; i < per; i++)
      if (walk.active(r, lane + i)) x[lane + i] = value_at(block, src.elem, i);
  }
}

struct Best {
  float value;
  uint64_t index;
};

bool better(Fold fold, float a, float b) {
  if (b != b) return false;
  return a != a || (fold == Fold::Max ? a > b : a < b);
}

// The best of n numbers; n is a multiple of 8.
Best best_of_all(Fold fold, const float* x, uint32_t n) {
  constexpr uint32_t W = 8;
  float found[W];
  std::copy_n(x, W, found);
  bool nan = false;
  for (uint32_t i = 0; i < n; i++) nan |= x[i] != x[i];
  for (uint32_t i = W; i < n; i += W)
    for (uint32_t k = 0; k < W; k++) {
      const bool take = fold == Fold::Max ? x[i + k] > found[k] : x[i + k] < found[k];
      found[k] = take ? x[i + k] : found[k];
    }
  float value = found[0];
  for (uint32_t k = 1; k < W; k++) value = better(fold, found[k], value) ? found[k] : value;
  for (uint32_t i = 0;; i++)
    if (nan ? x[i] != x[i] : x[i] == value) return {x[i], i};
}

// The best active lane of [first, first + n); index n where there is none.
Best best_of(const Walk& walk, Fold fold, uint64_t r, const float* x, uint32_t first, uint32_t n) {
  if (walk.prefix(r) >= first + n) return best_of_all(fold, x + first, n);
  Best best{0, n};
  for (uint32_t lane = first; lane < first + n; lane++)
    if (walk.active(r, lane) && (best.index == n || better(fold, x[lane], best.value)))
      best = {x[lane], lane - first};
  return best;
}

float sum_all(std::vector<float>& values, Elem elem) {
  while (values.size() > 1) {
    std::vector<float> next;
    for (uint64_t start = 0; start < values.size(); start += 256 * 8 / bits_of(elem)) {
      float x[MOST] = {};
      const uint32_t lanes = 256 * 8 / bits_of(elem);
      std::copy_n(values.begin() + start, std::min<uint64_t>(lanes, values.size() - start), x);
      next.push_back(tree(x, lanes, elem));
    }
    values.swap(next);
  }
  return values[0];
}

// Elements of temporary memory that the form takes.
uint64_t room(Fold fold, bool index, uint64_t repeats, Elem elem) {
  const uint64_t block = 256 / bits_of(elem), repeat = 256 * 8 / bits_of(elem);
  const auto up = [](uint64_t n, uint64_t unit) { return (n + unit - 1) / unit; };
  if (fold == Fold::Sum) return up(repeats, block) * block;
  const uint64_t first = repeats * 2;
  if (!index) return up(first, block) * block;
  const uint64_t second = up(first, repeat) * 2, third = up(second, repeat) * 2;
  return (up(first, block) + up(second, block) + up(third, block)) * block;
}

bool source_fits(Instruction& ins, const Operand& dst, const Operand& src) {
  return in_ub(ins, {&dst, &src}) && ranged(ins, "srcBlkStride", src.block, 65535) &&
         ranged(ins, "srcRepStride", src.repeat, 65535) &&
         ranged(ins, "dstRepStride", dst.repeat, 65535);
}

void no_overlap(Instruction& ins, const Walk& walk, const Operand& src, Range dst) {
  const uint64_t blocks = walk.lanes() * bits_of(src.elem) / 256;
  const uint64_t last =
      walk.repeats() == 0 ? 0 : (walk.repeats() - 1) * src.repeat + (blocks - 1) * src.block + 1;
  const uint64_t bytes =
      walk.dense({&src}) ? walk.elements() * bits_of(src.elem) / 8 : last * BLOCK;
  ins.overlap(dst, {src.mem, src.address, bytes}, false);
}

void charge(Instruction& ins, const Walk& walk, Elem elem) {
  ins.work(Work::vector(VectorOp::Reduce, walk.repeats(), walk.elements(), bits_of(elem) / 8));
}

// Source order of element `lane` of repeat r: its index in the result of ReduceMax and ReduceMin.
Best best_overall(const Walk& walk, Fold fold, const Operand& src, const std::byte* from) {
  Best best{0, 0};
  bool any = false;
  float x[MOST];
  for (uint64_t r = 0; r < walk.repeats(); r++) {
    gather_lanes(walk, src, from, r, x);
    const Best here = best_of(walk, fold, r, x, 0, walk.lanes());
    if (!any || better(fold, here.value, best.value))
      best = {here.value, r * walk.lanes() + here.index};
    any = true;
  }
  return best;
}

}  // namespace

void reduce_all(Issue issue, Fold fold, Operand dst, Operand src, Operand temporary, bool index,
                Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  const Elem elem = src.elem;
  if (!source_fits(ins, dst, src) || !in_ub(ins, {&temporary})) return;
  const Walk walk(ins, lanes, bits_of(elem));
  if (!walk.ok() || !ins.require(walk.repeats() > 0, "repeatTime is 0")) return;
  src = walk.placed(src);
  const uint32_t bytes = bits_of(elem) / 8, results = index ? 2 : 1;
  const uint32_t align = fold == Fold::Sum ? bytes : 2 * bytes;
  const uint64_t needed = room(fold, index, walk.repeats(), elem) * bytes;
  const Range to{dst.mem, dst.address, results * bytes},
      scratch{temporary.mem, temporary.address, needed};
  ins.require(temporary.bytes >= needed,
              "sharedTmpBuffer has %" PRIu64 " bytes, %" PRIu64 " are needed", temporary.bytes,
              needed);
  ins.require(!index || elem == Elem::F32 || walk.repeats() * walk.lanes() <= 65536,
              "index does not fit the 16 bits beside a half");
  no_overlap(ins, walk, src, scratch);
  no_overlap(ins, walk, src, to);
  inside(ins, dst, to.bytes);
  const std::byte* from = walk.read(ins, src);
  ins.write(scratch, BLOCK);
  std::byte* out = ins.write(to, align);
  charge(ins, walk, elem);
  if (fold != Fold::Sum) {
    const Best best = best_overall(walk, fold, src, from);
    put(out, elem, 0, best.value);
    if (index) put_index(out, elem, 1, best.index);
    return;
  }
  std::vector<float> sums(walk.repeats());
  float x[MOST];
  for (uint64_t r = 0; r < walk.repeats(); r++) {
    gather_lanes(walk, src, from, r, x);
    sums[r] = tree(x, walk.lanes(), elem);
  }
  put(out, elem, 0, sum_all(sums, elem));
}

void reduce_repeats(Issue issue, Fold fold, Operand dst, Operand src, Pairing pairing,
                    Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  const Elem elem = src.elem;
  if (!source_fits(ins, dst, src)) return;
  const Walk walk(ins, lanes, bits_of(elem));
  if (!walk.ok() || walk.repeats() == 0) return;
  src = walk.placed(src);
  const uint32_t bytes = bits_of(elem) / 8;
  const bool pair = pairing == Pairing::ValueIndex || pairing == Pairing::IndexValue;
  const uint32_t unit = pairing == Pairing::Index ? 4 : pair ? 2 * bytes : bytes;
  const uint64_t end = (walk.repeats() - 1) * dst.repeat * unit + unit;
  no_overlap(ins, walk, src, {dst.mem, dst.address, end});
  inside(ins, dst, end);
  const std::byte* from = walk.read(ins, src);
  std::byte* out =
      ins.stride_write({dst.mem, dst.address, unit}, walk.repeats(), dst.repeat * unit, unit);
  float x[MOST];
  for (uint64_t r = 0; r < walk.repeats(); r++, out += dst.repeat * unit) {
    gather_lanes(walk, src, from, r, x);
    if (fold == Fold::Sum) {
      put(out, elem, 0, tree(x, walk.lanes(), elem));
      continue;
    }
    const Best best = best_of(walk, fold, r, x, 0, walk.lanes());
    if (pairing == Pairing::Index) {
      *reinterpret_cast<uint32_t*>(out) = uint32_t(best.index);
      continue;
    }
    put(out, elem, pairing == Pairing::IndexValue, best.value);
    if (pair) put_index(out, elem, pairing == Pairing::ValueIndex, best.index);
  }
  charge(ins, walk, elem);
}

void reduce_blocks(Issue issue, Fold fold, Operand dst, Operand src, Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  const Elem elem = src.elem;
  if (!source_fits(ins, dst, src)) return;
  const Walk walk(ins, lanes, bits_of(elem));
  if (!walk.ok() || walk.repeats() == 0) return;
  src = walk.placed(src);
  const uint32_t bytes = bits_of(elem) / 8, per = uint32_t(BLOCK) / bytes;
  const uint64_t unit = 8 * bytes, end = (walk.repeats() - 1) * dst.repeat * unit + unit;
  no_overlap(ins, walk, src, {dst.mem, dst.address, end});
  inside(ins, dst, end);
  const std::byte* from = walk.read(ins, src);
  std::byte* out = ins.stride_write({dst.mem, dst.address, unit}, walk.repeats(), dst.repeat * unit,
                                    uint32_t(unit));
  float x[MOST];
  for (uint64_t r = 0; r < walk.repeats(); r++, out += dst.repeat * unit) {
    gather_lanes(walk, src, from, r, x);
    for (uint32_t block = 0; block < 8; block++) {
      const Best best = best_of(walk, fold, r, x, block * per, per);
      if (!ins.require(best.index < per, "block %u of repeat %" PRIu64 " has no lane in the mask",
                       block, r))
        return;
      put(out, elem, block, fold == Fold::Sum ? tree(x + block * per, per, elem) : best.value);
    }
  }
  charge(ins, walk, elem);
}

void reduce_pairs(Issue issue, Operand dst, Operand src, Lanes lanes) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  const Elem elem = src.elem;
  if (!source_fits(ins, dst, src)) return;
  const Walk walk(ins, lanes, bits_of(elem));
  if (!walk.ok() || walk.repeats() == 0) return;
  src = walk.placed(src);
  const uint64_t unit = REPEAT / 2, end = (walk.repeats() - 1) * dst.repeat * unit + unit;
  uint32_t pairs = 0;  // up to the last one with a lane
  for (uint32_t lane = 0; lane < walk.lanes(); lane++)
    if (walk.active(0, lane)) pairs = lane / 2 + 1;
  const uint64_t written = pairs * bits_of(elem) / 8;
  no_overlap(ins, walk, src, {dst.mem, dst.address, end});
  inside(ins, dst, end - unit + written);
  const std::byte* from = walk.read(ins, src);
  std::byte* out = ins.stride_write({dst.mem, dst.address, written}, walk.repeats(),
                                    dst.repeat * unit, uint32_t(BLOCK));
  float x[MOST];
  for (uint64_t r = 0; r < walk.repeats(); r++, out += dst.repeat * unit) {
    gather_lanes(walk, src, from, r, x);
    for (uint32_t pair = 0; pair < pairs; pair++)
      if (walk.active(r, 2 * pair) || walk.active(r, 2 * pair + 1))
        put(out, elem, pair, x[2 * pair] + x[2 * pair + 1]);
  }
  charge(ins, walk, elem);
}

}  // namespace emu::vec
