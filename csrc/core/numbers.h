// The number that each node has in a batch, or in a window of batches, for all who may sample it.
//
// Layer-neighbour sampling (LABOR: Balin and Catalyurek, "Layer-Neighbor Sampling - Defusing Neighborhood Explosion in
// GNNs", NeurIPS 2023) lets nodes that share neighbours take the same ones: a row takes the neighbours whose numbers
// are lowest. By weight, a number is divided by the weight first: sequential Poisson sampling (Ohlsson, Journal of
// Official Statistics 14(2), 1998).
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace glt {

// The key of the numbers of the nodes of one type at one hop.
GLT_HOST_DEVICE uint64_t number_key(uint64_t shared_key, uint32_t hop, uint32_t node_type) {
  return derive_key(shared_key, Purpose::kNumber, hop, node_type);
}

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) from state `key`, after `node` steps: a few instructions, since a row
// needs the numbers of all its neighbours.
GLT_HOST_DEVICE uint64_t number_of(uint64_t key, int64_t node) {
  uint64_t z = key + (static_cast<uint64_t>(node) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

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
