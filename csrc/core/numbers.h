// The number that each node has in a batch, or in a window of batches, for all who may sample it.
//
// Layer-neighbour sampling (LABOR: Balin and Catalyurek, "Layer-Neighbor Sampling - Defusing Neighborhood Explosion in
// GNNs", NeurIPS 2023) lets nodes that share neighbours take the same ones: a row takes the neighbours whose numbers
// are lowest. By weight, a number is divided by the weight first: sequential Poisson sampling (Ohlsson, Journal of
// Official Statistics 14(2), 1998).
#pragma once

#include <cstdint>

#include "core/memory.h"
#include "core/rng.h"

namespace glt {

// The key of the numbers of the nodes of one type at one hop.
GLT_HOST_DEVICE uint64_t number_key(uint64_t shared_key, uint32_t hop, uint32_t node_type) {
  return derive_key(shared_key, Purpose::kNumber, hop, node_type);
}

// A bijection of 32 bits for each key. Shifts and factors are those of "triple32" of Wellons' hash prospector
// (github.com/skeeto/hash-prospector, public domain), which make each bit of the result depend on all.
GLT_HOST_DEVICE uint32_t mixed(uint32_t x, uint32_t key) {
  x = (x ^ x >> 17) * 0xED5AD4BBu;
  x = (x ^ x >> 11) * 0xAC4C1B51u + key;
  x = (x ^ x >> 15) * 0x31848BABu;
  return x ^ x >> 14;
}

// The high half of a node's number, which tells nodes below 2^32 apart. A few instructions of 32 bits, since a row
// needs it of all its neighbours.
constexpr uint32_t kNumberTop = 0x9E3779B1u;
GLT_HOST_DEVICE uint32_t number_high(uint64_t key, int64_t node) {
  const auto low = static_cast<uint32_t>(node), top = static_cast<uint32_t>(static_cast<uint64_t>(node) >> 32);
  return mixed((low ^ static_cast<uint32_t>(key)) + top * kNumberTop, static_cast<uint32_t>(key >> 32));
}

GLT_HOST_DEVICE uint64_t number_of(uint64_t key, int64_t node) {
  const uint32_t high = number_high(key, node), top = static_cast<uint32_t>(static_cast<uint64_t>(node) >> 32);
  return uint64_t{high} << 32 | mixed(high + kNumberTop + top, static_cast<uint32_t>(key));
}

// The edges of a row whose neighbours have the lowest numbers, kept between rows so that its memory is reused.
class LowestNumbers {
 public:
  // Begins a row of `num_edges` edges, of which `count` are taken, fewer than there are.
  void start(uint64_t key, int64_t count, int64_t num_edges);
  // Offers those at [begin, end) of `neighbor`, behind those offered before.
  template <typename Id>
  void offer(const Id* neighbor, int64_t begin, int64_t end);
  // Whether as few edges as are kept were enough. If not, all have to be offered again.
  bool are_enough();
  // Writes the positions of those taken, ascending, and something behind them; of equal numbers the first are taken.
  void take(int64_t* position);

  void end_use() {
    number_.end_use();
    sorted_.end_use();
    edge_.end_use();
  }

 private:
  bool take_few(int64_t* position) const;

  uint64_t key_ = 0;
  uint32_t bound_ = 0;  // edges with numbers whose high half is this or below are kept
  int64_t count_ = 0;
  Buffer<uint64_t> number_, sorted_;
  Buffer<int64_t> edge_;
};

// An edge that a row may take: rather than one that is greater. Edges without weight come last.
struct Candidate {
  uint64_t number, weight;

  GLT_HOST_DEVICE bool operator<(const Candidate& other) const {
    if (weight == 0 || other.weight == 0) return weight != other.weight ? weight > 0 : number < other.number;
    const uint64_t ours = bounded(number, other.weight), theirs = bounded(other.number, weight);  // high halves
    return ours != theirs ? ours < theirs : number * other.weight < other.number * weight;
  }
};

}  // namespace glt
