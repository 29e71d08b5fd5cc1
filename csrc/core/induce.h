// The edges among the nodes of a batch.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/csr.h"
#include "core/read_rows.h"
#include "core/relabel.h"

namespace glt {

// Which rows of a graph have their neighbours in ascending order, as those of graphs whose edges were sorted. A row is
// read to find out when that is first asked. Any thread may ask.
class AscendingRows {
 public:
  explicit AscendingRows(int64_t num_rows);

  // Whether those of `row` are, which are neighbor [n].
  template <typename Id>
  bool has(int64_t row, const Id* neighbor, int64_t n);

 private:
  static constexpr int64_t kRowsPerByte = 4;
  static constexpr unsigned kAscends = 1, kFalls = 2;  // 0: not known
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> known_;  // pages are taken when a row of theirs is asked for
};

struct InduceSpec {
  bool with_edge;  // false: leaves RowSamples::edge empty
  bool local_ids;  // neighbours are written as local ids, else as global ones
};

// Appends to `out`, for each of `rows` and in row order, the edges whose neighbour is in `batch`, in a disjoint one in
// the tree of the row. Hubs cost their degree; their rows are only read. In a long row whose neighbours ascend, few
// nodes are looked up one by one.
void induce_rows(const CsrView& csr, const Rows& rows, const InduceSpec& spec, RowScratch& scratch, RowSamples& out,
                 const char* name, int64_t first_index, const NodeSet& batch);

// The same for many rows on several threads, handed in order to consume(rows, first, count) on the calling one.
template <typename Consume>
void induce_in_order(const PartedCsr& graph, const Rows& rows, const InduceSpec& spec, int num_threads,
                     ReadBuffers& buffers, const char* name, const NodeSet& batch, const Consume& consume) {
  const auto read = [&](int64_t first, int64_t count, ReadScratch& scratch, RowSamples& out) {
    const auto induce = [&](const CsrView& csr, const Rows& some, RowSamples& found, const char* name, int64_t first) {
      induce_rows(csr, some, spec, scratch.rows, found, name, first, batch);
    };
    graph.read_rows(rows.slice(first, count), scratch.parts, out, name, first, induce);
  };
  read_in_order(rows.n, graph.chunk_rows(), num_threads, buffers, read, consume);
}

}  // namespace glt
