// Kernels that cannot go on.
#include <cstring>
#include <stdexcept>

#include "common.h"

namespace {

int deep(int n) {
  volatile char space[4096];
  space[n % 4096] = char(n);
  return n == 0 ? space[0] : deep(n - 1) + space[n % 4096];
}

}  // namespace

CHECK_KERNEL(faults) {
  (void)out, (void)work;
  TPipe pipe;
  TBuf<> buffer;
  pipe.InitBuffer(buffer, N * 4);
  LocalTensor<float> x = buffer.Get<float>();
  DataCopy(x, floats(in), N);  // finds faults 1 CRASH ! finds faults 4 TIMEOUT ! finds faults 2 CRASH ! finds faults 6 CRASH
  volatile int zero = fault - fault;
  if (fault == 1) *reinterpret_cast<volatile int*>(intptr_t(zero)) = 1;
  if (fault == 2) zero = deep(1 << 20);
  if (fault == 3) assert(zero == 1);  // finds faults 3 ASSERT
  while (fault == 4) zero = zero + 1;
  while (fault == 5) PipeBarrier<PIPE_V>();  // finds faults 5 TIMEOUT
  if (fault == 6) throw std::runtime_error("thrown");
}
