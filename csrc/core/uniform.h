// Picks where every edge of a row is equally likely.
#pragma once

#include <cstdint>

#include "core/sample.h"

namespace glt {

// Writes the positions of counts[i] picks of every row. Behind the last, `position` has room for kRunSlack.
void pick_uniformly(const Rows& rows, const HopSpec& spec, const uint32_t* counts, const RowSpans& spans,
                    int64_t* position);

// k distinct numbers of [begin, begin + n), each subset equally likely, by the draws first_draw, ..., first_draw + k -
// 1: floyd_small for any k.
void pick_distinct(int64_t begin, int64_t n, int64_t k, NodeDraws& draws, uint32_t first_draw, int64_t* pick);

}  // namespace glt
