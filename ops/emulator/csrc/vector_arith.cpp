// The loops want vectors, whatever the rest of the emulator is compiled with.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include "vector_loops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vector_formats.h"

namespace emu::vec {
namespace {

template <class T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return x != x;
  return false;
}

// NaN wins on either side; the sign of a zero that meets the other zero is not specified.
template <class T>
T larger(T a, T b) {
  return a > b || is_nan(a) ? a : b;
}
template <class T>
T smaller(T a, T b) {
  return a < b || is_nan(a) ? a : b;
}

template <class T>
T wrapping(Op op, T a, T b) {
  using Wide = std::make_unsigned_t<std::conditional_t<(sizeof(T) < 4), int32_t, T>>;
  const Wide x = static_cast<Wide>(a), y = static_cast<Wide>(b);
  return static_cast<T>(op == Op::Add ? x + y : op == Op::Sub ? x - y : x * y);
}

// One element in its arithmetic type (float for half); `d` is the old destination.
template <Op op, class T>
T apply(T a, T b, T d) {
  constexpr bool fp = std::is_floating_point_v<T>;
  if constexpr (op == Op::Add || op == Op::Adds) {
    if constexpr (fp)
      return a + b;
    else
      return wrapping(Op::Add, a, b);
  } else if constexpr (op == Op::Sub) {
    if constexpr (fp)
      return a - b;
    else
      return wrapping(Op::Sub, a, b);
  } else if constexpr (op == Op::Mul || op == Op::Muls) {
    if constexpr (fp)
      return a * b;
    else
      return wrapping(Op::Mul, a, b);
  } else if constexpr (op == Op::Max || op == Op::Maxs) {
    return larger(a, b);
  } else if constexpr (op == Op::Min || op == Op::Mins) {
    return smaller(a, b);
  } else if constexpr (op == Op::Div) {
    return a / b;
  } else if constexpr (op == Op::LeakyRelu) {
    return a >= 0 || is_nan(a) ? a : a * b;
  } else if constexpr (op == Op::Exp) {
    return std::exp(a);
  } else if constexpr (op == Op::Ln) {
    return std::log(a);
  } else if constexpr (op == Op::Sqrt) {
    return std::sqrt(a);
  } else if constexpr (op == Op::Rsqrt) {
    return static_cast<T>(1 / std::sqrt(static_cast<double>(a)));
  } else if constexpr (op == Op::Reciprocal) {
    return 1 / a;
  } else if constexpr (op == Op::Abs) {
    return std::fabs(a);
  } else if constexpr (op == Op::Relu) {
    return a > 0 || is_nan(a) ? a : T(0);
  } else if constexpr (op == Op::Axpy || op == Op::MulAddDst) {
    return std::fma(a, b, d);
  } else if constexpr (op == Op::FusedMulAdd) {
    return std::fma(a, d, b);
  } else {
    static_assert(op == Op::FusedMulAddRelu);
    const T sum = std::fma(a, d, b);
    return sum > 0 || is_nan(sum) ? sum : T(0);
  }
}

template <class T>
T shifted(Op op, T a, uint64_t by) {
  using U = std::make_unsigned_t<T>;
  constexpr uint64_t width = 8 * sizeof(T);
  if (op == Op::ShiftLeft) return by >= width ? T(0) : static_cast<T>(static_cast<U>(a) << by);
  const int64_t wide = static_cast<int64_t>(a);
  const int64_t half = op == Op::ShiftRightRound && by > 0 ? int64_t(1) << (by - 1) : 0;
  return static_cast<T>((wide + half) >> by);
}

constexpr bool has_scalar(Op op) { return op >= Op::Adds && op <= Op::Axpy; }
constexpr bool has_second(Op op) { return op <= Op::Or || op >= Op::MulAddDst; }
constexpr bool accumulates(Op op) { return op == Op::Axpy || op >= Op::MulAddDst; }

template <Op op, class T>
void plain(std::byte* d, const std::byte* a, const std::byte* b, uint64_t scalar, std::size_t n) {
  T* to = reinterpret_cast<T*>(d);
  const T *x = reinterpret_cast<const T*>(a), *y = reinterpret_cast<const T*>(b);
  T s{};
  if constexpr (has_scalar(op)) std::memcpy(&s, &scalar, sizeof s);
EMU_INDEPENDENT
  for (std::size_t i = 0; i < n; i++) {
    if constexpr (has_scalar(op))
      to[i] = apply<op, T>(x[i], s, accumulates(op) ? to[i] : T{});
    else if constexpr (has_second(op))
      to[i] = apply<op, T>(x[i], y[i], accumulates(op) ? to[i] : T{});
    else
      to[i] = apply<op, T>(x[i], T{}, T{});
  }
}

// x cut to float, with the last bit set where bits were cut off: rounding that to half gives x
// rounded to half once. A product of halves plus a half is exact in double, as far as half reaches.
float cut(double x) {
  const float nearest = static_cast<float>(x);
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (nearest != x && !is_nan(x))
    bits = (bits - (std::fabs(static_cast<double>(nearest)) > std::fabs(x))) | 1;
  return std::bit_cast<float>(bits);
}

// The lanes of an accumulation in half.
template <Op op>
float rounded_later(float a, float b, float d) {
  return cut(apply<op, double>(a, b, d));
}

// Half sources; the destination is half, or float where Wide is set.
template <Op op, bool Wide>
void halves(std::byte* d, const std::byte* a, const std::byte* b, uint64_t scalar, std::size_t n) {
  const uint16_t *x = reinterpret_cast<const uint16_t*>(a),
                 *y = reinterpret_cast<const uint16_t*>(b);
  float left[CHUNK], right[CHUNK], to[CHUNK];
  const float s = half_value(static_cast<uint16_t>(scalar));
  for (std::size_t start = 0; start < n; start += CHUNK) {
    const std::size_t part = std::min(CHUNK, n - start);
    float* out = Wide ? reinterpret_cast<float*>(d) + start : to;
    widen(x + start, left, part);
    if constexpr (has_second(op)) widen(y + start, right, part);
    if constexpr (accumulates(op) && !Wide) widen(reinterpret_cast<uint16_t*>(d) + start, to, part);
EMU_INDEPENDENT
    for (std::size_t i = 0; i < part; i++) {
      const float other = has_scalar(op) ? s : has_second(op) ? right[i] : 0.0f;
      if constexpr (accumulates(op) && !Wide)
        out[i] = rounded_later<op>(left[i], other, out[i]);
      else
        out[i] = apply<op, float>(left[i], other, accumulates(op) ? out[i] : 0.0f);
    }
    if constexpr (!Wide) narrow(to, reinterpret_cast<uint16_t*>(d) + start, part);
  }
}

template <Op op, class T>
void bitwise(std::byte* d, const std::byte* a, const std::byte* b, uint64_t scalar, std::size_t n) {
  T* to = reinterpret_cast<T*>(d);
  const T *x = reinterpret_cast<const T*>(a), *y = reinterpret_cast<const T*>(b);
EMU_INDEPENDENT
  for (std::size_t i = 0; i < n; i++) {
    if constexpr (op == Op::And)
      to[i] = static_cast<T>(x[i] & y[i]);
    else if constexpr (op == Op::Or)
      to[i] = static_cast<T>(x[i] | y[i]);
    else if constexpr (op == Op::Not)
      to[i] = static_cast<T>(~x[i]);
    else
      to[i] = shifted(op, x[i], scalar);
  }
}

template <std::size_t Bytes>
void moved(std::byte* d, const std::byte* a, const std::byte*, uint64_t, std::size_t n) {
  if (d != a) std::memmove(d, a, n * Bytes);
}

template <Op op>
Loop real(Elem elem) {
  if (elem == Elem::F32) return plain<op, float>;
  return elem == Elem::F16 ? halves<op, false> : nullptr;
}

template <Op op>
Loop number(Elem elem) {
  if (elem == Elem::S16) return plain<op, int16_t>;
  return elem == Elem::S32 ? plain<op, int32_t> : real<op>(elem);
}

template <Op op>
Loop word(Elem elem) {
  if (elem == Elem::S16) return bitwise<op, int16_t>;
  return elem == Elem::U16 ? bitwise<op, uint16_t> : nullptr;
}

template <Op op>
Loop shift(Elem elem) {
  if (elem == Elem::S32) return bitwise<op, int32_t>;
  return elem == Elem::U32 ? bitwise<op, uint32_t> : word<op>(elem);
}

}  // namespace

Loop loop(Op op, Elem elem) {
  switch (op) {
    case Op::Add: return number<Op::Add>(elem);
    case Op::Sub: return number<Op::Sub>(elem);
    case Op::Mul: return number<Op::Mul>(elem);
    case Op::Max: return number<Op::Max>(elem);
    case Op::Min: return number<Op::Min>(elem);
    case Op::Adds: return number<Op::Adds>(elem);
    case Op::Muls: return number<Op::Muls>(elem);
    case Op::Maxs: return number<Op::Maxs>(elem);
    case Op::Mins: return number<Op::Mins>(elem);
    case Op::Div: return real<Op::Div>(elem);
    case Op::LeakyRelu: return real<Op::LeakyRelu>(elem);
    case Op::Axpy: return real<Op::Axpy>(elem);
    case Op::MulAddDst: return real<Op::MulAddDst>(elem);
    case Op::FusedMulAdd: return real<Op::FusedMulAdd>(elem);
    case Op::FusedMulAddRelu: return real<Op::FusedMulAddRelu>(elem);
    case Op::Exp: return real<Op::Exp>(elem);
    case Op::Ln: return real<Op::Ln>(elem);
    case Op::Sqrt: return real<Op::Sqrt>(elem);
    case Op::Rsqrt: return real<Op::Rsqrt>(elem);
    case Op::Reciprocal: return real<Op::Reciprocal>(elem);
    case Op::Abs: return real<Op::Abs>(elem);
    case Op::Relu: return elem == Elem::S32 ? plain<Op::Relu, int32_t> : real<Op::Relu>(elem);
    case Op::And: return word<Op::And>(elem);
    case Op::Or: return word<Op::Or>(elem);
    case Op::Not: return word<Op::Not>(elem);
    case Op::ShiftLeft: return shift<Op::ShiftLeft>(elem);
    case Op::ShiftRight: return shift<Op::ShiftRight>(elem);
    case Op::ShiftRightRound: return shift<Op::ShiftRightRound>(elem);
    case Op::Copy: return bits_of(elem) == 16 ? moved<2> : bits_of(elem) == 32 ? moved<4> : nullptr;
  }
  return nullptr;
}

Loop mixed_loop(Op op) {
  if (op == Op::Axpy) return halves<Op::Axpy, true>;
  return op == Op::MulAddDst ? halves<Op::MulAddDst, true> : nullptr;
}

}  // namespace emu::vec
