// What the templates of ascendc/vector*.h hand to the vector engine: one call per instruction, with
// element types as values, so that the loops are compiled once and not with every kernel.
#pragma once

#include <bit>
#include <cstdint>

#include "emu/instruction.h"

namespace emu::vec {

enum class Elem : uint8_t { S4, S8, U8, S16, U16, F16, BF16, S32, U32, F32, S64, U64 };

constexpr uint32_t bits_of(Elem elem) {
  constexpr uint8_t bits[] = {4, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64};
  return bits[int(elem)];
}

constexpr uint64_t BLOCK = 32, REPEAT = 256;  // bytes

// A local tensor and the strides, in blocks of 32 bytes, with which an instruction walks it.
struct Operand {
  Mem mem;
  uint64_t address, bytes;
  Elem elem;
  int64_t block = 1, repeat = 8;
};

// Lanes that take part, as the caller wrote them.
struct Lanes {
  enum Form : uint8_t {
    Count,    // `low` elements, contiguous; the mask and the repeat count follow from it
    First,    // the first `low` lanes of each repeat; in counter mode `low` elements in all
    Bits,     // `low` and `high`, one bit for each lane
    Current,  // what SetVectorMask left
  } form;
  uint64_t low = 0, high = 0;
  int64_t repeats = 1;
};

enum class Op : uint8_t {
  Add,
  Sub,
  Mul,
  Div,
  Max,
  Min,
  And,
  Or,  // dst = a op b
  Adds,
  Muls,
  Maxs,
  Mins,
  LeakyRelu,
  ShiftLeft,
  ShiftRight,  // dst = a op scalar
  ShiftRightRound,
  Axpy,  // Axpy: dst = a * scalar + dst
  Exp,
  Ln,
  Sqrt,
  Rsqrt,
  Reciprocal,
  Abs,
  Relu,
  Not,
  Copy,  // dst = op(a)
  MulAddDst,
  FusedMulAdd,
  FusedMulAddRelu,  // a * b + dst, a * dst + b
};

// A scalar operand: the bits of a number of type `elem`.
struct Scalar {
  Elem elem = Elem::F32;
  uint64_t bits = 0;
};

struct Issue {
  const char* api;
  At at;
};

// dst, a and (where the operation has one) b over the lanes; `widest` decides the lanes per repeat.
void unary(Issue, Op, Operand dst, Operand a, Scalar, Lanes);
void binary(Issue, Op, Operand dst, Operand a, Operand b, Lanes);
void cast(Issue, Operand dst, Operand src, int rounding, Lanes);
void duplicate(Issue, Operand dst, Scalar, Lanes);
void index_ramp(Issue, Operand dst, Scalar first, Lanes);
void brcb(Issue, Operand dst, Operand src, int64_t repeats);
void transpose16(Issue, Operand dst, Operand src);

enum class Fold : uint8_t { Sum, Max, Min };
// Order in which WholeReduceMax and WholeReduceMin leave value and index.
enum class Pairing : uint8_t { ValueIndex, IndexValue, Value, Index };
void reduce_all(Issue, Fold, Operand dst, Operand src, Operand temporary, bool index, Lanes);
void reduce_repeats(Issue, Fold, Operand dst, Operand src, Pairing, Lanes);
void reduce_blocks(Issue, Fold, Operand dst, Operand src, Lanes);
void reduce_pairs(Issue, Operand dst, Operand src, Lanes);

// `b` null: against the scalar. `bits` is the tensor of result bits.
void compare(Issue, int mode, Operand bits, Operand a, const Operand* b, Scalar, Lanes);
void select(Issue, int mode, Operand dst, Operand bits, Operand a, const Operand* b, Scalar, Lanes);

struct GatherMaskShape {
  bool counter;
  uint32_t mask;
  int64_t blockStride, repeats, repeatStride, patternRepeatStride;
};
// `pattern` null: the built-in one. Returns the number of elements kept.
uint64_t gather_mask(Issue, Operand dst, Operand src, const Operand* pattern, int builtin,
                     GatherMaskShape);
void gather(Issue, Operand dst, Operand src, Operand offsets, uint32_t base, Lanes);
void gather_blocks(Issue, Operand dst, Operand src, Operand offsets, int64_t repeats);

void sort32(Issue, Operand dst, Operand score, Operand index, int64_t repeats);
struct MergeShape {
  int64_t lengths[4];
  bool suspend;
  int64_t valid, repeats;
};
void merge_sort(Issue, Operand dst, const Operand* sources, MergeShape);
void merge_counts(Issue, uint16_t counts[4]);
void extract(Issue, Operand value, Operand index, Operand records, int64_t repeats);

void set_mask_mode(Issue, bool counter);
void set_mask(Issue, uint32_t elementBytes, bool counter, uint64_t high, uint64_t low);
void set_mask_length(Issue, uint32_t elementBytes, bool counter, int64_t length);
void reset_mask(Issue);
void set_deq_scale(Issue, uint16_t half);

}  // namespace emu::vec
