#include "core/induce.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <variant>

#include "core/check.h"

namespace glt {
namespace {

template <typename Id>
bool is_ascending(const Id* id, int64_t n) {
  bool falls = false;
  for (int64_t i = 1; i < n; ++i) falls |= id[i] < id[i - 1];
  return !falls;
}

// The first of id [n], ascending, at `from` or behind it that is not below `wanted`; looks near `from` first.
template <typename Id>
int64_t gallop(const Id* id, int64_t n, int64_t from, int64_t wanted) {
  int64_t step = 1, low = from, high = from;
  while (high < n && id[high] < wanted) {
    low = high + 1;
    high += step;
    step *= 2;
  }
  return std::lower_bound(id + low, id + std::min(high, n), wanted) - id;
}

}  // namespace

AscendingRows::AscendingRows(int64_t num_rows)
    : known_(static_cast<uint8_t*>(std::calloc(static_cast<size_t>(num_rows / kRowsPerByte + 1), 1))) {
  if (!known_) throw std::bad_alloc();
}

template <typename Id>
bool AscendingRows::has(int64_t row, const Id* neighbor, int64_t n) {
  std::atomic_ref<uint8_t> known(known_.get()[row / kRowsPerByte]);
  const auto shift = static_cast<unsigned>(row % kRowsPerByte * 2);
  unsigned found = known.load(std::memory_order_relaxed) >> shift & (kAscends | kFalls);
  if (found == 0) {
    found = is_ascending(neighbor, n) ? kAscends : kFalls;
    known.fetch_or(static_cast<uint8_t>(found << shift), std::memory_order_relaxed);
  }
  return found == kAscends;
}

void induce_rows(const CsrView& csr, const Rows& rows, const InduceSpec& spec, RowScratch& scratch, RowSamples& out,
                 const char* name, int64_t first_index, const NodeSet& batch) {
  constexpr int64_t kBlock = 256;     // neighbours looked up together: many loads in flight, buffers in the L1 cache
  constexpr int64_t kPerMember = 16;  // neighbours that are looked through in the time of looking up one node
  constexpr int64_t kRowsAhead = 4, kAskedOf = 128;  // rows on their way from memory, and neighbours of each
  constexpr int64_t kAhead = 64;                     // ids of edges on their way from memory
  find_spans(csr, rows, {}, scratch.spans, name, first_index);
  out.count.reserve_more(rows.n);
  const int64_t known_edges = out.edge.size();
  std::visit(
      [&](auto* indices, auto* edge_ids) {
        uint32_t position[kBlock], local[kBlock];
        const int64_t id_of_first = csr.has_edge_ids ? 0 : csr.first_edge_id;
        const auto append = [&](int64_t begin, int64_t num_found) {  // edges at begin + position
          out.neighbor.reserve_more(num_found);
          int64_t* neighbor = out.neighbor.end();
          if (spec.local_ids)
            std::copy_n(local, num_found, neighbor);
          else
            for (int64_t k = 0; k < num_found; ++k) neighbor[k] = indices[begin + position[k]];
          out.neighbor.added(num_found);
          if (!spec.with_edge) return;
          out.edge.reserve_more(num_found);
          int64_t* edge = out.edge.end();
          for (int64_t k = 0; k < num_found; ++k) edge[k] = id_of_first + begin + position[k];
          out.edge.added(num_found);
        };
        constexpr int64_t kPerLine = 64 / sizeof(*indices);
        const auto ask_ahead = [&](int64_t i) {  // the processor itself sees how a row goes on
          const int64_t first = scratch.spans.begin[i], n = std::min(scratch.spans.degree[i], kAskedOf);
          for (int64_t e = first; e < first + n; e += kPerLine) prefetch(indices + e);
        };
        for (int64_t i = 0; i < std::min(rows.n, kRowsAhead); ++i) ask_ahead(i);
        for (int64_t i = 0; i < rows.n; ++i) {
          if (i + kRowsAhead < rows.n) ask_ahead(i + kRowsAhead);
          const int64_t first = scratch.spans.begin[i], degree = scratch.spans.degree[i];
          const int64_t found_before = out.neighbor.size();
          const uint32_t tree = rows.tree ? rows.tree[i] : 0;
          const auto [member, num_members] = batch.members(tree);
          if (csr.ascending && num_members * kPerMember < degree &&
              csr.ascending->has(scratch.spans.row[i], indices + first, degree)) {
            batch.require_known(indices[first]);  // and so are those between
            batch.require_known(indices[first + degree - 1]);
            int64_t at = 0;
            for (int64_t m = 0; m < num_members; ++m) {
              at = gallop(indices + first, degree, at, member[m].id);
              for (; at < degree && indices[first + at] == member[m].id; ++at) {
                position[0] = 0;
                local[0] = member[m].local;
                append(first + at, 1);
              }
            }
          } else {
            for (int64_t begin = first; begin < first + degree; begin += kBlock) {
              const int64_t n = std::min(kBlock, first + degree - begin);
              append(begin, batch.select(indices + begin, n, tree, position, local));
            }
          }
          const int64_t count = out.neighbor.size() - found_before;
          require(count <= UINT32_MAX, name, "[", first_index + i, "] = ", rows.node[i],
                  " has over 2^32 edges among the nodes of a batch");
          out.count.push_back(static_cast<uint32_t>(count));
        }
        if (!spec.with_edge || !csr.has_edge_ids) return;
        // Of all rows together: few edges of a row are found, and each is a load from memory.
        int64_t* edge = out.edge.data();
        const int64_t end = out.edge.size();
        for (int64_t e = known_edges; e < std::min(end, known_edges + kAhead); ++e) prefetch(edge_ids + edge[e]);
        for (int64_t e = known_edges; e < end; ++e) {
          if (e + kAhead < end) prefetch(edge_ids + edge[e + kAhead]);
          edge[e] = edge_ids[edge[e]];
        }
      },
      csr.indices, csr.edge_ids);
}

}  // namespace glt
