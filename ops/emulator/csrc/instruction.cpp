// Issue of an instruction, and the checks of the memory that it touches.
#include "emu/instruction.h"

#include <cstdarg>
#include <cstdio>

#include "access.h"
#include "machine.h"

namespace emu {

namespace {

std::string text_of(const char* format, va_list list) {
  char text[512];
  std::vsnprintf(text, sizeof text, format, list);
  return text;
}

}  // namespace

Instruction::Instruction(const char* api, Pipe pipe, At at)
    : pipe_(pipe), ordered_(pipe == Pipe::S || pipe == Pipe::M) {
  Machine& machine = *current->machine;
  machine.switch_point();
  CoreState& core = here();
  site_ = core.last_site = machine.site(api, at);
  if (!core.has(pipe)) {
    report(Class::PARAM, "an %s has no pipe %s", is_cube() ? "AIC" : "AIV", name(pipe));
    stop();
  }
  Lane& lane = core.lane(pipe);
  if (pipe != Pipe::S) {
    lane.clock.join(core.lane(Pipe::S).clock);
  }
  if (machine.trace) machine.trace->issue(core.lane_number(pipe), site_);
  tick_ = ++lane.ticks;
  lane.sites.push_back(site_);
  ++lane.counters.instructions;
}

Instruction::~Instruction() = default;

void Instruction::in_order(bool ordered) { ordered_ = ordered; }

void Instruction::work(const Work& work) {
  CoreState& core = here();
  core.lane(pipe_).counters.add(work);
  if (core.machine->trace) core.machine->trace->last().work = work;
}

const std::byte* Instruction::read(Range range, uint32_t align) {
  return stride_read(range, 1, 0, align);
}

std::byte* Instruction::write(Range range, uint32_t align) {
  return stride_write(range, 1, 0, align);
}

const std::byte* Instruction::stride_read(Range first, uint64_t count, uint64_t stride,
                                          uint32_t align) {
  return access(first, count, stride, align, GmAccess::Read);
}

std::byte* Instruction::stride_write(Range first, uint64_t count, uint64_t stride,
                                     uint32_t align) {
  return access(first, count, stride, align, GmAccess::Write);
}

std::byte* Instruction::atomic(Range range, uint32_t align) {
  return access(range, 1, 0, align, GmAccess::Atomic);
}

std::byte* Instruction::access(Range first, uint64_t count, uint64_t stride, uint32_t align,
                               int kind) {
  Touch touch{here(), pipe_, tick_, site_, ordered_, GmAccess::Kind(kind)};
  return touch.all(first, count, stride, align);
}

bool Instruction::require(bool ok, const char* format, ...) {
  if (ok) return true;
  va_list list;
  va_start(list, format);
  here().machine->find(Class::PARAM, here(), int(pipe_), site_, text_of(format, list));
  va_end(list);
  return false;
}

bool Instruction::dtype(bool ok, const char* what) {
  if (!ok) here().machine->find(Class::DTYPE, here(), int(pipe_), site_, what);
  return ok;
}

void Instruction::supported(bool ok, const char* format, ...) {
  if (ok) return;
  va_list list;
  va_start(list, format);
  here().machine->find(Class::UNSUPPORTED, here(), int(pipe_), site_, text_of(format, list));
  va_end(list);
  stop();
}

void Instruction::report(Class what, const char* format, ...) {
  va_list list;
  va_start(list, format);
  here().machine->find(what, here(), int(pipe_), site_, text_of(format, list));
  va_end(list);
}

bool Instruction::overlap(Range dst, Range src, bool equal_allowed) {
  if (dst.mem != src.mem || dst.address >= src.address + src.bytes ||
      src.address >= dst.address + dst.bytes) {
    return true;
  }
  if (equal_allowed && dst.address == src.address && dst.bytes == src.bytes) return true;
  char text[160];
  std::snprintf(text, sizeof text,
                "source and destination share bytes: %s +0x%llx, %llu bytes and +0x%llx, %llu bytes",
                name(dst.mem), (unsigned long long)src.address, (unsigned long long)src.bytes,
                (unsigned long long)dst.address, (unsigned long long)dst.bytes);
  here().machine->find(Class::OVERLAP, here(), int(pipe_), site_, text,
                       Place{dst.mem, dst.address, dst.mem != Mem::GM});
  return false;
}

}  // namespace emu
