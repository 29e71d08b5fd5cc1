// The tables of core/relabel.h where their 32-bit words run out: thousands of batches away, so the words are moved.
// Exits with 0 if every batch numbers its nodes by first occurrence.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/buffer.h"
#include "core/check.h"
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

int main() {
  glt::DenseTable dense(200);
  glt::HashTable hash;
  return check(dense, "dense", UINT32_MAX) | check(hash, "hash", UINT32_MAX / 2);
}
