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

namespace {

constexpr int64_t kAhead = 64;  // words on their way from memory

}  // namespace

// In blocks, and each in two passes: first all look-ups, which wait for nothing, then the nodes that those did not
// find. In one pass each look-up would have to wait for the stores before it, since any of them may be to its word; the
// hubs of a graph come up again and again, so they often are.
void NodeSet::find_or_add_dense(const int64_t* node, int64_t n, int64_t* local) {
  constexpr int64_t kBlock = 64;  // look-ups
  int64_t* node_of = node_.data();
  const int64_t known = node_.size();
  int64_t next = known;
  for (int64_t i = 0; i < std::min(kAhead, n); ++i) dense_.prefetch(node[i]);
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(first + kBlock, n);
    for (int64_t i = first + kAhead; i < std::min(end + kAhead, n); ++i) dense_.prefetch(node[i]);
    const uint32_t base = dense_.base();
    int64_t unknown[kBlock], num_unknown = 0;
    // Unconditional stores, conditional steps: first occurrences are unpredictable, branches would cost more. What is
    // stored for a node that is not found means nothing; the second pass stores anew.
    for (int64_t i = first; i < end; ++i) {
      const uint32_t word = dense_.word(node[i]);
      local[i] = word - base;
      unknown[num_unknown] = i;
      num_unknown += word < base;
    }
    for (int64_t u = 0; u < num_unknown; ++u) {
      const int64_t i = unknown[u];
      const uint32_t found = dense_.find_or_add(node[i], static_cast<uint32_t>(next));
      local[i] = found;
      node_of[next] = node[i];
      next += found == next;
    }
  }
  node_.added(next - known);
}

// In one pass: most nodes of a disjoint batch are new, and to look for the place of one costs more than to wait.
template <typename... Trees>
void NodeSet::find_or_add_hashed(const int64_t* node, int64_t n, int64_t* local, const Trees*... tree) {
  int64_t* node_of = node_.data();
  const int64_t known = node_.size();
  int64_t next = known;
  require(known + n < UINT32_MAX / 2, "a batch has over 2^31 nodes: use smaller batches or fan-outs");
  for (int64_t i = 0; i < std::min(kAhead, n); ++i) hash_.prefetch(node[i], tree[i]...);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) hash_.prefetch(node[i + kAhead], tree[i + kAhead]...);
    local[i] = hash_.find_or_add(node[i], static_cast<uint32_t>(next), tree[i]...);
    node_of[next] = node[i];
    if constexpr (sizeof...(tree) > 0) tree_.data()[next] = (tree[i], ...);
    next += local[i] == next;
  }
  node_.added(next - known);
  if constexpr (sizeof...(tree) > 0) tree_.added(next - known);
}

void NodeSet::find_or_add(const int64_t* node, const uint32_t* tree, int64_t n, int64_t* local) {
  require_all_known(node, n);
  node_.reserve_more(n);
  if (disjoint_) {
    tree_.reserve_more(n);
    find_or_add_hashed(node, n, local, tree);
  } else if (dense()) {
    find_or_add_dense(node, n, local);
  } else {
    find_or_add_hashed(node, n, local);
  }
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
