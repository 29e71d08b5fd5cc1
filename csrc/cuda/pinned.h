// Host memory that the device reads in place.
#pragma once

#include <cstdint>

namespace glt::cuda {

// Registers [address, address + num_bytes), whole pages, for all devices; `device` is whose context does it.
// `read_only`: the device will not write, which mapped files that this process may only read need; the flag is passed
// on where the device knows it. Throws std::runtime_error naming the CUDA error, also if some of the pages are
// registered already; no error stays behind to surface in somebody else's call.
void register_host(uint64_t address, int64_t num_bytes, bool read_only, int device);

// Undoes register_host for the same address, after all work of that device is done.
void unregister_host(uint64_t address, int device);

// Lets `device` read memory of `peer`. Throws std::runtime_error if it cannot.
void enable_peer(int device, int peer);

}  // namespace glt::cuda
