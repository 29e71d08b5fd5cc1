// The functions of the CUDA runtime that glt calls, for a device whose kernels are run by emulator.h and whose memory
// is the host's. Work is done when it is asked for.
//
// Wrong grids, pinning twice, graphs whose nodes do not follow one another, and copies from or to memory that is not
// pinned, which would wait, are refused; so is work of a thread whose device is another, and a context on the first
// device, which is none of glt's here. What another thread captures is not imitated.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/launcher.h"
#include "emulator.h"

namespace {

constexpr int kNumDevices = 2, kDevice = 1;  // of which glt uses the last
constexpr int kMultiprocessors = 2;          // few, so that kernels go through their loops

thread_local std::string last_fault;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t answer(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

thread_local CUcontext context = nullptr;  // of this thread

CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device + 1));
}
bool is_on_device() {
  if (context == context_of(kDevice)) return true;
  last_fault = "the thread's device is another";
  return false;
}

using Call = std::function<void()>;

cudaError_t done(const Call& call) {
  if (!is_on_device()) return answer(cudaErrorLaunchFailure);
  try {
    call();
  } catch (const std::exception& fault) {
    last_fault = fault.what();
    return answer(cudaErrorLaunchFailure);
  }
  return cudaSuccess;
}

// A graph: nodes in the order in which they were added, each of which has to depend on the one before.
struct Graph {
  std::vector<Call> calls;

  cudaError_t add(cudaGraphNode_t* node, const cudaGraphNode_t* before, size_t num_before, Call call) {
    if (num_before != (calls.empty() ? 0 : 1) || (num_before && *before != name(calls.size())))
      return answer(cudaErrorInvalidValue);
    calls.push_back(std::move(call));
    *node = name(calls.size());
    return cudaSuccess;
  }
  cudaGraphNode_t name(size_t number) {
    return reinterpret_cast<cudaGraphNode_t>(reinterpret_cast<char*>(this) + number);
  }
};

// Pinned host memory: begin -> end.
std::mutex pinned_mutex;
std::map<uint64_t, uint64_t> pinned;

bool is_pinned(const void* from, size_t bytes) {
  const std::lock_guard lock(pinned_mutex);
  const uint64_t begin = reinterpret_cast<uint64_t>(from);
  auto after = pinned.upper_bound(begin);
  return after != pinned.begin() && begin + bytes <= std::prev(after)->second;
}
cudaError_t pin(void* at, size_t bytes) {
  const std::lock_guard lock(pinned_mutex);
  const uint64_t begin = reinterpret_cast<uint64_t>(at);
  const auto after = pinned.lower_bound(begin);
  if (after != pinned.end() && after->first < begin + bytes) return cudaErrorHostMemoryAlreadyRegistered;
  if (after != pinned.begin() && std::prev(after)->second > begin) return cudaErrorHostMemoryAlreadyRegistered;
  pinned[begin] = begin + bytes;
  return cudaSuccess;
}
cudaError_t unpin(void* at) {
  const std::lock_guard lock(pinned_mutex);
  return pinned.erase(reinterpret_cast<uint64_t>(at)) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

std::map<const void*, std::string>& kernel_names() {
  static std::map<const void*, std::string> names;  // by the function that stands for the kernel on the host
  return names;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local std::vector<Configuration> configurations;

cudaError_t launch_of(const void* host, dim3 grid, dim3 block, void** args, size_t shared, ptx::Launch* launch) {
  if (grid.z != 1 || block.y != 1 || block.z != 1 || shared) return answer(cudaErrorInvalidConfiguration);
  if (grid.x == 0 || grid.y == 0 || grid.y > 65535 || block.x > 1024) return answer(cudaErrorInvalidConfiguration);
  const auto name = kernel_names().find(host);
  if (name == kernel_names().end()) return answer(cudaErrorInvalidDeviceFunction);
  *launch = ptx::launch_of(ptx::program_of(name->second), grid.x, grid.y, block.x, args);
  return cudaSuccess;
}

}  // namespace

// What nvcc's host code calls.
extern "C" {
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  kernel_names()[host] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration top = configurations.back();
  configurations.pop_back();
  *grid = top.grid, *block = top.block, *shared = top.shared;
  *static_cast<void**>(stream) = top.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t) {
  ptx::Launch launch;
  const cudaError_t code = launch_of(kernel, grid, block, args, shared, &launch);
  return code == cudaSuccess ? done([launch] { ptx::run(launch); }) : code;
}
}

// What glt calls.
cudaError_t cudaSetDevice(int device) {
  // Once for all calls of a batch, and what was before is restored.
  if (device != kDevice || context == context_of(device)) return answer(cudaErrorInvalidDevice);
  context = context_of(device);
  return cudaSuccess;
}
CUresult cuCtxGetCurrent(CUcontext* current) {
  *current = context;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext wanted) {
  context = wanted;
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult*) {
  const std::string wanted = name;
  *found = wanted == "cuCtxGetCurrent"   ? reinterpret_cast<void*>(&cuCtxGetCurrent)
           : wanted == "cuCtxSetCurrent" ? reinterpret_cast<void*>(&cuCtxSetCurrent)
                                         : nullptr;
  return *found ? cudaSuccess : answer(cudaErrorSymbolNotFound);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  const char* told = std::getenv("PTX_CAPABILITY");  // a test may have an older GPU
  const int capability = told ? std::atoi(told) : 90;
  switch (which) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrHostRegisterReadOnlySupported:
      *value = 1;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = capability % 10;
      return cudaSuccess;
    default:
      return answer(cudaErrorInvalidValue);
  }
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorName(cudaError_t code) {
  static thread_local std::string name;
  name = "error " + std::to_string(code);
  return name.c_str();
}
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorLaunchFailure ? last_fault.c_str() : "refused by the emulated runtime";
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (!(flags & cudaEventBlockingSync)) return answer(cudaErrorInvalidValue);  // it would spin
  *event = reinterpret_cast<cudaEvent_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<char*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return done([] {});
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** at, size_t bytes) {
  *at = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  return cudaSuccess;
}
cudaError_t cudaFree(void* at) {
  std::free(at);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** at, size_t bytes) {
  *at = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  return pin(*at, bytes);
}
cudaError_t cudaFreeHost(void* at) {
  const cudaError_t code = unpin(at);
  if (code == cudaSuccess) std::free(at);
  return code;
}
cudaError_t cudaHostRegister(void* at, size_t bytes, unsigned) {
  return pin(at, bytes);
}
cudaError_t cudaHostUnregister(void* at) {
  return unpin(at);
}
cudaError_t cudaHostGetDevicePointer(void** there, void* host, unsigned) {
  if (!is_pinned(host, 1)) return answer(cudaErrorInvalidValue);
  *there = host;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  return done([=] { std::memset(at, value, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return done([=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  if (!is_pinned(kind == cudaMemcpyHostToDevice ? from : to, bytes)) return answer(cudaErrorInvalidValue);
  return done([=] { std::memcpy(to, from, bytes); });
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  *graph = reinterpret_cast<cudaGraph_t>(new Graph);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* before,
                                   size_t num_before, const cudaKernelNodeParams* kernel) {
  ptx::Launch launch;
  if (const cudaError_t code = launch_of(kernel->func, kernel->gridDim, kernel->blockDim, kernel->kernelParams,
                                         kernel->sharedMemBytes, &launch);
      code != cudaSuccess)
    return code;
  return reinterpret_cast<Graph*>(graph)->add(node, before, num_before, [launch] { ptx::run(launch); });
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* before,
                                     size_t num_before, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (!is_pinned(kind == cudaMemcpyHostToDevice ? from : to, bytes)) return answer(cudaErrorInvalidValue);
  return reinterpret_cast<Graph*>(graph)->add(node, before, num_before, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* runnable, cudaGraph_t graph, unsigned long long) {
  *runnable = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t runnable) {
  delete reinterpret_cast<Graph*>(runnable);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t runnable, cudaStream_t) {
  for (const Call& call : reinterpret_cast<Graph*>(runnable)->calls)
    if (const cudaError_t code = done(call); code != cudaSuccess) return code;
  return cudaSuccess;
}

// In place of csrc/cuda/host_launcher.cc: all that asks for the host executor gets the launcher of the device.
namespace glt::cuda {
std::unique_ptr<Launcher> host_launcher(Order order, uint64_t shuffle_seed, int, bool replays) {
  ptx::set_order(order == Order::kForward    ? ptx::Order::kForward
                 : order == Order::kBackward ? ptx::Order::kBackward
                                             : ptx::Order::kShuffled,
                 shuffle_seed);
  return cuda_launcher(kDevice, replays);
}
}  // namespace glt::cuda
