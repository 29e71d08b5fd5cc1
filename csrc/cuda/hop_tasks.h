// What the kernels of one hop work on. All tasks are known before the first kernel: how much there is to do at a hop is
// read from the counts, which the hops before leave in device memory.
#pragma once

#include <cstdint>

#include "core/pick_rules.h"
#include "core/rng.h"
#include "core/rows.h"
#include "core/weights.h"
#include "cuda/block.h"
#include "cuda/device_rows.h"

namespace glt::cuda {

// Which occurrence of a node in a batch is its first: what relabelling rests on.
//
// Occurrences are numbered in the order in which the CPU would meet them. Each stamps a word with its number; the
// lowest wins, whichever comes first. A word of a batch is above all words of the batches before, so the table is
// emptied by moving on and cleared only when the words run out.
struct Stamps {
  uint32_t* words = nullptr;        // one per node of the graph; or, with a mask, slots of a hash table
  uint64_t mask = 0;                // 0: no hash table
  const uint64_t* range = nullptr;  // of this batch: see pack

  // Words below `base` are empty; `top` is the word of occurrence 0.
  static uint64_t pack(uint32_t base, uint32_t top) { return uint64_t{top} << 32 | base; }
  GLT_HOST_DEVICE uint32_t base() const { return static_cast<uint32_t>(load_parameter(range)); }
  GLT_HOST_DEVICE uint32_t top() const { return static_cast<uint32_t>(load_parameter(range) >> 32); }
  GLT_HOST_DEVICE uint32_t word_of(int64_t at) const { return top() - static_cast<uint32_t>(at); }
  GLT_HOST_DEVICE int64_t occurrence(uint32_t word) const { return static_cast<int64_t>(top() - word); }
};

// The occurrences of one node type in a batch, [capacity] each.
struct Occurrences {
  int64_t* node = nullptr;
  uint32_t* tree = nullptr;    // of a disjoint batch, where a node is one per tree; null: not disjoint
  uint32_t* col = nullptr;     // local id of the node that was expanded
  int64_t* edge = nullptr;     // null: not wanted
  uint32_t* local = nullptr;   // of first occurrences
  int64_t* scratch = nullptr;  // draws or positions of edges, where a hop needs them
  UsedRange* used = nullptr;   // what draws by weight have used up, where a hop needs it
  int64_t capacity = 0;
  int64_t num_nodes = 0;  // of the graph
  Stamps stamps;
  uint64_t* bad = nullptr;   // the lowest occurrence whose node is outside the graph
  uint64_t* need = nullptr;  // the largest capacity that was missing

  GLT_HOST_DEVICE bool is_bad(int64_t at) const {
    return static_cast<uint64_t>(node[at]) >= static_cast<uint64_t>(num_nodes);
  }
  GLT_HOST_DEVICE uint64_t home_of(int64_t id, uint32_t of_tree) const {
    const uint64_t key = static_cast<uint64_t>(id) + of_tree * 0xD1B54A32D192ED03u;
    return (key * 0x9E3779B97F4A7C15u >> 20) & stamps.mask;
  }
  GLT_HOST_DEVICE uint64_t home(int64_t at) const { return home_of(node[at], tree ? tree[at] : 0); }
  GLT_HOST_DEVICE bool is_same(int64_t a, int64_t b) const {
    return node[a] == node[b] && (!tree || tree[a] == tree[b]);
  }

  // One word per node: no thread waits for the answer.
  template <typename Block>
  GLT_HOST_DEVICE void stamp_dense(const Block& block, int64_t at, int64_t id, uint32_t top) const {
    block.atomic_max(stamps.words + id, top - static_cast<uint32_t>(at));
  }

  // A slot holds an occurrence, which tells its key: no wide key in the table, and one 32-bit word to swap. Which slot
  // a key gets depends on who comes first; what the slot says in the end does not.
  template <typename Block>
  GLT_HOST_DEVICE void stamp_hashed(const Block& block, int64_t at) const {
    const uint32_t mine = stamps.word_of(at);
    for (uint64_t slot = home(at);; slot = (slot + 1) & stamps.mask) {
      uint32_t* word = stamps.words + slot;
      uint32_t there = block.load(word);
      while (there < stamps.base()) {
        const uint32_t seen = block.compare_and_swap(word, there, mine);
        if (seen == there) return;
        there = seen;
      }
      if (is_same(stamps.occurrence(there), at)) {
        block.atomic_max(word, mine);
        return;
      }
    }
  }

  // The first occurrence of the node of occurrence `at`, which has been stamped.
  GLT_HOST_DEVICE int64_t first_of(int64_t at) const {
    if (!stamps.mask) return stamps.occurrence(stamps.words[node[at]]);
    for (uint64_t slot = home(at);; slot = (slot + 1) & stamps.mask) {
      const int64_t there = stamps.occurrence(stamps.words[slot]);
      if (is_same(there, at)) return there;
    }
  }

  // Local id of a valid node id, or -1 where the batch does not have it. Not in a disjoint batch.
  GLT_HOST_DEVICE int64_t find(int64_t id) const {
    if (!stamps.mask) {
      const uint32_t word = stamps.words[id];
      return word < stamps.base() ? -1 : int64_t{local[stamps.occurrence(word)]};
    }
    for (uint64_t slot = home_of(id, 0);; slot = (slot + 1) & stamps.mask) {
      const uint32_t word = stamps.words[slot];
      if (word < stamps.base()) return -1;
      if (node[stamps.occurrence(word)] == id) return local[stamps.occurrence(word)];
    }
  }
};

// The tasks of one launch, one for each row of blocks. They go by value: what a kernel has as an argument the compiler
// knows to be constant, and its pointers to lead to global memory; from memory it would load both again and again.
template <typename Task>
struct Tasks {
  static constexpr int kMost = 8;  // of 4096 bytes that arguments may have
  Task item[kMost];
  GLT_HOST_DEVICE const Task& operator[](int i) const { return item[i]; }
};

// Which edges a row may take: `degree` of those from `begin` on, the excluded ones among them left out; and where a
// copy of the row is, see DeviceRows.
struct RowSpan {
  int64_t begin, degree, shift;
};

// A node that is expanded.
struct Center {
  uint32_t local, tree;
};

// One edge type at one hop.
struct EdgeTask {
  DeviceRows rows;
  int64_t k;  // edges per node; -1: all
  bool replace, latest_only;
  int64_t time_window, half_life;  // as of HopSpec
  bool by_number;                  // as of HopSpec
  uint32_t hop, edge_type, found_type;
  const uint64_t *batch_key, *shared_key;
  ExcludedRows excluded;

  // The nodes to expand are those with local ids [*frontier_begin, *frontier_end).
  const int64_t* node;
  const uint32_t* tree;      // null: not disjoint
  const int64_t* seed_time;  // per tree; null: none
  const int64_t* frontier_begin;
  const int64_t* frontier_end;
  int tiles;

  // Edges follow the occurrences before this hop (*found_begin) and the edge types before this one in the same hop,
  // whose tiles come first among `sums`.
  Occurrences found;
  const int64_t* found_begin;
  int64_t* sums;
  int first_tile;
  int64_t* edges_begin;  // out: the occurrences that are edges of this task
  int64_t* edges_end;

  RowSpan* spans;  // [local id], the rows of the frontier, which CountEdges finds: by searches, where there are times
  // [local id], the first edge of each row, counted from found_begin; where edges are picked one by one.
  int64_t* row_begin;
  RowSlots slots;       // of PickRows<0>, for the k edges of a row
  RowSlots pair_slots;  // for pairs of them

  GLT_HOST_DEVICE int64_t frontier_size() const { return *frontier_end - *frontier_begin; }
  GLT_HOST_DEVICE Tile tile(int x) const { return Tile(frontier_size(), x, tiles); }
  // Whether something decides on the edges of a row before they are loaded.
  GLT_HOST_DEVICE bool in_scratch() const { return by_number || by_weight(); }
  // Whether edges differ in how likely they are: by weights, or by age.
  GLT_HOST_DEVICE bool by_weight() const { return rows.weight_sum || (half_life > 0 && rows.time && seed_time); }

  // The edges of frontier node i that are in time, excluded ones among them. A seed outside the graph, which is
  // reported when the batch ends, has none.
  GLT_HOST_DEVICE RowSpan in_time(int64_t i) const {
    const int64_t local = *frontier_begin + i, id = node[local];
    if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(rows.num_nodes)) return {0, 0, DeviceRows::kCold};
    RowSpan row{rows.indptr[id], rows.indptr[id + 1] - rows.indptr[id], rows.shift_of(id)};
    if (!rows.time || !seed_time) return row;
    const int64_t until = seed_time[tree[local]];
    row.degree = num_before(row, [&](int64_t time) { return time <= until; });
    if (time_window < 0) return row;
    const int64_t from = window_begin(until, time_window);
    const int64_t early = num_before(row, [&](int64_t time) { return time < from; });
    return {row.begin + early, row.degree - early, row.shift};
  }
  // The row of frontier node i; `span` once it is known.
  GLT_HOST_DEVICE RowSpan span(int64_t i) const { return spans[*frontier_begin + i]; }
  GLT_HOST_DEVICE RowSpan find_span(int64_t i) const {
    RowSpan row = in_time(i);
    const int64_t id = node[*frontier_begin + i];
    if (excluded.slot) row.degree -= excluded.of(id, row.begin).num_below(row.begin + row.degree);
    if (rows.time && latest_only && k >= 0 && row.degree > k)
      row = {row.begin + behind_excluded(id, row.begin, row.degree - k), k, row.shift};
    return row;
  }
  // The edge of frontier node i, counted from row.begin, that `rank` eligible ones are in front of.
  GLT_HOST_DEVICE int64_t behind_excluded(int64_t id, int64_t begin, int64_t rank) const {
    return excluded.slot ? rank + excluded.of(id, begin).num_skipped(begin, rank) : rank;
  }
  // The same for K of them; most nodes of a batch that excludes edges have none of these.
  template <int K>
  GLT_HOST_DEVICE void skip_excluded(int64_t i, const RowSpan& row, uint32_t* rank) const {
    if (!excluded.slot) return;
    const ExcludedRows::Part part = excluded.of(node[*frontier_begin + i], row.begin);
    if (part.count == 0) return;
    GLT_UNROLL
    for (int j = 0; j < K; ++j) rank[j] += static_cast<uint32_t>(part.num_skipped(row.begin, rank[j]));
  }
  GLT_HOST_DEVICE int64_t count(const RowSpan& row) const { return num_picks(row.degree, k, replace); }
  GLT_HOST_DEVICE bool takes_whole(const RowSpan& row, int64_t count) const {
    return glt::takes_whole(row.degree, count, replace);
  }
  GLT_HOST_DEVICE NodeDraws draws(int64_t i) const {
    const int64_t local = *frontier_begin + i;
    const uint64_t key = load_parameter(batch_key);
    return {tree ? tree_key(key, tree[local]) : key, hop, edge_type, static_cast<uint64_t>(node[local])};
  }

  // What all edges of an expanded node share.
  GLT_HOST_DEVICE Center center(int64_t local) const { return {static_cast<uint32_t>(local), tree ? tree[local] : 0}; }
  // Occurrence `at` is `neighbor`, found from `center`; `top` is that of the stamps, which is asked for once.
  template <typename Block>
  GLT_HOST_DEVICE void put_node(const Block& block, int64_t at, Center center, int64_t neighbor, uint32_t top) const {
    found.node[at] = neighbor;
    found.col[at] = center.local;
    if (found.tree) found.tree[at] = center.tree;
    if (static_cast<uint64_t>(neighbor) >= static_cast<uint64_t>(found.num_nodes))
      block.atomic_min(found.bad, static_cast<uint64_t>(at));
    else if (!found.stamps.mask)
      found.stamp_dense(block, at, neighbor, top);
  }

 private:
  // Edges of `row` at its begin whose time is_before says yes to; times never fall within a row.
  template <typename IsBefore>
  GLT_HOST_DEVICE int64_t num_before(const RowSpan& row, const IsBefore& is_before) const {
    int64_t found = 0;
    for (int64_t left = row.degree; left > 0;) {
      const int64_t half = left / 2;
      const bool before = is_before(rows.time[row.begin + found + half]);
      found += before ? half + 1 : 0;
      left = before ? left - half - 1 : half;
    }
    return found;
  }
};

// One node type at the end of one hop.
struct NodeTask {
  Occurrences found;
  int64_t* node;   // [capacity], by local id
  uint32_t* tree;  // null: not disjoint
  const int64_t* found_begin;
  const int64_t* found_end;  // null: no edge type led here in this hop
  const int64_t* known;      // nodes so far
  int64_t* found_after;      // out: where the next hop's occurrences begin
  int64_t* known_after;      // out
  int64_t* sums;
  int tiles;

  // A hop that has no room leaves nothing behind: the batch is made anew with more.
  GLT_HOST_DEVICE int64_t num_found() const {
    if (!found_end || *found_end > found.capacity) return 0;
    return *found_end - *found_begin;
  }
  GLT_HOST_DEVICE Tile tile(int x) const { return Tile(num_found(), x, tiles); }
  // Whether occurrence i of the hop is the first of its node: CountNew finds out, by loads from all over memory, and
  // marks it where its local id will be.
  GLT_HOST_DEVICE bool find_new(int64_t i) const {
    const int64_t at = *found_begin + i;
    const bool is_first = !found.is_bad(at) && found.first_of(at) == at;
    found.local[at] = is_first ? kNew : 0;
    return is_first;
  }
  GLT_HOST_DEVICE bool is_new(int64_t i) const { return found.local[*found_begin + i] == kNew; }

 private:
  static constexpr uint32_t kNew = UINT32_MAX;  // no local id
};

static_assert(sizeof(Tasks<EdgeTask>) < 4000 && sizeof(Tasks<NodeTask>) < 4000);

}  // namespace glt::cuda
