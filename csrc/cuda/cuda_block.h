// A block of threads as a GPU runs it; see host_block.h. For .cu files.
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace glt::cuda {

class CudaBlock {
 public:
  __device__ __forceinline__ int x() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int y() const { return static_cast<int>(blockIdx.y); }

  template <typename Step>
  __device__ __forceinline__ void each(const Step& step) const {
    step(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

  static __device__ __forceinline__ void atomic_max(uint32_t* word, uint32_t value) { atomicMax(word, value); }
  static __device__ __forceinline__ void atomic_max(uint64_t* word, uint64_t value) {
    atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
  }
  static __device__ __forceinline__ void atomic_min(uint64_t* word, uint64_t value) {
    atomicMin(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
  }
  static __device__ __forceinline__ uint64_t atomic_add(uint64_t* word, uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
  }
  static __device__ __forceinline__ uint32_t compare_and_swap(uint32_t* word, uint32_t expected, uint32_t value) {
    return atomicCAS(word, expected, value);
  }
  // Not from the L1 cache, which does not see what other multiprocessors change.
  template <typename Word>
  static __device__ __forceinline__ Word load(const Word* word) {
    return __ldcg(word);
  }
};

}  // namespace glt::cuda
