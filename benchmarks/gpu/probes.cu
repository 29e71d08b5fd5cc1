// Kernels that only measure: what parts of a sampler or gather could be made of. Compiled by probes.py.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 256;

int blocks_for(int64_t n) {
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < 65535 * 16 ? blocks : 65535 * 16);
}

// M2: a word of a table goes up to the highest stamp; nobody waits for the answer.
template <typename Word>
__global__ void stamp_words(Word* table, const int64_t* at, int64_t n, Word top) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step)
    atomicMax(table + at[i], top - static_cast<Word>(i));
}

// M6: nothing, and the two ways to number what many threads find.
__global__ void nothing() {}

constexpr int kPerThread = 4;
constexpr int kPerTile = kThreads * kPerThread;

// Sums before each thread of a block; `all` gets the sum of the block.
__device__ uint32_t scan_block(uint32_t own, uint32_t* shared, uint32_t& all) {
  shared[threadIdx.x] = own;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const uint32_t other = static_cast<int>(threadIdx.x) >= step ? shared[threadIdx.x - step] : 0;
    __syncthreads();
    shared[threadIdx.x] += other;
    __syncthreads();
  }
  all = shared[kThreads - 1];
  return shared[threadIdx.x] - own;
}

__device__ uint32_t sum_of_thread(const uint32_t* in, int64_t n, int64_t first) {
  uint32_t sum = 0;
  for (int64_t i = first; i < first + kPerThread && i < n; ++i) sum += in[i];
  return sum;
}

__device__ void write_thread(const uint32_t* in, int64_t n, int64_t first, uint32_t before, uint32_t* out) {
  for (int64_t i = first; i < first + kPerThread && i < n; ++i) {
    out[i] = before;
    before += in[i];
  }
}

__global__ void sum_tiles(const uint32_t* in, int64_t n, uint32_t* sums) {
  __shared__ uint32_t shared[kThreads];
  uint32_t all;
  scan_block(sum_of_thread(in, n, (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPerThread), shared, all);
  if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

__global__ void scan_tiles(const uint32_t* in, int64_t n, const uint32_t* sums, uint32_t* out) {
  __shared__ uint32_t shared[kThreads];
  __shared__ uint32_t before;
  if (threadIdx.x == 0) before = 0;
  __syncthreads();
  uint32_t part = 0, all;
  for (unsigned t = threadIdx.x; t < blockIdx.x; t += kThreads) part += sums[t];
  if (part) atomicAdd(&before, part);
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPerThread;
  const uint32_t own = scan_block(sum_of_thread(in, n, first), shared, all);
  write_thread(in, n, first, before + own, out);
}

// Decoupled look-back (Merrill & Garland, NVR-2016-002): one launch, each block waits for those before it.
__global__ void scan_looking_back(const uint32_t* in, int64_t n, unsigned long long* state, uint32_t* ticket,
                                  uint32_t* out) {
  __shared__ uint32_t shared[kThreads];
  __shared__ uint32_t tile, before;
  if (threadIdx.x == 0) tile = atomicAdd(ticket, 1);  // blocks that wait began after those that they wait for
  __syncthreads();
  const int64_t first = (int64_t{tile} * kThreads + threadIdx.x) * kPerThread;
  uint32_t all;
  const uint32_t own = scan_block(sum_of_thread(in, n, first), shared, all);
  if (threadIdx.x == 0) {
    constexpr unsigned long long kOwn = 1ull << 62, kWhole = 2ull << 62, kValue = 0xFFFFFFFFull;
    atomicExch(state + tile, (tile == 0 ? kWhole : kOwn) | all);
    uint32_t sum = 0;
    for (int64_t t = int64_t{tile} - 1; t >= 0;) {
      const unsigned long long seen = *reinterpret_cast<volatile unsigned long long*>(state + t);
      if (seen >> 62 == 0) continue;
      sum += static_cast<uint32_t>(seen & kValue);
      if (seen >> 62 == 2) break;
      --t;
    }
    if (tile > 0) atomicExch(state + tile, kWhole | (sum + all));
    before = sum;
  }
  __syncthreads();
  write_thread(in, n, first, before + own, out);
}

}  // namespace

// All pointers are device memory, `rows` may be pinned host memory; each returns the code of the launch, 0: well.
extern "C" {

int stamp32(uint32_t* table, const int64_t* at, int64_t n, uint32_t top, void* stream) {
  stamp_words<<<blocks_for(n), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(table, at, n, top);
  return cudaGetLastError();
}

int stamp64(unsigned long long* table, const int64_t* at, int64_t n, unsigned long long top, void* stream) {
  stamp_words<<<blocks_for(n), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(table, at, n, top);
  return cudaGetLastError();
}

int launch_nothing(int times, void* stream) {
  for (int i = 0; i < times; ++i) nothing<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>();
  return cudaGetLastError();
}

int tiles_of(int64_t n) {
  return static_cast<int>((n + kPerTile - 1) / kPerTile);
}

int scan_by_two(const uint32_t* in, int64_t n, uint32_t* sums, uint32_t* out, void* stream) {
  sum_tiles<<<tiles_of(n), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, n, sums);
  scan_tiles<<<tiles_of(n), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, n, sums, out);
  return cudaGetLastError();
}

// state [tiles + 1] words of 8 bytes; the last one counts tickets.
int scan_by_one(const uint32_t* in, int64_t n, unsigned long long* state, uint32_t* out, void* stream) {
  const int tiles = tiles_of(n);
  const cudaError_t code = cudaMemsetAsync(state, 0, (tiles + 1) * 8, static_cast<cudaStream_t>(stream));
  if (code != cudaSuccess) return code;
  scan_looking_back<<<tiles, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      in, n, state, reinterpret_cast<uint32_t*>(state + tiles), out);
  return cudaGetLastError();
}

}  // extern "C"
