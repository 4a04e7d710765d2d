// The loops want vectors, whatever the rest of the emulator is compiled with.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include <cinttypes>
#include <cstring>
#include <functional>

#include "vector_formats.h"
#include "vector_walk.h"

namespace emu::vec {
namespace {

constexpr uint64_t RECORD = 8;

struct MergeState {
  bool known = false;
  uint16_t counts[4] = {};
};

// Grows with the score; NaN above all, both zeros alike.
uint32_t key_of(float score) {
  if (score != score) return UINT32_MAX;
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

uint32_t record_key(const std::byte* record, Elem elem) {
  uint32_t low;
  std::memcpy(&low, record, sizeof low);
  return key_of(elem == Elem::F32 ? std::bit_cast<float>(low) : half_value(uint16_t(low)));
}

void copy_record(std::byte* to, const std::byte* from, Elem elem) {
  if (elem == Elem::F32) {
    std::memcpy(to, from, RECORD);
    return;
  }
  std::memcpy(to, from, 2);
  std::memcpy(to + 4, from + 4, 4);
}

}  // namespace

void sort32(Issue issue, Operand dst, Operand score, Operand index, int64_t repeats) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  if (!in_ub(ins, {&dst, &score, &index}) || !ranged(ins, "repeatTime", repeats, 255) ||
      repeats == 0)
    return;
  const uint64_t n = uint64_t(repeats) * 32, bytes = bits_of(score.elem) / 8;
  const Range scores{score.mem, score.address, n * bytes}, indices{index.mem, index.address, n * 4};
  const Range into{dst.mem, dst.address, n * RECORD};
  ins.overlap(into, scores, false);
  ins.overlap(into, indices, false);
  inside(ins, score, scores.bytes), inside(ins, index, indices.bytes), inside(ins, dst, into.bytes);
  const std::byte* x = ins.read(scores, uint32_t(32 * bytes));
  const std::byte* which = ins.read(indices, 128);
  std::byte* to = ins.write(into, 256);
  for (uint64_t start = 0; start < n; start += 32) {
    uint64_t keys[32];  // the lower place first among equals
    for (uint64_t i = 0; i < 32; i++) {
      float value;
      if (bytes == 4)
        std::memcpy(&value, x + (start + i) * 4, 4);
      else
        value = half_value(reinterpret_cast<const uint16_t*>(x)[start + i]);
      keys[i] = uint64_t{key_of(value)} << 8 | (31 - i);
    }
    std::sort(keys, keys + 32, std::greater<>());
    for (uint64_t i = 0; i < 32; i++) {
      std::byte* record = to + (start + i) * RECORD;
      const uint64_t place = start + 31 - (keys[i] & 31);
      std::memcpy(record, x + place * bytes, bytes);
      std::memcpy(record + 4, which + place * 4, 4);
    }
  }
  ins.work(Work::vector(VectorOp::Sort, uint64_t(repeats), n, uint32_t(bytes)));
}

namespace {

struct List {
  const std::byte* at;
  uint64_t length, taken;
};

bool sorted(Instruction& ins, const List& list, int number, Elem elem) {
  for (uint64_t i = 1; i < list.length; i++)
    if (record_key(list.at + (i - 1) * RECORD, elem) < record_key(list.at + i * RECORD, elem))
      return ins.require(false, "list %d is not sorted at record %" PRIu64, number + 1, i);
  return true;
}

// Records written. Stops at the first list that ends where `suspend` is set.
uint64_t merge_lists(List* lists, int count, bool suspend, Elem elem, std::byte* to) {
  int64_t heads[4] = {-1, -1, -1, -1};  // keys of the next records, -1 where a list has ended
  const auto advance = [&](int i) {
    const List& list = lists[i];
    heads[i] =
        list.taken == list.length ? -1 : int64_t{record_key(list.at + list.taken * RECORD, elem)};
  };
  for (int i = 0; i < count; i++) advance(i);
  for (uint64_t written = 0;; written++) {
    int best = 0;
    for (int i = 1; i < count; i++)
      if (heads[i] > heads[best]) best = i;
    if (heads[best] < 0) return written;
    copy_record(to + written * RECORD, lists[best].at + lists[best].taken++ * RECORD, elem);
    advance(best);
    if (suspend && heads[best] < 0) return written + 1;
  }
}

// Number of lists, or 0 after a PARAM finding.
int list_count(Instruction& ins, const Operand* sources, const MergeShape& shape) {
  const int count = shape.valid == 3 ? 2 : shape.valid == 7 ? 3 : shape.valid == 15 ? 4 : 0;
  if (!ins.require(count != 0, "validBit is %" PRId64 ", not 3, 7 or 15", shape.valid) ||
      !ranged(ins, "repeatTimes", shape.repeats, 255, 1))
    return 0;
  for (int i = 0; i < count; i++)
    if (!ranged(ins, "elementLengths", shape.lengths[i], 4095, 1) || !in_ub(ins, {&sources[i]}))
      return 0;
  if (shape.repeats == 1) return count;
  bool regular = shape.valid == 15 && !shape.suspend;
  for (int i = 1; i < count; i++)
    regular &= shape.lengths[i] == shape.lengths[0] &&
               sources[i].address == sources[i - 1].address + shape.lengths[0] * RECORD;
  return ins.require(regular,
                     "repeatTimes > 1 needs validBit 15, no suspension and four lists of one "
                     "length that follow one another")
             ? count
             : 0;
}

}  // namespace

void merge_sort(Issue issue, Operand dst, const Operand* sources, MergeShape shape) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  MergeState& state = core().state<MergeState>();
  state.known = false;
  const int count = list_count(ins, sources, shape);
  if (count == 0 || !in_ub(ins, {&dst})) return;
  List lists[4] = {};
  uint64_t total = 0;
  for (int i = 0; i < count; i++) total += shape.lengths[i];
  const Range into{dst.mem, dst.address, total * shape.repeats * RECORD};
  for (int i = 0; i < count; i++) {
    const uint64_t length = shape.lengths[i], bytes = length * RECORD,
                   step = shape.repeats > 1 ? total * RECORD : 0;
    const uint64_t end = (shape.repeats - 1) * step + bytes;
    inside(ins, sources[i], end);
    ins.overlap(into, {sources[i].mem, sources[i].address, end}, false);
    lists[i] = {
        ins.stride_read({sources[i].mem, sources[i].address, bytes}, shape.repeats, step, RECORD),
        length, 0};
  }
  aligned(ins, dst, BLOCK);
  if (into.address + into.bytes > capacity(into.mem)) ins.write(into);  // ends the launch
  std::byte* to = host(dst);
  uint64_t written = 0;
  for (int64_t r = 0; r < shape.repeats; r++) {
    for (int i = 0; i < count; i++) {
      lists[i].taken = 0;
      if (!sorted(ins, lists[i], i, dst.elem)) return;
    }
    written += merge_lists(lists, count, shape.suspend, dst.elem, to + written * RECORD);
    for (int i = 0; i < count; i++) lists[i].at += total * RECORD;
  }
  inside(ins, dst, written * RECORD);
  ins.write({into.mem, into.address, written * RECORD});
  for (int i = 0; i < 4; i++) state.counts[i] = i < count ? uint16_t(lists[i].taken) : uint16_t{0};
  state.known = true;
  ins.work(Work::vector(VectorOp::Sort, uint64_t(shape.repeats), written, bits_of(dst.elem) / 8));
}

void merge_counts(Issue issue, uint16_t counts[4]) {
  Instruction ins(issue.api, Pipe::S, issue.at);
  const MergeState& state = core().state<MergeState>();
  ins.require(state.known, "no MrgSort has run on this core");
  std::copy_n(state.counts, 4, counts);
  ins.work(Work::scalar());
}

void extract(Issue issue, Operand value, Operand index, Operand records, int64_t repeats) {
  Instruction ins(issue.api, Pipe::V, issue.at);
  if (!in_ub(ins, {&value, &index, &records}) || !ranged(ins, "repeatTime", repeats, 255) ||
      repeats == 0)
    return;
  const uint64_t n = uint64_t(repeats) * 32, bytes = bits_of(value.elem) / 8;
  const Range from{records.mem, records.address, n * RECORD},
      values{value.mem, value.address, n * bytes};
  const Range indices{index.mem, index.address, n * 4};
  ins.overlap(values, from, false);
  ins.overlap(indices, from, false);
  ins.overlap(values, indices, false);
  inside(ins, records, from.bytes), inside(ins, value, values.bytes),
      inside(ins, index, indices.bytes);
  const std::byte* x = ins.read(from, BLOCK);
  std::byte* scores = ins.write(values, BLOCK);
  std::byte* which = ins.write(indices, BLOCK);
  for (uint64_t i = 0; i < n; i++) {
    std::memcpy(scores + i * bytes, x + i * RECORD, bytes);
    std::memcpy(which + i * 4, x + i * RECORD + 4, 4);
  }
  ins.work(Work::vector(VectorOp::GatherMask, 2 * (n * RECORD / REPEAT), 4 * n, 4));
}

}  // namespace emu::vec
