// Handlers of -fsanitize=undefined: what the compiler finds becomes a finding of the launch, at its
// line of the kernel. They replace the sanitiser's own library. A kernel goes on, as it does there.
#include "machine.h"

namespace {

struct Where {  // how the compiler describes a place in the source
  const char* file;
  uint32_t line, column;
};

void undefined(const char* what, const Where* where) {
  if (emu::current == nullptr) return;
  emu::CoreState& core = emu::here();
  emu::Machine& machine = *core.machine;
  const uint32_t site = machine.report.sites.find_at("C++", where->file, where->line, where->column);
  machine.find(emu::Class::UNDEFINED, core, -1, site, what);
}

}  // namespace

// Every handler gets a structure that begins with the place. Arguments beyond it are values that the
// message does not show.
#define HANDLER(name, text)                                        \
  extern "C" void __ubsan_handle_##name(const Where* where);       \
  extern "C" void __ubsan_handle_##name(const Where* where) { undefined(text, where); }

HANDLER(add_overflow, "signed overflow of an addition")
HANDLER(sub_overflow, "signed overflow of a subtraction")
HANDLER(mul_overflow, "signed overflow of a multiplication")
HANDLER(negate_overflow, "signed overflow of a negation")
HANDLER(divrem_overflow, "division by zero, or its result does not fit")
HANDLER(shift_out_of_bounds, "a shift by too many bits, or of a negative value")
HANDLER(out_of_bounds, "an index outside the array")
HANDLER(builtin_unreachable, "code that cannot be reached is reached")
HANDLER(missing_return, "a function that returns a value ends without one")
HANDLER(vla_bound_not_positive, "an array of no elements")
HANDLER(load_invalid_value, "a value that its type does not have")
HANDLER(type_mismatch_v1, "access through a null or misaligned pointer")
HANDLER(alignment_assumption, "an assumed alignment does not hold")
HANDLER(nonnull_arg, "null for an argument that must not be null")
HANDLER(pointer_overflow, "a pointer outside its object")
HANDLER(float_cast_overflow, "a float beyond the range of the integer")
HANDLER(invalid_builtin, "an argument that the builtin does not take")

extern "C" void __ubsan_handle_nonnull_return_v1(const void*, const Where* where);
extern "C" void __ubsan_handle_nonnull_return_v1(const void*, const Where* where) {
  undefined("null from a function that must not return it", where);
}
