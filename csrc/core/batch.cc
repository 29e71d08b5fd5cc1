#include "core/batch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/check.h"
#include "core/induce.h"
#include "core/numbers.h"
#include "core/sample.h"
#include "core/threads.h"

namespace glt {
namespace {

constexpr int64_t kPieceRows = 1024;

// Writes first + i count[i] times for i < n, and nothing behind that: what follows is another thread's.
template <typename Local>
void write_columns(const uint32_t* count, int64_t n, int64_t first, Local* col, const Local* end) {
  int64_t i = 0;
  for (; i < n && end - col >= kRunSlack; ++i) {
    write_run(col, count[i], [&](int64_t) { return static_cast<Local>(first + i); });
    col += count[i];
  }
  for (; i < n; ++i) col = std::fill_n(col, count[i], static_cast<Local>(first + i));
}

}  // namespace

template <typename Work>
void EdgeSet::for_pieces(int64_t num_arrays, int num_threads, const Work& work) const {
  const int64_t num_rows = count.size(), num_pieces = (num_rows + kPieceRows - 1) / kPieceRows;
  std::vector<int64_t> offset{0};  // of the edges of each piece
  for (int64_t first = 0; first < num_rows; first += kPieceRows) {
    int64_t sum = 0;
    for (int64_t i = first; i < std::min(first + kPieceRows, num_rows); ++i) sum += count[i];
    offset.push_back(offset.back() + sum);
  }
  const int64_t width = num_pieces ? num_arrays * row.size() / num_pieces : 0;
  for_row_chunks(num_pieces, 1, width, num_threads, [&](int64_t piece, int64_t) {
    const int64_t first = piece * kPieceRows;
    work(first, std::min(kPieceRows, num_rows - first), offset[piece], offset[piece + 1] - offset[piece]);
  });
}

template <typename Local>
void EdgeSet::copy_to(Local* row_out, Local* col_out, MutableIds edge_out, int num_threads) const {
  const auto copy_all = [&](auto* edge_ids) {
    for_pieces(3, num_threads, [&](int64_t first, int64_t num_rows, int64_t begin, int64_t n) {
      std::copy_n(row.data() + begin, n, row_out + begin);
      write_columns(count.data() + first, num_rows, first, col_out + begin, col_out + begin + n);
      if (edge_ids) std::copy_n(edge.data() + begin, n, edge_ids + begin);
    });
  };
  std::visit(copy_all, edge_out);
}
template void EdgeSet::copy_to(int32_t*, int32_t*, MutableIds, int) const;
template void EdgeSet::copy_to(int64_t*, int64_t*, MutableIds, int) const;

std::pair<BlockPool::Block, BlockPool::Block> EdgeSet::hand_over(int num_threads, bool expanded_first) {
  const int64_t num_edges = row.size();
  row.reserve_more(num_edges);
  int64_t* col = expanded_first ? row.data() : row.end();
  for_pieces(1, num_threads, [&](int64_t first, int64_t num_rows, int64_t begin, int64_t n) {
    if (expanded_first) std::copy_n(row.data() + begin, n, row.end() + begin);
    write_columns(count.data() + first, num_rows, first, col + begin, col + begin + n);
  });
  row.added(num_edges);
  count.clear();
  BlockPool::Block ends = row.hand_over();
  return {std::move(ends), edge.hand_over()};
}

Batch::Batch(const std::vector<int64_t>& num_nodes, const std::vector<std::pair<int, int>>& ends, int64_t dense_limit) {
  const int num_types = static_cast<int>(num_nodes.size());
  for (int t = 0; t < num_types; ++t) {
    require(num_nodes[t] >= 0, "num_nodes[", t, "] = ", num_nodes[t], ": expected at least 0");
    nodes_.emplace_back(num_nodes[t], dense_limit);
  }
  for (size_t r = 0; r < ends.size(); ++r) {
    for (const int type : {ends[r].first, ends[r].second})
      require(type >= 0 && type < num_types, "ends[", r, "] has node type ", type, ": expected [0, ", num_types, ")");
    edges_.emplace_back(ends[r].first, ends[r].second);
  }
}

void Batch::start(const std::vector<Seeds>& seeds, bool with_edge, bool disjoint, const int64_t* seed_time,
                  int64_t num_times) {
  std::vector<int64_t> num_seeds(nodes_.size(), 0);
  int64_t num_trees = 0;
  for (size_t s = 0; s < seeds.size(); ++s) {
    const auto& [type, node, n] = seeds[s];
    const std::string name = seeds.size() == 1 ? "seeds" : text("seeds[", s, "]");
    require(type >= 0 && type < num_node_types(), name, " has node type ", type, ": expected [0, ", num_node_types(),
            ")");
    const int64_t num_nodes = nodes_[type].num_nodes();
    for (int64_t i = 0; i < n; ++i)
      require_index(static_cast<uint64_t>(node[i]) < static_cast<uint64_t>(num_nodes), name, "[", i, "] = ", node[i],
                    " is outside [0, ", num_nodes, ") (num_nodes = ", num_nodes, ")");
    num_seeds[type] += n;
    num_trees += n;
  }
  require(num_trees < (int64_t{1} << 31), "a batch of ", num_trees, " seeds: expected fewer than 2^31");
  require(!seed_time || disjoint,
          "seed_time needs disjoint = True: a node that two seeds share has no time of its own");
  require(!seed_time || num_times == num_trees, "seed_time has ", num_times, " elements: expected ", num_trees,
          ", one per seed");

  num_threads_ = 1;
  with_edge_ = with_edge;
  disjoint_ = disjoint;
  has_time_ = seed_time != nullptr;
  induced_ = false;
  handed_over_ = false;
  seed_time_.end_use();
  end_use_of_scratch();
  if (has_time_) seed_time_.append(seed_time, num_times);
  for (size_t t = 0; t < nodes_.size(); ++t) nodes_[t].start(num_seeds[t], disjoint);
  for (EdgeSet& edges : edges_) edges.start();
  uint32_t tree = 0;
  for (const auto& [type, node, n] : seeds) {
    nodes_[type].add_seeds(node, n, tree);
    tree += static_cast<uint32_t>(n);
  }
  for (NodeSet& nodes : nodes_) nodes.end_hop();
}

void Batch::end_use_of_scratch() {
  for (Buffer<int64_t>* each : {&frontier_, &frontier_time_}) each->end_use();
  for (Buffer<uint32_t>* each : {&frontier_tree_, &edge_tree_, &local_}) each->end_use();
  buffers_.end_use();
  merger_.end_use();
}

void Batch::sample(const std::vector<PartedCsr>& graphs, const BatchSpec& spec, int num_threads) {
  const size_t num_types = edges_.size();
  require_whole();
  require(nodes_.empty() || nodes_[0].num_sampled().size() == 1, "sample makes a whole batch: call start before it");
  require_graphs(graphs);
  require(spec.num_neighbors.size() == num_types, "num_neighbors has ", spec.num_neighbors.size(),
          " lists: expected one per edge type, ", num_types);
  num_threads_ = num_threads;
  require(spec.exclusions.empty() || spec.exclusions.size() == num_types, "exclusions has ", spec.exclusions.size(),
          " elements: expected one per edge type, ", num_types);
  for (const auto& [name, values] : {std::pair("time_window", &spec.time_window), {"half_life", &spec.half_life}})
    require(values->empty() || values->size() == num_types, name, " has ", values->size(),
            " elements: expected one per edge type, ", num_types);
  const size_t num_hops = num_types ? spec.num_neighbors[0].size() : 0;
  const auto hop_spec = [&](size_t edge_type, size_t hop) {
    return HopSpec{spec.num_neighbors[edge_type][hop],
                   spec.replace && spec.num_neighbors[edge_type][hop] >= 0,  // all of them: each once
                   spec.batch_key,
                   static_cast<uint32_t>(hop),
                   static_cast<uint32_t>(edge_type),
                   with_edge_,
                   spec.latest_only,
                   spec.exclusions.empty() ? nullptr : spec.exclusions[edge_type],
                   spec.time_window.empty() ? -1 : spec.time_window[edge_type],
                   spec.half_life.empty() ? 0 : spec.half_life[edge_type],
                   spec.by_number,
                   number_key(spec.shared_key, static_cast<uint32_t>(hop), edges_[edge_type].neighbor)};
  };
  for (size_t r = 0; r < num_types; ++r) {
    require(spec.num_neighbors[r].size() == num_hops, "num_neighbors[", r, "] has ", spec.num_neighbors[r].size(),
            " hops, num_neighbors[0] has ", num_hops, ": expected the same for all edge types");
    for (size_t hop = 0; hop < num_hops; ++hop) check_spec(hop_spec(r, hop));
  }
  for (size_t hop = 0; hop < num_hops; ++hop) {
    for (size_t r = 0; r < num_types; ++r)
      if (graphs[r].has_edges() && spec.num_neighbors[r][hop] != 0)
        expand(static_cast<int>(r), graphs[r], hop_spec(r, hop), num_threads);
    end_hop();
  }
}

void Batch::require_graphs(const std::vector<PartedCsr>& graphs) const {
  require(graphs.size() == edges_.size(), "csrs has ", graphs.size(), " elements: expected one per edge type, ",
          edges_.size());
  for (size_t r = 0; r < graphs.size(); ++r) {
    if (!graphs[r].has_edges()) continue;
    const int64_t centers = nodes_[edges_[r].expanded].num_nodes(), neighbors = nodes_[edges_[r].neighbor].num_nodes();
    require(graphs[r].num_nodes() == centers && graphs[r].num_neighbor_nodes() == neighbors, "the graph of edge type ",
            r, " has ", graphs[r].num_nodes(), " nodes with ", graphs[r].num_neighbor_nodes(),
            " possible neighbours, the batch was made for ", centers, " with ", neighbors);
  }
}

void Batch::require_not_expanded(int edge_type) const {
  const EdgeSet& edges = edges_[edge_type];
  require_whole();
  require(!induced_, "the batch is induced and takes no further hop: call start first");
  require(edges.count.size() == nodes_[edges.expanded].frontier_begin(), "edge type ", edge_type,
          " was expanded before in this hop: call end_hop first");
}

void Batch::expand(int edge_type, const PartedCsr& graph, const HopSpec& spec, int num_threads) {
  EdgeSet& edges = edges_[edge_type];
  const NodeSet& centers = nodes_[edges.expanded];
  require_not_expanded(edge_type);
  const int64_t begin = centers.frontier_begin(), n = centers.frontier_size();
  frontier_.clear();
  frontier_.append(centers.node() + begin, n);
  Rows rows{frontier_.data(), n};
  if (disjoint_) {
    frontier_tree_.clear();
    frontier_tree_.append(centers.tree() + begin, n);
    rows.tree = frontier_tree_.data();
  }
  if (has_time_) {
    frontier_time_.resize(n);
    for (int64_t i = 0; i < n; ++i) frontier_time_[i] = seed_time_[frontier_tree_[i]];
    rows.seed_time = frontier_time_.data();
  }
  sample_in_order(
      graph, rows, spec, num_threads, buffers_, "frontier",
      [&](const RowSamples& rows, int64_t first, int64_t count) { take_rows(edges, rows, begin + first, count); });
}

void Batch::expand_from(int edge_type, const std::vector<RowsPart>& parts) {
  EdgeSet& edges = edges_[edge_type];
  const NodeSet& centers = nodes_[edges.expanded];
  require_not_expanded(edge_type);
  const int64_t begin = centers.frontier_begin();
  merger_.merge(
      parts, centers.frontier_size(), with_edge_, "frontier",
      [&](const RowSamples& rows, int64_t first, int64_t count) { take_rows(edges, rows, begin + first, count); });
}

// Takes the edges of `num_rows` nodes, the first of which has local id `first`.
void Batch::take_rows(EdgeSet& edges, const RowSamples& rows, int64_t first, int64_t num_rows) {
  const int64_t num_edges = rows.neighbor.size();
  if (disjoint_) {  // a neighbour is in the tree of the node that found it
    edge_tree_.resize(num_edges);
    const uint32_t* tree = nodes_[edges.expanded].tree() + first;
    uint32_t* out = edge_tree_.data();
    for (int64_t i = 0; i < num_rows; ++i) out = std::fill_n(out, rows.count[i], tree[i]);
  }
  edges.row.reserve_more(num_edges);
  nodes_[edges.neighbor].find_or_add(rows.neighbor.data(), edge_tree_.data(), num_edges, edges.row.end());
  edges.row.added(num_edges);
  if (with_edge_) edges.edge.append(rows.edge.data(), num_edges);
  edges.count.append(rows.count.data(), num_rows);
}

void Batch::end_hop() {
  require_whole();
  require(!induced_, "the batch is induced and takes no further hop: call start first");
  for (EdgeSet& edges : edges_) edges.end_hop(nodes_[edges.expanded].frontier_end());
  for (NodeSet& nodes : nodes_) nodes.end_hop();
}

void Batch::begin_induce() {
  require_whole();
  for (EdgeSet& edges : edges_) edges.start();
  induced_ = true;
}

void Batch::induce(const std::vector<PartedCsr>& graphs, int num_threads) {
  require_graphs(graphs);
  begin_induce();
  for (NodeSet& nodes : nodes_) nodes.index_members();
  num_threads_ = num_threads;
  for (size_t r = 0; r < graphs.size(); ++r) {
    if (!graphs[r].has_edges()) continue;
    EdgeSet& edges = edges_[r];
    const NodeSet &centers = nodes_[edges.expanded], &neighbors = nodes_[edges.neighbor];
    const Rows rows{centers.node(), centers.size(), disjoint_ ? centers.tree() : nullptr};
    induce_in_order(graphs[r], rows, {with_edge_, /*local_ids=*/true}, num_threads, buffers_, "nodes", neighbors,
                    [&](const RowSamples& rows, int64_t, int64_t num_rows) {
                      const int64_t num_edges = rows.neighbor.size();
                      edges.row.append(rows.neighbor.data(), num_edges);
                      if (with_edge_) edges.edge.append(rows.edge.data(), num_edges);
                      edges.count.append(rows.count.data(), num_rows);
                    });
  }
}

void Batch::induce_from(int edge_type, const std::vector<RowsPart>& parts) {
  EdgeSet& edges = edges_[edge_type];
  const NodeSet &centers = nodes_[edges.expanded], &neighbors = nodes_[edges.neighbor];
  require_whole();
  require(induced_, "induce_from: call begin_induce first");
  require(edges.count.size() == 0, "edge type ", edge_type, " was induced before");
  merger_.merge(
      parts, centers.size(), with_edge_, "batch", [&](const RowSamples& rows, int64_t first, int64_t num_rows) {
        const int64_t num_edges = rows.neighbor.size();
        local_.resize(num_edges);
        const uint32_t* local = local_.data();
        const int64_t* neighbor = rows.neighbor.data();
        for (int64_t i = 0, at = 0; i < num_rows; at += rows.count[i], ++i)
          neighbors.find(neighbor + at, rows.count[i], local_.data() + at, disjoint_ ? centers.tree()[first + i] : 0);
        for (int64_t e = 0; e < num_edges; ++e)
          require(local[e] != kAbsent, "edge type ", edge_type, ": neighbour ", rows.neighbor[e],
                  " is not in the batch: expected edges among its nodes only");
        edges.row.reserve_more(num_edges);
        std::copy_n(local, num_edges, edges.row.end());
        edges.row.added(num_edges);
        if (with_edge_) edges.edge.append(rows.edge.data(), num_edges);
        edges.count.append(rows.count.data(), num_rows);
      });
}

void Batch::begin_hand_over() {
  require_whole();
  handed_over_ = true;
}

BlockPool::Block Batch::hand_over_nodes(int node_type) {
  return nodes_[node_type].hand_over();
}

std::pair<BlockPool::Block, BlockPool::Block> Batch::hand_over_edges(int edge_type, bool expanded_first) {
  return edges_[edge_type].hand_over(num_threads_, expanded_first);
}

}  // namespace glt
