// One head's product with W_UK: out [rows, columns] = q [rows, terms] x w [terms, columns].
//
// Every sum runs over the terms in their order (pairs of them for bf16 with AVX-512), whatever the
// number of rows, so a row's bits ignore the other rows. w is read as it lies in memory; for many
// rows a strip of its columns is put in order first and stays in the nearest cache.
#pragma once

#include <algorithm>

#include "g5_vec.h"
#include "rows.h"

namespace g5 {

constexpr int STRIP = 2 * W;  // columns that are computed at a time

// Sums of one row and one strip, or a strip of w.
struct Strip {
  F low{}, high{};
};

// The first `count` of W numbers; count may be 0 or less.
template <class T>
G5_INLINE F load_some(const T* p, int count) {
  return count >= W ? load(p) : count > 0 ? load_part(p, count) : F{};
}
template <class T>
G5_INLINE void store_some(T* p, F x, int count) {
  if (count >= W) return store(p, x);
  if (count > 0) store_part(p, x, count);
}

// F32 products of any format, one term at a time.
template <class T>
struct Single {
  using Query = float;
  using Sums = Strip;
  using Operand = Strip;
  static constexpr int64_t TERMS = 1;
  static G5_INLINE Operand operand(const T* w, int64_t, int, int count) {
    return {load_some(w, count), load_some(w + W, count - W)};
  }
  static G5_INLINE void add(Sums& sums, const float* q, const Operand& w) {
    const F x = splat(*q);
    sums.low = fma(x, w.low, sums.low);
    sums.high = fma(x, w.high, sums.high);
  }
  static G5_INLINE void finish(const Sums& sums, T* out, int count) {
    store_some(out, sums.low, count);
    store_some(out + W, sums.high, count - W);
  }
};

template <class T>
struct Chosen {
  using type = Single<T>;
};

// F64 for F64, which only references are computed in.
struct Long {
  using Query = double;
  struct Sums {
    double x[STRIP];
  };
  using Operand = Sums;
  static constexpr int64_t TERMS = 1;
  static G5_INLINE Operand operand(const double* w, int64_t, int, int count) {
    Operand result{};
    for (int i = 0; i < std::min(count, STRIP); i++) result.x[i] = w[i];
    return result;
  }
  static G5_INLINE void add(Sums& sums, const double* q, const Operand& w) {
    for (int i = 0; i < STRIP; i++) sums.x[i] += *q * w.x[i];
  }
  static G5_INLINE void finish(const Sums& sums, double* out, int count) {
    for (int i = 0; i < std::min(count, STRIP); i++) out[i] = sums.x[i];
  }
};
template <>
struct Chosen<double> {
  using type = Long;
};

#if G5_AVX512
// bf16: two terms in one instruction. Pairs are made within quarters of the vectors, so `low` holds
// columns 0-3, 8-11, 16-19 and 24-27 until the end.
struct Double {
  using Query = bf16;
  using Sums = Strip;
  static constexpr int64_t TERMS = 2;
  struct Operand {
    __m512i low, high;
  };
  static G5_INLINE Operand operand(const bf16* w, int64_t stride, int terms, int count) {
    const __mmask32 mask = count >= 32 ? ~__mmask32(0) : (__mmask32(1) << count) - 1;
    const __m512i first = _mm512_maskz_loadu_epi16(mask, w);
    const __m512i second = _mm512_maskz_loadu_epi16(terms > 1 ? mask : 0, w + stride);
    return {_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second)};
  }
  static G5_INLINE void add(Sums& sums, const bf16* q, const Operand& w) {
    int32_t pair;
    std::memcpy(&pair, q, sizeof pair);
    const __m512bh x = __m512bh(_mm512_set1_epi32(pair));
    sums.low = F(_mm512_dpbf16_ps(__m512(sums.low), x, __m512bh(w.low)));
    sums.high = F(_mm512_dpbf16_ps(__m512(sums.high), x, __m512bh(w.high)));
  }
  static G5_INLINE void finish(const Sums& sums, bf16* out, int count) {
    const __m512i left =
        _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i right =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const __m512 low = __m512(sums.low), high = __m512(sums.high);
    store_some(out, F(_mm512_permutex2var_ps(low, left, high)), count);
    store_some(out + W, F(_mm512_permutex2var_ps(low, right, high)), count - W);
  }
};
template <>
struct Chosen<bf16> {
  using type = Double;
};
#endif

template <class T>
using Query = typename Chosen<T>::type::Query;
template <class T>
using Operand = typename Chosen<T>::type::Operand;
template <class T>
constexpr int64_t TERMS = Chosen<T>::type::TERMS;

// Steps over a number of terms, and numbers of a row of q as it is stored.
template <class T>
constexpr int64_t steps(int64_t terms) {
  return (terms + TERMS<T> - 1) / TERMS<T>;
}
template <class T>
constexpr int64_t query_stride(int64_t terms) {
  return steps<T>(terms) * TERMS<T>;
}

// Rows of q lie query_stride apart, with zeros behind the terms.
template <class T>
struct Head {
  const Query<T>* q;
  const T* w;
  int64_t w_stride, terms, columns;
  T* out;
  int64_t out_stride;
};

// ROWS rows from `row` and STRIPS strips from `column`; with `ordered`, the operands of that strip.
template <class T, int ROWS, int STRIPS>
void absorb_tile(const Head<T>& h, int64_t row, int64_t column, const Operand<T>* ordered) {
  using P = typename Chosen<T>::type;
  const int64_t q_stride = query_stride<T>(h.terms);
  const int count = int(std::min<int64_t>(h.columns - column, STRIPS * STRIP));
  const Query<T>* q = h.q + row * q_stride;
  typename P::Sums sums[ROWS][STRIPS] = {};
  for (int64_t k = 0; k < h.terms; k += P::TERMS) {
    const T* w = h.w + k * h.w_stride + column;
    const int terms = int(std::min<int64_t>(h.terms - k, P::TERMS));
#pragma GCC unroll 8
    for (int s = 0; s < STRIPS; s++) {
      Operand<T> operand;
      if (ordered != nullptr) {
        operand = ordered[k / P::TERMS];
      } else {
        // Far enough ahead for memory: rows are too short for the hardware to notice.
        for (int t = 0; t < P::TERMS; t++)
          __builtin_prefetch(w + (16 + t) * h.w_stride + s * STRIP);
        operand = P::operand(w + s * STRIP, h.w_stride, terms, count - s * STRIP);
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) P::add(sums[r][s], q + r * q_stride + k, operand);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int s = 0; s < STRIPS; s++)
      P::finish(sums[r][s], h.out + (row + r) * h.out_stride + column + s * STRIP,
                count - s * STRIP);
}

// All columns of ROWS rows from `row`, several strips at a time.
template <class T, int ROWS, int STRIPS>
void absorb_rows(const Head<T>& h, int64_t row) {
  int64_t column = 0;
  for (; column + STRIPS * STRIP <= h.columns; column += STRIPS * STRIP)
    absorb_tile<T, ROWS, STRIPS>(h, row, column, nullptr);
  for (; column < h.columns; column += STRIP) absorb_tile<T, ROWS, 1>(h, row, column, nullptr);
}

// Rows whose sums fit into the registers.
constexpr int MOST_ROWS = G5_AVX512 || G5_NEON ? 8 : 4;

// All columns of `rows` rows; `room` holds steps(terms) operands.
template <class T>
void absorb(const Head<T>& h, int64_t rows, Operand<T>* room) {
  using P = typename Chosen<T>::type;
  int64_t row = 0;
  if (rows > MOST_ROWS) {
    const int64_t whole = rows / MOST_ROWS * MOST_ROWS;
    for (int64_t column = 0; column < h.columns; column += STRIP) {
      const int count = int(std::min<int64_t>(h.columns - column, STRIP));
      for (int64_t k = 0; k < h.terms; k += P::TERMS)
        room[k / P::TERMS] = P::operand(h.w + k * h.w_stride + column, h.w_stride,
                                        int(std::min<int64_t>(h.terms - k, P::TERMS)), count);
      for (row = 0; row < whole; row += MOST_ROWS)
        absorb_tile<T, MOST_ROWS, 1>(h, row, column, room);
    }
  }
  for (; row + MOST_ROWS <= rows; row += MOST_ROWS) absorb_rows<T, MOST_ROWS, 1>(h, row);
  if (MOST_ROWS > 4 && row + 4 <= rows) {
    absorb_rows<T, 4, MOST_ROWS / 4>(h, row);
    row += 4;
  }
  for (; row + 2 <= rows; row += 2) absorb_rows<T, 2, MOST_ROWS / 2>(h, row);
  if (row < rows) absorb_rows<T, 1, MOST_ROWS>(h, row);
}

}  // namespace g5
