// What a batch on a device needs, and where in its memory everything is.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/rows.h"
#include "core/sample.h"
#include "core/weights.h"
#include "cuda/device_batch.h"
#include "cuda/device_rows.h"
#include "cuda/induce_kernels.h"
#include "cuda/launcher.h"

namespace glt::cuda {
namespace {

// Hands out parts of a workspace, one behind the other; without memory, only counts them.
class BumpAllocator {
 public:
  explicit BumpAllocator(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t n) {
    const int64_t at = bytes_;
    bytes_ += (n * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
};

constexpr int64_t kMostOccurrences = int64_t{UINT32_MAX} - 2;

int64_t product(int64_t a, int64_t b) {
  int64_t out;
  return __builtin_mul_overflow(a, b, &out) ? INT64_MAX : out;
}

int64_t sum(int64_t a, int64_t b) {
  int64_t out;
  return __builtin_add_overflow(a, b, &out) ? INT64_MAX : out;
}

}  // namespace

DeviceBatch::DeviceBatch(const std::vector<int64_t>& num_nodes, const std::vector<std::pair<int, int>>& ends,
                         int64_t dense_limit, int64_t first_room, std::unique_ptr<Launcher> launcher)
    : ends_(ends),
      dense_limit_(dense_limit),
      launcher_(std::move(launcher)),
      excluded_room_(ends.size()),
      excluded_(ends.size()) {
  const int num_types = static_cast<int>(num_nodes.size());
  require(first_room >= 1, "first_room = ", first_room, ": expected at least 1");
  for (int t = 0; t < num_types; ++t) {
    require(num_nodes[t] >= 0, "num_nodes[", t, "] = ", num_nodes[t], ": expected at least 0");
    types_.emplace_back().num_nodes = num_nodes[t];
    types_[t].room = first_room;
  }
  for (size_t r = 0; r < ends.size(); ++r)
    for (const int type : {ends[r].first, ends[r].second})
      require(type >= 0 && type < num_types, "ends[", r, "] has node type ", type, ": expected [0, ", num_types, ")");
}

// PickRows counts edges by 32 bits.
int DeviceBatch::pick_of(int edge_type, int64_t k) const {
  const bool is_plain = !spec_.by_number && !by_weight(edge_type) && graphs_[edge_type]->num_edges <= UINT32_MAX;
  if (!is_plain || k < 1 || k > RowSlots::kWidest) return kByEdge;
  return k <= kMaxUnrolled ? static_cast<int>(k) : 0;
}

bool DeviceBatch::by_weight(int edge_type) const {
  const DeviceRows& rows = *graphs_[edge_type];
  return rows.weight_sum || (half_life_of(edge_type) > 0 && rows.time && spec_.seed_time);
}

DeviceNeeds DeviceBatch::prepare(const std::vector<const DeviceRows*>& graphs, const std::vector<DeviceSeeds>& seeds,
                                 const DeviceSpec& spec) {
  require(state_ != State::kLaunched && state_ != State::kInducing,
          "prepare: the batch before is under way; wait for it first");
  state_ = State::kIdle;
  const size_t num_types = ends_.size();
  require(graphs.size() == num_types, "graphs has ", graphs.size(), " elements: expected one per edge type, ",
          num_types);
  require(spec.num_neighbors.size() == num_types, "num_neighbors has ", spec.num_neighbors.size(),
          " lists: expected one per edge type, ", num_types);
  num_hops_ = num_types ? static_cast<int64_t>(spec.num_neighbors[0].size()) : 0;
  for (const auto& [name, values] : {std::pair("time_window", &spec.time_window), {"half_life", &spec.half_life}})
    require(values->empty() || values->size() == num_types, name, " has ", values->size(),
            " elements: expected one per edge type, ", num_types);
  for (size_t r = 0; r < num_types; ++r) {
    require(static_cast<int64_t>(spec.num_neighbors[r].size()) == num_hops_, "num_neighbors[", r, "] has ",
            spec.num_neighbors[r].size(), " hops, num_neighbors[0] has ", num_hops_,
            ": expected the same for all edge types");
    for (int64_t hop = 0; hop < num_hops_; ++hop) {
      const int64_t k = spec.num_neighbors[r][hop];
      check_spec({k, spec.replace && k >= 0, spec.batch_key, static_cast<uint32_t>(spec.first_hop + hop),
                  static_cast<uint32_t>(r), true, spec.latest_only, nullptr,
                  spec.time_window.empty() ? -1 : spec.time_window[r], spec.half_life.empty() ? 0 : spec.half_life[r],
                  spec.by_number});
    }
    if (!graphs[r]) continue;
    const DeviceRows& rows = *graphs[r];
    const int64_t centers = types_[ends_[r].first].num_nodes, neighbors = types_[ends_[r].second].num_nodes;
    require(rows.num_nodes == centers && rows.num_neighbor_nodes == neighbors, "the graph of edge type ", r, " has ",
            rows.num_nodes, " nodes with ", rows.num_neighbor_nodes, " possible neighbours, the batch was made for ",
            centers, " with ", neighbors);
    require(!(rows.time && (spec.seed_time || spec.latest_only)) || !rows.weight_sum,
            "seed_time or last was given for edges with times and weights: expected one of the two, leave out the "
            "other");
  }
  int64_t num_trees = 0;
  for (NodeType& type : types_) type.num_seeds = 0;
  for (size_t s = 0; s < seeds.size(); ++s) {
    require(seeds[s].node_type >= 0 && seeds[s].node_type < num_node_types(), "seeds[", s, "] has node type ",
            seeds[s].node_type, ": expected [0, ", num_node_types(), ")");
    types_[seeds[s].node_type].num_seeds += seeds[s].n;
    num_trees += seeds[s].n;
  }
  require(num_trees < (int64_t{1} << 31), "a batch of ", num_trees, " seeds: expected fewer than 2^31");
  require(!spec.seed_time || spec.disjoint,
          "seed_time needs disjoint = True: a node that two seeds share has no time of its own");
  // Where trees are given, their times are by tree too, of which only the caller knows how many there are.
  const bool given_trees = std::any_of(seeds.begin(), seeds.end(), [](const DeviceSeeds& s) { return s.tree; });
  require(!given_trees || spec.disjoint, "trees of seeds were given: expected disjoint = True");
  require(!spec.seed_time || given_trees || spec.num_times == num_trees, "seed_time has ", spec.num_times,
          " elements: expected ", num_trees, ", one per seed");
  require(spec.exclusions.empty() || spec.exclusions.size() == num_types, "exclusions has ", spec.exclusions.size(),
          " elements: expected none, or one per edge type, ", num_types);
  graphs_ = graphs;
  seeds_ = seeds;
  spec_ = spec;
  plan_hops();
  plan_excluded();
  DeviceNeeds needs{lay_out(nullptr), {}};
  for (const NodeType& type : types_)
    needs.table_words.push_back(
        type.hashed ? static_cast<int64_t>(std::bit_ceil(2 * static_cast<uint64_t>(type.capacity))) : type.num_nodes);
  state_ = State::kPrepared;
  return needs;
}

void DeviceBatch::plan_hops() {
  std::vector<int64_t> frontier, total;
  for (const NodeType& type : types_) {
    frontier.push_back(type.num_seeds);
    total.push_back(type.num_seeds);
  }
  hops_.assign(num_hops_, {});
  num_edge_tasks_ = 0;
  for (int64_t h = 0; h < num_hops_; ++h) {
    Hop& hop = hops_[h];
    hop.found_bound.assign(types_.size(), 0);
    hop.first_task = num_edge_tasks_;
    for (int r = 0; r < num_edge_types(); ++r) {
      const int64_t k = spec_.num_neighbors[r][h];
      if (!graphs_[r] || k == 0) continue;
      const auto [expanded, found] = ends_[r];
      int64_t edges = k < 0 ? graphs_[r]->num_edges : product(frontier[expanded], k);
      // Each node is expanded once. Duplicate seeds may have more edges; then there is too little room, and more next.
      if (!spec_.replace)
        edges = std::min(edges, product(graphs_[r]->num_edges, spec_.disjoint ? frontier[expanded] : 1));
      hop.expansions.push_back({r, k, frontier[expanded], edges, pick_of(r, k)});
      hop.found_bound[found] = sum(hop.found_bound[found], edges);
      total[found] = sum(total[found], edges);
    }
    // What one kernel picks stands together.
    std::stable_sort(hop.expansions.begin(), hop.expansions.end(),
                     [](const Expansion& a, const Expansion& b) { return a.pick < b.pick; });
    num_edge_tasks_ += static_cast<int64_t>(hop.expansions.size());
    for (size_t t = 0; t < types_.size(); ++t)
      frontier[t] = spec_.disjoint ? hop.found_bound[t] : std::min(hop.found_bound[t], types_[t].num_nodes);
  }
  for (size_t t = 0; t < types_.size(); ++t) {
    NodeType& type = types_[t];
    require(type.room <= kMostOccurrences, "a batch names nodes over ", kMostOccurrences,
            " times: use smaller batches or fan-outs");
    type.bound = total[t];
    type.capacity =
        std::max({int64_t{1}, type.num_seeds, std::min({std::max(type.bound, type.least), type.room, kMostOccurrences}),
                  type.shortfall});
    type.hashed = spec_.disjoint || type.num_nodes > dense_limit_ || type.num_nodes >= (int64_t{1} << 31);
  }
}

// Tables take as many slots as on the host; neighbours and positions a power of two, so that the batches of a loader,
// whose links differ, have one plan.
void DeviceBatch::plan_excluded() {
  const auto rounded = [](int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))); };
  for (size_t r = 0; r < ends_.size(); ++r) {
    ExcludedRoom& room = excluded_room_[r];
    const Exclusions* excluded = spec_.exclusions.empty() || !graphs_[r] ? nullptr : spec_.exclusions[r];
    if (!excluded || excluded->empty()) {
      room = {};
      continue;
    }
    room.slots = static_cast<int64_t>(excluded->slots().size());
    room.neighbors = rounded(static_cast<int64_t>(excluded->neighbors().size()));
    // What batches have needed, since parallel edges are more than pairs.
    room.positions = std::max({room.positions, 2 * room.neighbors, rounded(room.shortfall)});
  }
}

// All that the arguments of the batch's kernels depend on.
std::vector<int64_t> DeviceBatch::plan_of(const std::byte* workspace) const {
  std::vector<int64_t> plan{num_hops_,       spec_.first_hop, spec_.replace,  spec_.latest_only,
                            spec_.with_edge, spec_.disjoint,  spec_.by_number};
  const auto add = [&](auto value) { plan.push_back(static_cast<int64_t>(value)); };
  const auto add_address = [&](const void* address) { add(reinterpret_cast<intptr_t>(address)); };
  add_address(workspace);
  add_address(staging_);
  add_address(spec_.seed_time);
  for (const auto& counts : spec_.num_neighbors)
    for (const int64_t k : counts) add(k);
  for (const auto& values : {spec_.time_window, spec_.half_life}) {
    add(values.size());
    for (const int64_t value : values) add(value);
  }
  for (const DeviceRows* rows : graphs_) {
    add(rows != nullptr);
    const DeviceRows given = rows ? *rows : DeviceRows{};
    for (const void* array : {static_cast<const void*>(given.indptr), given.indices.data, given.edge_ids.data,
                              static_cast<const void*>(given.weight_sum), static_cast<const void*>(given.weight_guide),
                              static_cast<const void*>(given.time), static_cast<const void*>(given.hot_shift),
                              given.hot_indices, given.hot_edge_ids})
      add_address(array);
    add(given.indices.wide);
    add(given.edge_ids.wide);
    add(given.num_edges);
    add(given.first_edge_id);
  }
  add(seeds_.size());
  for (const DeviceSeeds& seeds : seeds_) {
    add(seeds.node_type);
    add_address(seeds.node);
    add_address(seeds.tree);
    add(seeds.n);
  }
  for (const NodeType& type : types_) {
    add_address(type.table);
    add(type.table_words);
    add(type.capacity);
  }
  for (const ExcludedRoom& room : excluded_room_)
    for (const int64_t size : {room.slots, room.neighbors, room.positions}) add(size);
  return plan;
}

int64_t DeviceBatch::num_count_words() const {
  return (2 * num_hops_ + 6) * num_node_types() + (2 * num_hops_ + 1) * num_edge_types() + 2;
}

DeviceBatch::Counts DeviceBatch::counts_at(int64_t* words) const {
  const int64_t num_types = num_node_types(), num_edge_words = num_hops_ * num_edge_types();
  Counts counts;
  counts.known = words;  // [hops + 2][node types]: the frontier of hop h is [known[h], known[h + 1])
  counts.found = counts.known + (num_hops_ + 2) * num_types;        // [hops + 1][node types]: occurrences before hop h
  counts.edges_begin = counts.found + (num_hops_ + 1) * num_types;  // [hops][edge types], occurrences
  counts.edges_end = counts.edges_begin + num_edge_words;
  counts.bad = counts.edges_end + num_edge_words;  // [node types]
  counts.need = counts.bad + num_types;            // [node types]
  counts.excluded = counts.need + num_types;       // [edge types], edges that are excluded
  counts.batch_key = reinterpret_cast<uint64_t*>(counts.excluded + num_edge_types());
  counts.shared_key = counts.batch_key + 1;
  counts.stamp_range = counts.shared_key + 1;  // [node types]
  return counts;
}

// Where everything is in a workspace at `base`; returns its size. Null: only that.
int64_t DeviceBatch::lay_out(std::byte* base) {
  BumpAllocator memory(base);
  count_words_ = memory.take<int64_t>(num_count_words());
  for (size_t r = 0; r < ends_.size(); ++r) {
    const ExcludedRoom& room = excluded_room_[r];
    excluded_[r] = {};
    if (room.slots == 0) continue;
    excluded_[r].slot = memory.take<Exclusions::Slot>(room.slots);
    excluded_[r].neighbor = memory.take<int64_t>(room.neighbors);
  }
  staged_bytes_ = memory.bytes();
  const Counts counts = counts_at(count_words_);
  for (size_t r = 0; r < ends_.size(); ++r) {
    const ExcludedRoom& room = excluded_room_[r];
    if (room.slots == 0) continue;
    excluded_[r].mask = static_cast<uint64_t>(room.slots) - 1;
    excluded_[r].found = memory.take<FoundExcluded>(room.slots);
    excluded_[r].position = memory.take<int64_t>(room.positions);
    excluded_[r].room = room.positions;
    if (base) excluded_[r].used = reinterpret_cast<uint64_t*>(counts.excluded + r);
  }
  std::vector<char> by_edge(types_.size(), 0), has_used(types_.size(), 0);
  spans_.assign(ends_.size(), nullptr);
  row_begin_.assign(ends_.size(), nullptr);
  std::vector<char> is_expanded(ends_.size(), 0), has_rows(ends_.size(), 0);
  for (NodeType& type : types_) type.edge_tiles = 0;
  for (const Hop& hop : hops_) {
    std::vector<int> tiles(types_.size(), 0);
    for (const Expansion& e : hop.expansions) {
      tiles[ends_[e.edge_type].second] += tiles_for(e.frontier_bound, 1);
      is_expanded[e.edge_type] = 1;
      if (e.pick != kByEdge) continue;
      by_edge[ends_[e.edge_type].second] = 1;
      has_used[ends_[e.edge_type].second] |= by_weight(e.edge_type) && e.k > 0 && !spec_.replace && !spec_.by_number;
      has_rows[e.edge_type] = 1;
    }
    for (size_t t = 0; t < types_.size(); ++t) types_[t].edge_tiles = std::max(types_[t].edge_tiles, tiles[t]);
  }
  for (size_t t = 0; t < types_.size(); ++t) {
    NodeType& type = types_[t];
    const int64_t n = type.capacity;
    type.node = memory.take<int64_t>(n);
    type.tree = spec_.disjoint ? memory.take<uint32_t>(n) : nullptr;
    type.found.node = memory.take<int64_t>(n);
    type.found.tree = spec_.disjoint ? memory.take<uint32_t>(n) : nullptr;
    type.found.col = memory.take<uint32_t>(n);
    type.found.edge = spec_.with_edge ? memory.take<int64_t>(n) : nullptr;
    type.found.local = memory.take<uint32_t>(n);
    type.found.scratch = by_edge[t] ? memory.take<int64_t>(n) : nullptr;
    type.found.used = has_used[t] ? memory.take<UsedRange>(n) : nullptr;
    type.edge_sums = memory.take<int64_t>(type.edge_tiles);
    type.node_sums = memory.take<int64_t>(kMostTiles);
    type.found.capacity = n;
    type.found.num_nodes = type.num_nodes;
    if (!base) continue;
    type.found.bad = reinterpret_cast<uint64_t*>(counts.bad + t);
    type.found.need = reinterpret_cast<uint64_t*>(counts.need + t);
    type.found.stamps.range = counts.stamp_range + t;
  }
  for (size_t r = 0; r < ends_.size(); ++r) {
    const int64_t n = types_[ends_[r].first].capacity;
    if (is_expanded[r]) spans_[r] = memory.take<RowSpan>(n);
    if (has_rows[r]) row_begin_[r] = memory.take<int64_t>(n);
  }
  return memory.bytes();
}

// Writes what the first kernel finds: counts, parameters and tables of excluded edges.
void DeviceBatch::stage() {
  std::fill_n(staging_, num_count_words(), 0);
  const Counts first = counts_at(staging_);
  *first.batch_key = spec_.batch_key;
  *first.shared_key = spec_.shared_key;
  for (int t = 0; t < num_node_types(); ++t) first.stamp_range[t] = types_[t].stamp_range;
  const auto put = [&](const void* device, const auto& values) {
    const auto at = static_cast<const std::byte*>(device) - reinterpret_cast<std::byte*>(count_words_);
    std::memcpy(reinterpret_cast<std::byte*>(staging_) + at, values.data(), values.size_bytes());
  };
  for (size_t r = 0; r < ends_.size(); ++r) {
    if (!excluded_[r].slot) continue;
    put(excluded_[r].slot, spec_.exclusions[r]->slots());
    put(excluded_[r].neighbor, spec_.exclusions[r]->neighbors());
  }
  for (int t = 0; t < num_node_types(); ++t) {
    first.known[num_node_types() + t] = first.found[t] = types_[t].num_seeds;
    first.bad[t] = -1;
  }
}

void DeviceBatch::make_tasks() {
  const int num_types = num_node_types(), num_edges = num_edge_types();
  const Counts counts = counts_at(count_words_);
  edge_tasks_.clear();
  node_tasks_.clear();
  for (int64_t h = 0; h < num_hops_; ++h) {
    const Hop& hop = hops_[h];
    // Edge types follow each other in their order, whichever kernel picks their edges.
    std::vector<int> last_type(num_types, -1), next_tile(num_types, 0), first_tile(num_edges, 0);
    std::vector<const Expansion*> in_order;
    for (const Expansion& e : hop.expansions) in_order.push_back(&e);
    std::sort(in_order.begin(), in_order.end(), [](auto* a, auto* b) { return a->edge_type < b->edge_type; });
    for (const Expansion* e : in_order) {
      const int found = ends_[e->edge_type].second;
      first_tile[e->edge_type] = next_tile[found];
      next_tile[found] += tiles_for(e->frontier_bound, 1);
      last_type[found] = e->edge_type;
    }
    for (const Expansion& e : hop.expansions) {
      const int r = e.edge_type;
      const NodeType &expanded = types_[ends_[r].first], &found = types_[ends_[r].second];
      edge_tasks_.push_back({*graphs_[r],
                             e.k,
                             spec_.replace && e.k >= 0,
                             spec_.latest_only,
                             spec_.time_window.empty() ? -1 : spec_.time_window[r],
                             half_life_of(r),
                             spec_.by_number,
                             static_cast<uint32_t>(spec_.first_hop + h),
                             static_cast<uint32_t>(r),
                             static_cast<uint32_t>(ends_[r].second),
                             counts.batch_key,
                             counts.shared_key,
                             excluded_[r],
                             expanded.node,
                             expanded.tree,
                             spec_.seed_time,
                             counts.known + h * num_types + ends_[r].first,
                             counts.known + (h + 1) * num_types + ends_[r].first,
                             tiles_for(e.frontier_bound, 1),
                             found.found,
                             counts.found + h * num_types + ends_[r].second,
                             found.edge_sums,
                             first_tile[r],
                             counts.edges_begin + h * num_edges + r,
                             counts.edges_end + h * num_edges + r,
                             spans_[r],
                             row_begin_[r],
                             RowSlots::of(e.pick == 0 ? e.k : 1),
                             RowSlots::of(e.pick == 0 ? (e.k + 1) / 2 : 1)});
    }
    for (int t = 0; t < num_types; ++t) {
      const int64_t* end = last_type[t] < 0 ? nullptr : counts.edges_end + h * num_edges + last_type[t];
      node_tasks_.push_back({types_[t].found, types_[t].node, types_[t].tree, counts.found + h * num_types + t, end,
                             counts.known + (h + 1) * num_types + t, counts.found + (h + 1) * num_types + t,
                             counts.known + (h + 2) * num_types + t, types_[t].node_sums,
                             tiles_for(std::min(hop.found_bound[t], types_[t].capacity), 4)});
    }
  }
}

// Lays out the tasks of an induced subgraph in a workspace at `base`; returns its size. Null: only that.
int64_t DeviceBatch::lay_out_induced(std::byte* base) {
  BumpAllocator memory(base);
  const int num_types = num_edge_types();
  induced_words_ = memory.take<int64_t>(3 * num_types);
  induce_tasks_.assign(num_types, {});
  for (int r = 0; r < num_types; ++r) {
    if (!graphs_[r]) continue;
    const NodeType &centers = types_[ends_[r].first], &members = types_[ends_[r].second];
    InduceTask& task = induce_tasks_[r];
    task.rows = *graphs_[r];
    task.center = centers.node;
    task.num_centers = known_nodes(ends_[r].first);
    task.members = members.found;
    task.row_tiles = tiles_for(task.num_centers, 1);
    task.edge_tiles = tiles_for(task.rows.num_edges, 4);
    task.degree_sums = memory.take<int64_t>(task.row_tiles);
    task.member_sums = memory.take<int64_t>(task.edge_tiles);
    task.row_begin = memory.take<int64_t>(task.num_centers);
    if (!base) continue;
    task.num_candidates = induced_words_ + r;
    task.num_edges = induced_words_ + num_types + r;
    task.bad = reinterpret_cast<uint64_t*>(induced_words_ + 2 * num_types + r);
  }
  return memory.bytes();
}

}  // namespace glt::cuda
