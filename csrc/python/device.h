// The launcher that the bindings of kernels run on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cuda/launcher.h"
#include "python/arrays.h"

namespace glt::python {

// device -1: on the host, in `order`. Throws std::invalid_argument for an order that is none, and for a GPU that this
// build has no kernels for.
std::unique_ptr<cuda::Launcher> launcher_of(int device, const std::string& order, uint64_t shuffle_seed,
                                            int num_threads, bool replays);

}  // namespace glt::python
