// The kernels of a batch, as bodies that host and device run alike: see host_block.h for what a block is.
//
// FindExcluded where edges are excluded. Per hop: CountEdges; then PickFew where k is small and draws are uniform, else
// PlaceRows, DrawEdges or DrawByWeight where draws need it, and PickEdges; StampEdges where nodes are hashed; CountNew;
// AddNew.
#pragma once

#include <cstdint>

#include "core/pick_rules.h"
#include "cuda/hop_tasks.h"
#include "cuda/tile_scan.h"

namespace glt::cuda {

// The seeds of one node type, or those of one entry of a list that has a type twice.
struct TakeSeeds {
  using Shared = NoShared;
  const int64_t* seed;
  const uint32_t* given_tree;  // [n]; null: trees count through all types
  int64_t n, first;            // local id of the first
  uint32_t first_tree;
  Occurrences found;
  int64_t* node;
  uint32_t* tree;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared&) const {
    block.each([&](int thread) {
      const int64_t i = int64_t{block.x()} * kThreads + thread;
      if (i >= n) return;
      const int64_t at = first + i, id = seed[i];
      node[at] = found.node[at] = id;
      found.local[at] = static_cast<uint32_t>(at);
      if (tree) tree[at] = found.tree[at] = given_tree ? given_tree[i] : first_tree + static_cast<uint32_t>(i);
      if (found.is_bad(at))
        block.atomic_min(found.bad, static_cast<uint64_t>(at));
      else if (!found.stamps.mask)
        found.stamp_dense(block, at, id, found.stamps.top());
    });
  }
};

// Stamps occurrences [*begin, *end) in a hash table: once their keys are all written, since comparing reads them.
struct StampEdges {
  using Shared = NoShared;
  Tasks<NodeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared&) const {
    const NodeTask& task = tasks[block.y()];
    if (!task.found.stamps.mask || block.x() >= task.tiles) return;
    const Tile tile = task.tile(block.x());
    block.each([&](int thread) {
      for (int64_t i = tile.first(thread); i < tile.last(thread); ++i)
        if (const int64_t at = *task.found_begin + i; !task.found.is_bad(at)) task.found.stamp_hashed(block, at);
    });
  }
};

// The same for the seeds of one type.
struct StampSeeds {
  using Shared = NoShared;
  Occurrences found;
  int64_t n;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared&) const {
    block.each([&](int thread) {
      const int64_t at = int64_t{block.x()} * kThreads + thread;
      if (at < n && !found.is_bad(at)) found.stamp_hashed(block, at);
    });
  }
};

// How many edges each tile of a frontier gives.
struct CountEdges {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 5;
  Tasks<EdgeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const EdgeTask& task = tasks[block.y()];
    if (block.x() >= task.tiles) return;
    scan_tile(block, shared, task.tile(block.x()), nullptr, 0,
              sum_of([&](int64_t i) { return task.count(task.span(i)); }));
    block.each([&](int thread) {
      if (thread == 0) task.sums[task.first_tile + block.x()] = shared.tile_sum();
    });
  }
};

// Calls row(i, place) for the rows of a tile, `place` being that of the row's first edge behind found_begin, and says
// where the edges of the task begin and end.
template <typename Block, typename Row>
GLT_HOST_DEVICE void place_rows(const Block& block, ScanShared& shared, const EdgeTask& task, const Row& row) {
  const int x = block.x();
  if (x >= task.tiles) return;
  const Tile tile = task.tile(x);
  const bool first = x == 0, last = x == task.tiles - 1;
  if (tile.empty() && !first && !last) return;
  const auto give = [&](int64_t i) { return task.count(task.span(i)); };
  scan_tile(block, shared, tile, task.sums, task.first_tile + x, sum_of(give));
  block.each([&](int thread) {
    int64_t place = shared.place(thread);
    for (int64_t i = tile.first(thread); i < tile.last(thread); ++i) place += row(i, place);
    if (thread != 0) return;
    if (first) *task.edges_begin = *task.found_begin + shared.tile_place();
    if (!last) return;
    const int64_t end = *task.found_begin + shared.tile_place() + shared.tile_sum();
    *task.edges_end = end;
    if (end > task.found.capacity) block.atomic_max(task.found.need, static_cast<uint64_t>(end));
  });
}

// Picks and loads all edges of a row at once; k = K at most, drawn uniformly. One thread a row: K loads in flight.
template <int K>
struct PickFew {
  using Shared = ScanShared;
  static constexpr int kMost = K;
  Tasks<EdgeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const EdgeTask& task = tasks[block.y()];
    place_rows(block, shared, task, [&](int64_t i, int64_t place) {
      const RowSpan row = task.span(i);
      const int64_t count = task.count(row), at = *task.found_begin + place;
      if (count > 0 && at + count <= task.found.capacity) pick(block, task, i, row, static_cast<int>(count), at);
      return count;
    });
  }

 private:
  // Draws as floyd_few asks for them: each Philox block is used twice.
  struct Draws {
    NodeDraws& draws;
    GLT_HOST_DEVICE uint64_t operator[](uint32_t i) const { return draws(i); }
  };

  template <typename Block>
  GLT_HOST_DEVICE static void pick(const Block& block, const EdgeTask& task, int64_t i, const RowSpan& row, int count,
                                   int64_t at) {
    // Rows of 2^32 edges go by PlaceRows: see HopPlan.
    uint32_t offset[K];
    const auto degree = static_cast<uint32_t>(row.degree);
    if (task.takes_whole(row, count)) {
      GLT_UNROLL
      for (int j = 0; j < K; ++j) offset[j] = static_cast<uint32_t>(j < count ? j : count - 1);
    } else {
      NodeDraws draws = task.draws(i);
      if (task.replace) {
        GLT_UNROLL
        for (int j = 0; j < K; ++j) offset[j] = static_cast<uint32_t>(pick_any(0, degree, draws(j)));
      } else {
        floyd_few(0u, degree, static_cast<uint32_t>(K), Draws{draws}, offset);
      }
    }
    task.template skip_excluded<K>(i, row, offset);
    const Center center = task.center(i);
    const uint32_t top = task.found.stamps.top();
    int64_t loaded[K];
    load(task.rows.indices, row.begin, offset, loaded);
    GLT_UNROLL
    for (int j = 0; j < K; ++j)
      if (j < count) task.put_node(block, at + j, center, loaded[j], top);
    if (!task.found.edge) return;
    if (task.rows.edge_ids.data) {
      load(task.rows.edge_ids, row.begin, offset, loaded);
    } else {
      GLT_UNROLL
      for (int j = 0; j < K; ++j) loaded[j] = row.begin + offset[j];
    }
    GLT_UNROLL
    for (int j = 0; j < K; ++j)
      if (j < count) task.found.edge[at + j] = loaded[j];
  }

  // All K loads are asked for before the first answer is used: no branch between them, each with a register of its own.
  GLT_HOST_DEVICE static void load(const DeviceIds& ids, int64_t begin, const uint32_t* offset, int64_t* out) {
    if (ids.wide)
      load_as(static_cast<const int64_t*>(ids.data) + begin, offset, out);
    else
      load_as(static_cast<const int32_t*>(ids.data) + begin, offset, out);
  }
  template <typename Id>
  GLT_HOST_DEVICE static void load_as(const Id* ids, const uint32_t* offset, int64_t* out) {
    Id loaded[K];
    GLT_UNROLL
    for (int j = 0; j < K; ++j) loaded[j] = ids[offset[j]];
    GLT_UNROLL
    for (int j = 0; j < K; ++j) out[j] = loaded[j];
  }
};

// Writes where the edges of each row begin, for kernels that work edge by edge.
struct PlaceRows {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 5;
  Tasks<EdgeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const EdgeTask& task = tasks[block.y()];
    place_rows(block, shared, task, [&](int64_t i, int64_t place) {
      task.row_begin[*task.frontier_begin + i] = place;
      return task.count(task.span(i));
    });
  }
};

}  // namespace glt::cuda
