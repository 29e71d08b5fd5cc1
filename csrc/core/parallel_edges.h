// Parallel edges of an adjacency become one edge with a weight, which is what METIS takes.
#pragma once

#include <cstdint>
#include <variant>

namespace glt {

using MutableIds = std::variant<int32_t*, int64_t*>;  // of node ids

// Sorts each row of `indices` in place and fills merged_indptr [num_rows + 1] with the offsets of distinct neighbours.
void sort_rows(const int64_t* indptr, int64_t num_rows, MutableIds indices, int64_t* merged_indptr);

// Fills neighbor and weight [merged_indptr[num_rows]] from sorted rows: each neighbour once, and how often it was
// there.
void merge_rows(const int64_t* indptr, int64_t num_rows, MutableIds indices, const int64_t* merged_indptr,
                int64_t* neighbor, int64_t* weight);

}  // namespace glt
