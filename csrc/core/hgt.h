// The nodes of a batch as HGT samples them (Hu et al., "Heterogeneous Graph Transformer", WWW 2020, Algorithm 2): in
// each iteration as many of each node type as is asked, by budget.
//
// A node that joins the batch gives each of its neighbours, along each edge type, one part of the number of edges that
// its row gives; what a node that is not in the batch has been given is its budget. Nodes are drawn without
// replacement, successively, in proportion to the squares of their budgets. Budgets are integers, so are the weights
// that are made of them, and candidates stand in the order in which they were first given something: the result does
// not depend on who reads the rows.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/memory.h"
#include "core/relabel.h"

namespace glt {

struct HgtSpec {
  uint64_t batch_key = 0;
  std::vector<std::vector<int64_t>> num_samples;  // by node type and iteration
};

// Throws std::invalid_argument for values that mean nothing, or lists of different lengths.
void check_hgt(const HgtSpec& spec, int64_t num_node_types);

// A batch's nodes under way: while it is not done, the caller reads the rows of newest() along each edge type, answers
// with take(), in the order of edge types, and calls draw().
class HgtNodes {
 public:
  // `num_nodes` by node type; `ends` are the node types (expanded, neighbour) of each edge type; seeds[t] are of type
  // t.
  HgtNodes(HgtSpec spec, std::vector<int64_t> num_nodes, std::vector<std::pair<uint32_t, uint32_t>> ends,
           const std::vector<std::pair<const int64_t*, int64_t>>& seeds);

  bool is_done() const { return iteration_ == num_iterations_; }
  uint32_t iteration() const { return iteration_; }
  // The nodes whose neighbours are asked for: those that came last, each once.
  const std::vector<int64_t>& newest(uint32_t node_type) const { return of_type(newest_, node_type); }
  // The edges of the rows of newest() of the type that is expanded: count [n] and neighbours, row after row. Throws
  // std::invalid_argument if there are as many counts or neighbours as do not fit, std::out_of_range for a neighbour
  // outside the graph.
  void take(uint32_t edge_type, const uint32_t* count, int64_t n, const int64_t* neighbor, int64_t num_edges);
  void draw();
  // All nodes that were drawn, in that order; seeds are not among them.
  const std::vector<int64_t>& drawn(uint32_t node_type) const { return of_type(drawn_, node_type); }

 private:
  struct Entry {
    int64_t id;
    uint64_t budget;
    bool is_taken;
  };
  void draw_of(uint32_t node_type);
  static const std::vector<int64_t>& of_type(const std::vector<std::vector<int64_t>>& all, uint32_t node_type) {
    require(node_type < all.size(), "node type ", node_type, ": expected below ", all.size());
    return all[node_type];
  }

  HgtSpec spec_;
  std::vector<int64_t> num_nodes_;
  std::vector<std::pair<uint32_t, uint32_t>> ends_;
  uint32_t iteration_ = 0, num_iterations_ = 0;
  HashTable table_;  // positions in entries_ by (id, type)
  std::vector<Entry> entries_;
  std::vector<std::vector<uint32_t>> open_;  // by node type, entries that may be drawn
  std::vector<std::vector<int64_t>> newest_, drawn_;
  std::vector<uint64_t> sums_;  // a Fenwick tree of weights
};

}  // namespace glt
