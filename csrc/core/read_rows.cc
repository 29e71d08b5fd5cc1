#include "core/read_rows.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/check.h"

namespace glt {

Rows PartScratch::sort(const Book& book, const Rows& rows) {
  bound_.resize(book.num_parts + 1);
  found_.resize(book.num_parts);
  next_.resize(book.num_parts);
  for (Buffer<int64_t>* ids : {&node_, &time_}) ids->resize(rows.n);
  for (Buffer<uint32_t>* each : {&tree_, &position_, &part_}) each->resize(rows.n);
  group_by_owner(book, rows.node, rows.n, node_.data(), position_.data(), bound_.data());
  for (int64_t p = 0; p < book.num_parts; ++p)
    for (int64_t i = bound_[p]; i < bound_[p + 1]; ++i) part_[position_[i]] = static_cast<uint32_t>(p);
  if (rows.tree)
    for (int64_t i = 0; i < rows.n; ++i) tree_[i] = rows.tree[position_[i]];
  if (rows.seed_time)
    for (int64_t i = 0; i < rows.n; ++i) time_[i] = rows.seed_time[position_[i]];
  return {node_.data(), rows.n, rows.tree ? tree_.data() : nullptr, rows.seed_time ? time_.data() : nullptr};
}

void PartScratch::put_together(int64_t n, RowSamples& out) {
  int64_t num_neighbors = 0, num_edges = 0;
  for (size_t p = 0; p < next_.size(); ++p) {
    if (bound_[p] == bound_[p + 1]) continue;
    RowSamples& found = found_[p];
    num_neighbors += found.neighbor.size();
    num_edges += found.edge.size();
    found.neighbor.reserve_more(kRunSlack);  // which write_run reads
    found.edge.reserve_more(kRunSlack);
    next_[p] = {found.count.data(), found.neighbor.data(), found.edge.data()};
  }
  out.count.reserve_more(n);
  out.neighbor.reserve_more(num_neighbors + kRunSlack);
  out.edge.reserve_more(num_edges + kRunSlack);
  uint32_t* count_out = out.count.end();
  int64_t *neighbor_out = out.neighbor.end(), *edge_out = out.edge.end();
  for (int64_t i = 0; i < n; ++i) {
    Cursor& from = next_[part_[i]];
    const int64_t count = count_out[i] = *from.count++;
    write_run(neighbor_out, count, [&](int64_t j) { return from.neighbor[j]; });
    neighbor_out += count, from.neighbor += count;
    if (num_edges > 0) {
      write_run(edge_out, count, [&](int64_t j) { return from.edge[j]; });
      edge_out += count, from.edge += count;
    }
  }
  out.count.added(n);
  out.neighbor.added(num_neighbors);
  out.edge.added(num_edges);
}

namespace {

bool same_owners(const Book& a, const Book& b) {
  return std::visit(
      [&](const auto& owner) {
        using Owner = std::remove_cvref_t<decltype(owner)>;
        const Owner* other = std::get_if<Owner>(&b.owner);
        if constexpr (std::is_pointer_v<Owner>)
          return other && *other == owner;
        else
          return other && other->offset == owner.offset;
      },
      a.owner);
}

}  // namespace

PartedCsr::PartedCsr(std::vector<CsrView> parts) : parts_(std::move(parts)) {
  require(!parts_.empty(), "a graph of no partitions: expected None where there are no edges");
  if (parts_.size() == 1) return;
  int64_t num_edges_before = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    CsrView& part = parts_[p];
    require(part.book && part.book->num_parts == static_cast<int64_t>(parts_.size()) &&
                part.part == static_cast<int64_t>(p),
            "csr ", p, " of ", parts_.size(), " of a graph is that of partition ", part.part, " of ",
            part.book ? part.book->num_parts : 1, ": expected all partitions of one book, in order");
    require(part.num_nodes == parts_[0].num_nodes && part.num_neighbor_nodes == parts_[0].num_neighbor_nodes, "csr ", p,
            " of a graph has ", part.num_nodes, " nodes with ", part.num_neighbor_nodes,
            " possible neighbours, the first has ", parts_[0].num_nodes, " with ", parts_[0].num_neighbor_nodes);
    require(!part.weight_sum == !parts_[0].weight_sum && !part.time == !parts_[0].time, "csr ", p,
            " of a graph has weights or times otherwise than the first: expected the same columns");
    require(part.has_edge_ids || part.first_edge_id >= num_edges_before, "csr ", p, " of a graph has no edge ids, but ",
            part.first_edge_id, " as the first one: expected at least ", num_edges_before,
            ", the number of edges of the partitions before it");
    num_edges_before += part.num_edges;
  }
  book_ = parts_[0].book;
  // Where all look into one book, a node is its owner's, and need not be asked for it again.
  for (CsrView& part : parts_)
    if (part.row_of && same_owners(*part.book, *book_)) part.book.reset();
}

void PartedCsr::find_edges(const int64_t* center, const int64_t* neighbor, int64_t n, uint8_t* found) const {
  if (!book_) return glt::has_edges(parts_[0], center, neighbor, n, found, "nodes");
  std::vector<int64_t> grouped(n), wanted(n), bound(book_->num_parts + 1);
  std::vector<uint32_t> position(n);
  std::vector<uint8_t> answer(n);
  group_by_owner(*book_, center, n, grouped.data(), position.data(), bound.data());
  for (int64_t i = 0; i < n; ++i) wanted[i] = neighbor[position[i]];
  for (int64_t p = 0; p < book_->num_parts; ++p) {
    const int64_t first = bound[p], count = bound[p + 1] - first;
    glt::has_edges(parts_[p], grouped.data() + first, wanted.data() + first, count, answer.data() + first,
                   "nodes of a partition");
  }
  for (int64_t i = 0; i < n; ++i) found[position[i]] = answer[i];
}

void PartMerger::merge(const std::vector<RowsPart>& parts, int64_t num_rows, bool with_edge, const char* question,
                       const std::function<void(const RowSamples&, int64_t, int64_t)>& consume) {
  part_of_.resize(num_rows);
  begin_.resize(num_rows);
  count_.resize(num_rows);
  std::fill_n(part_of_.data(), num_rows, UINT32_MAX);
  for (size_t p = 0; p < parts.size(); ++p) {
    const RowsPart& part = parts[p];
    int64_t offset = 0;
    for (int64_t i = 0; i < part.num_rows; ++i) {
      const uint32_t at = part.position[i];
      require(at < num_rows && part_of_[at] == UINT32_MAX, "part ", p, " answers for row ", at, " of the ", question,
              ", which has ", num_rows, " rows: expected every row once");
      part_of_[at] = static_cast<uint32_t>(p);
      begin_[at] = offset;
      count_[at] = part.count[i];
      offset += part.count[i];
    }
    require(offset == part.num_edges, "part ", p, " has ", part.num_edges, " edges, its counts add up to ", offset);
  }
  const uint32_t* missing = std::find(part_of_.data(), part_of_.data() + num_rows, UINT32_MAX);
  require(missing == part_of_.data() + num_rows, "no part answers for row ", missing - part_of_.data(), " of the ",
          question);

  const auto append = [](Buffer<int64_t>& to, const Ids& ids, int64_t begin, int64_t n) {
    to.reserve_more(n);
    std::visit([&](auto* from) { std::copy_n(from + begin, n, to.end()); }, ids);
    to.added(n);
  };
  for (int64_t first = 0; first < num_rows; first += kChunkRows) {
    const int64_t chunk = std::min(kChunkRows, num_rows - first);
    rows_.clear();
    rows_.count.append(count_.data() + first, chunk);
    for (int64_t r = first; r < first + chunk; ++r) {
      const RowsPart& part = parts[part_of_[r]];
      append(rows_.neighbor, part.neighbor, begin_[r], count_[r]);
      if (with_edge) append(rows_.edge, part.edge, begin_[r], count_[r]);
    }
    consume(rows_, first, chunk);
  }
}

}  // namespace glt
