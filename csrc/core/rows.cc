#include "core/rows.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <variant>

#include "core/check.h"
#include "core/memory.h"

namespace glt {
namespace {

// Row numbers count within their owner's arrays: of a node owned elsewhere, the row here would be another node's.
void require_owned_rows(const CsrView& csr, const int64_t* nodes, int64_t n, const char* name, int64_t first_index) {
  std::visit(
      [&](const auto& owner) {
        for (int64_t i = 0; i < n; ++i)
          require_index(owns(owner, csr.part, nodes[i]), name, "[", first_index + i, "] = ", nodes[i],
                        " belongs to partition ", static_cast<int64_t>(owner[nodes[i]]), ", not here (partition ",
                        csr.part, "): ask the partition that owns it");
      },
      csr.book->owner);
}

// Finds where the rows of nodes[0, n) begin and how long they are. Each loop only starts loads that the next needs.
void locate_rows(const CsrView& csr, const Rows& rows, RowSpans& out, const char* name, int64_t first_index) {
  const int64_t *nodes = rows.node, n = rows.n;
  out.row.resize(n);
  out.begin.resize(n);
  out.degree.resize(n);
  const std::byte* owner = nullptr;
  size_t owner_bytes = 0;
  if (csr.book)
    std::visit(
        [&](const auto& p) {
          if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(p)>>) {
            owner = reinterpret_cast<const std::byte*>(p);
            owner_bytes = sizeof(*p);
          }
        },
        csr.book->owner);
  const bool is_whole = !csr.row_of && !csr.book;
  for (int64_t i = 0; i < n; ++i) {
    require_index(static_cast<uint64_t>(nodes[i]) < static_cast<uint64_t>(csr.num_nodes), name, "[", first_index + i,
                  "] = ", nodes[i], " is outside [0, ", csr.num_nodes, ") (num_nodes = ", csr.num_nodes, ")");
    if (is_whole) prefetch(csr.indptr + nodes[i]);
    if (csr.row_of) prefetch(csr.row_of + nodes[i]);
    if (owner) prefetch(owner + owner_bytes * static_cast<size_t>(nodes[i]));
  }
  if (csr.book) require_owned_rows(csr, nodes, n, name, first_index);
  if (csr.row_of) {
    for (int64_t i = 0; i < n; ++i) {
      out.row[i] = csr.row_of[nodes[i]];
      require_index(out.row[i] < csr.num_rows, name, "[", first_index + i, "] = ", nodes[i],
                    " has no row in this partition: ask the partition that owns it");
      prefetch(csr.indptr + out.row[i]);
    }
  } else if (is_whole) {
    std::copy_n(nodes, n, out.row.data());
  } else {
    for (int64_t i = 0; i < n; ++i) {
      out.row[i] = nodes[i] - csr.first_node;
      prefetch(csr.indptr + out.row[i]);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = out.row[i];
    out.begin[i] = csr.indptr[row];
    out.degree[i] = csr.indptr[row + 1] - csr.indptr[row];
  }
  for (int64_t i = n; i < n + std::min(rows.num_next, n); ++i)
    if (csr.row_of)
      prefetch(csr.row_of + nodes[i]);
    else
      prefetch(csr.indptr + (nodes[i] - csr.first_node));
}

// Writes to first[i] the position of the first edge of row i that is_before(time, i) says no to; its begin unless
// needs_search(i). The searches go side by side: one load of each is in flight.
template <typename NeedsSearch, typename IsBefore>
void search_times(const CsrView& csr, const RowSpans& spans, int64_t n, Buffer<int64_t>& first, Buffer<int64_t>& left,
                  const NeedsSearch& needs_search, const IsBefore& is_before) {
  first.resize(n);
  left.resize(n);
  int64_t row[kChunkRows], num_left = 0;  // those whose search goes on
  for (int64_t i = 0; i < n; ++i) {
    first[i] = spans.begin[i];
    left[i] = needs_search(i) ? spans.degree[i] : 0;
    prefetch(csr.time + first[i] + left[i] / 2);
    row[num_left] = i;
    num_left += left[i] > 0;
  }
  // Where a search goes and when it ends is unpredictable: no branch says so.
  while (num_left > 0) {
    int64_t num_next = 0;
    for (int64_t r = 0; r < num_left; ++r) {
      const int64_t i = row[r], half = left[i] / 2;
      const int64_t before = is_before(csr.time[first[i] + half], i);
      first[i] += (half + 1) & -before;
      left[i] = half - (before & ~left[i] & 1);  // of those behind the middle, or of those in front of it
      prefetch(csr.time + first[i] + left[i] / 2);
      row[num_next] = i;
      num_next += left[i] > 0;
    }
    num_left = num_next;
  }
}

// Leaves of each row its edges with time <= seed time, and of these those in the window, if there is one.
void cut_by_time(const CsrView& csr, const Rows& rows, int64_t time_window, RowSpans& out) {
  Buffer<int64_t> first, left;
  if (time_window >= 0)
    for (int64_t i = 0; i < rows.n; ++i) prefetch(csr.time + out.begin[i]);
  search_times(
      csr, out, rows.n, first, left, [](int64_t) { return true; },
      [&](int64_t time, int64_t i) { return time <= rows.seed_time[i]; });
  for (int64_t i = 0; i < rows.n; ++i) out.degree[i] = first[i] - out.begin[i];
  if (time_window < 0) return;
  const auto is_early = [&](int64_t time, int64_t i) { return time < window_begin(rows.seed_time[i], time_window); };
  const auto begins_early = [&](int64_t i) { return out.degree[i] > 0 && is_early(csr.time[out.begin[i]], i); };
  search_times(csr, out, rows.n, first, left, begins_early, is_early);
  for (int64_t i = 0; i < rows.n; ++i) {
    out.degree[i] -= first[i] - out.begin[i];
    out.begin[i] = first[i];
  }
}

// Appends the positions in indices[begin, begin + degree) that hold one of `wanted`.
template <typename T>
void find_positions(const T* indices, int64_t begin, int64_t degree, std::span<const int64_t> wanted,
                    Buffer<int64_t>& out) {
  constexpr int64_t kBlock = 128;
  constexpr size_t kMaxCompared = 8;  // up to here a block is compared with each, which vectorises
  for (int64_t first = begin; first < begin + degree; first += kBlock) {
    const int64_t last = std::min(first + kBlock, begin + degree);
    bool any = wanted.size() > kMaxCompared;
    for (size_t w = 0; w < std::min(wanted.size(), kMaxCompared); ++w)
      for (int64_t e = first; e < last; ++e) any |= static_cast<int64_t>(indices[e]) == wanted[w];
    if (!any) continue;
    for (int64_t e = first; e < last; ++e)
      if (std::binary_search(wanted.begin(), wanted.end(), static_cast<int64_t>(indices[e]))) out.push_back(e);
  }
}

void find_excluded(const CsrView& csr, const Rows& rows, const Exclusions& exclusions, RowSpans& out) {
  out.excluded_begin.resize(rows.n);
  out.excluded_end.resize(rows.n);
  std::visit(
      [&](auto* indices) {
        for (int64_t i = 0; i < rows.n; ++i) {
          out.excluded_begin[i] = out.excluded.size();
          const std::span<const int64_t> wanted = exclusions.of(rows.node[i]);
          if (!wanted.empty()) find_positions(indices, out.begin[i], out.degree[i], wanted, out.excluded);
          out.excluded_end[i] = out.excluded.size();
        }
      },
      csr.indices);
}

// Moves the beginning of row i behind all but its last `count` eligible edges.
void keep_last_of(int64_t i, int64_t count, RowSpans& out) {
  const int64_t surplus = out.eligible[i] - count;
  if (surplus <= 0) return;
  out.eligible[i] = count;
  int64_t begin = out.begin[i] + surplus;
  if (out.num_excluded(i) > 0) {
    out.skip_excluded(i, &begin, 1);
    while (out.excluded_begin[i] < out.excluded_end[i] && out.excluded[out.excluded_begin[i]] < begin)
      ++out.excluded_begin[i];
  }
  out.degree[i] -= begin - out.begin[i];
  out.begin[i] = begin;
}

}  // namespace

void RowSpans::skip_excluded(int64_t i, int64_t* position, int64_t count) const {
  const int64_t* excluded = excluded_of(i);
  const int64_t n = num_excluded(i);
  for (int64_t j = 0; j < count; ++j) {
    // In front of excluded[s] are excluded[s] - s - begin eligible edges.
    int64_t low = 0, high = n;
    while (low < high) {
      const int64_t s = (low + high) / 2;
      if (excluded[s] - s <= position[j])
        low = s + 1;
      else
        high = s;
    }
    position[j] += low;
  }
}

void find_spans(const CsrView& csr, const Rows& rows, const SpanRule& rule, RowSpans& out, const char* name,
                int64_t first_index) {
  locate_rows(csr, rows, out, name, first_index);
  out.excluded.clear();
  out.excluded_begin.clear();
  out.excluded_end.clear();
  if (rows.seed_time && csr.time) cut_by_time(csr, rows, rule.time_window, out);
  if (rule.exclusions && !rule.exclusions->empty()) find_excluded(csr, rows, *rule.exclusions, out);
  out.eligible.resize(rows.n);
  for (int64_t i = 0; i < rows.n; ++i) out.eligible[i] = out.degree[i];
  if (out.excluded.size() > 0)
    for (int64_t i = 0; i < rows.n; ++i) out.eligible[i] -= out.num_excluded(i);
  if (rule.keep_last >= 0)
    for (int64_t i = 0; i < rows.n; ++i) keep_last_of(i, rule.keep_last, out);
}

namespace {

template <typename T>
bool contains(const T* ids, int64_t n, int64_t wanted) {
  constexpr int64_t kBlock = 128;  // compared without a branch, which vectorises
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t last = std::min(n, first + kBlock);
    bool found = false;
    for (int64_t e = first; e < last; ++e) found |= static_cast<int64_t>(ids[e]) == wanted;
    if (found) return true;
  }
  return false;
}

}  // namespace

void has_edges(const CsrView& csr, const int64_t* center, const int64_t* neighbor, int64_t n, uint8_t* out,
               const char* name) {
  RowSpans spans;
  for (int64_t first = 0; first < n; first += kChunkRows) {
    const int64_t count = std::min(kChunkRows, n - first);
    find_spans(csr, {center + first, count}, {}, spans, name, first);
    std::visit(
        [&](auto* indices) {
          for (int64_t i = 0; i < count; ++i) prefetch(indices + spans.begin[i]);
          for (int64_t i = 0; i < count; ++i)
            out[first + i] = contains(indices + spans.begin[i], spans.degree[i], neighbor[first + i]);
        },
        csr.indices);
  }
}

}  // namespace glt
