// AIV: buffers in UB, and sorting of candidates as records of (score, position).
#pragma once

#include "plan.h"

namespace lightning_indexer {

constexpr float LOWEST = -__builtin_inff();

// Sets lanes from, from + 1, … of the first `size` lanes.
template <class T>
__aicore__ inline void fill_from(const LocalTensor<T>& tensor, T value, int32_t from,
                                 int32_t size) {
  constexpr int32_t LANES = 256 / sizeof(T);
  const int32_t whole = round_up(from, LANES);
  if (from < whole) {
    const uint64_t mask[2] = {~uint64_t(0) << (from % LANES), 0};
    Duplicate(tensor[whole - LANES], value, mask, 1, 1, 8);
  }
  if (whole < size) Duplicate(tensor[whole], value, size - whole);
}

template <class Tiles>
struct Buffers {
  static constexpr int32_t KEYS = Tiles::KEYS, TOP = Tiles::TOP;
  static constexpr int32_t HEADS = 16;             // of one piece of scores
  static constexpr int32_t PIECE = HEADS * KEYS;   // elements
  static constexpr int32_t LIST = 2 * TOP;         // words of a list of records
  static constexpr int32_t MOST_HEADS = 64, ROWS = ROWS_PER_VECTOR;
  static constexpr int32_t HEAD_WORDS = ROWS * MOST_HEADS;
  static constexpr int32_t FOUR = 4 * LIST;
  static constexpr int32_t DIM = 128;
  // A row's candidates, of which no more than `count` are kept now and then.
  static constexpr int32_t CAP = 2 * TOP;
  // Of a row's queries so many heads are multiplied with keys again at once.
  static constexpr int32_t AGAIN = 32, QUERY = AGAIN * DIM;
  static constexpr int32_t PIECES =
      2 * PIECE > FOUR ? (2 * PIECE > 2 * QUERY ? 2 * PIECE : 2 * QUERY) : FOUR;
  static constexpr int32_t SORTING = 2 * ROWS * TOP + (3 + ROWS) * LIST;
  static constexpr int32_t SPARE = SORTING - 2 * ROWS * CAP - 2 * CAP;
  static constexpr int32_t WORDS =
      PIECES + SORTING + 4 * KEYS + 4 * HEAD_WORDS + 2 * CAP / 32 + 16 + 2 * ROWS * 64 + 64 + 8 * 5;
  static_assert(WORDS * 4 <= 192 * 1024 - 256, "UB");
  static_assert(2 * ROWS * TOP + 2 * LIST >= FOUR, "merged lists end before `right`");
  static_assert(KEYS <= CAP && CAP % 64 == 0, "bits");
  static_assert(SPARE >= 256, "a key and its products");
  static_assert(TOP >= 2 * KEYS && TOP <= 2048 && KEYS % 64 == 0, "tiles");

  __aicore__ explicit Buffers(TPipe& pipe) {
    pipe.InitBuffer(all_, WORDS * 4);
    pieces = take<float>(PIECES);
    const int32_t begin = used_;
    values = take<float>(ROWS * TOP);
    places = take<int32_t>(ROWS * TOP);
    const int32_t sorting = used_;
    left = take<float>(LIST);
    take<float>(LIST);
    right = take<float>(LIST);
    low_pair = view<float>(sorting, 2 * LIST);
    high_pair = view<float>(sorting + LIST, 2 * LIST);
    four = view<float>(PIECES, FOUR);
    kept = take<float>(ROWS * LIST);
    candidates = view<float>(begin, ROWS * CAP);
    positions = view<float>(begin + ROWS * CAP, ROWS * CAP);
    first = view<float>(begin + 2 * ROWS * CAP, CAP);
    second = view<float>(begin + 2 * ROWS * CAP + CAP, CAP);
    spare = view<float>(begin + 2 * ROWS * CAP + 2 * CAP, SPARE);
    scores = take<float>(KEYS);
    const int32_t numbers_at = used_;
    ramp = take<int32_t>(KEYS);
    numbers = view<float>(numbers_at, KEYS);
    scales = take<float>(KEYS);
    raw_scales = take<float>(KEYS);
    weights = take<float>(HEAD_WORDS);
    raw_weights = take<float>(HEAD_WORDS);
    query_scales = take<float>(HEAD_WORDS);
    raw_query_scales = take<float>(HEAD_WORDS);
    bits = take<uint8_t>(CAP / 32);
    more_bits = take<uint8_t>(CAP / 32);
    tame = take<uint8_t>(16);
    most = take<float>(2 * ROWS * 64);
    found = take<float>(64);
    sizes = take<int32_t>(8 * 5);
  }

  LocalTensor<float> pieces;  // two pieces of scores, or four lists
  LocalTensor<float> values;  // candidates that are not yet sorted, of each row
  LocalTensor<int32_t> places;
  // Lists for sorting; two merged ones beside `right` or `left`, and four, over all but `right`.
  LocalTensor<float> left, right, low_pair, high_pair, four;
  LocalTensor<float> kept;  // the best so far of each row
  LocalTensor<float> scores, scales, raw_scales;
  LocalTensor<int32_t> ramp;
  LocalTensor<float> numbers;  // the same place
  LocalTensor<float> weights, raw_weights, query_scales, raw_query_scales;
  LocalTensor<uint8_t> bits, more_bits, tame;
  // Where a threshold is found, over the six before `scores`: scores and positions of each row's
  // candidates, lists that shrink, and what is sorted or multiplied on the way.
  LocalTensor<float> candidates, positions, first, second, spare;
  LocalTensor<float> most;   // of each row and lane, the largest sums over heads so far
  LocalTensor<float> found;  // single results
  LocalTensor<int32_t> sizes;  // of four lists that come, and of one that goes

 private:
  template <class T>
  __aicore__ LocalTensor<T> take(int32_t words) {
    used_ += words;
    return view<T>(used_ - words, words);
  }
  template <class T>
  __aicore__ LocalTensor<T> view(int32_t begin, int32_t words) const {
    return all_.template GetWithOffset<T>(words * 4 / sizeof(T), begin * 4);
  }

  TBuf<TPosition::VECCALC> all_;
  int32_t used_ = 0;
};

// n records as lists of `length`, each sorted, become lists of four times that.
__aicore__ inline void merge_fours(const LocalTensor<float>& to, const LocalTensor<float>& from,
                                   int32_t n, int32_t length) {
  const int32_t groups = n / (4 * length), done = groups * 4 * length, rest = n - done;
  const uint16_t equal[4] = {uint16_t(length), uint16_t(length), uint16_t(length),
                             uint16_t(length)};
  if (groups > 0) {
    MrgSort(to, {from, from[2 * length], from[4 * length], from[6 * length]},
            MrgSort4Info(equal, false, 15, groups));
  }
  if (rest == 0) return;
  const LocalTensor<float> tail = from[2 * done];
  if (rest <= length) {
    DataCopy(to[2 * done], tail, 2 * rest);
    return;
  }
  const int32_t lists = (rest + length - 1) / length;
  uint16_t lengths[4] = {equal[0], equal[0], equal[0], equal[0]};
  lengths[lists - 1] = uint16_t(rest - (lists - 1) * length);
  MrgSort(to[2 * done], {tail, tail[2 * length], tail[4 * length], tail[6 * length]},
          MrgSort4Info(lengths, false, (1 << lists) - 1, 1));
}

// Records of n candidates, a multiple of 32, by descending score, equal scores in the order in
// which they came. The result lies in `from` or `to`.
__aicore__ inline LocalTensor<float> sort(LocalTensor<float> from, LocalTensor<float> to,
                                          const LocalTensor<float>& values,
                                          const LocalTensor<uint32_t>& places, int32_t n) {
  Sort32(from, values, places, n / 32);
  for (int32_t length = 32; length < n; length *= 4) {
    PipeBarrier<PIPE_V>();
    merge_fours(to, from, n, length);
    const LocalTensor<float> other = from;
    from = to;
    to = other;
  }
  PipeBarrier<PIPE_V>();
  return from;
}
// The same in `left` or `right`.
template <class Tiles>
__aicore__ inline LocalTensor<float> sort(const Buffers<Tiles>& ub,
                                          const LocalTensor<float>& values,
                                          const LocalTensor<int32_t>& places, int32_t n) {
  return sort(ub.left, ub.right, values, places.template ReinterpretCast<uint32_t>(), n);
}

}  // namespace lightning_indexer
