#include "core/negatives.h"

#include "core/check.h"

namespace glt {

void NegativeDraws::fill(const int64_t* slot, int64_t n, uint32_t attempt, int64_t* out) const {
  require(num_nodes >= 1 || n == 0, "num_nodes = ", num_nodes, ": negatives need a node to draw");
  const uint64_t sum = total();
  require(sum > 0 || n == 0, "all ", num_nodes, " weights are zero: negatives need a node to draw");
  const uint64_t stream = key();
  for (int64_t i = 0; i < n; ++i) out[i] = node(stream, sum, slot[i], attempt);
}

}  // namespace glt
