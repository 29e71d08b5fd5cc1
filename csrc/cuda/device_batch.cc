#include "cuda/device_batch.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>

#include "core/check.h"
#include "cuda/edge_kernels.h"
#include "cuda/induce_kernels.h"
#include "cuda/node_kernels.h"
#include "cuda/row_kernels.h"

namespace glt::cuda {
namespace {

constexpr int64_t kMostBlocks = 4096;  // of kernels whose threads go on to further items

int64_t blocks_for(int64_t n) {
  return (n + kThreads - 1) / kThreads;
}

// Runs a kernel over n tasks, a row of blocks for each.
template <typename Kernel, typename Task>
void run_tasks(Launcher& launcher, Kernel kernel, const Task* tasks, int64_t n, int64_t blocks) {
  for (int64_t first = 0; first < n; first += Tasks<Task>::kMost) {
    const int64_t some = std::min<int64_t>(n - first, Tasks<Task>::kMost);
    std::copy_n(tasks + first, some, kernel.tasks.item);
    launcher.run(kernel, blocks, some);
  }
}

template <int K>
void run_pick_rows(Launcher& launcher, int pick, const EdgeTask* tasks, int64_t n, int64_t blocks) {
  if (pick == K)
    run_tasks(launcher, PickRows<K>{}, tasks, n, blocks);
  else if constexpr (K > 0)
    run_pick_rows<K - 1>(launcher, pick, tasks, n, blocks);
}

}  // namespace

void DeviceBatch::launch(void* workspace, const std::vector<uint32_t*>& tables, void* stream) {
  require(state_ == State::kPrepared, "launch: call prepare first");
  require(tables.size() == types_.size(), "tables has ", tables.size(), " elements: expected one per node type, ",
          types_.size());
  state_ = State::kIdle;
  const Launcher::Turn turn(*launcher_);
  launcher_->begin(stream);
  prepare_tables(tables);
  lay_out(static_cast<std::byte*>(workspace));
  staging_ = static_cast<int64_t*>(launcher_->staging(staged_bytes_));
  stage();
  launcher_->sequence(plan_of(static_cast<std::byte*>(workspace)), [&] { launch_all(); });
  launcher_->mark();
  state_ = State::kLaunched;
}

void DeviceBatch::launch_all() {
  make_tasks();
  launcher_->to_device(count_words_, staging_, staged_bytes_);
  launch_seeds();
  for (size_t r = 0; r < ends_.size(); ++r)
    if (excluded_[r].slot) launcher_->run(FindExcluded{excluded_[r], *graphs_[r]}, excluded_room_[r].slots, 1);
  for (int64_t h = 0; h < num_hops_; ++h) launch_hop(hops_[h], h);
  launcher_->to_host(staging_, count_words_, count_bytes());
}

// Gives every type words that no batch has used, clearing its table when they run out.
void DeviceBatch::prepare_tables(const std::vector<uint32_t*>& tables) {
  for (size_t t = 0; t < types_.size(); ++t) {
    NodeType& type = types_[t];
    const int64_t words =
        type.hashed ? static_cast<int64_t>(std::bit_ceil(2 * static_cast<uint64_t>(type.capacity))) : type.num_nodes;
    if (tables[t] != type.table || words != type.table_words || type.next_base + type.capacity > UINT32_MAX) {
      launcher_->zero(tables[t], words * static_cast<int64_t>(sizeof(uint32_t)));
      type.table = tables[t];
      type.table_words = words;
      type.next_base = 1;
    }
    Stamps& stamps = type.found.stamps;
    stamps.words = type.table;
    stamps.mask = type.hashed ? static_cast<uint64_t>(words) - 1 : 0;
    type.stamp_range =
        Stamps::pack(static_cast<uint32_t>(type.next_base), static_cast<uint32_t>(type.next_base + type.capacity - 1));
    type.next_base += type.capacity;
  }
}

void DeviceBatch::launch_seeds() {
  std::vector<int64_t> first(types_.size(), 0);
  uint32_t tree = 0;
  for (const DeviceSeeds& seeds : seeds_) {
    NodeType& type = types_[seeds.node_type];
    if (seeds.n > 0)
      launcher_->run(
          TakeSeeds{seeds.node, seeds.tree, seeds.n, first[seeds.node_type], tree, type.found, type.node, type.tree},
          blocks_for(seeds.n), 1);
    first[seeds.node_type] += seeds.n;
    tree += static_cast<uint32_t>(seeds.n);
  }
  for (const NodeType& type : types_)
    if (type.hashed && type.num_seeds > 0)
      launcher_->run(StampSeeds{type.found, type.num_seeds}, blocks_for(type.num_seeds), 1);
}

void DeviceBatch::launch_hop(const Hop& hop, int64_t index) {
  const EdgeTask* tasks = edge_tasks_.data() + hop.first_task;
  const auto n = static_cast<int64_t>(hop.expansions.size());
  int64_t tiles = 1, num_blocks = 1, num_by_edge = 0, row_blocks = 0;
  bool draws_floyd = false, draws_by_weight = false;
  for (const Expansion& e : hop.expansions) {
    tiles = std::max<int64_t>(tiles, tiles_for(e.frontier_bound, 1));
    if (e.pick == 0)
      row_blocks = std::max<int64_t>(row_blocks, tiles_for(e.frontier_bound, 1) * RowSlots::of(e.k).num_parts);
    if (e.pick != kByEdge) continue;
    ++num_by_edge;
    draws_by_weight |= e.k > 0 && by_weight(e.edge_type) && !spec_.by_number;
    draws_floyd |= e.k > 0 && !by_weight(e.edge_type) && !spec_.replace && !spec_.by_number;
    const int64_t room = types_[ends_[e.edge_type].second].capacity;
    num_blocks = std::clamp(blocks_for(std::min(e.edge_bound, room)), num_blocks, kMostBlocks);
  }
  run_tasks(*launcher_, CountEdges{}, tasks, n, tiles);
  if (num_by_edge > 0) {  // they come first
    run_tasks(*launcher_, PlaceRows{}, tasks, num_by_edge, tiles);
    if (draws_floyd) run_tasks(*launcher_, DrawEdges{{}, num_blocks}, tasks, num_by_edge, num_blocks);
    if (spec_.by_number) run_tasks(*launcher_, DrawByNumber{}, tasks, num_by_edge, tiles);
    if (draws_by_weight) run_tasks(*launcher_, DrawByWeight{}, tasks, num_by_edge, tiles);
    run_tasks(*launcher_, PickEdges{{}, num_blocks}, tasks, num_by_edge, num_blocks);
  }
  for (int64_t begin = num_by_edge, end; begin < n; begin = end) {
    const int pick = hop.expansions[begin].pick;
    for (end = begin + 1; end < n && hop.expansions[end].pick == pick;) ++end;
    run_pick_rows<kMaxUnrolled>(*launcher_, pick, tasks + begin, end - begin, pick == 0 ? row_blocks : tiles);
  }
  const NodeTask* ends = node_tasks_.data() + index * num_node_types();
  int64_t node_tiles = 1;
  bool hashed = false;
  for (size_t t = 0; t < types_.size(); ++t) {
    node_tiles = std::max<int64_t>(node_tiles, tiles_for(std::min(hop.found_bound[t], types_[t].capacity), 4));
    hashed |= types_[t].hashed && hop.found_bound[t] > 0;
  }
  if (hashed) run_tasks(*launcher_, StampEdges{}, ends, num_node_types(), node_tiles);
  run_tasks(*launcher_, CountNew{}, ends, num_node_types(), node_tiles);
  run_tasks(*launcher_, AddNew{}, ends, num_node_types(), node_tiles);
}

bool DeviceBatch::wait() {
  require(state_ == State::kLaunched, "wait: call launch first");
  state_ = State::kIdle;
  const Launcher::Turn turn(*launcher_);
  launcher_->wait();
  counted_.assign(staging_, staging_ + num_count_words());
  require_valid_ids();
  bool has_room = true;
  const Counts counts = counts_at(counted_.data());
  for (size_t t = 0; t < types_.size(); ++t) {
    if (counts.need[t] == 0) continue;
    types_[t].shortfall = counts.need[t] + counts.need[t] / 4;
    types_[t].room = std::max(types_[t].room, types_[t].shortfall);
    if (types_[t].shortfall > types_[t].bound) types_[t].least = std::max(types_[t].least, types_[t].shortfall);
    has_room = false;
  }
  for (size_t r = 0; r < ends_.size(); ++r) {
    if (counts.excluded[r] <= excluded_room_[r].positions) continue;
    excluded_room_[r].shortfall = counts.excluded[r];
    has_room = false;
  }
  if (!has_room) return false;
  for (NodeType& type : types_) type.shortfall = 0;  // not before: other types may be short once this one has room
  for (ExcludedRoom& room : excluded_room_) room.shortfall = 0;
  state_ = State::kDone;
  return true;
}

void DeviceBatch::require_valid_ids() {
  const Counts counts = counts_at(counted_.data());
  const auto node_at = [&](const NodeType& type, int64_t at) {
    launcher_->to_host(staging_, type.found.node + at, sizeof(int64_t));
    launcher_->mark();
    launcher_->wait();
    return *staging_;
  };
  std::vector<int64_t> first(types_.size(), 0);
  for (size_t s = 0; s < seeds_.size(); ++s) {
    const int t = seeds_[s].node_type;
    const NodeType& type = types_[t];
    if (const auto at = static_cast<uint64_t>(counts.bad[t]); at < static_cast<uint64_t>(first[t] + seeds_[s].n)) {
      const std::string name = seeds_.size() == 1 ? "seeds" : text("seeds[", s, "]");
      const int64_t i = static_cast<int64_t>(at) - first[t], node = node_at(type, static_cast<int64_t>(at));
      require_index(false, name, "[", i, "] = ", node, " is outside [0, ", type.num_nodes,
                    ") (num_nodes = ", type.num_nodes, ")");
    }
    first[t] += seeds_[s].n;
  }
  for (size_t t = 0; t < types_.size(); ++t)
    if (counts.bad[t] != -1)
      require_index(false, "neighbour id ", node_at(types_[t], counts.bad[t]), " is outside [0, ", types_[t].num_nodes,
                    "): the graph's columns are damaged");
}

void DeviceBatch::require_done() const {
  require(state_ == State::kDone || state_ == State::kInduced, "the batch is not finished: call launch and wait first");
}

int64_t DeviceBatch::num_nodes(int node_type) const {
  require_done();
  return known_nodes(node_type);
}

int64_t DeviceBatch::known_nodes(int node_type) const {
  return counts_at(const_cast<int64_t*>(counted_.data())).known[(num_hops_ + 1) * num_node_types() + node_type];
}

std::vector<int64_t> DeviceBatch::num_sampled_nodes(int node_type) const {
  require_done();
  const int64_t* known = counts_at(const_cast<int64_t*>(counted_.data())).known + node_type;
  std::vector<int64_t> sampled;
  for (int64_t h = 0; h <= num_hops_; ++h)
    sampled.push_back(known[(h + 1) * num_node_types()] - known[h * num_node_types()]);
  return sampled;
}

std::vector<int64_t> DeviceBatch::num_sampled_edges(int edge_type) const {
  require_done();
  const Counts counts = counts_at(const_cast<int64_t*>(counted_.data()));
  std::vector<int64_t> sampled;
  if (state_ == State::kInduced) return sampled;
  for (int64_t at = edge_type; at < num_hops_ * num_edge_types(); at += num_edge_types())
    sampled.push_back(counts.edges_end[at] - counts.edges_begin[at]);
  return sampled;
}

int64_t DeviceBatch::num_edges(int edge_type) const {
  require_done();
  if (state_ == State::kInduced) return num_induced_[edge_type];
  int64_t total = 0;
  for (const int64_t n : num_sampled_edges(edge_type)) total += n;
  return total;
}

void DeviceBatch::copy_out(const std::vector<NodesOut>& nodes, const std::vector<EdgesOut>& edges) {
  require_done();
  require(nodes.size() == types_.size(), "nodes has ", nodes.size(), " elements: expected one per node type, ",
          types_.size());
  require(edges.size() == ends_.size(), "edges has ", edges.size(), " elements: expected one per edge type, ",
          ends_.size());
  const Launcher::Turn turn(*launcher_);
  std::vector<NodesOutTask> node_tasks;
  int64_t most_nodes = 0;
  for (int t = 0; t < num_node_types(); ++t) {
    if (!nodes[t].node) continue;
    require(!nodes[t].tree || spec_.disjoint, "trees were asked for, but the batch was not prepared with disjoint");
    const int64_t n = known_nodes(t);
    if (n > 0) node_tasks.push_back({types_[t].node, types_[t].tree, n, nodes[t].node, nodes[t].tree});
    most_nodes = std::max(most_nodes, n);
  }
  std::vector<EdgesOutTask> edge_tasks;
  int64_t most_edges = 0;
  const Counts counts = counts_at(counted_.data());
  for (int r = 0; r < num_edge_types(); ++r) {
    if (!edges[r].row) continue;
    require(!edges[r].edge || spec_.with_edge, "edge ids were asked for, but the batch was prepared without");
    if (state_ == State::kInduced) {
      copy_induced(r, edges[r]);
      continue;
    }
    EdgesOut out = edges[r];
    for (int64_t h = 0; h < num_hops_; ++h) {
      const int64_t at = h * num_edge_types() + r, begin = counts.edges_begin[at], n = counts.edges_end[at] - begin;
      if (n == 0) continue;
      edge_tasks.push_back({types_[ends_[r].second].found, begin, n, out.row, out.col, out.edge});
      out = {out.row + n, out.col + n, out.edge ? out.edge + n : nullptr};
      most_edges = std::max(most_edges, n);
    }
  }
  run_tasks(*launcher_, CopyNodes{}, node_tasks.data(), static_cast<int64_t>(node_tasks.size()),
            blocks_for(most_nodes));
  run_tasks(*launcher_, CopyEdges{}, edge_tasks.data(), static_cast<int64_t>(edge_tasks.size()),
            blocks_for(most_edges));
}

int64_t DeviceBatch::induced_bytes() {
  require(state_ == State::kDone, "induce: the batch is not finished: call launch and wait first");
  require(!spec_.disjoint, "an induced subgraph of a disjoint batch: expected disjoint = False");
  return lay_out_induced(nullptr);
}

void DeviceBatch::induce(void* workspace) {
  (void)induced_bytes();
  const Launcher::Turn turn(*launcher_);
  lay_out_induced(static_cast<std::byte*>(workspace));
  const int64_t bytes = 3 * num_edge_types() * static_cast<int64_t>(sizeof(int64_t));
  launcher_->zero(induced_words_, bytes);
  for (int r = 0; r < num_edge_types(); ++r) {
    if (!graphs_[r]) continue;
    const InduceTask& task = induce_tasks_[r];
    launcher_->run(CountDegrees{task}, task.row_tiles, 1);
    launcher_->run(PlaceDegrees{task}, task.row_tiles, 1);
    launcher_->run(CountMembers{task}, task.edge_tiles, 1);
    launcher_->run(SumMembers{task}, 1, 1);
  }
  staging_ = static_cast<int64_t*>(launcher_->staging(bytes));
  launcher_->to_host(staging_, induced_words_, bytes);
  launcher_->mark();
  state_ = State::kInducing;
}

void DeviceBatch::wait_induced() {
  require(state_ == State::kInducing, "wait_induced: call induce first");
  state_ = State::kIdle;
  const Launcher::Turn turn(*launcher_);
  launcher_->wait();
  const int num_types = num_edge_types();
  for (int r = 0; r < num_types; ++r)
    require_index(staging_[2 * num_types + r] == 0, "neighbour id ", staging_[2 * num_types + r], " is outside [0, ",
                  types_[ends_[r].second].num_nodes, "): the graph's columns are damaged");
  num_induced_.assign(staging_ + num_types, staging_ + 2 * num_types);
  state_ = State::kInduced;
}

void DeviceBatch::copy_induced(int edge_type, const EdgesOut& out) {
  if (num_induced_[edge_type] == 0) return;
  const InduceTask& task = induce_tasks_[edge_type];
  launcher_->run(WriteMembers{task, out.row, out.col, out.edge}, task.edge_tiles, 1);
}

}  // namespace glt::cuda
