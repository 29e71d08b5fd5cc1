// A graph of one edge type that lies here as a whole: in one piece, or in those of its partitions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/buffer.h"
#include "core/csr.h"
#include "core/runs.h"
#include "core/sample.h"

namespace glt {

// Where the rows of a few nodes are put together, kept between calls so that its memory is reused.
class PartScratch {
 public:
  // Sorts `rows` by owner, has read(part, rows, RowSamples& out) read each owner's share, kChunkRows at a time, and
  // appends all to `out` in the order of `rows`.
  template <typename Read>
  void read(const Book& book, const Rows& rows, RowSamples& out, const Read& read) {
    const Rows sorted = sort(book, rows);
    for (int64_t p = 0; p < book.num_parts; ++p) {
      found_[p].clear();
      for (int64_t first = bound_[p]; first < bound_[p + 1]; first += kChunkRows)
        read(p, sorted.slice(first, std::min(kChunkRows, bound_[p + 1] - first)), found_[p]);
    }
    put_together(rows.n, out);
  }

 private:
  Rows sort(const Book& book, const Rows& rows);
  void put_together(int64_t n, RowSamples& out);

  Buffer<int64_t> node_, time_;
  Buffer<uint32_t> tree_, position_, part_;
  std::vector<int64_t> bound_;
  std::vector<RowSamples> found_;  // by part
  struct Cursor {
    const uint32_t* count;
    const int64_t *neighbor, *edge;
  };
  std::vector<Cursor> next_;  // by part
};

class PartedCsr {
 public:
  PartedCsr() = default;  // no edges
  explicit PartedCsr(const CsrView& whole) : parts_{whole} {}
  // By partition: the rows of the nodes that each owns, as the first one's book says. Throws std::invalid_argument
  // unless they are as many as its partitions, in order, and have the same numbers of nodes and the same columns.
  explicit PartedCsr(std::vector<CsrView> parts);

  bool has_edges() const { return !parts_.empty(); }
  int64_t num_nodes() const { return parts_[0].num_nodes; }
  int64_t num_neighbor_nodes() const { return parts_[0].num_neighbor_nodes; }

  // Rows to read together: of each partition enough that their loads keep each other company.
  int64_t chunk_rows() const {
    return kChunkRows * std::clamp<int64_t>(static_cast<int64_t>(parts_.size()), 1, kMostShares);
  }

  // Has read(csr, rows, out, name, first_index) append what it reads of the rows, chunk_rows() of them at most, to
  // `out`: from the arrays where they are, and kChunkRows at a time.
  template <typename Read>
  void read_rows(const Rows& rows, PartScratch& scratch, RowSamples& out, const char* name, int64_t first_index,
                 const Read& read) const {
    if (!book_) return read(parts_[0], rows, out, name, first_index);
    scratch.read(*book_, rows, out, [&](int64_t part, const Rows& share, RowSamples& found) {
      read(parts_[part], share, found, "nodes of a partition", 0);
    });
  }

 private:
  static constexpr int64_t kMostShares = 32;  // beyond that chunks take memory

  std::vector<CsrView> parts_;
  std::optional<Book> book_;  // of several partitions
};

}  // namespace glt
