// CUDA's return codes as exceptions, the device that calls of this thread mean, and host memory that it reads in place.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "core/check.h"

namespace glt::cuda {

// A failed call must never end the process or pass unnoticed.
inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess)
    throw std::runtime_error(text(what, ": ", cudaGetErrorName(code), ", ", cudaGetErrorString(code)));
}

// The error of a failed call stays in this runtime until it is asked for: that must not be the next launch.
inline void check_and_clear(cudaError_t code, const std::string& what) {
  if (code != cudaSuccess) (void)cudaGetLastError();
  check(code, what.c_str());
}

// The device that CUDA calls of this thread mean, for the length of a scope.
//
// torch has a CUDA runtime of its own, whose choice of device ours need not share. Nor need another thread's capture of
// a CUDA graph, torch.cuda.graph() of a trainer for example, forbid what is done here, which has nothing to do with it;
// but for waiting for the whole device, which CUDA refuses whatever the mode.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check_and_clear(cudaGetDevice(&before_), "cudaGetDevice");
    check_and_clear(cudaSetDevice(device), text("cudaSetDevice(", device, ")"));
    exchanged_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess;
    if (!exchanged_) (void)cudaGetLastError();  // of work before this, perhaps: the call that waits for it reports it
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

// Registers [address, address + num_bytes), whole pages, for all devices; `device` is whose context does it.
// `read_only`: the device will not write, which mapped files that this process may only read need; the flag is passed
// on where the device knows it. Throws std::runtime_error naming the CUDA error, also if some of the pages are
// registered already; no error stays behind to surface in another call.
void register_host(uint64_t address, int64_t num_bytes, bool read_only, int device);

// Undoes register_host for the same address, after all work of that device is done.
void unregister_host(uint64_t address, int device);

// Lets `device` read memory of `peer`. Throws std::runtime_error if it cannot.
void enable_peer(int device, int peer);

}  // namespace glt::cuda
