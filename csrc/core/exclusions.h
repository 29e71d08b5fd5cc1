// Edges that a batch must not take, such as the edges that a link batch is about to predict.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/rng.h"

namespace glt {

// Where a hash table with `mask` + 1 slots looks for an excluded edge's expanded node first; then in the next slots.
GLT_HOST_DEVICE uint64_t home_of_excluded(int64_t center, uint64_t mask) {
  return (static_cast<uint64_t>(center) * 0x9E3779B97F4A7C15u >> 20) & mask;
}

// A set of pairs (expanded node, neighbour), each of which stands for all parallel edges between the two. Built once
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

}  // namespace glt
