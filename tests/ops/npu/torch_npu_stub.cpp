// What the binding gets from torch_npu, for tests on a host: queued work runs at once
// and stays until the next. A stream asked for with another argument than false has another number.
#include <c10/core/Stream.h>

#include <functional>
#include <string>

namespace c10_npu {
class __attribute__((visibility("default"))) NPUStream {
 public:
  explicit NPUStream(c10::Stream stream) : stream_(stream) {}
  ~NPUStream() {}
  void* stream(const bool need_empty) const;

 private:
  c10::Stream stream_;
};
void* NPUStream::stream(const bool need_empty) const {
  return reinterpret_cast<void*>(need_empty ? 0xbad : 0x57);
}
NPUStream getCurrentNPUStream(signed char) {
  return NPUStream(c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CPU)));
}
}  // namespace c10_npu

namespace at_npu::native {
class OpCommand {
 public:
  static void RunOpApiV2(const std::string&, const std::function<int()>&, bool);
};
void OpCommand::RunOpApiV2(const std::string&, const std::function<int()>& run, bool) {
  static std::function<int()> queued;  // with the tensors that it keeps
  queued = run;
  queued();
}
}  // namespace at_npu::native
