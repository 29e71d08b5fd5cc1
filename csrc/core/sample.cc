#include "core/sample.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "core/check.h"
#include "core/rng.h"

namespace glt {
namespace {

inline void prefetch(const void* p) {
  __builtin_prefetch(p, 0, 2);
}

// Row numbers count within their owner's arrays: of a node owned elsewhere, the row here would be another node's.
void require_owned_rows(const CsrView& csr, const int64_t* nodes, int64_t n, const char* name, int64_t first_index) {
  std::visit(
      [&](auto* owner) {
        for (int64_t i = 0; i < n; ++i)
          require_index(owner[nodes[i]] == csr.part, name, "[", first_index + i, "] = ", nodes[i],
                        " belongs to partition ", static_cast<int64_t>(owner[nodes[i]]), ", not here (partition ",
                        csr.part, "): ask the partition that owns it");
      },
      csr.book->owner);
}

// Finds where the rows of nodes[0, n) begin and how long they are. Each loop only starts loads that the next needs.
void locate_rows(const CsrView& csr, const int64_t* nodes, int64_t n, RowSamples& out, const char* name,
                 int64_t first_index) {
  out.row_begin.resize(n);
  out.degree.resize(n);
  const std::byte* owner = nullptr;
  size_t owner_bytes = 0;
  if (csr.book)
    std::visit(
        [&](auto* p) {
          owner = reinterpret_cast<const std::byte*>(p);
          owner_bytes = sizeof(*p);
        },
        csr.book->owner);
  for (int64_t i = 0; i < n; ++i) {
    require_index(static_cast<uint64_t>(nodes[i]) < static_cast<uint64_t>(csr.num_nodes), name, "[", first_index + i,
                  "] = ", nodes[i], " is outside [0, ", csr.num_nodes, ") (num_nodes = ", csr.num_nodes, ")");
    prefetch(csr.row_of ? static_cast<const void*>(csr.row_of + nodes[i]) : csr.indptr + nodes[i]);
    if (owner) prefetch(owner + owner_bytes * static_cast<size_t>(nodes[i]));
  }
  if (csr.book) require_owned_rows(csr, nodes, n, name, first_index);
  if (csr.row_of) {
    for (int64_t i = 0; i < n; ++i) {
      out.row_begin[i] = csr.row_of[nodes[i]];
      require_index(out.row_begin[i] < csr.num_rows, name, "[", first_index + i, "] = ", nodes[i],
                    " has no row in this partition: ask the partition that owns it");
      prefetch(csr.indptr + out.row_begin[i]);
    }
  } else {
    std::copy_n(nodes, n, out.row_begin.data());
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = out.row_begin[i];
    out.row_begin[i] = csr.indptr[row];
    out.degree[i] = csr.indptr[row + 1] - csr.indptr[row];
  }
}

NodeDraws draws_of(const Rows& rows, int64_t i, const HopSpec& spec) {
  const uint64_t key = rows.tree ? derive_key(spec.batch_key, Purpose::kTree, 0, rows.tree[i]) : spec.batch_key;
  return {key, spec.hop, spec.edge_type, static_cast<uint64_t>(rows.node[i])};
}

// A set of picks for fan-outs where comparing with every earlier pick would cost more than hashing.
class PickSet {
 public:
  explicit PickSet(int64_t k) {
    while (mask_ + 1 < 2 * static_cast<uint64_t>(k)) mask_ = 2 * mask_ + 1;
    slots_.resize(mask_ + 1);
    clear();
  }
  void clear() { std::fill_n(slots_.data(), slots_.size(), int64_t{-1}); }
  // Adds `pick`; false if it was there.
  bool insert(int64_t pick) {
    for (uint64_t at = (static_cast<uint64_t>(pick) * 0x9E3779B97F4A7C15u >> 20) & mask_;; at = (at + 1) & mask_) {
      if (slots_[at] == pick) return false;
      if (slots_[at] < 0) {
        slots_[at] = pick;
        return true;
      }
    }
  }

 private:
  uint64_t mask_ = 63;
  Buffer<int64_t> slots_;
};

constexpr int64_t kCompareAll = 32;

// k distinct numbers of [0, degree), k < degree, each subset equally likely.
void floyd(int64_t degree, int64_t k, NodeDraws& draws, int64_t row_begin, int64_t* position) {
  for (int64_t i = 0; i < k; ++i) {
    const int64_t last = row_begin + degree - k + i;
    const int64_t pick = row_begin + static_cast<int64_t>(bounded(draws(static_cast<uint32_t>(i)),
                                                                  static_cast<uint64_t>(degree - k + i + 1)));
    bool taken = false;
    for (int64_t j = 0; j < i; ++j) taken |= position[j] == pick;
    position[i] = taken ? last : pick;
  }
}

void floyd_hashed(int64_t degree, int64_t k, NodeDraws& draws, int64_t row_begin, int64_t* position, PickSet& picks) {
  picks.clear();
  for (int64_t i = 0; i < k; ++i) {
    int64_t pick =
        static_cast<int64_t>(bounded(draws(static_cast<uint32_t>(i)), static_cast<uint64_t>(degree - k + i + 1)));
    if (!picks.insert(pick)) {
      pick = degree - k + i;
      picks.insert(pick);
    }
    position[i] = row_begin + pick;
  }
}

}  // namespace

void check_spec(const HopSpec& spec) {
  require(spec.num_neighbors >= -1 && spec.num_neighbors <= INT32_MAX, "num_neighbors[", spec.hop,
          "] = ", spec.num_neighbors, ": expected -1 (all) or a count in [0, 2^31)");
  require(!(spec.replace && spec.num_neighbors < 0), "num_neighbors[", spec.hop,
          "] = -1 with replace = True: drawing with replacement needs a count");
  require(spec.hop < 256, "num_neighbors has over 256 hops");
  require(spec.edge_type < 65535, "edge_type = ", spec.edge_type, ": expected below 65535");
}

void sample_rows(const CsrView& csr, const Rows& rows, const HopSpec& spec, RowSamples& out, const char* name,
                 int64_t first_index) {
  const int64_t* nodes = rows.node;
  const int64_t n = rows.n;
  locate_rows(csr, nodes, n, out, name, first_index);
  const int64_t k = spec.num_neighbors;
  out.count.reserve_more(n);
  int64_t total = 0, most_picks = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t degree = out.degree[i];
    const int64_t count = k < 0 ? degree : degree == 0 ? 0 : spec.replace ? k : std::min(k, degree);
    require(count <= UINT32_MAX, name, "[", first_index + i, "] = ", nodes[i], " has ", degree,
            " edges: num_neighbors = -1 takes at most 2^32 - 1 of one node");
    out.count.end()[i] = static_cast<uint32_t>(count);
    total += count;
    if (count < degree) most_picks = std::max(most_picks, count);
  }
  out.position.resize(total);

  // Sized by the rows at hand: a fan-out of a billion, meaning "all", must cost no more than the degrees do.
  PickSet picks(!spec.replace && most_picks > kCompareAll ? most_picks : 0);
  int64_t* position = out.position.data();
  std::visit(
      [&](auto* indices, auto* edge_ids) {
        const bool fetch_ids = spec.with_edge && csr.has_edge_ids;
        for (int64_t i = 0; i < n; ++i) {
          const int64_t begin = out.row_begin[i], degree = out.degree[i], count = out.count.end()[i];
          if (count == 0) continue;
          if (spec.replace) {
            NodeDraws draws = draws_of(rows, i, spec);
            for (int64_t j = 0; j < count; ++j)
              position[j] =
                  begin + static_cast<int64_t>(bounded(draws(static_cast<uint32_t>(j)), static_cast<uint64_t>(degree)));
          } else if (count == degree) {
            for (int64_t j = 0; j < count; ++j) position[j] = begin + j;
          } else {
            NodeDraws draws = draws_of(rows, i, spec);
            if (count <= kCompareAll)
              floyd(degree, count, draws, begin, position);
            else
              floyd_hashed(degree, count, draws, begin, position, picks);
          }
          for (int64_t j = 0; j < count; ++j) {
            prefetch(indices + position[j]);
            if (fetch_ids) prefetch(edge_ids + position[j]);
          }
          position += count;
        }
        out.neighbor.reserve_more(total);
        int64_t* neighbor = out.neighbor.end();
        for (int64_t e = 0; e < total; ++e) neighbor[e] = indices[out.position[e]];
        if (spec.with_edge) {
          out.edge.reserve_more(total);
          int64_t* edge = out.edge.end();
          if (fetch_ids)
            for (int64_t e = 0; e < total; ++e) edge[e] = edge_ids[out.position[e]];
          else
            std::copy_n(out.position.data(), total, edge);
          out.edge.added(total);
        }
        out.neighbor.added(total);
      },
      csr.indices, csr.edge_ids);
  out.count.added(n);
}

}  // namespace glt
