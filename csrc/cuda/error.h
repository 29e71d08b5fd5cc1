// CUDA's return codes as exceptions: a failed call must never end the process or pass unnoticed.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>

#include "core/check.h"

namespace glt::cuda {

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess)
    throw std::runtime_error(text(what, ": ", cudaGetErrorName(code), ", ", cudaGetErrorString(code)));
}

}  // namespace glt::cuda
