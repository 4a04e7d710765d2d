// Data movement behind DataCopy, DataCopyPad, LoadData and InitConstValue. Ranges name a memory and
// a start; their bytes are set here.
#pragma once

#include "emu/number.h"
#include "emu/types.h"

namespace emu {

// Blocks of bytes; steps go from the start of one block to the start of the next.
struct Blocks {
  uint64_t count, bytes, src_step, dst_step;
};

// Strides as the interfaces count them.
struct Gaps {
  uint32_t count, length, src, dst;
};

// What lies around one block of DataCopyPad in UB, in bytes; `value` is one element.
struct Padding {
  bool given;
  uint32_t left, right;
  uint64_t value;
};

struct Nz {
  uint32_t matrices, rows, columns, src_matrix, src_row, dst_block, dst_row, dst_matrix;
};

struct Load2D {
  uint32_t start, repeat, src_step, dst_gap, fractal_gap;
  bool transpose, backwards;
};

struct Load3D {
  uint32_t rows, columns;               // of the matrix in L1, [columns / C0][rows][C0]
  uint32_t row, column, height, width;  // the tile
  bool transpose;
  bool plain;  // filter, strides and dilations of 1, no padding
};

struct Fill {
  uint32_t repeat, blocks, gap;
  uint64_t value;  // one element
};

// Contiguous: `elements` of `number`.
void copy_count(Range dst, Range src, Number number, uint64_t elements, At at);
// 32-byte units; 64 in BT and 128 in FB.
void copy_blocks(Range dst, Range src, Number dst_number, Number src_number, const Gaps& gaps,
                 At at);
void copy_pad_in(Range dst, Range src, Number number, const Gaps& gaps, const Padding& padding,
                 At at);
void copy_pad_out(Range dst, Range src, Number number, const Gaps& gaps, At at);
void copy_nz(Range dst, Range src, Number number, const Nz& nz, At at);
void load_2d(Range dst, Range src, Number number, const Load2D& load, At at);
void load_transposed(Range dst, Range src, Number number, const Load2D& load, At at);
void load_3d(Range dst, Range src, Number number, const Load3D& load, At at);
void fill(Range dst, Number number, const Fill& fill, At at);

}  // namespace emu
