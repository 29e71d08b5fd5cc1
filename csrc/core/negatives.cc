#include "core/negatives.h"

#include <algorithm>

#include "core/check.h"
#include "core/rng.h"

namespace glt {

void NegativeDraws::fill(const int64_t* slot, int64_t n, uint32_t attempt, int64_t* node) const {
  require(num_nodes >= 1 || n == 0, "num_nodes = ", num_nodes, ": negatives need a node to draw");
  const uint64_t total = num_nodes < 1 ? 0 : weight_sum ? weight_sum[num_nodes - 1] : static_cast<uint64_t>(num_nodes);
  require(total > 0 || n == 0, "all ", num_nodes, " weights are zero: negatives need a node to draw");
  const uint64_t key = derive_key(batch_key, Purpose::kNegative, side, 0);
  for (int64_t i = 0; i < n; ++i) {
    NodeDraws draws(key, /*hop=*/0, /*edge_type=*/0, static_cast<uint64_t>(slot[i]));
    const uint64_t u = bounded(draws(attempt), total);
    node[i] =
        weight_sum ? std::upper_bound(weight_sum, weight_sum + num_nodes, u) - weight_sum : static_cast<int64_t>(u);
  }
}

}  // namespace glt
