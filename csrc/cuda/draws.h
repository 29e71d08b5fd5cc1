// The draws of many nodes at once, on the device.
#pragma once

#include <cstdint>

namespace glt::cuda {

// out[i * draws + d] = bounded(draw d of nodes[i], bounds[i]), as NodeDraws gives it on the host. All pointers are
// device memory: nodes and bounds [n], out [n * draws]. Runs on `stream`, does not synchronise. Throws
// std::runtime_error naming the CUDA error when the launch fails.
void node_draws(const int64_t* nodes, const uint64_t* bounds, int64_t n, uint64_t batch_key, uint32_t hop, int draws,
                uint64_t* out, void* stream);

}  // namespace glt::cuda
