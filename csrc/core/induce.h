// The edges among the nodes of a batch: which edges of a row lead to a member.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "core/chunks.h"
#include "core/csr.h"
#include "core/relabel.h"
#include "core/sample.h"

namespace glt {

// Neighbours that are looked up together: enough loads in flight, while both buffers stay in the L1 cache.
constexpr int64_t kLookUpBlock = 256;

// Appends to `out`, for each of `rows` and in row order, the edges whose neighbour is a member: those that
// find(ids, n, local) does not answer with kAbsent. Neighbours are written as local ids when `local_ids`, else as
// global ones. `find` is called from several threads at a time. Hubs cost their degree; their rows are only read.
template <typename Find>
void induce_rows(const CsrView& csr, const Rows& rows, bool with_edge, bool local_ids, RowScratch& scratch,
                 RowSamples& out, const char* name, int64_t first_index, const Find& find) {
  find_spans(csr, rows, nullptr, -1, scratch.spans, name, first_index);
  out.count.reserve_more(rows.n);
  std::visit(
      [&](auto* indices, auto* edge_ids) {
        uint32_t local[kLookUpBlock];
        for (int64_t i = 0; i < rows.n; ++i) {
          const int64_t end = scratch.spans.begin[i] + scratch.spans.degree[i], found_before = out.neighbor.size();
          for (int64_t begin = scratch.spans.begin[i]; begin < end; begin += kLookUpBlock) {
            const int64_t n = std::min(kLookUpBlock, end - begin);
            find(indices + begin, n, local);
            out.neighbor.reserve_more(n);
            if (with_edge) out.edge.reserve_more(n);
            int64_t* neighbor = out.neighbor.end();
            int64_t num_found = 0;
            for (int64_t j = 0; j < n; ++j) {
              // Unconditional store, conditional step, as in relabelling.
              neighbor[num_found] = local_ids ? static_cast<int64_t>(local[j]) : indices[begin + j];
              if (with_edge) out.edge.end()[num_found] = csr.has_edge_ids ? edge_ids[begin + j] : begin + j;
              num_found += local[j] != kAbsent;
            }
            out.neighbor.added(num_found);
            if (with_edge) out.edge.added(num_found);
          }
          const int64_t count = out.neighbor.size() - found_before;
          require(count <= UINT32_MAX, name, "[", first_index + i, "] = ", rows.node[i],
                  " has over 2^32 edges among the nodes of a batch");
          out.count.push_back(static_cast<uint32_t>(count));
        }
      },
      csr.indices, csr.edge_ids);
}

// The same for many rows on several threads, handed in order to consume(rows, first, count) on the calling one.
template <typename Find, typename Consume>
void induce_in_order(const PartedCsr& graph, const Rows& rows, bool with_edge, bool local_ids, int num_threads,
                     Chunks& chunks, const char* name, const Find& find, const Consume& consume) {
  const auto read = [&](int64_t first, int64_t count, ReadScratch& scratch, RowSamples& out) {
    const auto induce = [&](const CsrView& csr, const Rows& some, RowSamples& found, const char* name, int64_t first) {
      induce_rows(csr, some, with_edge, local_ids, scratch.rows, found, name, first, find);
    };
    graph.read_rows(rows.slice(first, count), scratch.parts, out, name, first, induce);
  };
  read_in_order(rows.n, graph.chunk_rows(), num_threads, chunks, read, consume);
}

}  // namespace glt
