#include <cuda_runtime.h>

#include "cuda/device.h"

namespace glt::cuda {

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

void enable_peer(int device, int peer) {
  if (peer == device) return;
  const DeviceScope scope(device);
  int can = 0;
  check_and_clear(cudaDeviceCanAccessPeer(&can, device, peer), "cudaDeviceCanAccessPeer");
  if (!can)
    throw std::runtime_error(
        text("cuda:", device, " cannot read memory of cuda:", peer, ": put them in different device groups"));
  const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return;
  }
  check_and_clear(code, text("cudaDeviceEnablePeerAccess to cuda:", peer));
}

}  // namespace glt::cuda
