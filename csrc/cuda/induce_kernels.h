// The edges among the nodes of a finished batch: which edges of a row lead to a member.
//
// CountDegrees and PlaceDegrees number the edges of all rows; CountMembers and SumMembers find out how many lead to a
// member, so that the host can make room; WriteMembers writes those, in order of the expanded node and then of its row.
#pragma once

#include <cstdint>

#include "cuda/block.h"
#include "cuda/device_rows.h"
#include "cuda/hop_tasks.h"

namespace glt::cuda {

// One edge type.
struct InduceTask {
  DeviceRows rows;
  const int64_t* center;  // [num_centers], nodes of the batch whose rows are read
  int64_t num_centers;
  Occurrences members;
  int row_tiles, edge_tiles;
  int64_t* degree_sums;     // [row_tiles]
  int64_t* member_sums;     // [edge_tiles]
  int64_t* row_begin;       // [num_centers], the first edge of each row, counted from that of the first row
  int64_t* num_candidates;  // out: edges of all rows
  int64_t* num_edges;       // out: those that lead to a member
  uint64_t* bad;            // out: the largest neighbour id outside the graph, or 0

  GLT_HOST_DEVICE int64_t degree(int64_t i) const { return rows.indptr[center[i] + 1] - rows.indptr[center[i]]; }

  // Calls visit(i, position, local) for the edges in [first, last) that lead to a member: from row i, to node `local`.
  template <typename Block, typename Visit>
  GLT_HOST_DEVICE void for_each_member(const Block& block, int64_t first, int64_t last, const Visit& visit) const {
    if (first >= last) return;
    int64_t row = 0;
    for (int64_t high = num_centers; high - row > 1;) {
      const int64_t middle = (row + high) / 2;
      if (row_begin[middle] <= first)
        row = middle;
      else
        high = middle;
    }
    for (int64_t e = first; e < last; ++e) {
      while (row + 1 < num_centers && row_begin[row + 1] <= e) ++row;
      const int64_t position = rows.indptr[center[row]] + e - row_begin[row], neighbor = rows.indices[position];
      if (static_cast<uint64_t>(neighbor) >= static_cast<uint64_t>(members.num_nodes)) {
        block.atomic_max(bad, static_cast<uint64_t>(neighbor));
        continue;
      }
      const int64_t local = members.find(neighbor);
      if (local >= 0) visit(row, position, local);
    }
  }
  template <typename Block>
  GLT_HOST_DEVICE int64_t num_members(const Block& block, int64_t first, int64_t last) const {
    int64_t n = 0;
    for_each_member(block, first, last, [&](int64_t, int64_t, int64_t) { ++n; });
    return n;
  }
};

struct CountDegrees {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 5;
  InduceTask task;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const Tile tile(task.num_centers, block.x(), task.row_tiles);
    scan_tile(block, shared, tile, nullptr, 0, sum_of([&](int64_t i) { return task.degree(i); }));
    block.each([&](int thread) {
      if (thread == 0) task.degree_sums[block.x()] = shared.tile_sum();
    });
  }
};

struct PlaceDegrees {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 5;
  InduceTask task;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const int x = block.x();
    const Tile tile(task.num_centers, x, task.row_tiles);
    scan_tile(block, shared, tile, task.degree_sums, x, sum_of([&](int64_t i) { return task.degree(i); }));
    block.each([&](int thread) {
      int64_t place = shared.place(thread);
      for (int64_t i = tile.first(thread); i < tile.last(thread); place += task.degree(i), ++i)
        task.row_begin[i] = place;
      if (thread == 0 && x == task.row_tiles - 1) *task.num_candidates = shared.tile_place() + shared.tile_sum();
    });
  }
};

struct CountMembers {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 5;
  InduceTask task;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const Tile tile(*task.num_candidates, block.x(), task.edge_tiles);
    scan_tile(block, shared, tile, nullptr, 0,
              [&](int64_t first, int64_t last) { return task.num_members(block, first, last); });
    block.each([&](int thread) {
      if (thread == 0) task.member_sums[block.x()] = shared.tile_sum();
    });
  }
};

// One block.
struct SumMembers {
  using Shared = ScanShared;
  InduceTask task;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    scan_tile(block, shared, Tile(0, 0, 1), task.member_sums, task.edge_tiles,
              [](int64_t, int64_t) { return int64_t{0}; });
    block.each([&](int thread) {
      if (thread == 0) *task.num_edges = shared.tile_place();
    });
  }
};

struct WriteMembers {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 5;
  InduceTask task;
  int64_t *row, *col, *edge;  // [*task.num_edges]; edge null: not wanted

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const int x = block.x();
    const Tile tile(*task.num_candidates, x, task.edge_tiles);
    if (tile.empty()) return;
    scan_tile(block, shared, tile, task.member_sums, x,
              [&](int64_t first, int64_t last) { return task.num_members(block, first, last); });
    block.each([&](int thread) {
      int64_t at = shared.place(thread);
      task.for_each_member(block, tile.first(thread), tile.last(thread),
                           [&](int64_t center, int64_t position, int64_t local) {
                             row[at] = local;
                             col[at] = center;
                             if (edge) edge[at] = task.rows.edge_id(position);
                             ++at;
                           });
    });
  }
};

}  // namespace glt::cuda
