#include <algorithm>
#include <vector>

#include "emu/atomic.h"
#include "emu/convert.h"
#include "emu/cube.h"
#include "emu/instruction.h"

namespace emu {
namespace {

constexpr uint64_t C_ROW = 64;  // bytes of 16 results

constexpr uint32_t up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

struct Kind {
  Quant quant;
  Number source, result;
  FixStep step;
  bool vector;
};
constexpr Kind KINDS[] = {
    {Quant::None, Number::F32, Number::F32, FixStep::Copy, false},
    {Quant::None, Number::S32, Number::S32, FixStep::Copy, false},
    {Quant::F32_F16, Number::F32, Number::F16, FixStep::ToHalf, false},
    {Quant::F32_BF16, Number::F32, Number::BF16, FixStep::ToBf16, false},
    {Quant::DEQ_F16, Number::S32, Number::F16, FixStep::Dequant, false},
    {Quant::VDEQ_F16, Number::S32, Number::F16, FixStep::Dequant, true},
    {Quant::F32_B8, Number::F32, Number::S8, FixStep::ToByte, false},
    {Quant::F32_B8, Number::F32, Number::U8, FixStep::ToByte, false},
    {Quant::VF32_B8, Number::F32, Number::S8, FixStep::ToByte, true},
    {Quant::VF32_B8, Number::F32, Number::U8, FixStep::ToByte, true},
    {Quant::REQ8, Number::S32, Number::S8, FixStep::ToByte, false},
    {Quant::REQ8, Number::S32, Number::U8, FixStep::ToByte, false},
    {Quant::VREQ8, Number::S32, Number::S8, FixStep::ToByte, true},
    {Quant::VREQ8, Number::S32, Number::U8, FixStep::ToByte, true},
};

const Kind* find(const Fixpipe& call) {
  for (const Kind& kind : KINDS)
    if (kind.quant == call.quant && kind.source == call.source && kind.result == call.result)
      return &kind;
  return nullptr;
}

bool check_nd(Instruction& in, const Fixpipe& call) {
  return in.require(call.m >= 1 && call.m <= 8192, "mSize is %u, not 1 to 8192", call.m) &&
         in.require(call.dst_stride >= call.n, "dstStride is %u, below nSize %u", call.dst_stride,
                    call.n) &&
         in.require(call.matrices >= 1, "ndNum is 0") &&
         in.require(call.matrices == 1 || (call.src_matrix >= 1 && call.src_matrix <= 512),
                    "srcNdStride is %u, not 1 to 512", call.src_matrix) &&
         in.require(call.matrices == 1 || call.dst_matrix >= 1, "dstNdStride is 0") &&
         in.require(!call.split, "isChannelSplit with NZ to ND");
}

bool check_nz(Instruction& in, const Fixpipe& call) {
  const uint32_t unit = call.split ? 8 : 16;
  if (!in.require(call.m >= 1 && call.m <= 65535, "mSize is %u, not 1 to 65535", call.m) ||
      !in.require(call.n % unit == 0, "nSize is %u, no multiple of %u", call.n, unit) ||
      !in.require(call.dst_stride >= 1, "dstStride is 0") ||
      !in.dtype(!call.split || call.result == Number::F32, "isChannelSplit is for float"))
    return false;
  in.supported(bits_of(call.result) != 8 || call.n % 32 == 0,
               "nSize %u to NZ in 8 bits, whose columns come in 32", call.n);
  return true;
}

bool check(Instruction& in, const Fixpipe& call, Mem to, const Range* scales, const Kind& kind) {
  if (!in.require(call.n >= 1 && call.n <= 4095, "nSize is %u, not 1 to 4095", call.n) ||
      !in.require(call.src_stride % 16 == 0, "srcStride is %u, no multiple of 16",
                  call.src_stride) ||
      !in.require(call.src_stride >= up(call.m, 16) || call.n <= 16,
                  "srcStride is %u, below the %u rows of a column block", call.src_stride,
                  up(call.m, 16)) ||
      !in.require(call.unit_flag == 0 || call.unit_flag == 2 || call.unit_flag == 3,
                  "unitFlag is %d, not 0, 2 or 3", call.unit_flag) ||
      !in.require(kind.vector == (scales != nullptr),
                  kind.vector ? "quantPre wants a tensor of scales"
                              : "a tensor of scales, which quantPre does not take") ||
      !in.dtype(to == Mem::GM || kind.step != FixStep::Copy,
                "L0C to L1 converts to half, bfloat16_t or 8 bits"))
    return false;
  return call.nd ? check_nd(in, call) : check_nz(in, call);
}

const uint64_t* read_scales(Instruction& in, const Range* scales, const Fixpipe& call) {
  if (scales == nullptr) return &call.scalar;
  const uint64_t bytes = call.n * 8ull;
  in.require(bytes <= capacity(Mem::FB), "%u scales are more than the Fixpipe buffer holds",
             call.n);
  return reinterpret_cast<const uint64_t*>(
      in.read({scales->mem, scales->address, bytes}, scales->mem == Mem::L1 ? 32 : 64));
}

// One matrix of m x n: from L0C into `values` as the destination orders it.
class Out {
 public:
  Out(Instruction& in, const Fixpipe& call, const Kind& kind, const uint64_t* scales)
      : in_(in),
        call_(call),
        scales_(scales),
        step_(kind.vector ? 1 : 0),
        row_{kind.step, kind.source == Number::S32, kind.result == Number::S8, call.relu},
        size_(bits_of(call.result) / 8),
        values_(static_cast<size_t>(call.m) * up(call.n, 32) * size_) {}

  void nd(Range dst, const std::byte* from) {
    const uint64_t pitch = call_.n * size_;
    convert(from, [&](uint32_t row, uint32_t column) { return row * pitch + column * size_; });
    store(in_, {dst.mem, dst.address, pitch}, call_.m, call_.dst_stride * size_, align(dst.mem),
          call_.result, values_.data(), pitch);
  }
  void nz(Range dst, const std::byte* from) {
    const uint32_t c0 = call_.split ? 8 : size_ == 1 ? 32 : 16;
    const uint64_t block = static_cast<uint64_t>(call_.m) * c0 * size_;
    convert(from, [&](uint32_t row, uint32_t column) {
      return column / c0 * block + (row * c0 + column % c0) * size_;
    });
    store(in_, {dst.mem, dst.address, block}, up(call_.n, c0) / c0, call_.dst_stride * 32ull,
          align(dst.mem), call_.result, values_.data(), block);
  }

 private:
  uint32_t align(Mem mem) const { return mem == Mem::GM ? uint32_t(size_) : 32; }

  template <class Offset>
  void convert(const std::byte* from, const Offset& offset) {
    const uint32_t piece = call_.split ? 8 : 16;
    for (uint32_t column = 0; column < call_.n; column += piece) {
      const int count = int(std::min(piece, call_.n - column));
      const std::byte* block = from + column / 16 * call_.src_stride * C_ROW + column % 16 * 4;
      for (uint32_t row = 0; row < call_.m; row++)
        fix_convert(row_, block + row * C_ROW, values_.data() + offset(row, column), count,
                    scales_ + column * step_, step_);
    }
  }

  Instruction& in_;
  const Fixpipe& call_;
  const uint64_t* scales_;
  int step_;
  FixRow row_;
  uint64_t size_;
  std::vector<std::byte> values_;
};

void run(Instruction& in, Range dst, Range src, const Range* scales, const Fixpipe& call,
         const Kind& kind) {
  const uint32_t matrices = call.nd ? call.matrices : 1;
  const uint64_t bytes = static_cast<uint64_t>(call.m) * call.n * bits_of(call.result) / 8;
  in.work(Work::move(dst.mem == Mem::GM ? Path::L0C_GM : Path::L0C_L1, matrices * bytes,
                     matrices * static_cast<uint64_t>(call.nd ? call.m : up(call.n, 16) / 16)));
  const std::byte* from = nullptr;
  for (uint32_t i = matrices; i-- > 0;)
    from = in.stride_read({src.mem, src.address + i * call.src_matrix * 1024ull, call.m * C_ROW},
                          up(call.n, 16) / 16, call.src_stride * C_ROW, 64);
  Out out(in, call, kind, read_scales(in, scales, call));
  for (uint32_t i = 0; i < matrices; i++) {
    if (!call.nd) out.nz(dst, from);
    else
      out.nd({dst.mem,
              dst.address + i * static_cast<uint64_t>(call.dst_matrix) * (bits_of(call.result) / 8),
              0},
             from + i * call.src_matrix * 1024ull);
  }
}

}  // namespace

FixRegisters& set_fix_registers(const char* api, At at) {
  Instruction in(api, Pipe::S, at);
  in.work(Work::scalar());
  return core().state<FixRegisters>();
}

void copy_from_l0c(Range dst, Range src, Fixpipe call, At at) {
  const FixRegisters& registers = core().state<FixRegisters>();
  const Kind* kind = find(call);
  call.scalar = registers.scalar;
  call.matrices = registers.matrices;
  call.src_matrix = registers.src_matrix;
  call.dst_matrix = registers.dst_matrix;
  if (registers.unit_flag && call.unit_flag == 0) call.unit_flag = 3;
  const bool vector = kind != nullptr && kind->vector && registers.has_scales;
  fixpipe("DataCopy(L0C)", dst, src, vector ? &registers.scales : nullptr, call, at);
}

void fixpipe(const char* api, Range dst, Range src, const Range* scales, const Fixpipe& call,
             At at) {
  const uint32_t matrices = call.nd ? call.matrices : 1;
  std::vector<Range> parts;  // of L0C, for the unit flags
  if (src.mem == Mem::L0C)
    for (uint32_t i = 0; i < matrices; i++)
      for (uint32_t column = 0; column < call.n; column += 16)
        parts.push_back({src.mem,
                         src.address + i * call.src_matrix * 1024ull +
                             column / 16 * static_cast<uint64_t>(call.src_stride) * C_ROW,
                         up(call.m, 16) * C_ROW});
  for (const Range& part : parts) unit_wait(part, true, call.unit_flag, api, at);
  {
    Instruction in(api, Pipe::FIX, at);
    in.supported(src.mem == Mem::L0C && (dst.mem == Mem::GM || dst.mem == Mem::L1),
                 "%s from %s to %s", api, name(src.mem), name(dst.mem));
    in.supported(call.quant != Quant::Other, "quantPre of this kind");
    const Kind* kind = find(call);
    if (!in.dtype(kind != nullptr, "quantPre does not fit the types of L0C and destination"))
      return;
    if (!check(in, call, dst.mem, scales, *kind)) return;
    run(in, dst, src, scales, call, *kind);
  }
  for (const Range& part : parts) unit_done(part, true, call.unit_flag, api, at);
}

}  // namespace emu
