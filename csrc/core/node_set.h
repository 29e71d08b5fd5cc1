// The nodes of one type in a batch: their local ids, and which of them the next hop expands.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"
#include "core/pooled_buffer.h"
#include "core/relabel.h"

namespace glt {

// Nodes are numbered by first occurrence, seeds first and as given: duplicate seeds keep their rows, and whoever finds
// a seed means its first row. In a disjoint batch the trees share nothing: a node is one per tree that reaches it.
class NodeSet {
 public:
  // Types of up to `dense_limit` nodes are relabelled by a table of 4 bytes per node, larger ones, and all types of a
  // disjoint batch, by a hash table.
  NodeSet(int64_t num_nodes, int64_t dense_limit)
      : num_nodes_(num_nodes),
        fits_dense_(num_nodes <= dense_limit && DenseTable::fits(num_nodes)),
        dense_(num_nodes) {}

  // Forgets everything and keeps the memory. At most `num_seeds` seeds follow.
  void start(int64_t num_seeds, bool disjoint);
  // Adds valid ids; seed i is the root of tree first_tree + i.
  void add_seeds(const int64_t* seeds, int64_t n, uint32_t first_tree);

  // Writes the local ids of node[0, n); those that are new get the next ones, in order. tree [n]: see start; null in a
  // batch that is not disjoint. Throws std::out_of_range, before anything is added, for an id outside the graph.
  void find_or_add(const int64_t* node, const uint32_t* tree, int64_t n, int64_t* local);

  // Writes the local ids of node[0, n), kAbsent for those that are not in the batch. Only reads, so several threads may
  // call it at a time. Not in a disjoint batch. Throws std::out_of_range for an id outside the graph.
  template <typename Id>
  void find(const Id* node, int64_t n, uint32_t* local) const;

  // What has been added since the last call is the frontier now.
  void end_hop();

  // Writes size() ids and trees; null: not these.
  void copy_to(int64_t* node_out, int64_t* tree_out, int num_threads) const;

  // Hands over a block that begins with the ids. The set is empty afterwards, but for num_sampled and its trees.
  BlockPool::Block hand_over() { return node_.hand_over(); }

  int64_t num_nodes() const { return num_nodes_; }  // of the graph
  int64_t size() const { return node_.size(); }     // of the batch
  const int64_t* node() const { return node_.data(); }
  const uint32_t* tree() const { return tree_.data(); }  // empty unless disjoint
  int64_t frontier_begin() const { return frontier_begin_; }
  int64_t frontier_end() const { return frontier_end_; }
  int64_t frontier_size() const { return frontier_end_ - frontier_begin_; }
  const std::vector<int64_t>& num_sampled() const { return num_sampled_; }

 private:
  void require_known(int64_t node) const {
    require_index(static_cast<uint64_t>(node) < static_cast<uint64_t>(num_nodes_), "neighbour id ", node,
                  " is outside [0, ", num_nodes_, "): the graph's columns are damaged");
  }
  void require_all_known(const int64_t* node, int64_t n) const;
  template <bool kDisjoint, typename Table>
  void find_or_add_in(Table& table, const int64_t* node, const uint32_t* tree, int64_t n, int64_t* local);
  bool dense() const { return fits_dense_ && !disjoint_; }

  int64_t num_nodes_;
  bool fits_dense_, disjoint_ = false;
  DenseTable dense_;  // of the two tables the one that is not used takes no memory
  HashTable hash_;
  PooledBuffer<int64_t> node_;  // global id per local id
  Buffer<uint32_t> tree_;       // tree per local id, when disjoint
  int64_t frontier_begin_ = 0, frontier_end_ = 0;
  std::vector<int64_t> num_sampled_;  // per hop, seeds first
};

template <typename Id>
void NodeSet::find(const Id* node, int64_t n, uint32_t* local) const {
  const auto look_up = [&](const auto& table) {
    for (int64_t i = 0; i < n; ++i) {
      require_known(node[i]);
      table.prefetch(node[i]);
    }
    for (int64_t i = 0; i < n; ++i) local[i] = find_in(table, node[i]);
  };
  if (dense())
    look_up(dense_);
  else
    look_up(hash_);
}

}  // namespace glt
