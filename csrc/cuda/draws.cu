// Shows that the generator is the same on host and device: everything that samples on the device builds on it.

#include <cuda_runtime.h>

#include "core/rng.h"
#include "cuda/draws.h"
#include "cuda/error.h"

namespace glt::cuda {
namespace {

__global__ void node_draws_kernel(const int64_t* nodes, const uint64_t* bounds, int64_t n, uint64_t batch_key,
                                  uint32_t hop, int draws, uint64_t* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    NodeDraws draw(batch_key, hop, 0, static_cast<uint64_t>(nodes[i]));
    for (int d = 0; d < draws; ++d) out[i * draws + d] = bounded(draw(static_cast<uint32_t>(d)), bounds[i]);
  }
}

}  // namespace

void node_draws(const int64_t* nodes, const uint64_t* bounds, int64_t n, uint64_t batch_key, uint32_t hop, int draws,
                uint64_t* out, void* stream) {
  if (n == 0) return;
  constexpr int kThreads = 256;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  node_draws_kernel<<<static_cast<unsigned>(blocks < 65535 ? blocks : 65535), kThreads, 0,
                      static_cast<cudaStream_t>(stream)>>>(nodes, bounds, n, batch_key, hop, draws, out);
  check(cudaGetLastError(), "node_draws");
}

}  // namespace glt::cuda
