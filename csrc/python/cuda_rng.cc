#include <cuda_runtime.h>

#include "cuda/draws.h"
#include "cuda/error.h"
#include "python/arrays.h"
#include "python/without_gil.h"

namespace glt::python {
namespace {

// Device memory for the length of a call.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t n) : bytes_(n * sizeof(T)) { cuda::check(cudaMalloc(&data_, bytes_), "cudaMalloc"); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() { return static_cast<T*>(data_); }
  void from_host(const void* host) {
    cuda::check(cudaMemcpy(data_, host, bytes_, cudaMemcpyHostToDevice), "copy to the device");
  }
  void to_host(void* host) { cuda::check(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "copy to the host"); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

}  // namespace

void register_cuda_rng(py::module_& m) {
  m.def(
      "cuda_draws",
      [](const py::array& nodes, const py::array& bounds, uint64_t batch_key, uint32_t hop, int draws, py::array out) {
        const int64_t n = nodes.size();
        require_size(bounds, "bounds", n);
        require_size(out, "out", n * draws);
        const auto* node = read<int64_t>(nodes, "nodes");
        const auto* bound = read<uint64_t>(bounds, "bounds");
        auto* result = write<uint64_t>(out, "out");
        WithoutGil nogil;
        DeviceArray<int64_t> device_nodes(n);
        DeviceArray<uint64_t> device_bounds(n), device_out(n * draws);
        device_nodes.from_host(node);
        device_bounds.from_host(bound);
        cuda::node_draws(device_nodes.data(), device_bounds.data(), n, batch_key, hop, draws, device_out.data(),
                         nullptr);
        device_out.to_host(result);
      },
      "The first draws of each node, bounded, computed on the GPU; equal to host_draws.", py::arg("nodes"),
      py::arg("bounds"), py::arg("batch_key"), py::arg("hop"), py::arg("draws"), py::arg("out"));
}

}  // namespace glt::python
