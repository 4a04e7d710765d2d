// Printing, assertions and declared kernel types.
#include "emu/system.h"

#include <cstdarg>
#include <cstdio>

#include "ascendc/types.h"
#include "machine.h"

namespace emu {

void declare_type(int kernel_meta_type, At at) {
  using namespace AscendC;
  Machine& machine = *here().machine;
  const Launch launch = machine.entry.launch;
  const bool same =
      (kernel_meta_type == KERNEL_TYPE_AIV_ONLY && launch == Launch::VECTOR) ||
      (kernel_meta_type == KERNEL_TYPE_AIC_ONLY && launch == Launch::CUBE) ||
      (kernel_meta_type == KERNEL_TYPE_MIX_AIV_1_0 && launch == Launch::MIX01) ||
      (kernel_meta_type == KERNEL_TYPE_MIX_AIC_1_2 && launch == Launch::MIX12);
  if (same) return;
  machine.find(Class::PARAM, here(), -1, machine.site("KERNEL_TASK_TYPE_DEFAULT", at),
               "the kernel declares another type of cores than it is launched with");
}

void print(const char* format, ...) {
  va_list list;
  va_start(list, format);
  std::vfprintf(stderr, format, list);
  va_end(list);
  std::fflush(stderr);
}

void fail_assertion(const char* condition, At at) {
  Machine& machine = *here().machine;
  machine.find(Class::ASSERT, here(), -1, machine.site("assert", at),
               std::string("false: ") + condition);
  stop();
}

}  // namespace emu
