// The edges of one type in a batch, in local ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/pooled_buffer.h"

namespace glt {

// Edges run neighbour -> expanded node and are sorted by the latter, so a count per expanded node stands for the
// column.
class EdgeSet {
 public:
  // Node types by index: `expanded` ones have the rows, `neighbor` ones are in the columns.
  EdgeSet(int expanded, int neighbor) : expanded(expanded), neighbor(neighbor) {}
  const int expanded, neighbor;

  void start() {
    row.clear();
    edge.clear();
    count.clear();
    num_sampled.clear();
    before_hop_ = 0;
  }

  // Ends a hop after which `num_rows` nodes have been expanded: those that nobody asked about have no edges.
  void end_hop(int64_t num_rows) {
    pad(num_rows);
    num_sampled.push_back(row.size() - before_hop_);
    before_hop_ = row.size();
  }

  void pad(int64_t num_rows) {
    const int64_t missing = num_rows - count.size();
    count.reserve_more(missing);
    std::fill_n(count.end(), missing, 0u);
    count.added(missing);
  }

  // Writes the local ids of both ends of each edge, and its id unless edge_out is null: row.size() elements each.
  void copy_to(int64_t* row_out, int64_t* col_out, int64_t* edge_out, int num_threads) const;

  // Hands over a block of row.size() local ids of neighbours, then as many of expanded nodes; and one of edge ids,
  // which are none where they were not asked for. The set is empty afterwards, but for num_sampled.
  std::pair<BlockPool::Block, BlockPool::Block> hand_over(int num_threads);

  PooledBuffer<int64_t> row;         // local id of the neighbour per edge
  PooledBuffer<int64_t> edge;        // global edge id per edge, or empty
  Buffer<uint32_t> count;            // edges per expanded node, by its local id
  std::vector<int64_t> num_sampled;  // edges per hop

 private:
  // Calls work(first_row, num_rows, first_edge, num_edges), which writes num_arrays elements per edge, for pieces of
  // the whole, on up to num_threads threads.
  template <typename Work>
  void for_pieces(int64_t num_arrays, int num_threads, const Work& work) const;

  int64_t before_hop_ = 0;
};

}  // namespace glt
