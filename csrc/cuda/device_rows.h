// Rows of edges wherever a kernel can read them: device memory, or pinned host memory in place. Kernels do not care.
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace glt::cuda {

// A parameter of a batch, written before its first kernel: the compiler may load it once, whatever is stored meanwhile.
template <typename T>
GLT_HOST_DEVICE T load_parameter(const T* from) {
#if defined(__CUDA_ARCH__)
  return __ldg(from);
#else
  return *from;
#endif
}

// Node or edge ids in one of two widths.
struct DeviceIds {
  const void* data = nullptr;
  bool wide = false;  // int64, else int32

  GLT_HOST_DEVICE int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// A CsrView of a whole graph whose arrays a kernel may read. It was validated where it was built.
struct DeviceRows {
  const int64_t* indptr = nullptr;  // [num_nodes + 1]
  DeviceIds indices;                // [num_edges]
  DeviceIds edge_ids;               // [num_edges]; no data: the id of an edge is its position
  // As in CsrView; null: none.
  const uint64_t* weight_sum = nullptr;
  const uint32_t* weight_guide = nullptr;
  const int64_t* time = nullptr;
  int64_t num_nodes = 0;
  int64_t num_neighbor_nodes = 0;
  int64_t num_edges = 0;
};

}  // namespace glt::cuda
