#include <vector>

#include "emu/cube.h"
#include "emu/instruction.h"
#include "emu/product.h"

namespace emu {
namespace {

constexpr uint64_t FRACTAL = 512, ROW = 32, C_ROW = 64;

constexpr uint32_t up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

struct Kind {
  Number result, operand;
  Operand type;
  CubeType cost;
};
constexpr Kind KINDS[] = {
    {Number::S32, Number::S8, Operand::S8, CubeType::INT8},
    {Number::S32, Number::S4, Operand::S4, CubeType::INT4},
    {Number::F32, Number::F16, Operand::F16, CubeType::B16},
    {Number::F32, Number::BF16, Operand::BF16, CubeType::B16},
    {Number::F32, Number::F32, Operand::F32, CubeType::F32},
};

const Kind* find(const Mmad& call) {
  for (const Kind& kind : KINDS)
    if (kind.result == call.result && kind.operand == call.left && kind.operand == call.right)
      return &kind;
  return nullptr;
}

bool check(Instruction& in, const Mmad& call, const Range* bias, Number bias_type) {
  in.supported(bias == nullptr || bias->mem == Mem::BT, "a bias in %s: it is taken from C2",
               bias ? name(bias->mem) : "");
  in.supported(call.plain, "isBias, fmOffset, enSsparse or enWinograd");
  return in.require(call.m <= 4095 && call.n <= 4095 && call.k <= 4095,
                    "m %u, n %u, k %u: at most 4095", call.m, call.n, call.k) &&
         in.require(call.unit_flag == 0 || call.unit_flag == 2 || call.unit_flag == 3,
                    "unitFlag is %d, not 0, 2 or 3", call.unit_flag) &&
         in.require(bias == nullptr || !call.zero,
                    "a bias and cmatrixInitVal, which starts from 0") &&
         in.require(bias != nullptr || call.zero || !call.from_table,
                    "cmatrixSource without a bias tensor") &&
         in.dtype(bias == nullptr || bias_type == call.result, "the bias has another type than C");
}

// Rows that count of A's fractals, and whole rows of fractals.
const std::byte* read_a(Instruction& in, Range a, const Mmad& call, uint32_t across, uint32_t pitch,
                        uint32_t bits) {
  if (call.m == 1) return in.read({a.mem, a.address, (call.k * bits + 7) / 8}, 512);
  const uint64_t whole = call.m / 16, rest = call.m % 16, row_bytes = pitch * FRACTAL;
  const std::byte* start = nullptr;
  if (whole > 0)
    start = in.stride_read({a.mem, a.address, across * FRACTAL}, whole, row_bytes, 512);
  if (rest > 0) {
    const std::byte* last =
        in.stride_read({a.mem, a.address + whole * row_bytes, rest * ROW}, across, FRACTAL, 512);
    if (start == nullptr) start = last;
  }
  return start;
}

void compute(Instruction& in, Range c, Range a, Range b, const Range* bias, const Mmad& call,
             const Kind& kind) {
  const uint32_t bits = bits_of(kind.operand), c0 = 256 / bits;
  const uint32_t across = up(call.k, c0) / c0;
  const uint32_t pitch = kind.type == Operand::F32 && call.align_k ? up(call.k, 16) / c0 : across;
  const uint32_t column_blocks = up(call.n, 16) / 16, rows = up(call.m, 16);
  const bool accumulate = bias == nullptr && !call.zero;
  Product product{kind.type,   nullptr,    nullptr,   nullptr,    int(call.m), int(call.n),
                  int(call.k), int(pitch), int(rows), accumulate, nullptr};
  product.a = read_a(in, a, call, across, pitch, bits);
  product.b =
      in.stride_read({b.mem, b.address, call.n * ROW}, across, column_blocks * FRACTAL, 512);
  if (bias != nullptr) product.bias = in.read({bias->mem, bias->address, call.n * 4ull}, 64);
  if (accumulate)
    in.stride_read({c.mem, c.address, call.m * C_ROW}, column_blocks, rows * C_ROW, 1024);
  product.c = in.write({c.mem, c.address, column_blocks * rows * C_ROW}, 1024);
  multiply(product);
}

}  // namespace

void mmad(Range c, Range a, Range b, const Range* bias, Number bias_type, const Mmad& call, At at) {
  const bool empty = call.m == 0 || call.n == 0 || call.k == 0;
  c.bytes = static_cast<uint64_t>(up(call.m, 16)) * up(call.n, 16) * 4;
  const bool flags = c.mem == Mem::L0C && !empty && c.address + c.bytes <= capacity(Mem::L0C);
  if (flags) unit_wait(c, false, call.unit_flag, "Mmad", at);
  {
    Instruction in("Mmad", Pipe::M, at);
    in.supported(c.mem == Mem::L0C && a.mem == Mem::L0A && b.mem == Mem::L0B,
                 "Mmad with C in %s, A in %s, B in %s", name(c.mem), name(a.mem), name(b.mem));
    const Kind* kind = find(call);
    if (!in.dtype(kind != nullptr, "Mmad has no product of these types")) return;
    if (!check(in, call, bias, bias_type) || empty) return;
    in.in_order(up(call.m, 16) / 16 * (up(call.n, 16) / 16) >= 10);
    in.work(Work::cube(call.m, call.n, call.k, kind->cost));
    compute(in, c, a, b, bias, call, *kind);
  }
  if (flags) unit_done(c, false, call.unit_flag, "Mmad", at);
}

}  // namespace emu
