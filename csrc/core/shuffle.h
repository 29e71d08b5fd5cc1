// A random permutation that is a function of its key alone.
#pragma once

#include <cstdint>
#include <utility>

#include "core/rng.h"

namespace glt {

// Fisher-Yates (Durstenfeld, CACM 7(7), 1964), in place, with draws from Philox under `key`.
template <typename T>
void shuffle(T* items, int64_t n, uint64_t key) {
  NodeDraws draws(key, /*hop=*/0, /*edge_type=*/0, /*node=*/0);
  for (int64_t i = n - 1; i > 0; --i) {
    // Two draws per block; the block number is 32 bits, so very long arrays move on to the next "node".
    const uint64_t step = static_cast<uint64_t>(n - 1 - i);
    if (step != 0 && (step & 0xFFFFFFFFu) == 0) draws = NodeDraws(key, 0, 0, step >> 32);
    const int64_t j = static_cast<int64_t>(bounded(draws(static_cast<uint32_t>(step)), static_cast<uint64_t>(i) + 1));
    std::swap(items[i], items[j]);
  }
}

}  // namespace glt
