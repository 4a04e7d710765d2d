// What the host sides of all kernels share: the device, the stream, checks of tensors.
#pragma once

#include <ATen/ATen.h>
#include <acl/acl.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torch_npu/csrc/core/npu/NPUStream.h"
#include "torch_npu/csrc/framework/OpCommand.h"

namespace glm5 {

using Optional = std::optional<at::Tensor>;

// AICs of the current device, which must be what the kernels were compiled for.
inline int32_t cube_cores() {
  const char* name = aclrtGetSocName();
  const std::string soc = name == nullptr ? "" : name;
  TORCH_CHECK(soc.rfind("Ascend910B", 0) == 0 || soc.rfind("Ascend910_93", 0) == 0,
              "the AscendC kernels are for Atlas A2 and A3 (architecture dav-2201), not for '", soc,
              "'; use backend 'torch_npu' or 'reference'");
  int32_t device = 0;
  int64_t cores = 0;
  TORCH_CHECK(aclrtGetDevice(&device) == ACL_SUCCESS, "aclrtGetDevice failed");
  TORCH_CHECK(aclrtGetDeviceInfo(uint32_t(device), ACL_DEV_ATTR_CUBE_CORE_NUM, &cores) ==
                      ACL_SUCCESS &&
                  cores > 0,
              "the number of cube cores of device ", device, " is unknown");
  return int32_t(cores);
}

// Puts a launch into torch_npu's queue, in order with its other operators. `keep` holds the tensors
// whose memory the launch names until it is done.
inline void enqueue(const char* name, std::vector<at::Tensor> keep,
                    std::function<void(void*)> launch) {
  const auto stream = c10_npu::getCurrentNPUStream().stream(false);
  at_npu::native::OpCommand::RunOpApiV2(
      name, [keep = std::move(keep), launch = std::move(launch), stream]() -> int {
        launch(stream);
        return 0;
      });
}

inline uint8_t* address(const at::Tensor& tensor) {
  return static_cast<uint8_t*>(const_cast<void*>(tensor.const_data_ptr()));
}

inline uint8_t* address(const Optional& tensor) {
  return tensor.has_value() && tensor->numel() != 0 ? address(*tensor) : nullptr;
}

inline at::Tensor workspace(int64_t bytes, const at::Tensor& like) {
  return at::empty({bytes}, like.options().dtype(at::kByte));
}

// A tensor without gaps, of this dtype and on the device of `first`.
inline void check(const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  at::IntArrayRef sizes, const at::Tensor& first) {
  TORCH_CHECK(tensor.scalar_type() == dtype, name, " must be ", dtype, ", not ",
              tensor.scalar_type());
  TORCH_CHECK(tensor.sizes() == sizes, name, " must have shape ", sizes, ", not ", tensor.sizes());
  TORCH_CHECK(tensor.is_contiguous(), name, " must have no gaps");
  TORCH_CHECK(tensor.device() == first.device(), name, " must be on ", first.device(), ", not on ",
              tensor.device());
}

inline void check(const char* name, const Optional& tensor, at::ScalarType dtype,
                  at::IntArrayRef sizes, const at::Tensor& first) {
  if (tensor.has_value()) check(name, *tensor, dtype, sizes, first);
}

}  // namespace glm5
