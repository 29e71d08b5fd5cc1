// The tables of core/relabel.h where their 32-bit words run out: thousands of batches away, so the words are moved.
// Exits with 0 if every batch numbers its nodes by first occurrence.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <new>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/block_pool.h"
#include "core/check.h"
#include "core/memory.h"
#define private public
#include "core/relabel.h"
#undef private

template <typename Table>
int check(Table& table, const char* what, uint64_t near_end) {
  constexpr int64_t kNodes = 200;
  std::mt19937_64 rng(1);
  int clears = 0;
  for (int batch = 0; batch < 20000; ++batch) {
    if (batch % 50 == 10) table.base_ = std::max(table.base_, near_end - rng() % 2000);
    const int64_t num_seeds = rng() % 60;
    const uint64_t base_before = table.base_;
    table.begin(kNodes + num_seeds);
    clears += table.base_ < base_before;
    std::unordered_map<int64_t, uint32_t> known;
    uint32_t next = 0;
    for (int64_t i = 0, n = num_seeds + static_cast<int64_t>(rng() % 300); i < n; ++i) {
      const int64_t node = rng() % kNodes;
      const uint32_t there = glt::find_in(table, node);
      if (there != (known.count(node) ? known[node] : glt::kAbsent)) {
        std::printf("%s: batch %d, node %ld: found as %u\n", what, batch, long(node), there);
        return 1;
      }
      const auto [at, fresh] = known.try_emplace(node, next);
      const uint32_t got = table.find_or_add(node, next);
      if (got != at->second) {
        std::printf("%s: batch %d, node %ld: local id %u, expected %u\n", what, batch, long(node), got, at->second);
        return 1;
      }
      if (fresh || i < num_seeds) ++next;  // duplicate seeds keep their rows
    }
  }
  std::printf("%s: cleared %d times\n", what, clears);
  return clears > 100 ? 0 : 1;
}

// In a disjoint batch a node is one per tree.
int check_trees(glt::HashTable& table) {
  std::mt19937_64 rng(2);
  for (int batch = 0; batch < 3000; ++batch) {
    if (batch % 50 == 10) table.base_ = std::max<uint64_t>(table.base_, UINT32_MAX / 2 - rng() % 2000);
    table.begin(0);
    std::map<std::pair<int64_t, uint32_t>, uint32_t> known;
    for (int i = 0; i < 400; ++i) {
      const int64_t node = rng() % 40;
      const uint32_t tree = rng() % 2 ? rng() % 10 : UINT32_MAX - rng() % 10;
      const uint32_t next = static_cast<uint32_t>(known.size());
      const uint32_t expected = known.try_emplace({node, tree}, next).first->second;
      if (glt::find_in(table, node, tree) != (expected == next ? glt::kAbsent : expected) ||
          table.find_or_add(node, next, tree) != expected || glt::find_in(table, node, tree) != expected) {
        std::printf("trees: batch %d, node %ld, tree %u: expected %u\n", batch, long(node), tree, expected);
        return 1;
      }
    }
  }
  return 0;
}

int main() {
  glt::DenseTable dense(200);
  glt::HashTable hash;
  return check(dense, "dense", UINT32_MAX) | check(hash, "hash", UINT32_MAX / 2) | check_trees(hash);
}
