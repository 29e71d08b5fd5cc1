// Shows that the generator is the same on host and device: everything that samples on the device builds on it.
#include <cuda_runtime.h>

#include <cstdint>

#include "core/rng.h"
#include "cuda/device.h"

namespace {

__global__ void node_draws_kernel(const int64_t* nodes, const uint64_t* bounds, int64_t n, uint64_t batch_key,
                                  uint32_t hop, int draws, uint64_t* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    glt::NodeDraws draw(batch_key, hop, 0, static_cast<uint64_t>(nodes[i]));
    for (int d = 0; d < draws; ++d) out[i * draws + d] = glt::bounded(draw(static_cast<uint32_t>(d)), bounds[i]);
  }
}

// Device memory for the length of a call; the first error stays in `code`.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(int64_t n, cudaError_t& code) : bytes_(n * sizeof(T)), code_(code) { run(cudaMalloc(&data_, bytes_)); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return static_cast<T*>(data_); }
  void from_host(const T* host) { run(cudaMemcpy(data_, host, bytes_, cudaMemcpyHostToDevice)); }
  void to_host(T* host) { run(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost)); }

 private:
  void run(cudaError_t code) {
    if (code_ == cudaSuccess) code_ = code;
  }

  void* data_ = nullptr;
  size_t bytes_;
  cudaError_t& code_;
};

}  // namespace

// As node_draws of test/core/native_rng.cc, on a device. Returns the CUDA error, 0 for none.
extern "C" __attribute__((visibility("default"))) int device_node_draws(const int64_t* nodes, const uint64_t* bounds,
                                                                        int64_t n, uint64_t batch_key, uint32_t hop,
                                                                        int draws, uint64_t* out, int device) {
  const glt::cuda::DeviceScope scope(device);
  cudaError_t code = cudaSuccess;
  DeviceArray<int64_t> device_nodes(n, code);
  DeviceArray<uint64_t> device_bounds(n, code), device_out(n * draws, code);
  device_nodes.from_host(nodes);
  device_bounds.from_host(bounds);
  if (code != cudaSuccess) return code;
  constexpr int kThreads = 256;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  node_draws_kernel<<<static_cast<unsigned>(blocks), kThreads>>>(device_nodes.data(), device_bounds.data(), n,
                                                                 batch_key, hop, draws, device_out.data());
  code = cudaGetLastError();
  device_out.to_host(out);
  return code;
}
