// What an instruction costs: the work that it reports, and the rates that turn it into cycles.
#pragma once

#include <cstdint>

namespace emu {

// Vector operations with a rate of their own.
enum class VectorOp : uint8_t {
  Simple,          // Add, Sub, Mul, Max, Min, Adds, Muls, Relu, And, Or, Not, Abs, shifts
  Transcendental,  // Exp, Ln, Sqrt, Rsqrt, Reciprocal, Div
  Cast,
  Copy,            // Duplicate, CreateVecIndex, UB to UB
  Broadcast,       // Brcb
  Compare,         // Compares, CompareScalar, Select
  Reduce,
  GatherMask,
  Gather,          // and Scatter
  Sort,            // Sort32, MrgSort, Extract
  Transpose,
};
inline constexpr int VECTOR_OPS = 11;

enum class Path : uint8_t {
  GM_UB, GM_L1, GM_L0A, GM_L0B, UB_GM, UB_L1, UB_UB, L1_GM, L1_L0A, L1_L0B, L1_BT, L1_FB,
  L0C_GM, L0C_L1, FILL
};
inline constexpr int PATHS = 15;

enum class CubeType : uint8_t { B16, INT8, INT4, F32, HF32 };
inline constexpr int CUBE_TYPES = 5;

struct Work {
  enum Kind : uint8_t { None, Scalar, Vector, Cube, Move };
  Kind kind = None;
  uint8_t op = 0;             // VectorOp, CubeType or Path
  uint32_t element_bytes = 0;  // of the wider type
  uint64_t repeats = 0;        // Vector: repeats; Move: blocks
  uint64_t amount = 0;         // Vector: elements; Cube: multiply-adds as issued; Move: bytes
  uint32_t m = 0, n = 0, k = 0;

  static Work scalar() { return {.kind = Scalar}; }
  static Work vector(VectorOp op, uint64_t repeats, uint64_t elements, uint32_t element_bytes) {
    return {.kind = Vector, .op = uint8_t(op), .element_bytes = element_bytes, .repeats = repeats,
            .amount = elements};
  }
  static Work cube(uint32_t m, uint32_t n, uint32_t k, CubeType type) {
    return {.kind = Cube, .op = uint8_t(type), .amount = uint64_t(m) * n * k, .m = m, .n = n,
            .k = k};
  }
  static Work move(Path path, uint64_t bytes, uint64_t blocks = 1) {
    return {.kind = Move, .op = uint8_t(path), .repeats = blocks, .amount = bytes};
  }
};

// Cycles, and bytes per cycle, of one core unless they say otherwise. The caller of the launch fills
// it; 0 is no time, and no limit.
struct Rates {
  double issue;                     // cycles of S per instruction
  double vector_start;              // cycles before the first repeat
  double elements[VECTOR_OPS];      // 4-byte elements per cycle
  double cube_start;                // cycles before the first product
  double cube_k[CUBE_TYPES];        // depth of the 16 x 16 x k product of one cycle
  double move_start[PATHS];         // cycles per transfer
  double move_block[PATHS];         // cycles per block of a transfer
  double move_bytes[PATHS];         // bytes per cycle
  double flag;                      // cycles from SetFlag to WaitFlag
  double cross_flag;                // cycles from CrossCoreSetFlag to CrossCoreWaitFlag
  double hbm_bytes, l2_bytes;       // per cycle, of all cores together
};

// Cycles before the first byte of a transfer, and all cycles of any other instruction.
double fixed_cycles(const Work& work, const Rates& rates);
// Cycles of an instruction that shares no bandwidth with others.
double cycles(const Work& work, const Rates& rates);

}  // namespace emu
