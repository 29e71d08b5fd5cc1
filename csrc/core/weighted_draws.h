// Picks of each row by weight.
#pragma once

#include <cstdint>

#include "core/sample.h"

namespace glt {

// Writes to scratch.position the picks of every row, counts[i] of row i, by the law of successive draws: each takes an
// edge with probability proportional to its weight among those that are left. Draw i is a number u below the weight
// that is left; the edge is the one that u falls on when the weights that are left stand side by side in row order. One
// draw per pick, none is rejected. Only when no weight is left, edges of weight zero are taken, each equally likely.
// With replacement nothing is used up. A row that is taken whole comes in order.
void pick_by_weight(const CsrView& csr, const Rows& rows, const HopSpec& spec, const uint32_t* counts,
                    RowScratch& scratch);

}  // namespace glt
