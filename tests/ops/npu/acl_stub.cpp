// What the binding gets from CANN's runtime, for tests on a host, and the last launch.
#include <cstdint>
#include <cstring>

#include "recorder.h"

static char soc[32] = "Ascend910_9392";
static int64_t cores = 24;
static Launch last;

extern "C" {
const char* aclrtGetSocName() { return soc; }
int aclrtGetDevice(int32_t* device) {
  *device = 0;
  return 0;
}
int aclrtGetDeviceInfo(uint32_t, int which, int64_t* value) {
  *value = which == 102 ? cores : -1;  // ACL_DEV_ATTR_CUBE_CORE_NUM
  return 0;
}
__attribute__((visibility("default"))) void test_device(const char* name, int64_t count) {
  std::strncpy(soc, name, sizeof soc - 1);
  cores = count;
}
__attribute__((visibility("default"))) Launch* test_last() { return &last; }
}
