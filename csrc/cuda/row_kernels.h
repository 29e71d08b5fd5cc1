// The kernels that count the edges of a hop, and those that pick them row by row.
#pragma once

#include <cstdint>

#include "core/pick_rules.h"
#include "core/rng.h"
#include "cuda/block.h"
#include "cuda/device_rows.h"
#include "cuda/hop_tasks.h"

namespace glt::cuda {

// How many edges each tile of a frontier gives.
struct CountEdges {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 5;
  Tasks<EdgeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const EdgeTask& task = tasks[block.y()];
    if (block.x() >= task.tiles) return;
    scan_tile(block, shared, task.tile(block.x()), nullptr, 0, sum_of([&](int64_t i) {
                const RowSpan row = task.spans[*task.frontier_begin + i] = task.find_span(i);
                return task.count(row);
              }));
    block.each([&](int thread) {
      if (thread == 0) task.sums[task.first_tile + block.x()] = shared.tile_sum();
    });
  }
};

// Calls rows(some, place, end) for the rows of tile `x`, one to a thread at a time, and says where the edges of the
// task begin and end. That of row i begins at occurrence place + shared.place(i - some.begin), and the last ends at
// `end`. Calls have a phase or more. Blocks that share a tile say the same.
template <typename Block, typename Rows>
GLT_HOST_DEVICE void place_rows(const Block& block, ScanShared& shared, const EdgeTask& task, int x, const Rows& rows) {
  if (x >= task.tiles) return;
  const Tile tile = task.tile(x);
  const bool first = x == 0, last = x == task.tiles - 1;
  if (tile.empty() && !first && !last) return;
  const auto give = [&](int64_t i) { return task.count(task.span(i)); };
  int64_t place = *task.found_begin, begin = 0, before = task.first_tile + x;
  for (int64_t from = tile.begin; from == tile.begin || from < tile.end; from += kThreads) {
    const Tile some = tile.one_each(from);
    scan_tile(block, shared, some, task.sums, before, sum_of(give));
    if (from == tile.begin) begin = place + shared.tile_place();
    const int64_t end = place + shared.tile_place() + shared.tile_sum();
    rows(some, place, end);
    place = end;
    before = 0;
  }
  block.each([&](int thread) {
    if (thread != 0) return;
    if (first) *task.edges_begin = begin;
    if (!last) return;
    *task.edges_end = place;
    if (place > task.found.capacity) block.atomic_max(task.found.need, static_cast<uint64_t>(place));
  });
}

// Picks and loads the edges of rows that are drawn uniformly, kThreads rows a block. A thread draws a row; then threads
// go from edge to edge, so that what neighbouring ones write stands side by side, whatever rows it is of.
//
// K: k, known when this is compiled. 0: it is not, and up to RowSlots::kWidest. Threads then draw pair by pair, and the
// rows of a tile are dealt out to blocks, as many to each as it has slots for.
template <int K>
struct PickRows {
  static constexpr int kBlocksPerSm = K == 5 || K == 16 ? 3 : 4;  // more, and ptxas spills
  static constexpr int kStride = K | 1;  // odd: no two threads of a warp write ranks to one bank
  struct Shared {
    ScanShared scan;
    // Of each row: the positions of its first edge, in the columns and among hot rows (kNone: there is none); and how
    // many edges it gives.
    uint32_t begin[kThreads], hot_begin[kThreads], count[kThreads];
    uint32_t rank[K ? kStride * kThreads : RowSlots::kMost];  // of each slot: its edge, counted from `begin`
    uint32_t drawn[K ? 1 : RowSlots::kMost];
  };
  Tasks<EdgeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const EdgeTask& task = tasks[block.y()];
    const int part = block.x() >> log2_of(static_cast<uint32_t>(task.tiles)), x = block.x() & (task.tiles - 1);
    const int most = K ? kThreads : task.slots.num_rows;
    if (part >= (K ? 1 : task.slots.num_parts)) return;
    if (const Tile tile = task.tile(x); part > 0 && tile.begin + part * most >= tile.end) return;
    const auto rows = [&](const Tile& some, int64_t place, int64_t end) {
      const int64_t first = some.begin + part * most, left = some.end - first;
      const auto n = static_cast<uint32_t>(left < 0 ? 0 : left < most ? left : most);
      // Where there is no room for all, nothing happens.
      const bool any = n > 0 && end <= task.found.capacity && task.rows.num_edges > 0;
      block.each([&](int thread) {
        if (any && static_cast<uint32_t>(thread) < n) begin_row(task, shared, first + thread, thread);
      });
      if (!any) return;
      if constexpr (K == 0) {
        block.each([&](int thread) { draw_pairs(task, shared, n, first, static_cast<uint32_t>(thread)); });
        block.each([&](int thread) { rank_slots(task, shared, n, first, static_cast<uint32_t>(thread)); });
      }
      block.each([&](int thread) {
        for (uint32_t slot = thread; slot < n * width(task); slot += kEach * kThreads)
          load_edges(block, task, shared, n, slot, *task.frontier_begin + first, part * most, place);
      });
    };
    place_rows(block, shared.scan, task, x, rows);
  }

 private:
  // Slots that a thread is about at a time: so many loads are in flight.
  static constexpr int kEach = K == 0 ? 3 : K == 4 ? 2 : K <= 8 ? K : 4;
  static constexpr uint32_t kNone = UINT32_MAX;

  // Draws as floyd_small asks for them: each Philox block is used twice.
  struct Draws {
    NodeDraws& draws;
    GLT_HOST_DEVICE uint64_t operator[](uint32_t i) const { return draws(i); }
  };

  GLT_HOST_DEVICE static uint32_t width(const EdgeTask& task) { return K ? K : task.slots.width; }
  // One edge of one row, and where its rank is.
  struct Slot {
    uint32_t row, edge, at;
    GLT_HOST_DEVICE Slot(const EdgeTask& task, uint32_t slot)
        : row(K ? slot / (K ? K : 1) : task.slots.row_of(slot)),
          edge(slot - row * width(task)),
          at(K ? row * kStride + edge : slot) {}
  };

  GLT_HOST_DEVICE static void begin_row(const EdgeTask& task, Shared& shared, int64_t i, int thread) {
    const RowSpan row = task.span(i);
    const auto degree = static_cast<uint32_t>(row.degree), count = static_cast<uint32_t>(task.count(row));
    shared.begin[thread] = static_cast<uint32_t>(row.begin);
    shared.hot_begin[thread] = row.shift == DeviceRows::kCold ? kNone : static_cast<uint32_t>(row.begin + row.shift);
    shared.count[thread] = count;
    if constexpr (K > 0) {
      if (count == 0) return;
      uint32_t rank[K];
      if (task.takes_whole(row, count)) {
        GLT_UNROLL
        for (int j = 0; j < K; ++j) rank[j] = static_cast<uint32_t>(j) < count ? j : count - 1;
      } else {
        NodeDraws draws = task.draws(i);
        if (task.replace) {
          GLT_UNROLL
          for (int j = 0; j < K; ++j) rank[j] = static_cast<uint32_t>(pick_any(0, degree, draws(j)));
        } else {
          floyd_small(0u, degree, static_cast<uint32_t>(K), Draws{draws}, rank);
        }
      }
      task.template skip_excluded<K>(i, row, rank);
      GLT_UNROLL
      for (int j = 0; j < K; ++j) shared.rank[thread * kStride + j] = rank[j];
    }
  }

  // Two draws at a time, which are one Philox block.
  GLT_HOST_DEVICE static void draw_pairs(const EdgeTask& task, Shared& shared, uint32_t n, int64_t first,
                                         uint32_t thread) {
    const uint32_t k = task.slots.width;
    for (uint32_t pair = thread; pair < n * task.pair_slots.width; pair += kThreads) {
      const uint32_t r = task.pair_slots.row_of(pair), j = 2 * (pair - r * task.pair_slots.width);
      const auto degree = static_cast<uint32_t>(task.span(first + r).degree);
      if (!is_drawn(degree, shared.count[r], task.replace)) continue;
      uint64_t bits[2];
      task.draws(first + r).fill(j, 2, bits);
      GLT_UNROLL
      for (uint32_t t = 0; t < 2; ++t)
        if (j + t < k)
          shared.drawn[r * k + j + t] = static_cast<uint32_t>(task.replace ? pick_any(0, degree, bits[t])
                                                                           : floyd_drawn(degree, k, j + t, bits[t]));
    }
  }
  GLT_HOST_DEVICE static void rank_slots(const EdgeTask& task, Shared& shared, uint32_t n, int64_t first,
                                         uint32_t thread) {
    const uint32_t k = task.slots.width;
    for (uint32_t slot = thread; slot < n * k; slot += kThreads) {
      const uint32_t r = task.slots.row_of(slot), j = slot - r * k;
      if (j >= shared.count[r]) continue;
      const RowSpan row = task.span(first + r);
      const auto degree = static_cast<uint32_t>(row.degree);
      uint32_t rank = j;
      if (is_drawn(degree, shared.count[r], task.replace))
        rank = task.replace ? shared.drawn[slot] : floyd_pick(degree, k, j, shared.drawn + r * k);
      const int64_t id = task.node[*task.frontier_begin + first + r];
      shared.rank[slot] = static_cast<uint32_t>(task.behind_excluded(id, row.begin, rank));
    }
  }

  // The edges of kEach slots from `slot` on, kThreads apart. Positions of edges and places of occurrences are below
  // 2^32: see DeviceBatch::pick_of.
  template <typename Block>
  GLT_HOST_DEVICE static void load_edges(const Block& block, const EdgeTask& task, const Shared& shared, uint32_t n,
                                         uint32_t slot, int64_t local, int first, int64_t place) {
    uint32_t index[kEach], at[kEach], is_hot = 0;  // a bit each
    int64_t loaded[kEach];
    GLT_UNROLL
    for (int m = 0; m < kEach; ++m) {
      const Slot s(task, slot + m * kThreads);
      at[m] = kNone;
      index[m] = 0;
      if (s.row >= n || s.edge >= shared.count[s.row]) continue;
      const uint32_t hot_begin = shared.hot_begin[s.row];
      is_hot |= uint32_t{hot_begin != kNone} << m;
      index[m] = (hot_begin != kNone ? hot_begin : shared.begin[s.row]) + shared.rank[s.at];
      at[m] = static_cast<uint32_t>(place + shared.scan.place(first + static_cast<int>(s.row))) + s.edge;
    }
    const uint32_t top = task.found.stamps.top();
    load(task.rows.indices, task.rows.hot_indices, is_hot, index, loaded);
    GLT_UNROLL
    for (int m = 0; m < kEach; ++m)
      if (at[m] != kNone)
        task.put_node(block, at[m], task.center(local + Slot(task, slot + m * kThreads).row), loaded[m], top);
    if (!task.found.edge) return;
    if (task.rows.edge_ids.data) {
      load(task.rows.edge_ids, task.rows.hot_edge_ids, is_hot, index, loaded);
    } else {
      GLT_UNROLL
      for (int m = 0; m < kEach; ++m) {
        const Slot s(task, slot + m * kThreads);
        if (at[m] != kNone) loaded[m] = task.rows.first_edge_id + shared.begin[s.row] + shared.rank[s.at];
      }
    }
    GLT_UNROLL
    for (int m = 0; m < kEach; ++m)
      if (at[m] != kNone) task.found.edge[at[m]] = loaded[m];
  }

  // All are asked for before the first answer is used: no branch between them, each with a register of its own.
  GLT_HOST_DEVICE static void load(const DeviceIds& ids, const void* hot, uint32_t is_hot, const uint32_t* index,
                                   int64_t* out) {
    if (ids.wide)
      load_as(static_cast<const int64_t*>(ids.data), static_cast<const int64_t*>(hot), is_hot, index, out);
    else
      load_as(static_cast<const int32_t*>(ids.data), static_cast<const int32_t*>(hot), is_hot, index, out);
  }
  template <typename Id>
  GLT_HOST_DEVICE static void load_as(const Id* ids, const Id* hot, uint32_t is_hot, const uint32_t* index,
                                      int64_t* out) {
    Id loaded[kEach];
    GLT_UNROLL
    for (int m = 0; m < kEach; ++m) loaded[m] = (is_hot >> m & 1 ? hot : ids)[index[m]];
    GLT_UNROLL
    for (int m = 0; m < kEach; ++m) out[m] = loaded[m];
  }
};

}  // namespace glt::cuda
