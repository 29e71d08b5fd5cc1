#include "core/relabel.h"

#include <algorithm>
#include <variant>

#include "core/threads.h"

namespace glt {

void NodeSet::start(int64_t num_seeds, bool disjoint) {
  disjoint_ = disjoint;
  node_.clear();
  tree_.end_use();
  members_.end_use();
  frontier_begin_ = frontier_end_ = 0;
  num_sampled_.clear();
  if (dense())
    dense_.begin(num_nodes_ + num_seeds);
  else
    hash_.begin(num_nodes_ + num_seeds);
}

void NodeSet::add_seeds(const int64_t* seeds, int64_t n, uint32_t first_tree) {
  const uint32_t first = static_cast<uint32_t>(node_.size()), count = static_cast<uint32_t>(n);
  node_.append(seeds, n);
  if (disjoint_) {
    tree_.reserve_more(n);
    for (uint32_t i = 0; i < count; ++i) {
      tree_.push_back(first_tree + i);
      hash_.find_or_add(seeds[i], first + i, first_tree + i);
    }
  } else if (dense()) {
    for (uint32_t i = 0; i < count; ++i) dense_.find_or_add(seeds[i], first + i);
  } else {
    for (uint32_t i = 0; i < count; ++i) hash_.find_or_add(seeds[i], first + i);
  }
}

// In blocks, and each in two passes: first all look-ups, which wait for nothing, then the nodes that those did not
// find. In one pass each look-up would have to wait for the stores before it, since any of them may be to its word; the
// hubs of a graph come up again and again, so they often are.
template <bool kDisjoint, typename Table>
void NodeSet::find_or_add_in(Table& table, const int64_t* node, const uint32_t* tree, int64_t n, int64_t* local) {
  constexpr int64_t kBlock = 64, kAhead = 64;  // look-ups per block; words on their way from memory
  const auto with_key = [&](int64_t i, const auto& call) {
    if constexpr (kDisjoint)
      return call(node[i], tree[i]);
    else
      return call(node[i]);
  };
  const auto ask_ahead = [&](int64_t i) { with_key(i, [&](auto... key) { table.prefetch(key...); }); };
  require_all_known(node, n);
  node_.reserve_more(n);
  if constexpr (kDisjoint) tree_.reserve_more(n);
  int64_t* node_of = node_.data();
  [[maybe_unused]] uint32_t* tree_of = tree_.data();
  const int64_t known = node_.size();
  int64_t next = known;
  for (int64_t i = 0; i < std::min(kAhead, n); ++i) ask_ahead(i);
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(first + kBlock, n);
    for (int64_t i = first + kAhead; i < std::min(end + kAhead, n); ++i) ask_ahead(i);
    const uint32_t base = table.base();
    int64_t unknown[kBlock], num_unknown = 0;
    // Unconditional stores, conditional steps: first occurrences are unpredictable, branches would cost more. What is
    // stored for a node that is not found means nothing; the second pass stores anew.
    for (int64_t i = first; i < end; ++i) {
      const uint32_t word = with_key(i, [&](auto... key) { return table.word(key...); });
      local[i] = word - base;
      unknown[num_unknown] = i;
      num_unknown += word < base;
    }
    for (int64_t u = 0; u < num_unknown; ++u) {
      const int64_t i = unknown[u];
      const uint32_t to_give = static_cast<uint32_t>(next);
      uint32_t found;
      if constexpr (kDisjoint)
        found = table.find_or_add(node[i], to_give, tree[i]);
      else
        found = table.find_or_add(node[i], to_give);
      local[i] = found;
      node_of[next] = node[i];
      if constexpr (kDisjoint) tree_of[next] = tree[i];
      next += found == next;
    }
  }
  node_.added(next - known);
  if constexpr (kDisjoint) tree_.added(next - known);
}

void NodeSet::find_or_add(const int64_t* node, const uint32_t* tree, int64_t n, int64_t* local) {
  if (disjoint_)
    find_or_add_in<true>(hash_, node, tree, n, local);
  else if (dense())
    find_or_add_in<false>(dense_, node, tree, n, local);
  else
    find_or_add_in<false>(hash_, node, tree, n, local);
}

void NodeSet::end_hop() {
  frontier_begin_ = frontier_end_;
  frontier_end_ = node_.size();
  num_sampled_.push_back(frontier_size());
}

void NodeSet::copy_to(MutableIds node_out, int64_t* tree_out, int num_threads) const {
  constexpr int64_t kPiece = 8192;
  const auto copy_all = [&](auto* out) {
    for_row_chunks(size(), kPiece, 1, num_threads, [&](int64_t first, int64_t last) {
      if (out) std::copy(node() + first, node() + last, out + first);
      if (tree_out) std::copy(tree() + first, tree() + last, tree_out + first);
    });
  };
  std::visit(copy_all, node_out);
}

}  // namespace glt
