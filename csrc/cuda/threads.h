// The size of a block of threads: one for all kernels, so that host and device cut work alike.
#pragma once

namespace glt::cuda {

constexpr int kThreads = 256;

}  // namespace glt::cuda
