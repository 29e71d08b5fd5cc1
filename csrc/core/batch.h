// One batch under construction: seeds, then hop after hop of sampled edges, in local ids.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "core/buffer.h"
#include "core/chunks.h"
#include "core/csr.h"
#include "core/relabel.h"
#include "core/sample.h"

namespace glt {

// What one partition answered for the part of a frontier that it owns.
struct HopPart {
  const uint32_t* frontier_position;  // [num_rows], where in the frontier each row stands
  const uint32_t* count;              // [num_rows], edges of each row
  int64_t num_rows;
  Ids neighbor;  // [num_edges]
  Ids edge;      // [num_edges]; unused without edges
  int64_t num_edges;
};

// The rule is PyG's: nodes in order of first occurrence, seeds first and as given; a node is expanded once, at the
// hop that discovers it; edges run neighbour -> expanded node and are sorted by the latter. Duplicate seeds keep
// their rows: each is expanded (to the same picks), and a neighbour that is a seed means its first row.
class Batch {
 public:
  // Graphs of up to `dense_limit` nodes are relabelled by a table of 4 bytes per node, larger ones by a hash table.
  Batch(int64_t num_nodes, int64_t dense_limit);

  // Begins a batch; everything of the last one is forgotten, its memory is kept.
  void start(const int64_t* seeds, int64_t n, bool with_edge);

  // Samples one hop from a graph that has all rows of the frontier.
  void expand(const CsrView& csr, const HopSpec& spec, int num_threads);

  // Takes one hop that others sampled; together the parts cover the frontier exactly once.
  void expand_from(const std::vector<HopPart>& parts);

  // Nodes that the next hop expands, by their place in `node`: [begin, end).
  int64_t frontier_begin() const { return frontier_begin_; }
  int64_t frontier_end() const { return node_.size(); }

  const Buffer<int64_t>& node() const { return node_; }
  const Buffer<int64_t>& edge() const { return edge_; }
  int64_t num_edges() const { return row_.size(); }
  bool with_edge() const { return with_edge_; }
  const std::vector<int64_t>& num_sampled_nodes() const { return num_sampled_nodes_; }
  const std::vector<int64_t>& num_sampled_edges() const { return num_sampled_edges_; }

  // Copies the results out: node [num_nodes], row and col [num_edges] in local ids, edge [num_edges] or null.
  void copy_out(int64_t* node, int64_t* row, int64_t* col, int64_t* edge) const;

 private:
  void take_rows(const int64_t* neighbor, const int64_t* edge, const uint32_t* count, int64_t num_rows,
                 int64_t num_edges);
  void end_hop(int64_t edges_before);

  int64_t num_nodes_;
  std::variant<DenseTable, HashTable> table_;
  bool with_edge_ = true;
  Buffer<int64_t> node_;      // global id per local id
  Buffer<uint32_t> row_;      // local id of the neighbour per edge
  Buffer<int64_t> edge_;      // global edge id per edge
  Buffer<uint32_t> count_;    // edges per expanded node
  Buffer<int64_t> frontier_;  // scratch: node_ may move while a hop adds to it
  ChunkSlots slots_;          // scratch
  RowSamples stitched_;       // scratch
  int64_t frontier_begin_ = 0;
  std::vector<int64_t> num_sampled_nodes_, num_sampled_edges_;
};

}  // namespace glt
