// Candidates for the ends of negative edges.
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace glt {

// The node that stands in slot i of a batch's negatives is a function of (batch key, side, i, attempt): whoever asks
// gets the same answer, and a candidate that turns out to be an edge is replaced by that of the next attempt.
struct NegativeDraws {
  uint64_t batch_key = 0;
  uint32_t side = 0;                     // 0: sources, 1: destinations
  int64_t num_nodes = 0;                 // candidates are in [0, num_nodes)
  const uint64_t* weight_sum = nullptr;  // [num_nodes], inclusive prefix sums; null: all nodes are equally likely

  GLT_HOST_DEVICE uint64_t key() const { return derive_key(batch_key, Purpose::kNegative, side, 0); }
  GLT_HOST_DEVICE uint64_t total() const {
    return num_nodes < 1 ? 0 : weight_sum ? weight_sum[num_nodes - 1] : static_cast<uint64_t>(num_nodes);
  }
  // `key` and `total` are those above, asked for once.
  GLT_HOST_DEVICE int64_t node(uint64_t key, uint64_t total, int64_t slot, uint32_t attempt) const {
    NodeDraws draws(key, /*hop=*/0, /*edge_type=*/0, static_cast<uint64_t>(slot));
    const uint64_t u = bounded(draws(attempt), total);
    if (!weight_sum) return static_cast<int64_t>(u);
    const uint64_t* first = weight_sum;  // the first sum above u
    for (int64_t left = num_nodes; left > 0;) {
      const int64_t half = left / 2;
      const bool below = first[half] <= u;
      first += below ? half + 1 : 0;
      left = below ? left - half - 1 : half;
    }
    return first - weight_sum;
  }

  // Throws std::invalid_argument when there is no node to draw or all weigh nothing.
  void fill(const int64_t* slot, int64_t n, uint32_t attempt, int64_t* out) const;
};

}  // namespace glt
