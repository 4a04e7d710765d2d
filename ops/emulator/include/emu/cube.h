// Mmad and Fixpipe behind their interfaces. Ranges name a memory and a start; their bytes are set
// here.
#pragma once

#include "emu/number.h"
#include "emu/types.h"

namespace emu {

struct Mmad {
  Number result, left, right;  // types of C, A, B
  uint32_t m, n, k;
  bool zero;        // start from 0
  bool from_table;  // cmatrixSource
  bool align_k;     // kDirectionAlign
  int unit_flag;
  bool plain;  // none of the parameters that arch 2201 ignores or lacks
};

// `bias` is null without one.
void mmad(Range c, Range a, Range b, const Range* bias, Number bias_type, const Mmad& call, At at);

// The kinds of quantPre that arch 2201 has for float and int32 results.
enum class Quant : uint8_t {
  None,
  F32_F16,
  F32_BF16,
  DEQ_F16,
  VDEQ_F16,
  F32_B8,
  VF32_B8,
  REQ8,
  VREQ8,
  Other
};

// `mode` is a QuantMode_t.
constexpr Quant quant_of(int mode) {
  switch (mode) {
    case 0: return Quant::None;
    case 1: return Quant::F32_F16;
    case 8: return Quant::VREQ8;
    case 9: return Quant::REQ8;
    case 10: return Quant::VDEQ_F16;
    case 11: return Quant::DEQ_F16;
    case 16: return Quant::F32_BF16;
    case 23: return Quant::VF32_B8;
    case 24: return Quant::F32_B8;
    default: return Quant::Other;
  }
}

struct Fixpipe {
  Number result, source;  // types of the destination and of L0C
  uint32_t n, m, src_stride, dst_stride;
  Quant quant;
  uint64_t scalar;
  uint32_t matrices, src_matrix, dst_matrix;  // NZ to ND alone
  bool relu, split, nd;
  int unit_flag;
};

// `scales` is a tensor of uint64 in L1, which the interface itself passes through the Fixpipe
// buffer, or one in that buffer; null without one.
void fixpipe(const char* api, Range dst, Range src, const Range* scales, const Fixpipe& call,
             At at);

// Registers that DataCopy from L0C takes its parameters from.
struct FixRegisters {
  uint64_t scalar = 0;
  uint32_t matrices = 1, src_matrix = 0, dst_matrix = 0;
  bool unit_flag = false;
  bool has_scales = false;
  Range scales{};
};
// Runs on S.
FixRegisters& set_fix_registers(const char* api, At at);
// Fixpipe with what the registers hold.
void copy_from_l0c(Range dst, Range src, Fixpipe call, At at);

// unitFlag: a bit for every 512 bytes of L0C, 0 at first. Mmad waits for 0 and Fixpipe for 1;
// 3 flips the bits when done, 2 leaves them. Each wait orders the pipe after what flipped or left
// the bit. An instruction that would wait for one that the kernel has not issued before it is
// reported as EVENT-PAIR, and so is a Mmad or Fixpipe with unitFlag 0 where the bit is 1.
void unit_wait(Range c, bool fixpipe, int flag, const char* api, At at);
void unit_done(Range c, bool fixpipe, int flag, const char* api, At at);

}  // namespace emu
