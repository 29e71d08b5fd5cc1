// One batch under construction: seeds, then hop after hop of sampled edges, in local ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "core/block_pool.h"
#include "core/check.h"
#include "core/csr.h"
#include "core/memory.h"
#include "core/read_rows.h"
#include "core/relabel.h"
#include "core/rows.h"
#include "core/sample.h"

namespace glt {

// The edges of one type in a batch, in local ids. Edges run neighbour -> expanded node and are sorted by the latter, so
// a count per expanded node stands for the column.
class EdgeSet {
 public:
  // Node types by index: `expanded` ones have the rows, `neighbor` ones are in the columns.
  EdgeSet(int expanded, int neighbor) : expanded(expanded), neighbor(neighbor) {}
  const int expanded, neighbor;

  void start() {
    row.clear();
    edge.clear();
    count.end_use();
    num_sampled.clear();
    before_hop_ = 0;
  }

  // Ends a hop after which `num_rows` nodes have been expanded: those that were not asked about have no edges.
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

  // Writes the local ids of both ends of each edge, and its id unless edge_out is null: row.size() elements each, of
  // types that they fit into.
  template <typename Local>
  void copy_to(Local* row_out, Local* col_out, MutableIds edge_out, int num_threads) const;

  // Hands over a block of row.size() local ids of neighbours, then as many of expanded nodes, or the other way round;
  // and one of edge ids, which are none where they were not asked for. The set is empty afterwards, but for
  // num_sampled.
  std::pair<BlockPool::Block, BlockPool::Block> hand_over(int num_threads, bool expanded_first);

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

// The seeds of one node type.
struct Seeds {
  int node_type;
  const int64_t* node;  // [n]
  int64_t n;
};

// How to sample a whole batch; one entry per edge type where there are several.
struct BatchSpec {
  std::vector<std::vector<int64_t>> num_neighbors;  // [edge types][hops]
  bool replace = false;
  uint64_t batch_key = 0;
  bool latest_only = false;
  std::vector<const Exclusions*> exclusions;  // [edge types], null for none; or empty
  std::vector<int64_t> time_window;           // [edge types], -1 for none; or empty
  std::vector<int64_t> half_life;             // [edge types], 0 for none; or empty
  bool by_number = false;                     // as of HopSpec
  uint64_t shared_key = 0;                    // of the numbers
};

// The rule is PyG's: hop by hop; within a hop edge types in order, within an edge type the frontier in order, and new
// nodes by first occurrence. A node is expanded once along every edge type of its node type, at the hop that follows
// its discovery. A homogeneous batch is one with a single node type and edge type.
//
// An exception thrown while a batch is being made leaves it unfinished; `start` begins anew.
class Batch {
 public:
  // `num_nodes` per node type; `ends` per edge type: the node types whose nodes are expanded, and found.
  Batch(const std::vector<int64_t>& num_nodes, const std::vector<std::pair<int, int>>& ends, int64_t dense_limit);

  // Begins a batch; everything of the last one is forgotten, its memory is kept, unless it is more than batches have
  // needed of late: see ExpectedRoom. The seeds are the roots of trees
  // 0, 1, 2, ... in order. seed_time [num_times], one per tree, only in a disjoint batch; null: none.
  void start(const std::vector<Seeds>& seeds, bool with_edge, bool disjoint, const int64_t* seed_time,
             int64_t num_times);

  // All hops of a batch that was just started, of one graph per edge type.
  void sample(const std::vector<PartedCsr>& graphs, const BatchSpec& spec, int num_threads);

  // One hop of one edge type that others sampled; together the parts cover the frontier exactly once.
  void expand_from(int edge_type, const std::vector<RowsPart>& parts);
  void end_hop();

  // Replaces the sampled edges by all edges among the sampled nodes, of a disjoint batch among those of each tree, in
  // order of the expanded end and then of its row. Each row of a duplicate seed has all its edges, and an edge from a
  // duplicate seed comes from its first row.
  void induce(const std::vector<PartedCsr>& graphs, int num_threads);

  // The same from what others found: begin_induce, then for each edge type that has edges, parts that cover all nodes
  // of its expanded type exactly once.
  void begin_induce();
  void induce_from(int edge_type, const std::vector<RowsPart>& parts);

  // The end of a batch: hands over the memory of what was made, type by type; see NodeSet and EdgeSet. After
  // begin_hand_over it takes no calls but these, and start.
  void begin_hand_over();
  BlockPool::Block hand_over_nodes(int node_type);
  std::pair<BlockPool::Block, BlockPool::Block> hand_over_edges(int edge_type, bool expanded_first);
  void require_whole() const { require(!handed_over_, "the batch has been handed over: call start first"); }

  int num_node_types() const { return static_cast<int>(nodes_.size()); }
  int num_edge_types() const { return static_cast<int>(edges_.size()); }
  const NodeSet& nodes(int node_type) const { return nodes_[node_type]; }
  const EdgeSet& edges(int edge_type) const { return edges_[edge_type]; }
  bool with_edge() const { return with_edge_; }
  bool disjoint() const { return disjoint_; }
  // What its edges were found with, and so are worth copying with; 1 for what others sampled.
  int num_threads() const { return num_threads_; }

 private:
  void require_graphs(const std::vector<PartedCsr>& graphs) const;
  void expand(int edge_type, const PartedCsr& graph, const HopSpec& spec, int num_threads);
  void require_not_expanded(int edge_type) const;
  void end_use_of_scratch();
  void take_rows(EdgeSet& edges, const RowSamples& rows, int64_t first, int64_t num_rows);

  std::deque<NodeSet> nodes_;  // deque: neither moves nor copies what it holds
  std::deque<EdgeSet> edges_;
  bool with_edge_ = true, disjoint_ = false, has_time_ = false, induced_ = false, handed_over_ = false;
  int num_threads_ = 1;
  Buffer<int64_t> seed_time_;  // per tree

  // Scratch. The frontier is copied, since the nodes may move while a hop adds to them.
  Buffer<int64_t> frontier_, frontier_time_;
  Buffer<uint32_t> frontier_tree_, edge_tree_, local_;
  ReadBuffers buffers_;
  PartMerger merger_;
};

}  // namespace glt
