// Which edges of each row a hop may take: all of them, or those up to a time, without those that are excluded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/csr.h"
#include "core/memory.h"
#include "core/rng.h"

namespace glt {

// Where a hash table with `mask` + 1 slots looks for an excluded edge's expanded node first; then in the next slots.
GLT_HOST_DEVICE uint64_t home_of_excluded(int64_t center, uint64_t mask) {
  return (static_cast<uint64_t>(center) * 0x9E3779B97F4A7C15u >> 20) & mask;
}

// Edges that a batch must not take, such as the edges that a link batch is about to predict: a set of pairs (expanded
// node, neighbour), each of which stands for all parallel edges between the two. Built once
// per batch; a node that has none is told by one look into a hash table.
class Exclusions {
 public:
  // The neighbours of one expanded node: [begin, begin + count) of neighbors(). Kernels read the table as it is.
  struct Slot {
    int64_t center = 0;
    int64_t begin = 0, count = 0;  // count 0: free
  };

  Exclusions(const int64_t* center, const int64_t* neighbor, int64_t n) {
    std::vector<std::pair<int64_t, int64_t>> pairs(n);
    for (int64_t i = 0; i < n; ++i) pairs[i] = {center[i], neighbor[i]};
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    while (mask_ + 1 < 2 * pairs.size()) mask_ = 2 * mask_ + 1;
    slots_.resize(mask_ + 1);
    neighbor_.reserve(pairs.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
      neighbor_.push_back(pairs[i].second);
      Slot& slot = slots_[find(pairs[i].first)];
      if (slot.count == 0) slot = {pairs[i].first, static_cast<int64_t>(i), 0};
      ++slot.count;
    }
  }

  // The excluded neighbours of `center`, ascending and distinct.
  std::span<const int64_t> of(int64_t center) const {
    const Slot& slot = slots_[find(center)];
    return {neighbor_.data() + slot.begin, static_cast<size_t>(slot.count)};
  }
  bool empty() const { return neighbor_.empty(); }
  std::span<const Slot> slots() const { return slots_; }  // a power of two of them
  std::span<const int64_t> neighbors() const { return neighbor_; }

 private:
  size_t find(int64_t center) const {
    uint64_t at = home_of_excluded(center, mask_);
    while (slots_[at].count > 0 && slots_[at].center != center) at = (at + 1) & mask_;
    return at;
  }

  uint64_t mask_ = 15;
  std::vector<Slot> slots_;
  std::vector<int64_t> neighbor_;
};

// Rows that are read together: enough loads in flight to hide memory latency, few enough to stay in the L2 cache.
constexpr int64_t kChunkRows = 256;

// The nodes whose edges are sampled, in order.
struct Rows {
  const int64_t* node;  // [n]
  int64_t n;
  const uint32_t* tree = nullptr;      // [n], the tree of each node in a disjoint batch: trees draw independently
  const int64_t* seed_time = nullptr;  // [n], only edges with time <= this are taken, where edges have times
  int64_t num_next = 0;                // behind the n in `node`: asked for early, since they come next

  Rows slice(int64_t first, int64_t count) const {
    return {node + first, count, tree ? tree + first : nullptr, seed_time ? seed_time + first : nullptr,
            n - first - count};
  }
};

struct RowSpans {
  Buffer<int64_t> row;                           // [n], row numbers
  Buffer<int64_t> begin;                         // [n], position of the first edge
  Buffer<int64_t> degree;                        // [n], edges from there on, excluded ones among them
  Buffer<int64_t> eligible;                      // [n], how many of them are not excluded
  Buffer<int64_t> excluded;                      // their positions, ascending within a row
  Buffer<int64_t> excluded_begin, excluded_end;  // [n], the part of each row in `excluded`; empty without exclusions

  int64_t num_excluded(int64_t i) const { return excluded_end.size() ? excluded_end[i] - excluded_begin[i] : 0; }
  const int64_t* excluded_of(int64_t i) const { return excluded.data() + excluded_begin[i]; }

  // Turns begin + r, for the r-th eligible edge of row i, into the position of that edge, for `count` of them.
  void skip_excluded(int64_t i, int64_t* position, int64_t count) const;
};

// Which edges of a row are eligible, beside those after its seed time.
struct SpanRule {
  const Exclusions* exclusions = nullptr;  // edges that are not; null: none
  int64_t time_window = -1;                // at least 0: only edges that are no more than this before the seed time
  int64_t keep_last = -1;                  // at least 0: of all these, so many, the last ones
};

// When the window before a time begins: no edge is earlier than the earliest time there is.
GLT_HOST_DEVICE int64_t window_begin(int64_t seed_time, int64_t time_window) {
  return seed_time < INT64_MIN + time_window ? INT64_MIN : seed_time - time_window;
}

// Finds the rows of `rows`. Throws std::out_of_range, naming the first offender as `name`[first_index + i], when a node
// is outside the graph or has no row here.
void find_spans(const CsrView& csr, const Rows& rows, const SpanRule& rule, RowSpans& out, const char* name,
                int64_t first_index);

// out[i] = 1 if center[i] has an edge with neighbor[i], else 0; each row is scanned until the edge is found. Throws
// std::out_of_range, naming the first offender as `name`[i], when a centre is outside the graph or has no row here.
void has_edges(const CsrView& csr, const int64_t* center, const int64_t* neighbor, int64_t n, uint8_t* out,
               const char* name);

}  // namespace glt
