// Hotness passed along the edges of one type at one hop, as core/hotness.h does.
#pragma once

#include <cstdint>

#include "core/hotness.h"
#include "cuda/block.h"
#include "cuda/device_rows.h"

namespace glt::cuda {

constexpr int kMostHotnessHops = 16;

// As HotnessHop, in memory that kernels read.
struct HotnessTask {
  DeviceRows rows;
  int64_t num_neighbors[kMostHotnessHops];
  bool weighted, replace;
  int64_t hop;
  const float* expanded;
  const float* neighbor;
  int64_t num_columns;
  const uint64_t* repeated;
  const uint64_t* mutual;
  const int64_t* back_indptr;
  int64_t back_neighbors[kMostHotnessHops];
  int64_t* doubt;
};

// A block goes through a row, its threads through the edges.
struct AddDoubt {
  struct Shared {
    EdgeChance chance[kMostHotnessHops];
    TwoSums partial[kThreads];
    TwoSums sum;
  };
  HotnessTask task;
  int64_t num_blocks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    for (int64_t v = block.x(); v < task.rows.num_nodes; v += num_blocks) {
      const int64_t begin = task.rows.indptr[v], end = task.rows.indptr[v + 1];
      const float* found = task.expanded + v * task.num_columns;
      if (begin == end || found[task.hop] <= 0) continue;  // found by a later hop: another call
      for (int64_t j = 0; j <= task.hop; ++j) prepare(block, shared, j, begin, end);
      spread(block, shared, begin, end, found);
    }
  }

 private:
  template <typename Block>
  GLT_HOST_DEVICE void prepare(const Block& block, Shared& shared, int64_t hop, int64_t begin, int64_t end) const {
    const int64_t k = task.num_neighbors[hop];
    EdgeChance chance;
    chance.begin(task.weighted ? task.rows.weight_sum : nullptr, begin, end, k, task.replace);
    // All threads ask for each sum, so that all know it. Up to 256 edges are added in the order of the host.
    chance.finish(end - begin, k, task.replace, [&](const auto& of) {
      block.each([&](int thread) {
        TwoSums sum{0, 0};
        for (int64_t e = begin + thread; e < end; e += kThreads) sum = plus(sum, of(e));
        shared.partial[thread] = sum;
      });
      block.each([&](int thread) {
        if (thread != 0) return;
        const int64_t parts = end - begin < kThreads ? end - begin : kThreads;
        TwoSums sum{0, 0};
        for (int64_t t = 0; t < parts; ++t) sum = plus(sum, shared.partial[t]);
        shared.sum = sum;
      });
      return shared.sum;
    });
    block.each([&](int thread) {
      if (thread == 0) shared.chance[hop] = chance;
    });
  }

  GLT_HOST_DEVICE static TwoSums plus(const TwoSums& a, const TwoSums& b) {
    return {a.first + b.first, a.second + b.second};
  }

  template <typename Block>
  GLT_HOST_DEVICE void spread(const Block& block, Shared& shared, int64_t begin, int64_t end,
                              const float* found) const {
    const RowHotness row{shared.chance,    task.hop,           found, task.neighbor, task.num_columns, task.replace,
                         task.back_indptr, task.back_neighbors};
    block.each([&](int thread) {
      if (begin + thread >= end) return;
      const bool even = !task.weighted || !task.rows.weight_sum;
      const int64_t amount = even ? doubt_of(row.taken(begin).once) : 0;
      for (int64_t e = begin + thread; e < end; e += kThreads) {
        const int64_t u = task.rows.indices[e];
        if (found == task.neighbor + u * task.num_columns) continue;  // a loop finds no new node
        const bool again = edge_bit(task.repeated, e), back = task.hop > 0 && edge_bit(task.mutual, e);
        const int64_t more = even && !again && !back ? amount : row.doubt(e, u, again, back);
        // A sum that is a little late to be seen as enough goes on to grow a little.
        auto* sum = reinterpret_cast<uint64_t*>(task.doubt + u);
        if (block.load(sum) < static_cast<uint64_t>(kEnoughDoubt)) block.atomic_add(sum, static_cast<uint64_t>(more));
      }
    });
  }
};

}  // namespace glt::cuda
