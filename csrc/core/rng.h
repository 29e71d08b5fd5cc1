// The counter-based generator behind every random decision, shared by host and device.
//
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A draw is a
// function of its coordinates alone, never of the order in which draws happen; this is what makes a batch the same
// on any thread, process, partition or device.
#pragma once

#include <cstdint>
#include <utility>

#if defined(__CUDACC__)
#define GLT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GLT_HOST_DEVICE inline
#endif

namespace glt {

struct Bits128 {
  uint32_t word[4];
};

GLT_HOST_DEVICE Bits128 philox(Bits128 counter, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Maps 64 random bits to [0, bound) by the high half of the product: no modulo, bias below bound / 2^64.
GLT_HOST_DEVICE uint64_t bounded(uint64_t bits, uint64_t bound) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(bits, bound);
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * bound) >> 64);
#endif
}

// What a stream of draws is for: two streams under one seed must never meet.
enum class Purpose : uint32_t {
  kBatchKey = 1,
  kShuffle = 2,
  kPartition = 3,
  kRankSeed = 4,
  kTree = 5,
  kNegative = 6,
  kNumber = 7,
  kSharedKey = 8,
  kWalk = 9,
  kBudget = 10
};

// A 64-bit key for stream (a, b) of `purpose` under `rng_seed`.
GLT_HOST_DEVICE uint64_t derive_key(uint64_t rng_seed, Purpose purpose, uint32_t a, uint64_t b) {
  const Bits128 bits = philox(
      {{static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32), a, 0xFFFF0000u | static_cast<uint32_t>(purpose)}},
      rng_seed);
  return uint64_t{bits.word[1]} << 32 | bits.word[0];
}

// The draws that belong to one expanded node of one batch: draw i is a function of (key, hop, edge type, node, i).
// One Philox block gives two draws, so ask for them in order.
class NodeDraws {
 public:
  GLT_HOST_DEVICE NodeDraws(uint64_t batch_key, uint32_t hop, uint32_t edge_type, uint64_t node)
      : key_(batch_key), node_(node), stream_(stream_of(hop, edge_type)) {}

  // hop < 256 and edge_type < 65535 (checked where batches begin); 0xFFFF.... is derive_key's.
  GLT_HOST_DEVICE static constexpr uint32_t stream_of(uint32_t hop, uint32_t edge_type) {
    return edge_type << 16 | hop << 8;
  }

  GLT_HOST_DEVICE uint64_t operator()(uint32_t draw) {
    const uint32_t block = draw >> 1;
    if (block != block_) {
      bits_ = philox({{static_cast<uint32_t>(node_), static_cast<uint32_t>(node_ >> 32), block, stream_}}, key_);
      block_ = block;
    }
    // Not by an index: a GPU's registers have none.
    return draw & 1 ? uint64_t{bits_.word[3]} << 32 | bits_.word[2] : uint64_t{bits_.word[1]} << 32 | bits_.word[0];
  }

  // Draws first, ..., first + n - 1 at once; `first` is even, `out` has room for n + 1. Half the cost of asking one by
  // one: blocks do not wait for each other, and nothing branches.
  GLT_HOST_DEVICE void fill(uint32_t first, int64_t n, uint64_t* out) const {
    for (int64_t i = 0; i < n; i += 2) {
      const Bits128 bits = philox({{static_cast<uint32_t>(node_), static_cast<uint32_t>(node_ >> 32),
                                    (first >> 1) + static_cast<uint32_t>(i >> 1), stream_}},
                                  key_);
      out[i] = uint64_t{bits.word[1]} << 32 | bits.word[0];
      out[i + 1] = uint64_t{bits.word[3]} << 32 | bits.word[2];
    }
  }

 private:
  uint64_t key_, node_;
  uint32_t stream_;
  uint32_t block_ = ~0u;
  Bits128 bits_{};
};

// A random permutation that is a function of its key alone: Fisher-Yates (Durstenfeld, CACM 7(7), 1964), in place,
// with draws from Philox under `key`.
template <typename T>
void shuffle(T* items, int64_t n, uint64_t key) {
  NodeDraws draws(key, /*hop=*/0, /*edge_type=*/0, /*node=*/0);
  for (int64_t i = n - 1; i > 0; --i) {
    // Two draws per block; the block number is 32 bits, so very long arrays move on to the next "node".
    const uint64_t step = static_cast<uint64_t>(n - 1 - i);
    if (step != 0 && (step & 0xFFFFFFFFu) == 0) draws = NodeDraws(key, 0, 0, step >> 32);
    const int64_t j = static_cast<int64_t>(bounded(draws(static_cast<uint32_t>(step)), static_cast<uint64_t>(i) + 1));
    std::swap(items[i], items[j]);
  }
}

}  // namespace glt
