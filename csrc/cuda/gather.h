// Rows of a table in several tiers of memory, picked by id, on the device.
#pragma once

#include "cuda/row_gather.h"

namespace glt::cuda {

// out[positions[i]] = row of ids[i], as glt::gather_rows gives it on the host; all pointers are readable on
// `device`. Runs on its `stream`, does not synchronise; ids and positions out of range are reported in *call.error, and
// their rows become zeros. At most max_blocks blocks of kGatherThreads threads, so that a gather over PCIe, which a few
// can saturate, leaves the others to training; 0: as many as the device holds at once. Throws std::runtime_error naming
// the CUDA error when the launch fails.
void gather_rows(const TieredTable& table, const GatherCall& call, int max_blocks, int device, void* stream);

constexpr int kGatherThreads = 256;

}  // namespace glt::cuda
