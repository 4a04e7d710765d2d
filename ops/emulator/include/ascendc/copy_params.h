// Parameters of DataCopy and DataCopyPad.
#pragma once

#include "ascendc/types.h"

namespace AscendC {

// Lengths and gaps in units of 32 bytes, gaps from the end of a block to the start of the next.
// With BT as destination blockLen and dstGap count 64 bytes, with FB 128. DataCopyPad counts
// blockLen and GM's gaps in bytes.
struct DataCopyParams {
  uint16_t blockCount = 1;
  uint16_t blockLen = 0;
  union {
    uint16_t srcGap = 0;
    uint16_t srcStride;
  };
  union {
    uint16_t dstGap = 0;
    uint16_t dstStride;
  };

  DataCopyParams() = default;
  DataCopyParams(uint16_t count, uint16_t length, uint16_t src_gap, uint16_t dst_gap)
      : blockCount(count), blockLen(length), srcGap(src_gap), dstGap(dst_gap) {}
};

// blockLen in bytes; gaps in bytes in GM and in 32-byte units in UB.
struct DataCopyExtParams {
  uint16_t blockCount = 1;
  uint32_t blockLen = 0;
  uint32_t srcStride = 0;
  uint32_t dstStride = 0;
  uint32_t rsv = 0;

  DataCopyExtParams() = default;
  DataCopyExtParams(uint16_t count, uint32_t length, uint32_t src, uint32_t dst, uint32_t reserved)
      : blockCount(count), blockLen(length), srcStride(src), dstStride(dst), rsv(reserved) {}
};

// Paddings in elements, at most 32 bytes each.
template <class T>
struct DataCopyPadExtParams {
  bool isPad = false;
  uint8_t leftPadding = 0;
  uint8_t rightPadding = 0;
  T paddingValue{};

  DataCopyPadExtParams() = default;
  DataCopyPadExtParams(bool is_pad, uint8_t left, uint8_t right, T value)
      : isPad(is_pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
};

// The older form; paddingValue holds the bits of one element.
struct DataCopyPadParams {
  bool isPad = false;
  uint8_t leftPadding = 0;
  uint8_t rightPadding = 0;
  uint64_t paddingValue = 0;

  DataCopyPadParams() = default;
  DataCopyPadParams(bool is_pad, uint8_t left, uint8_t right, uint64_t value)
      : isPad(is_pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
};

// Matrices of rows in GM to [columns / C0][rows][C0] in L1: element (n, d) goes to unit
// (d / C0) * dstNzC0Stride + n * dstNzNStride of 32 bytes.
struct Nd2NzParams {
  uint16_t ndNum = 0;
  uint16_t nValue = 0;
  uint16_t dValue = 0;
  uint16_t srcNdMatrixStride = 0;  // elements
  uint16_t srcDValue = 0;          // elements from row to row
  uint16_t dstNzC0Stride = 0;      // 32-byte units
  uint16_t dstNzNStride = 0;       // 32-byte units
  uint16_t dstNzMatrixStride = 0;  // elements

  Nd2NzParams() = default;
  Nd2NzParams(uint16_t matrices, uint16_t rows, uint16_t columns, uint16_t src_matrix,
              uint16_t src_row, uint16_t dst_block, uint16_t dst_row, uint16_t dst_matrix)
      : ndNum(matrices),
        nValue(rows),
        dValue(columns),
        srcNdMatrixStride(src_matrix),
        srcDValue(src_row),
        dstNzC0Stride(dst_block),
        dstNzNStride(dst_row),
        dstNzMatrixStride(dst_matrix) {}
};

}  // namespace AscendC
