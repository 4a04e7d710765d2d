// A kernel that runs vector instructions named by its argument on an image of UB.
//
// Every command names an instruction, element types, where its tensors lie in UB, and its
// parameters; the image is copied in, the commands run with a barrier between them, and the image
// is copied out.
#pragma once

#include <cstring>

#include "kernel_operator.h"

namespace program {

using namespace AscendC;

constexpr int MOST = 32;
enum Form { COUNT, FIRST, BITS, CURRENT };

struct Place {
  uint32_t address, bytes;
};

// program.py mirrors this.
struct Command {
  char name[24];
  int32_t dst_type, src_type;
  int32_t form, repeats;
  int64_t count;
  uint64_t mask[2];
  int32_t stride[6];
  int32_t mode, option;
  uint64_t scalar;
  Place dst, src0, src1, extra;
  int32_t lengths[4];
  int32_t barrier, reserved;
};

struct Program {
  int32_t count, bytes;
  Command commands[MOST];
};

template <class T>
constexpr int type_of() {
  return int(emu::vec::elem_of<T>());
}

template <class T>
LocalTensor<T> at(Place place) {
  return LocalTensor<T>::at(TPosition::VECCALC, place.address, place.bytes);
}
template <class T>
T scalar(const Command& c) {
  T value;
  std::memcpy(static_cast<void*>(&value), &c.scalar, sizeof value);
  return value;
}

inline BinaryRepeatParams binary(const Command& c) {
  BinaryRepeatParams p;
  p.dstBlkStride = c.stride[0], p.src0BlkStride = c.stride[1], p.src1BlkStride = c.stride[2];
  p.dstRepStride = c.stride[3], p.src0RepStride = c.stride[4], p.src1RepStride = c.stride[5];
  return p;
}
inline UnaryRepeatParams unary(const Command& c) {
  UnaryRepeatParams p;
  p.dstBlkStride = c.stride[0], p.srcBlkStride = c.stride[1];
  p.dstRepStride = c.stride[3], p.srcRepStride = c.stride[4];
  return p;
}

// fn(mask, whether the call sets the mask), with the mask in the command's form.
template <class Fn>
void masked(const Command& c, const Fn& fn) {
  uint64_t words[2] = {c.mask[0], c.mask[1]};
  if (c.form == BITS)
    fn(&words[0], std::true_type());
  else if (c.form == FIRST)
    fn(c.mask[0], std::true_type());
  else
    fn(MASK_PLACEHOLDER, std::false_type());
}

struct Row {
  const char* name;
  int dst, src;
  void (*run)(const Command&, uint64_t* result);
};

#define PROGRAM_ROW(name, T, U, ...)                                                              \
  Row {                                                                                           \
    #name, type_of<T>(), type_of<U>(),                                                            \
        []([[maybe_unused]] const Command& c, [[maybe_unused]] uint64_t* result) { __VA_ARGS__; } \
  }
#define PROGRAM_BINARY(name, T)                                                           \
  PROGRAM_ROW(                                                                            \
      name, T, T, const auto d = at<T>(c.dst); const auto a = at<T>(c.src0);              \
      const auto b = at<T>(c.src1); if (c.form == COUNT) name(d, a, b, int32_t(c.count)); \
      else masked(c, [&](auto m, auto set) { name<T, set()>(d, a, b, m, c.repeats, binary(c)); }))
#define PROGRAM_UNARY(name, T)                                                       \
  PROGRAM_ROW(name, T, T, const auto d = at<T>(c.dst); const auto a = at<T>(c.src0); \
              if (c.form == COUNT) name(d, a, int32_t(c.count)); else masked(        \
                  c, [&](auto m, auto set) { name<T, set()>(d, a, m, c.repeats, unary(c)); }))
#define PROGRAM_SCALAR(name, T)                                                       \
  PROGRAM_ROW(                                                                        \
      name, T, T, const auto d = at<T>(c.dst); const auto a = at<T>(c.src0);          \
      const T s = scalar<T>(c); if (c.form == COUNT) name(d, a, s, int32_t(c.count)); \
      else masked(c, [&](auto m, auto set) { name<T, set()>(d, a, s, m, c.repeats, unary(c)); }))

}  // namespace program
