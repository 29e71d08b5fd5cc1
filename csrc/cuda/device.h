// The device that CUDA calls of this thread mean, for the length of a scope.
#pragma once

#include <string>

#include "cuda/error.h"

namespace glt::cuda {

// The error of a failed call stays in this runtime until somebody asks: that must not be the next launch.
inline void check_and_clear(cudaError_t code, const std::string& what) {
  if (code != cudaSuccess) (void)cudaGetLastError();
  check(code, what.c_str());
}

// torch has a CUDA runtime of its own, whose choice of device ours need not share. Nor need another thread's capture of
// a CUDA graph, torch.cuda.graph() of a trainer for example, forbid what is done here, which has nothing to do with it;
// but for waiting for the whole device, which CUDA refuses whatever the mode.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check_and_clear(cudaGetDevice(&before_), "cudaGetDevice");
    check_and_clear(cudaSetDevice(device), text("cudaSetDevice(", device, ")"));
    exchanged_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess;
    if (!exchanged_) (void)cudaGetLastError();  // of work before this, perhaps: whoever waits for it is told
  }
  ~DeviceScope() {
    if (exchanged_) (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool exchanged_ = false;
};

inline int attribute(cudaDeviceAttr which, int device, const char* name) {
  int value = 0;
  check_and_clear(cudaDeviceGetAttribute(&value, which, device), name);
  return value;
}

}  // namespace glt::cuda
