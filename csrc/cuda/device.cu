#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "cuda/device.h"

namespace glt::cuda {

void require_compiled_for(int device) {
  constexpr int kCompiled[] = {__CUDA_ARCH_LIST__};  // ascending, 10 * (10 * major + minor)
  constexpr int kNumCompiled = static_cast<int>(sizeof(kCompiled) / sizeof(kCompiled[0]));
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device, "compute capability");
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device, "compute capability");
  const int capability = 10 * (10 * major + minor);
  bool runs = capability >= kCompiled[kNumCompiled - 1];
  std::string names;
  for (const int each : kCompiled) {
    runs |= each / 100 == major && each <= capability;
    names += text(names.empty() ? "" : ", ", each / 100, ".", each / 10 % 10);
  }
  if (!runs)
    throw std::runtime_error(
        text("cuda:", device, " has compute capability ", major, ".", minor, ", and this build of glt has kernels for ",
             names, " and newer: build glt from source with GLT_CUDA_ARCHS=", major, minor, ", or sample on the CPU"));
}

bool reads_host_memory(int device) {
  return attribute(cudaDevAttrPageableMemoryAccessUsesHostPageTables, device, "access by the host's page tables") != 0;
}

void register_host(uint64_t address, int64_t num_bytes, bool read_only, int device) {
  const DeviceScope scope(device);
  unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  if (read_only && attribute(cudaDevAttrHostRegisterReadOnlySupported, device, "read-only registration"))
    flags |= cudaHostRegisterReadOnly;
  void* const host = reinterpret_cast<void*>(address);
  const cudaError_t code = cudaHostRegister(host, num_bytes, flags);
  check_and_clear(code, text("cudaHostRegister of ", num_bytes, " bytes"));
  void* there = nullptr;
  const cudaError_t found = cudaHostGetDevicePointer(&there, host, 0);
  if (found == cudaSuccess && there == host) return;
  (void)cudaGetLastError();
  check_and_clear(cudaHostUnregister(host), "cudaHostUnregister");
  check(found, "cudaHostGetDevicePointer");
  throw std::runtime_error(
      text("cuda:", device, " reads pinned memory at other addresses than the host does: not supported"));
}

void unregister_host(uint64_t address, int device) {
  const DeviceScope scope(device);
  check_and_clear(cudaDeviceSynchronize(), "work under way on the device, before cudaHostUnregister");
  check_and_clear(cudaHostUnregister(reinterpret_cast<void*>(address)), "cudaHostUnregister");
}

}  // namespace glt::cuda
