#include <cuda_runtime.h>

#include <climits>
#include <stdexcept>
#include <utility>

#include "cuda/cuda_block.h"
#include "cuda/cuda_launcher.h"
#include "cuda/device.h"

namespace glt::cuda {
namespace {

// How many blocks a multiprocessor is to hold: where kernels wait for memory more than they compute. Others get all the
// registers that they ask for; left to itself, ptxas spills a few to make room for a block more.
template <typename Body>
constexpr int blocks_per_sm() {
  if constexpr (requires { Body::kBlocksPerSm; }) return Body::kBlocksPerSm;
  return 1;
}

template <typename Body>
__global__ void __launch_bounds__(kThreads, blocks_per_sm<Body>()) run_body(const __grid_constant__ Body body) {
  __shared__ typename Body::Shared shared;
  body(CudaBlock(), shared);
}

class CudaLauncher : public Launcher {
 public:
  CudaLauncher(int device, bool replays) : Launcher(replays), device_(device) {
    const DeviceScope on(device_);
    check_and_clear(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~CudaLauncher() override {
    // What was launched last may still copy from or to the staging memory, if nobody has waited for it. A process that
    // is ending may have lost its context: nothing is left to free then.
    cudaEventSynchronize(done_);
    if (graph_) cudaGraphExecDestroy(graph_);
    if (capture_) cudaStreamDestroy(capture_);
    if (staging_) cudaFreeHost(staging_);
    cudaEventDestroy(done_);
  }
  CudaLauncher(const CudaLauncher&) = delete;
  CudaLauncher& operator=(const CudaLauncher&) = delete;

  void begin(void* stream) override { stream_ = static_cast<cudaStream_t>(stream); }

  void run(const Kernel& kernel, int64_t blocks_x, int64_t blocks_y) override {
    require(blocks_x <= INT_MAX && blocks_y <= 65535, "a kernel of ", blocks_x, " x ", blocks_y,
            " blocks: expected at most 2^31 - 1 x 65535");
    if (blocks_x == 0 || blocks_y == 0) return;
    const DeviceScope on(device_);
    const dim3 blocks(static_cast<unsigned>(blocks_x), static_cast<unsigned>(blocks_y));
    std::visit([&](const auto& body) { run_body<<<blocks, kThreads, 0, stream_>>>(body); }, kernel);
    check_and_clear(cudaGetLastError(), "launch of a sampling kernel");
  }
  // A type without nodes has a table of nothing, at no address.
  void zero(void* data, int64_t bytes) override {
    if (bytes == 0) return;
    const DeviceScope on(device_);
    check_and_clear(cudaMemsetAsync(data, 0, bytes, stream_), "cudaMemsetAsync");
  }
  void to_device(void* device, const void* staging, int64_t bytes) override {
    if (bytes == 0) return;
    const DeviceScope on(device_);
    check_and_clear(cudaMemcpyAsync(device, staging, bytes, cudaMemcpyHostToDevice, stream_), "copy to the device");
  }
  void to_host(void* staging, const void* device, int64_t bytes) override {
    if (bytes == 0) return;
    const DeviceScope on(device_);
    check_and_clear(cudaMemcpyAsync(staging, device, bytes, cudaMemcpyDeviceToHost, stream_), "copy to the host");
  }
  void mark() override {
    const DeviceScope on(device_);
    check_and_clear(cudaEventRecord(done_, stream_), "cudaEventRecord");
  }
  void wait() override {
    const DeviceScope on(device_);
    check_and_clear(cudaEventSynchronize(done_), "sampling on the device");
  }
  void* staging(int64_t bytes) override {
    if (bytes > staging_bytes_) {
      const DeviceScope on(device_);
      if (staging_) check_and_clear(cudaFreeHost(staging_), "cudaFreeHost");
      staging_ = nullptr;
      staging_bytes_ = 0;
      check_and_clear(cudaMallocHost(&staging_, bytes), "cudaMallocHost");
      staging_bytes_ = bytes;
    }
    return staging_;
  }

 private:
  // On a stream of its own: torch's current one may be the default stream, which cannot be captured.
  bool record(const std::function<void()>& launches) override {
    const DeviceScope on(device_);
    if (graph_) check_and_clear(cudaGraphExecDestroy(graph_), "cudaGraphExecDestroy");
    graph_ = nullptr;
    if (!capture_) check_and_clear(cudaStreamCreateWithFlags(&capture_, cudaStreamNonBlocking), "cudaStreamCreate");
    // Other threads may go on allocating and copying meanwhile.
    if (failed(cudaStreamBeginCapture(capture_, cudaStreamCaptureModeThreadLocal))) return false;
    const cudaStream_t caller = std::exchange(stream_, capture_);
    bool whole = true;
    try {
      launches();
    } catch (const std::runtime_error&) {
      whole = false;  // what launches alone throw too, if it was not the capture
    }
    stream_ = caller;
    cudaGraph_t graph = nullptr;
    if (failed(cudaStreamEndCapture(capture_, &graph)) || !graph) return false;
    whole = whole && !failed(cudaGraphInstantiate(&graph_, graph, 0));
    check_and_clear(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return whole;
  }
  void replay() override {
    const DeviceScope on(device_);
    check_and_clear(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch");
  }
  static bool failed(cudaError_t code) {
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code != cudaSuccess;
  }

  const int device_;
  cudaStream_t stream_ = nullptr, capture_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  cudaEvent_t done_ = nullptr;
  void* staging_ = nullptr;
  int64_t staging_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Launcher> cuda_launcher(int device, bool replays) {
  return std::make_unique<CudaLauncher>(device, replays);
}

}  // namespace glt::cuda
