#include "core/batch.h"

#include <algorithm>

#include "core/check.h"

namespace glt {

Batch::Batch(int64_t num_nodes, int64_t dense_limit)
    : num_nodes_(num_nodes),
      table_(num_nodes <= dense_limit && DenseTable::fits(num_nodes)
                 ? std::variant<DenseTable, HashTable>(std::in_place_type<DenseTable>, num_nodes)
                 : std::variant<DenseTable, HashTable>(std::in_place_type<HashTable>)) {}

void Batch::start(const int64_t* seeds, int64_t n, bool with_edge) {
  require(n < (int64_t{1} << 31), "a batch of ", n, " seeds: expected fewer than 2^31");
  with_edge_ = with_edge;
  node_.clear();
  row_.clear();
  edge_.clear();
  count_.clear();
  frontier_begin_ = 0;
  num_sampled_nodes_ = {n};
  num_sampled_edges_.clear();
  for (int64_t i = 0; i < n; ++i)
    require_index(static_cast<uint64_t>(seeds[i]) < static_cast<uint64_t>(num_nodes_), "seeds[", i, "] = ", seeds[i],
                  " is outside [0, ", num_nodes_, ") (num_nodes = ", num_nodes_, ")");
  node_.append(seeds, n);
  std::visit(
      [&](auto& table) {
        table.begin(num_nodes_ + n);
        for (int64_t i = 0; i < n; ++i) table.find_or_add(seeds[i], static_cast<uint32_t>(i));
      },
      table_);
}

void Batch::take_rows(const int64_t* neighbor, const int64_t* edge, const uint32_t* count, int64_t num_rows,
                      int64_t num_edges) {
  row_.reserve_more(num_edges);
  node_.reserve_more(num_edges);
  uint32_t* row = row_.end();
  int64_t* node = node_.data();
  const int64_t known = node_.size();
  int64_t next = known;
  std::visit(
      [&](auto& table) {
        for (int64_t e = 0; e < num_edges; ++e) {
          require_index(static_cast<uint64_t>(neighbor[e]) < static_cast<uint64_t>(num_nodes_), "neighbour id ",
                        neighbor[e], " is outside [0, ", num_nodes_, "): the graph's columns are damaged");
          table.prefetch(neighbor[e]);
        }
        for (int64_t e = 0; e < num_edges; ++e) {
          const uint32_t local = table.find_or_add(neighbor[e], static_cast<uint32_t>(next));
          row[e] = local;
          // Unconditional store, conditional step: first occurrences are unpredictable, a branch would cost more.
          node[next] = neighbor[e];
          next += local == next;
        }
      },
      table_);
  node_.added(next - known);
  row_.added(num_edges);
  if (with_edge_) edge_.append(edge, num_edges);
  count_.append(count, num_rows);
}

void Batch::end_hop(int64_t edges_before) {
  frontier_begin_ += frontier_.size();
  num_sampled_nodes_.push_back(node_.size() - frontier_begin_);
  num_sampled_edges_.push_back(row_.size() - edges_before);
}

void Batch::expand(const CsrView& csr, const HopSpec& spec, int num_threads) {
  require(csr.num_nodes == num_nodes_, "the graph has ", csr.num_nodes, " nodes, the batch was made for ", num_nodes_);
  const int64_t edges_before = row_.size();
  frontier_.clear();
  frontier_.append(node_.data() + frontier_begin_, node_.size() - frontier_begin_);
  sample_in_order(csr, {frontier_.data(), frontier_.size()}, spec, num_threads, slots_, "frontier",
                  [&](const RowSamples& rows, int64_t, int64_t num_rows) {
                    take_rows(rows.neighbor.data(), rows.edge.data(), rows.count.data(), num_rows,
                              rows.neighbor.size());
                  });
  end_hop(edges_before);
}

void Batch::expand_from(const std::vector<HopPart>& parts) {
  const int64_t edges_before = row_.size();
  const int64_t num_rows = node_.size() - frontier_begin_;
  frontier_.resize(num_rows);  // where each row of the frontier begins: its part, and its offset therein
  Buffer<uint32_t>& count = stitched_.count;
  count.resize(num_rows);
  Buffer<uint32_t> part_of;
  part_of.resize(num_rows);
  std::fill_n(part_of.data(), num_rows, UINT32_MAX);
  for (size_t p = 0; p < parts.size(); ++p) {
    const HopPart& part = parts[p];
    int64_t offset = 0;
    for (int64_t i = 0; i < part.num_rows; ++i) {
      const uint32_t at = part.frontier_position[i];
      require(at < num_rows && part_of[at] == UINT32_MAX, "part ", p, " answers for row ", at,
              " of the frontier, which has ", num_rows, " rows: expected every row once");
      part_of[at] = static_cast<uint32_t>(p);
      frontier_[at] = offset;
      count[at] = part.count[i];
      offset += part.count[i];
    }
    require(offset == part.num_edges, "part ", p, " has ", part.num_edges, " edges, its counts add up to ", offset);
  }
  for (int64_t first = 0; first < num_rows; first += kChunkRows) {
    const int64_t last = std::min(num_rows, first + kChunkRows);
    stitched_.neighbor.clear();
    stitched_.edge.clear();
    for (int64_t r = first; r < last; ++r) {
      require(part_of[r] != UINT32_MAX, "no part answers for row ", r, " of the frontier");
      const HopPart& part = parts[part_of[r]];
      const int64_t n = count[r], offset = frontier_[r];
      stitched_.neighbor.reserve_more(n);
      std::visit([&](auto* ids) { std::copy_n(ids + offset, n, stitched_.neighbor.end()); }, part.neighbor);
      stitched_.neighbor.added(n);
      if (!with_edge_) continue;
      stitched_.edge.reserve_more(n);
      std::visit([&](auto* ids) { std::copy_n(ids + offset, n, stitched_.edge.end()); }, part.edge);
      stitched_.edge.added(n);
    }
    take_rows(stitched_.neighbor.data(), stitched_.edge.data(), count.data() + first, last - first,
              stitched_.neighbor.size());
  }
  end_hop(edges_before);
}

void Batch::copy_out(int64_t* node, int64_t* row, int64_t* col, int64_t* edge) const {
  std::copy_n(node_.data(), node_.size(), node);
  std::copy_n(row_.data(), row_.size(), row);
  for (int64_t i = 0; i < count_.size(); ++i) col = std::fill_n(col, count_[i], i);
  if (edge) std::copy_n(edge_.data(), edge_.size(), edge);
}

}  // namespace glt
