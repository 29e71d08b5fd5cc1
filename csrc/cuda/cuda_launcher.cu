#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <variant>

#include "core/rng.h"
#include "cuda/device.h"
#include "cuda/launcher.h"

namespace glt::cuda {
namespace {

// A block of threads as a GPU runs it.
class CudaBlock {
 public:
  __device__ __forceinline__ int x() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int y() const { return static_cast<int>(blockIdx.y); }

  template <typename Step>
  __device__ __forceinline__ void each(const Step& step) const {
    step(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

  static __device__ __forceinline__ void atomic_max(uint32_t* word, uint32_t value) { atomicMax(word, value); }
  static __device__ __forceinline__ void atomic_max(uint64_t* word, uint64_t value) {
    atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
  }
  static __device__ __forceinline__ void atomic_min(uint64_t* word, uint64_t value) {
    atomicMin(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
  }
  static __device__ __forceinline__ uint32_t atomic_add(uint32_t* word, uint32_t value) {
    return atomicAdd(word, value);
  }
  static __device__ __forceinline__ uint64_t atomic_add(uint64_t* word, uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
  }
  static __device__ __forceinline__ uint32_t compare_and_swap(uint32_t* word, uint32_t expected, uint32_t value) {
    return atomicCAS(word, expected, value);
  }
  // Not from the L1 cache, which does not see what other multiprocessors change.
  template <typename Word>
  static __device__ __forceinline__ Word load(const Word* word) {
    return __ldcg(word);
  }
};

// How many blocks a multiprocessor is to hold: where kernels wait for memory more than they compute. Others get all the
// registers that they ask for; left to itself, ptxas spills some to make room for another block.
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
    // A thread that waits for it sleeps: samplers have few cores to spin on.
    const unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync;
    check_and_clear(cudaEventCreateWithFlags(&done_, flags), "cudaEventCreate");
  }
  ~CudaLauncher() override {
    try {
      const DeviceScope on(device_);
      // What was launched last may still copy from or to the staging memory, if no call has waited for it.
      cudaEventSynchronize(done_);
      if (recorded_) cudaGraphExecDestroy(recorded_);
      if (staging_) cudaFreeHost(staging_);
      cudaEventDestroy(done_);
      (void)cudaGetLastError();            // none of the next launch
    } catch (const std::runtime_error&) {  // a process that is ending has lost its context: nothing is left to free
    }
  }
  CudaLauncher(const CudaLauncher&) = delete;
  CudaLauncher& operator=(const CudaLauncher&) = delete;

  void begin(void* stream) override { stream_ = static_cast<cudaStream_t>(stream); }

  void run(const Kernel& kernel, int64_t blocks_x, int64_t blocks_y) override {
    require(blocks_x <= INT_MAX && blocks_y <= 65535, "a kernel of ", blocks_x, " x ", blocks_y,
            " blocks: expected at most 2^31 - 1 x 65535");
    if (blocks_x == 0 || blocks_y == 0) return;
    const dim3 blocks(static_cast<unsigned>(blocks_x), static_cast<unsigned>(blocks_y));
    std::visit(
        [&]<typename Body>(const Body& body) {
          if (graph_)
            add_kernel(body, blocks);
          else
            run_body<<<blocks, kThreads, 0, stream_>>>(body);
        },
        kernel);
    check_and_clear(cudaGetLastError(), "launch of a sampling kernel");
  }
  // A type without nodes has a table of nothing, at no address.
  void zero(void* data, int64_t bytes) override {
    require(!graph_, "memory is set to zero while a batch is recorded: expected before it");
    if (bytes == 0) return;
    check_and_clear(cudaMemsetAsync(data, 0, bytes, stream_), "cudaMemsetAsync");
  }
  void to_device(void* device, const void* staging, int64_t bytes) override {
    if (bytes == 0) return;
    copy(device, staging, bytes, cudaMemcpyHostToDevice, "copy to the device");
  }
  void to_host(void* staging, const void* device, int64_t bytes) override {
    if (bytes == 0) return;
    copy(staging, device, bytes, cudaMemcpyDeviceToHost, "copy to the host");
  }
  void mark() override { check_and_clear(cudaEventRecord(done_, stream_), "cudaEventRecord"); }
  void wait() override { check_and_clear(cudaEventSynchronize(done_), "sampling on the device"); }
  void* staging(int64_t bytes) override {
    if (bytes > staging_bytes_) {
      if (staging_) check_and_clear(cudaFreeHost(staging_), "cudaFreeHost");
      staging_ = nullptr;
      staging_bytes_ = 0;
      check_and_clear(cudaMallocHost(&staging_, bytes), "cudaMallocHost");
      staging_bytes_ = bytes;
    }
    return staging_;
  }

 private:
  void enter() override { on_.emplace(device_); }
  void leave() override { on_.reset(); }

  // The graph is built node by node. Capturing a stream would do the same, but while any thread captures, CUDA refuses
  // cudaDeviceSynchronize in all of them, torch.cuda.synchronize() of a trainer for example, and spoils the capture.
  bool record(const std::function<void()>& launches) override {
    if (recorded_) check_and_clear(cudaGraphExecDestroy(recorded_), "cudaGraphExecDestroy");
    recorded_ = nullptr;
    check_and_clear(cudaGraphCreate(&graph_, 0), "cudaGraphCreate");
    last_node_ = nullptr;
    cudaError_t code = cudaSuccess;
    try {
      launches();
      code = cudaGraphInstantiate(&recorded_, graph_, 0);
    } catch (...) {
      end_graph();
      throw;
    }
    end_graph();
    if (code == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      recorded_ = nullptr;
      return false;
    }
    check_and_clear(code, "cudaGraphInstantiate");
    return true;
  }
  void end_graph() {
    (void)cudaGraphDestroy(graph_);
    graph_ = nullptr;
  }

  // Nodes follow one another. add(node, before, number of nodes before) makes one.
  template <typename Add>
  void add_node(const Add& add, const char* what) {
    cudaGraphNode_t node = nullptr;
    check_and_clear(add(&node, &last_node_, last_node_ ? 1 : 0), what);
    last_node_ = node;
  }
  template <typename Body>
  void add_kernel(const Body& body, dim3 blocks) {
    void* arguments[] = {const_cast<Body*>(&body)};
    cudaKernelNodeParams kernel{};
    kernel.func = reinterpret_cast<void*>(run_body<Body>);
    kernel.gridDim = blocks;
    kernel.blockDim = dim3(kThreads);
    kernel.kernelParams = arguments;  // copied by the call
    add_node(
        [&](auto* node, auto* before, size_t n) { return cudaGraphAddKernelNode(node, graph_, before, n, &kernel); },
        "cudaGraphAddKernelNode");
  }
  void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const char* what) {
    if (!graph_) return check_and_clear(cudaMemcpyAsync(to, from, bytes, kind, stream_), what);
    add_node([&](auto* node, auto* before,
                 size_t n) { return cudaGraphAddMemcpyNode1D(node, graph_, before, n, to, from, bytes, kind); },
             what);
  }

  void replay() override { check_and_clear(cudaGraphLaunch(recorded_, stream_), "cudaGraphLaunch"); }

  const int device_;
  std::optional<DeviceScope> on_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t recorded_ = nullptr;
  cudaGraph_t graph_ = nullptr;  // while it is built
  cudaGraphNode_t last_node_ = nullptr;
  cudaEvent_t done_ = nullptr;
  void* staging_ = nullptr;
  int64_t staging_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Launcher> cuda_launcher(int device, bool replays) {
  return std::make_unique<CudaLauncher>(device, replays);
}

}  // namespace glt::cuda
