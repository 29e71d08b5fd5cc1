// Candidates for the ends of negative edges.
#pragma once

#include <cstdint>

namespace glt {

// The node that stands in slot i of a batch's negatives is a function of (batch key, side, i, attempt): whoever asks
// gets the same answer, and a candidate that turns out to be an edge is replaced by that of the next attempt.
struct NegativeDraws {
  uint64_t batch_key;
  uint32_t side;                         // 0: sources, 1: destinations
  int64_t num_nodes;                     // candidates are in [0, num_nodes)
  const uint64_t* weight_sum = nullptr;  // [num_nodes], inclusive prefix sums; null: all nodes are equally likely

  // Throws std::invalid_argument when there is no node to draw or all weigh nothing.
  void fill(const int64_t* slot, int64_t n, uint32_t attempt, int64_t* node) const;
};

}  // namespace glt
