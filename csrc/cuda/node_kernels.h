// The kernels that enter seeds and neighbours into the tables of nodes, end a hop by numbering the nodes that it found,
// and copy a finished batch out.
#pragma once

#include <cstdint>

#include "cuda/block.h"
#include "cuda/hop_tasks.h"

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

// How many nodes each tile of a hop's occurrences is the first to name.
struct CountNew {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 6;
  Tasks<NodeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const NodeTask& task = tasks[block.y()];
    if (block.x() >= task.tiles) return;
    scan_tile(block, shared, task.tile(block.x()), nullptr, 0,
              sum_of([&](int64_t i) { return int64_t{task.find_new(i)}; }));
    block.each([&](int thread) {
      if (thread == 0) task.sums[block.x()] = shared.tile_sum();
    });
  }
};

// Gives them local ids in order of first occurrence; they are the next frontier.
struct AddNew {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 6;
  Tasks<NodeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const NodeTask& task = tasks[block.y()];
    const int x = block.x();
    if (x >= task.tiles) return;
    const Tile tile = task.tile(x);
    const bool last = x == task.tiles - 1;
    if (tile.empty() && !last) return;
    scan_tile(block, shared, tile, task.sums, x, sum_of([&](int64_t i) { return int64_t{task.is_new(i)}; }));
    block.each([&](int thread) {
      int64_t local = *task.known + shared.place(thread);
      for (int64_t i = tile.first(thread); i < tile.last(thread); ++i) {
        if (!task.is_new(i)) continue;
        const int64_t at = *task.found_begin + i;
        task.found.local[at] = static_cast<uint32_t>(local);
        task.node[local] = task.found.node[at];
        if (task.tree) task.tree[local] = task.found.tree[at];
        ++local;
      }
      if (thread != 0 || !last) return;
      *task.known_after = *task.known + shared.tile_place() + shared.tile_sum();
      *task.found_after = *task.found_begin + task.num_found();
    });
  }
};

// The edges of one type at one hop, on their way out in local ids.
struct EdgesOutTask {
  Occurrences found;
  int64_t begin, n;
  int64_t *row, *col, *edge;  // [n]; edge null: not wanted
};

struct CopyEdges {
  using Shared = NoShared;
  Tasks<EdgesOutTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared&) const {
    const EdgesOutTask& task = tasks[block.y()];
    block.each([&](int thread) {
      const int64_t i = int64_t{block.x()} * kThreads + thread;
      if (i >= task.n) return;
      const int64_t at = task.begin + i;
      task.row[i] = task.found.local[task.found.first_of(at)];
      task.col[i] = task.found.col[at];
      if (task.edge) task.edge[i] = task.found.edge[at];
    });
  }
};

// All nodes of one type, likewise.
struct NodesOutTask {
  const int64_t* node;
  const uint32_t* tree;
  int64_t n;
  int64_t *node_out, *tree_out;  // [n]; tree_out null: not wanted
};

static_assert(sizeof(Tasks<EdgesOutTask>) < 4000 && sizeof(Tasks<NodesOutTask>) < 4000);

struct CopyNodes {
  using Shared = NoShared;
  Tasks<NodesOutTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared&) const {
    const NodesOutTask& task = tasks[block.y()];
    block.each([&](int thread) {
      const int64_t i = int64_t{block.x()} * kThreads + thread;
      if (i >= task.n) return;
      task.node_out[i] = task.node[i];
      if (task.tree_out) task.tree_out[i] = task.tree[i];
    });
  }
};

}  // namespace glt::cuda
