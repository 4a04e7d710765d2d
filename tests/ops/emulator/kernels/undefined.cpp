// Undefined behaviour of C++, compiled with -fsanitize=undefined.
#include "common.h"

CHECK_KERNEL(undefined) {
  (void)in, (void)out, (void)work;
  volatile int32_t big = 0x7fffffff, sink = 0, table[4] = {1, 2, 3, 4};
  if (fault == 1) sink = big + 1;  // finds undefined 1 UNDEFINED
  if (fault == 2) sink = 1 << big;  // finds undefined 2 UNDEFINED
  if (fault == 3) sink = table[(big & 3) + 1];  // finds undefined 3 UNDEFINED
  (void)sink;
}
