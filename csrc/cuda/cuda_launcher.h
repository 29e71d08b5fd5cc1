// Runs kernels on a GPU.
#pragma once

#include <memory>

#include "cuda/launcher.h"

namespace glt::cuda {

// On device `device`, whichever is current for the caller. Throws std::runtime_error naming the CUDA error.
std::unique_ptr<Launcher> cuda_launcher(int device, bool replays);

}  // namespace glt::cuda
