// Global node ids to the local ids of one batch, in order of first occurrence.
//
// Both tables stamp their words: base of the batch + local id. A word below the base of the batch at hand is empty,
// whatever it says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/block_pool.h"
#include "core/check.h"
#include "core/csr.h"
#include "core/members.h"
#include "core/memory.h"

namespace glt {

constexpr uint32_t kAbsent = UINT32_MAX;  // no local id: a batch has fewer than 2^32 - 1 nodes

// One 32-bit word per node of the graph: base + local id. Every batch starts with a base above all words written so
// far, which empties the table without touching it; it is cleared only when the words run out.
class DenseTable {
 public:
  explicit DenseTable(int64_t num_nodes) : num_nodes_(num_nodes) {}

  static bool fits(int64_t num_nodes) { return num_nodes < (int64_t{1} << 31); }

  // `num_words`: local ids that this batch may hand out at most.
  void begin(int64_t num_words) {
    if (words_.size() == 0 || base_ + used_ > UINT32_MAX - static_cast<uint64_t>(num_words)) {
      words_.resize(num_nodes_);
      std::fill_n(words_.data(), num_nodes_, 0u);
      base_ = 1;
    } else {
      base_ += used_;
    }
    used_ = 0;
  }
  void prefetch(int64_t node) const { glt::prefetch(words_.data() + node); }

  // Local id of `node`; `next`, which it then gets, if this is its first occurrence.
  uint32_t find_or_add(int64_t node, uint32_t next) {
    // Unconditional store: first occurrences are unpredictable, a branch would cost more.
    const uint32_t base = static_cast<uint32_t>(base_), word = words_[node];
    const uint32_t local = word >= base ? word - base : next;
    words_[node] = base + local;
    used_ = std::max<uint64_t>(used_, local + 1);
    return local;
  }

  // Look-ups add nothing, so several threads may make them at the same time.
  uint32_t base() const { return static_cast<uint32_t>(base_); }
  uint32_t word(int64_t node) const { return words_[node]; }

 private:
  int64_t num_nodes_;
  Buffer<uint32_t> words_;
  uint64_t base_ = 1, used_ = 0;
};

// The same by open addressing: memory follows the batch instead of the graph. In a disjoint batch a node is one per
// tree, so the tree is part of the key; it fills what would be padding.
class HashTable {
 public:
  void begin(int64_t) {
    room_.used(num_entries_);
    if (room_.is_too_much(slots_.size() / 4, kMinSlots))
      slots_ = Buffer<Slot>();  // a quarter was filled, at most a half
    if (slots_.size() == 0) clear(kMinSlots);
    if (base_ + used_ > UINT32_MAX / 2) clear(slots_.size());
    base_ += used_;
    used_ = 0;
    num_entries_ = 0;
  }
  void prefetch(int64_t node, uint32_t tree = 0) const { glt::prefetch(slots_.data() + home(node, tree)); }

  uint32_t find_or_add(int64_t node, uint32_t next, uint32_t tree = 0) {
    Slot& slot = slots_[place(node, tree)];
    if (slot.word >= base_) return slot.word - static_cast<uint32_t>(base_);
    slot = {node, tree, static_cast<uint32_t>(base_) + next};
    used_ = next + 1;
    if (2 * ++num_entries_ > slots_.size()) double_size();
    return next;
  }

  uint32_t base() const { return static_cast<uint32_t>(base_); }
  uint32_t word(int64_t node, uint32_t tree = 0) const { return slots_[place(node, tree)].word; }

 private:
  static constexpr int64_t kMinSlots = 1 << 12;
  struct Slot {
    int64_t node;
    uint32_t tree;
    uint32_t word;  // base + local id; below base: free
  };

  int64_t home(int64_t node, uint32_t tree) const {
    const uint64_t key = static_cast<uint64_t>(node) + tree * 0xD1B54A32D192ED03u;
    return static_cast<int64_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }
  // Where the key is, or the free slot where it belongs.
  int64_t place(int64_t node, uint32_t tree) const {
    int64_t at = home(node, tree);
    while (slots_[at].word >= base_ && (slots_[at].node != node || slots_[at].tree != tree))
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void clear(int64_t size) {
    slots_.resize(size);
    std::fill_n(slots_.data(), size, Slot{0, 0, 0});
    shift_ = 64 - __builtin_ctzll(static_cast<uint64_t>(size));
    base_ = 1;
    used_ = 0;
  }
  void double_size() {
    require(num_entries_ < (int64_t{1} << 31), "a batch has over 2^31 nodes: use smaller batches or fan-outs");
    Buffer<Slot> old = std::move(slots_);
    const uint64_t base = base_, used = used_;
    slots_ = Buffer<Slot>();
    clear(2 * old.size());
    base_ = base;
    used_ = used;
    for (int64_t i = 0; i < old.size(); ++i)
      if (old[i].word >= base_) slots_[place(old[i].node, old[i].tree)] = old[i];
  }

  Buffer<Slot> slots_;
  int shift_ = 0;
  uint64_t base_ = 1, used_ = 0;
  int64_t num_entries_ = 0;
  ExpectedRoom room_;
};

// Local id of a node (and tree), or kAbsent.
template <typename Table, typename... Key>
uint32_t find_in(const Table& table, Key... key) {
  const uint32_t word = table.word(key...), base = table.base();
  return word >= base ? word - base : kAbsent;
}

// The nodes of one type in a batch: their local ids, and which of them the next hop expands.
//
// Nodes are numbered by first occurrence, seeds first and as given: duplicate seeds keep their rows, and a seed that is
// found is its first row. In a disjoint batch the trees share nothing: a node is one per tree that reaches it.
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
  // call it at a time. In a disjoint batch those of one tree; else `tree` plays no role. Throws std::out_of_range for
  // an id outside the graph.
  template <typename Id>
  void find(const Id* node, int64_t n, uint32_t* local, uint32_t tree) const;

  // Prepares select and members, which name the nodes of the batch, in a disjoint one those of a tree; no nodes are
  // added afterwards.
  void index_members() { members_.build(node(), disjoint_ ? tree() : nullptr, size()); }

  // Writes which of node[0, n) are in the batch: their positions, ascending, and local ids; returns how many. As find,
  // but fast where few are. Both have room for n.
  template <typename Id>
  int64_t select(const Id* node, int64_t n, uint32_t tree, uint32_t* position, uint32_t* local) const;

  // Throws std::out_of_range for an id outside the graph.
  void require_known(int64_t node) const {
    require_index(static_cast<uint64_t>(node) < static_cast<uint64_t>(num_nodes_), "neighbour id ", node,
                  " is outside [0, ", num_nodes_, "): the graph's columns are damaged");
  }

  // All of them, or those of a tree, by id.
  std::pair<const Members::Member*, int64_t> members(uint32_t tree) const { return members_.of(disjoint_ ? tree : 0); }

  // What has been added since the last call is the frontier now.
  void end_hop();

  // Writes size() ids, which fit, and trees; null: not these.
  void copy_to(MutableIds node_out, int64_t* tree_out, int num_threads) const;

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
  template <typename Id>
  void require_all_known(const Id* node, int64_t n) const;
  void find_or_add_dense(const int64_t* node, int64_t n, int64_t* local);
  template <typename... Trees>
  void find_or_add_hashed(const int64_t* node, int64_t n, int64_t* local, const Trees*... tree);
  bool dense() const { return fits_dense_ && !disjoint_; }

  int64_t num_nodes_;
  bool fits_dense_, disjoint_ = false;
  DenseTable dense_;  // of the two tables the one that is not used takes no memory
  HashTable hash_;
  PooledBuffer<int64_t> node_;  // global id per local id
  Buffer<uint32_t> tree_;       // tree per local id, when disjoint
  Members members_;
  int64_t frontier_begin_ = 0, frontier_end_ = 0;
  std::vector<int64_t> num_sampled_;  // per hop, seeds first
};

template <typename Id>
void NodeSet::require_all_known(const Id* node, int64_t n) const {
  const uint64_t last = static_cast<uint64_t>(num_nodes_) - 1;
  uint64_t signs = 0;  // the top bit: some id is negative or above the last
  for (int64_t i = 0; i < n; ++i) {
    const auto id = static_cast<uint64_t>(static_cast<int64_t>(node[i]));
    signs |= id | (last - id);
  }
  if (signs >> 63)
    for (int64_t i = 0; i < n; ++i) require_known(node[i]);
}

template <typename Id>
void NodeSet::find(const Id* node, int64_t n, uint32_t* local, uint32_t tree) const {
  require_all_known(node, n);
  const auto look_up = [&](const auto& table, auto... of_tree) {
    for (int64_t i = 0; i < n; ++i) table.prefetch(node[i], of_tree...);
    for (int64_t i = 0; i < n; ++i) local[i] = find_in(table, static_cast<int64_t>(node[i]), of_tree...);
  };
  if (dense())
    look_up(dense_);
  else if (disjoint_)
    look_up(hash_, tree);
  else
    look_up(hash_);
}

template <typename Id>
int64_t NodeSet::select(const Id* node, int64_t n, uint32_t tree, uint32_t* position, uint32_t* local) const {
  bool all_known;
  const int64_t num_found = members_.select(node, n, disjoint_ ? tree : 0, num_nodes_, position, local, all_known);
  if (!all_known) require_all_known(node, n);
  return num_found;
}

}  // namespace glt
