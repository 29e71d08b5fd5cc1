// CUDA's return codes as exceptions, the device that calls of this thread mean, and host memory that it reads in place.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
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

inline int attribute(cudaDeviceAttr which, int device, const char* name) {
  int value = 0;
  check_and_clear(cudaDeviceGetAttribute(&value, which, device), name);
  return value;
}

// Throws std::runtime_error, saying what to do, unless this build has kernels for `device`: binaries run on the GPUs of
// their generation from their own on, and PTX of the newest on all later ones. A launch would say "invalid device
// function" or "no kernel image".
void require_compiled_for(int device);

// A function of the driver, which the runtime has loaded; `version` of CUDA is that of its signature.
template <typename Function>
Function driver_function(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status);
#else
  (void)version;
  const cudaError_t code = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#endif
  check_and_clear(code, text("looking up ", name));
  if (!found) throw std::runtime_error(text("NVIDIA's driver has no ", name, ": update it"));
  return reinterpret_cast<Function>(found);
}

// The device that CUDA calls of this thread mean, for the length of a scope.
//
// torch has a CUDA runtime of its own, whose choice of device ours need not share. Nor need another thread's capture of
// a CUDA graph, torch.cuda.graph() of a trainer for example, forbid what is done here, which has nothing to do with it;
// but for waiting for the whole device, which CUDA refuses whatever the mode.
//
// Afterwards the thread has the context that it had, perhaps none. To ask the runtime for the device and set that again
// would do as well, but where the thread had none, the runtime names device 0 and makes a context there: hundreds of MB
// on the first GPU for each process that uses another one.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    static std::atomic<uint64_t> known{0};  // devices that there are kernels for
    const uint64_t bit = uint64_t{1} << (device & 63);
    if (device > 63 || !(known.load(std::memory_order_relaxed) & bit)) {
      require_compiled_for(device);
      known.fetch_or(bit, std::memory_order_relaxed);
    }
    const CUresult code = driver().get_current(&before_);
    // Without the driver's start there is no context: the next call starts it, or says why it cannot.
    if (code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_INITIALIZED)
      throw std::runtime_error(text("cuCtxGetCurrent: error ", static_cast<int>(code)));
    check_and_clear(cudaSetDevice(device), text("cudaSetDevice(", device, ")"));
    exchanged_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess;
    if (!exchanged_) (void)cudaGetLastError();  // of work before this, perhaps: the call that waits for it reports it
  }
  ~DeviceScope() {
    if (exchanged_) (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    (void)driver().set_current(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  struct Driver {
    CUresult (*get_current)(CUcontext*) = driver_function<CUresult (*)(CUcontext*)>("cuCtxGetCurrent", 4000);
    CUresult (*set_current)(CUcontext) = driver_function<CUresult (*)(CUcontext)>("cuCtxSetCurrent", 4000);
  };
  static const Driver& driver() {
    static const Driver found;
    return found;
  }

  CUcontext before_ = nullptr;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool exchanged_ = false;
};

// Registers [address, address + num_bytes), whole pages, for all devices; `device` is whose context does it.
// `read_only`: the device will not write, which mapped files that this process may only read need; the flag is passed
// on where the device knows it. Throws std::runtime_error naming the CUDA error, also if some of the pages are
// registered already; no error stays behind to surface in another call.
void register_host(uint64_t address, int64_t num_bytes, bool read_only, int device);

// Undoes register_host for the same address, after all work of that device is done.
void unregister_host(uint64_t address, int device);

// Whether a device reads all memory of the process where it is, without registration: by the page tables of the host
// (ATS), as on GH200.
bool reads_host_memory(int device);

}  // namespace glt::cuda
