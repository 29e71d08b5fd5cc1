// The kernels that find the edges of a hop, as bodies that host and device run alike: see block.h.
//
// FindExcluded where edges are excluded. Per hop, of row_kernels.h: CountEdges; PickRows where a block has room for
// rows and draws are uniform. Else, from here: PlaceRows; DrawEdges, DrawByWeight or DrawByNumber where draws need it;
// and PickEdges.
// Then those of node_kernels.h: StampEdges where nodes are hashed; CountNew; AddNew.
#pragma once

#include <cstdint>

#include "core/age.h"
#include "core/numbers.h"
#include "core/pick_rules.h"
#include "core/rng.h"
#include "core/weights.h"
#include "cuda/block.h"
#include "cuda/device_rows.h"
#include "cuda/hop_tasks.h"
#include "cuda/row_kernels.h"

namespace glt::cuda {

// Writes where the edges of each row begin, for kernels that work edge by edge.
struct PlaceRows {
  using Shared = ScanShared;
  static constexpr int kBlocksPerSm = 4;
  Tasks<EdgeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const EdgeTask& task = tasks[block.y()];
    place_rows(block, shared, task, block.x(), [&](const Tile& some, int64_t place, int64_t) {
      block.each([&](int thread) {
        if (const int64_t i = some.begin + thread; i < some.end)
          task.row_begin[*task.frontier_begin + i] = place + shared.place(thread) - *task.found_begin;
      });
    });
  }
};

// What follows works edge by edge, after PlaceRows: for fan-outs of any size, hubs taken whole among them, whose edges
// one thread alone would be long about.

// Calls edge(at, i, row, count, j) for each edge of the task: occurrence `at` is edge j of the `count` that frontier
// node i gives. Nothing happens where there is no room for all.
template <typename Block, typename Edge>
GLT_HOST_DEVICE void for_each_edge(const Block& block, const EdgeTask& task, int64_t num_blocks, const Edge& edge) {
  const int64_t begin = *task.edges_begin, end = *task.edges_end;
  if (end > task.found.capacity) return;
  const int64_t* row_begin = task.row_begin + *task.frontier_begin;
  block.each([&](int thread) {
    for (int64_t at = begin + int64_t{block.x()} * kThreads + thread; at < end; at += num_blocks * kThreads) {
      // The last row that begins here or before; rows without edges begin where the next does.
      const int64_t place = at - *task.found_begin;
      int64_t low = 0, high = task.frontier_size();
      while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (row_begin[middle] <= place)
          low = middle;
        else
          high = middle;
      }
      const RowSpan row = task.span(low);
      edge(at, low, row, task.count(row), place - row_begin[low]);
    }
  });
}

// Whether the edges of a row follow from draws that DrawEdges makes.
GLT_HOST_DEVICE bool draws_floyd(const EdgeTask& task, const RowSpan& row, int64_t count) {
  return !task.replace && !task.in_scratch() && !task.takes_whole(row, count);
}

// The draws of Floyd's algorithm, one thread a draw: the edges of a row then follow from those before them.
struct DrawEdges {
  using Shared = NoShared;
  Tasks<EdgeTask> tasks;
  int64_t num_blocks = 1;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared&) const {
    const EdgeTask& task = tasks[block.y()];
    for_each_edge(block, task, num_blocks, [&](int64_t at, int64_t i, const RowSpan& row, int64_t count, int64_t j) {
      if (!draws_floyd(task, row, count)) return;
      NodeDraws draws = task.draws(i);
      task.found.scratch[at] = floyd_drawn(row.degree, count, j, draws(static_cast<uint32_t>(j)));
    });
  }
};

// The draws of rows with weights, one thread a row: each draw depends on what those before have used up.
struct DrawByWeight {
  using Shared = NoShared;
  Tasks<EdgeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared&) const {
    const EdgeTask& task = tasks[block.y()];
    if (!task.by_weight() || task.by_number || block.x() >= task.tiles || *task.edges_end > task.found.capacity) return;
    const Tile tile = task.tile(block.x());
    block.each([&](int thread) {
      for (int64_t i = tile.first(thread); i < tile.last(thread); ++i) draw(task, i);
    });
  }

 private:
  GLT_HOST_DEVICE static void draw(const EdgeTask& task, int64_t i) {
    const RowSpan span = task.span(i);
    const int64_t count = task.count(span), local = *task.frontier_begin + i, id = task.node[local];
    if (count == 0 || task.takes_whole(span, count)) return;
    const RowSpan row = task.in_time(i);
    if (task.rows.weight_sum)
      draw(task, i, row, count, StoredSums(task.rows.weight_sum, task.rows.weight_guide, id, row.begin, row.degree));
    else {
      AgeSums sums;
      AgeSearch search(task.rows.time + row.begin, row.degree, task.seed_time[task.tree[local]], task.half_life, &sums);
      while (search.advance()) {
      }
      draw(task, i, row, count, sums);
    }
  }

  template <typename Sums>
  GLT_HOST_DEVICE static void draw(const EdgeTask& task, int64_t i, const RowSpan& span, int64_t count,
                                   const Sums& sums) {
    const int64_t local = *task.frontier_begin + i, at = *task.found_begin + task.row_begin[local];
    UsedRange* used = task.found.used + at;
    WeightedRow<Sums> row{span.begin, span.degree, count, task.found.scratch + at, sums, task.draws(i)};
    const ExcludedRows::Part excluded = excluded_of(task, task.node[local], row);
    for (int64_t s = 0; s < excluded.count; ++s) row.left -= sums.weight_of(excluded.position[s] - row.begin);
    while (!row.is_done()) {
      row.aim(used, excluded.position, excluded.count);
      row.narrow();
      row.land(task.replace, used);
    }
    if (row.done == count) return;
    if (task.replace)
      for (int64_t j = 0; j < count; ++j) {
        const int64_t rank = pick_any(0, span.degree - excluded.count, row.draws(static_cast<uint32_t>(j)));
        row.position[j] = span.begin + rank + excluded.num_skipped(span.begin, rank);
      }
    else
      fill_from_weightless(row, excluded);
  }

  template <typename Sums>
  GLT_HOST_DEVICE static ExcludedRows::Part excluded_of(const EdgeTask& task, int64_t id,
                                                        const WeightedRow<Sums>& row) {
    if (!task.excluded.slot) return task.excluded.none();
    const ExcludedRows::Part part = task.excluded.of(id, row.begin);
    return {part.position, part.num_below(row.begin + row.degree)};
  }

  // Once no weight is left, edges without weight fill what is missing, each equally likely. Where there are not enough,
  // because weights contradict their sum, the last edge does.
  template <typename Sums>
  GLT_HOST_DEVICE static void fill_from_weightless(WeightedRow<Sums>& row, const ExcludedRows::Part& excluded) {
    int64_t num_weightless = 0;
    for (int64_t e = 0; e < row.degree; ++e) num_weightless += row.sums.weight_of(e) == 0;
    for (int64_t s = 0; s < excluded.count; ++s)
      num_weightless -= row.sums.weight_of(excluded.position[s] - row.begin) == 0;
    int64_t* rank = row.position + row.done;
    const int64_t missing = row.count - row.done;
    if (num_weightless < missing) {
      for (int64_t j = 0; j < missing; ++j) rank[j] = row.begin + row.degree - 1;
      return;
    }
    for (int64_t j = 0; j < missing; ++j)
      rank[j] = floyd_drawn(num_weightless, missing, j, row.draws(static_cast<uint32_t>(row.done + j)));
    // Backwards: a pick reads the draws up to its own.
    for (int64_t j = missing - 1; j >= 0; --j) rank[j] = floyd_pick(num_weightless, missing, j, rank);
    for (int64_t j = 0; j < missing; ++j) {
      int64_t edge = 0, s = 0;
      for (int64_t before = rank[j];; ++edge) {
        if (s < excluded.count && excluded.position[s] == row.begin + edge)
          ++s;
        else if (row.sums.weight_of(edge) == 0 && before-- == 0)
          break;
      }
      rank[j] = row.begin + edge;
    }
  }
};

// The edges of rows whose neighbours have the lowest numbers. A thread looks through a row; all threads of a block look
// through a long one together, so that a hub is not what a batch waits for.
struct DrawByNumber {
  // Candidates of a long row: those that are kept, some that have come since the last sort, and all of a step.
  static constexpr int kMostKept = 256, kUnsorted = 256, kAtOnce = 512, kSlots = kMostKept + kUnsorted + kAtOnce;
  struct Shared {
    RoundCounter num_long, num_added;
    uint32_t long_row[kThreads];
    uint64_t number[kSlots], weight[kSlots];
    uint32_t edge[kSlots];  // counted from the first of the row

    GLT_HOST_DEVICE Candidate candidate(uint32_t slot) const { return {number[slot], weight[slot]}; }
    GLT_HOST_DEVICE void put(uint32_t slot, const Candidate& candidate, uint32_t of_edge) {
      number[slot] = candidate.number;
      weight[slot] = candidate.weight;
      edge[slot] = of_edge;
    }
  };
  Tasks<EdgeTask> tasks;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared& shared) const {
    const EdgeTask& task = tasks[block.y()];
    if (!task.by_number || block.x() >= task.tiles || *task.edges_end > task.found.capacity) return;
    const Tile tile = task.tile(block.x());
    block.each([&](int thread) {
      if (thread == 0) shared.num_long.start();
    });
    uint32_t round = 0;
    for (int64_t from = tile.begin; from < tile.end; from += kThreads, ++round) {
      block.each([&](int thread) {
        if (thread == 0) shared.num_long.prepare_next(round);
        const int64_t i = from + thread;
        if (i >= tile.end) return;
        const RowSpan span = task.span(i);
        const int64_t count = task.count(span);
        if (count == 0 || task.takes_whole(span, count)) return;
        const RowSpan row = task.in_time(i);
        if (is_long(row, count))
          shared.long_row[shared.num_long.add(block, round)] = thread;
        else
          with_weights(task, i, row, [&](const auto& weights) { draw_alone(task, i, row, count, weights); });
      });
      for (uint32_t j = 0; j < shared.num_long.count(round); ++j) {
        const int64_t i = from + shared.long_row[j], count = task.count(task.span(i));
        const RowSpan row = task.in_time(i);
        with_weights(task, i, row,
                     [&](const auto& weights) { draw_together(block, shared, task, i, row, count, weights); });
      }
    }
  }

 private:
  // A long row costs a block a hundred barriers, at k = 256 a few hundred, and its long rows come one after another. By
  // estimate, rows of so many edges with few picks take no longer in this way even where all of a block are long.
  static constexpr int64_t kLongRow = 4096;
  GLT_HOST_DEVICE static bool is_long(const RowSpan& row, int64_t count) {
    return row.degree > kLongRow && row.degree <= UINT32_MAX && count <= kMostKept;
  }

  struct Even {
    GLT_HOST_DEVICE uint64_t weight_of(int64_t) const { return 1; }
  };

  // Calls draw(weights) with the weights of the edges of row number i.
  template <typename Draw>
  GLT_HOST_DEVICE static void with_weights(const EdgeTask& task, int64_t i, const RowSpan& row, const Draw& draw) {
    const int64_t local = *task.frontier_begin + i, id = task.node[local];
    if (task.rows.weight_sum) {
      draw(StoredSums(task.rows.weight_sum, task.rows.weight_guide, id, row.begin, row.degree));
    } else if (task.by_weight()) {
      AgeSums sums;
      AgeSearch search(task.rows.time + row.begin, row.degree, task.seed_time[task.tree[local]], task.half_life, &sums);
      while (search.advance()) {
      }
      draw(sums);
    } else {
      draw(Even{});
    }
  }

  template <typename Weights>
  struct Row {
    const Weights& weights;
    RowIds indices;
    int64_t begin;
    uint64_t key;
    ExcludedRows::Part excluded;
    int64_t* picks;

    GLT_HOST_DEVICE Row(const EdgeTask& task, int64_t i, const RowSpan& span, const Weights& weights)
        : weights(weights),
          indices(task.rows.indices_of(span.shift)),
          begin(span.begin),
          key(number_key(load_parameter(task.shared_key), task.hop, task.found_type)) {
      const int64_t local = *task.frontier_begin + i;
      excluded = task.excluded.slot ? task.excluded.of(task.node[local], begin) : task.excluded.none();
      picks = task.found.scratch + *task.found_begin + task.row_begin[local];
    }
    GLT_HOST_DEVICE Candidate operator()(int64_t edge) const {
      return {number_of(key, indices[edge]), weights.weight_of(edge - begin)};
    }
    // Whether one edge is taken only after another.
    GLT_HOST_DEVICE bool is_after(int64_t edge, int64_t other) const {
      const Candidate ours = (*this)(edge), theirs = (*this)(other);
      return theirs < ours || (!(ours < theirs) && edge > other);
    }
  };

  // The edges that are kept are a heap, the one on top the first to go; in the end they are sorted by position.
  template <typename Weights>
  GLT_HOST_DEVICE static void draw_alone(const EdgeTask& task, int64_t i, const RowSpan& span, int64_t count,
                                         const Weights& weights) {
    const Row<Weights> row(task, i, span, weights);
    int64_t* kept = row.picks;
    const auto is_after = [&](int64_t a, int64_t b) { return row.is_after(a, b); };
    int64_t size = 0, next_excluded = 0;
    for (int64_t edge = span.begin; edge < span.begin + span.degree; ++edge) {
      if (next_excluded < row.excluded.count && load_parameter(row.excluded.position + next_excluded) == edge) {
        ++next_excluded;
      } else if (size < count) {
        kept[size++] = edge;
        if (size == count)
          for (int64_t at = size / 2 - 1; at >= 0; --at) sift(kept, size, at, is_after);
      } else if (row(edge) < row(kept[0])) {
        kept[0] = edge;
        sift(kept, size, 0, is_after);
      }
    }
    const auto is_behind = [](int64_t a, int64_t b) { return a > b; };
    for (int64_t at = size / 2 - 1; at >= 0; --at) sift(kept, size, at, is_behind);
    for (int64_t last = size - 1; last > 0; --last) {
      const int64_t largest = kept[0];
      kept[0] = kept[last];
      kept[last] = largest;
      sift(kept, last, 0, is_behind);
    }
  }

  // Lets the element at `at` sink to its place in a heap of `size`.
  template <typename Above>
  GLT_HOST_DEVICE static void sift(int64_t* heap, int64_t size, int64_t at, const Above& above) {
    for (;;) {
      int64_t first = at;
      for (int64_t child = 2 * at + 1; child < 2 * at + 3; ++child)
        if (child < size && above(heap[child], heap[first])) first = child;
      if (first == at) return;
      const int64_t moved = heap[at];
      heap[at] = heap[first];
      heap[first] = moved;
      at = first;
    }
  }

  // The same by a block, kAtOnce edges at a time: those below the last of the lowest `count` so far are added to the
  // slots, which are sorted when they have become many. A bound that was found early lets few edges pass.
  template <typename Block, typename Weights>
  GLT_HOST_DEVICE static void draw_together(const Block& block, Shared& shared, const EdgeTask& task, int64_t i,
                                            const RowSpan& span, int64_t count, const Weights& weights) {
    const Row<Weights> row(task, i, span, weights);
    const auto k = static_cast<uint32_t>(count);
    const auto is_before = [&](uint32_t a, uint32_t b) {
      const Candidate ours = shared.candidate(a), theirs = shared.candidate(b);
      return ours < theirs || (!(theirs < ours) && shared.edge[a] < shared.edge[b]);
    };
    block.each([&](int thread) {
      if (thread == 0) shared.num_added.start();
    });
    uint32_t held = 0, round = 0;
    bool has_bound = false;
    for (int64_t from = 0; from < span.degree; from += kAtOnce, ++round) {
      block.each([&](int thread) {
        if (thread == 0) shared.num_added.prepare_next(round);
        for (int64_t edge = from + thread; edge < from + kAtOnce && edge < span.degree; edge += kThreads) {
          if (row.excluded.count > 0 && row.excluded.has(span.begin + edge)) continue;
          const Candidate candidate = row(span.begin + edge);
          if (has_bound && !(candidate < shared.candidate(k - 1))) continue;  // of equal ones the first is taken
          shared.put(held + shared.num_added.add(block, round), candidate, static_cast<uint32_t>(edge));
        }
      });
      held += shared.num_added.count(round);
      if (held < k + kUnsorted) continue;
      sort(block, shared, held, is_before);
      held = k;
      has_bound = true;
    }
    sort(block, shared, held, is_before);
    sort(block, shared, k, [&](uint32_t a, uint32_t b) { return shared.edge[a] < shared.edge[b]; });
    block.each([&](int thread) {
      for (uint32_t j = thread; j < k; j += kThreads) row.picks[j] = span.begin + shared.edge[j];
    });
  }

  // Sorts slots [0, n) (Batcher, "Sorting Networks and Their Applications", AFIPS 1968), such that each exchange brings
  // the one that is_before to the front: slots from n on, up to a power of two, are taken as the last and never move.
  template <typename Block, typename IsBefore>
  GLT_HOST_DEVICE static void sort(const Block& block, Shared& shared, uint32_t n, const IsBefore& is_before) {
    int log = 0;
    while (1u << log < n) ++log;
    for (int run = 1; run <= log; ++run)
      for (int step = run; step > 0; --step)
        block.each([&](int thread) {
          const uint32_t half = 1u << (step - 1);
          for (uint32_t pair = thread; pair < 1u << (log - 1); pair += kThreads) {
            const uint32_t first = (pair & ~(half - 1)) * 2, at = pair & (half - 1);
            const uint32_t low = first + at, high = step == run ? first + 2 * half - 1 - at : low + half;
            if (high >= n || !is_before(high, low)) continue;
            const Candidate moved = shared.candidate(low);
            const uint32_t edge = shared.edge[low];
            shared.put(low, shared.candidate(high), shared.edge[high]);
            shared.put(high, moved, edge);
          }
        });
  }
};

// Decides which edge each is, and loads it.
struct PickEdges {
  using Shared = NoShared;
  Tasks<EdgeTask> tasks;
  int64_t num_blocks = 1;

  template <typename Block>
  GLT_HOST_DEVICE void operator()(const Block& block, Shared&) const {
    const EdgeTask& task = tasks[block.y()];
    const uint32_t top = task.found.stamps.top();
    for_each_edge(block, task, num_blocks, [&](int64_t at, int64_t i, const RowSpan& row, int64_t count, int64_t j) {
      const int64_t position = position_of(task, at, i, row, count, j);
      const int64_t neighbor = task.rows.indices_of(row.shift)[position];
      if (task.found.edge) task.found.edge[at] = task.rows.edge_id(position, row.shift);
      task.put_node(block, at, task.center(*task.frontier_begin + i), neighbor, top);
    });
  }

 private:
  GLT_HOST_DEVICE static int64_t position_of(const EdgeTask& task, int64_t at, int64_t i, const RowSpan& row,
                                             int64_t count, int64_t j) {
    const int64_t* scratch = task.found.scratch + at - j;  // of the row
    const bool whole = task.takes_whole(row, count);
    if (task.in_scratch() && !whole) return scratch[j];
    int64_t rank = j;
    if (draws_floyd(task, row, count)) {
      rank = floyd_pick(row.degree, count, j, scratch);
    } else if (!whole) {
      NodeDraws draws = task.draws(i);
      rank = pick_any(0, row.degree, draws(static_cast<uint32_t>(j)));
    }
    return row.begin + task.behind_excluded(task.node[*task.frontier_begin + i], row.begin, rank);
  }
};

}  // namespace glt::cuda
