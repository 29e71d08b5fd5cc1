// Launches the gather; the arithmetic is in cuda/gather.h.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/device.h"
#include "cuda/gather.h"

namespace glt::cuda {
namespace {

constexpr int kBlocksPerSm = 4;  // as many as are resident: 64 KiB of loads in flight per SM where pieces have 16 bytes

template <typename Move>
__global__ void __launch_bounds__(kGatherThreads, kBlocksPerSm)
    gather_kernel(const __grid_constant__ TieredTable table, const __grid_constant__ GatherCall call,
                  const __grid_constant__ RowPieces pieces) {
  gather_of_thread<Move>(table, call, pieces, int64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                         int64_t{gridDim.x} * blockDim.x);
}

int64_t resident_blocks(int device) {
  return int64_t{attribute(cudaDevAttrMultiProcessorCount, device, "number of SMs")} * kBlocksPerSm;
}

}  // namespace

void gather_rows(const TieredTable& table, const GatherCall& call, int max_blocks, int device, void* stream) {
  if (call.n == 0) return;
  const DeviceScope scope(device);
  const RowPieces pieces = pieces_of(table, call);
  const int64_t rows_per_block = int64_t{kRowsInFlight} * (kGatherThreads >> pieces.lane_bits);
  const int64_t blocks = std::min((call.n + rows_per_block - 1) / rows_per_block,
                                  max_blocks > 0 ? int64_t{max_blocks} : resident_blocks(device));
  with_move(table, pieces, [&]<typename Move>() {
    gather_kernel<Move>
        <<<static_cast<unsigned>(blocks), kGatherThreads, 0, static_cast<cudaStream_t>(stream)>>>(table, call, pieces);
  });
  check_and_clear(cudaGetLastError(), "gather_rows");
}

}  // namespace glt::cuda
