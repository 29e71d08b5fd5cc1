// The nodes and edges of a disjoint batch, tree after tree.
#pragma once

#include <cstdint>

namespace glt {

// Writes to order [n] the positions of nodes by tree, and within a tree by id; to ptr [num_trees + 1] where each tree
// begins. Throws std::out_of_range for a tree outside [0, num_trees).
void order_by_tree(const int64_t* node, const int64_t* tree, int64_t n, int64_t num_trees, int64_t* order,
                   int64_t* ptr);

// Edges between nodes that stand in such an order now: writes their new ends, sorted by row and then col, equal ones as
// they came, and to edge_order [num_edges] which edge each is. order [n] as above. Throws std::out_of_range for an end
// outside [0, n).
void reorder_edges(const int64_t* row, const int64_t* col, int64_t num_edges, const int64_t* order, int64_t n,
                   int64_t* row_out, int64_t* col_out, int64_t* edge_order);

}  // namespace glt
