// Sampling without replacement by k draws: Floyd's algorithm (Bentley & Floyd, CACM 30(9), 1987).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/buffer.h"
#include "core/pick_rules.h"
#include "core/rng.h"

namespace glt {

// A set of picks for fan-outs where comparing with every earlier pick would cost more than hashing.
class PickSet {
 public:
  void clear(int64_t k) {
    mask_ = 63;
    while (mask_ + 1 < 2 * static_cast<uint64_t>(k)) mask_ = 2 * mask_ + 1;
    slots_.resize(static_cast<int64_t>(mask_) + 1);
    std::fill_n(slots_.data(), slots_.size(), int64_t{-1});
  }
  // Adds `pick`; false if it was there.
  bool insert(int64_t pick) {
    for (uint64_t at = (static_cast<uint64_t>(pick) * 0x9E3779B97F4A7C15u >> 20) & mask_;; at = (at + 1) & mask_) {
      if (slots_[at] == pick) return false;
      if (slots_[at] < 0) {
        slots_[at] = pick;
        return true;
      }
    }
  }

 private:
  uint64_t mask_ = 0;
  Buffer<int64_t> slots_;
};

constexpr int64_t kCompareAll = 32;  // picks up to here: comparing with each is quicker than a set

// floyd_few for any k, by the draws first_draw, ...
inline void floyd(int64_t begin, int64_t n, int64_t k, NodeDraws& draws, uint32_t first_draw, int64_t* pick,
                  PickSet& picks) {
  if (k <= kCompareAll) {
    uint64_t bits[kCompareAll + 2];
    const int64_t odd = first_draw & 1;
    draws.fill(first_draw & ~1u, k + odd, bits);
    floyd_few(begin, n, k, bits + odd, pick);
    return;
  }
  picks.clear(k);
  for (int64_t i = 0; i < k; ++i) {
    int64_t drawn = floyd_drawn(n, k, i, draws(first_draw + static_cast<uint32_t>(i)));
    if (!picks.insert(drawn)) {
      drawn = n - k + i;
      picks.insert(drawn);
    }
    pick[i] = begin + drawn;
  }
}

}  // namespace glt
