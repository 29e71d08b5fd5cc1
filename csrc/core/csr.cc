#include "core/csr.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "core/check.h"
#include "core/weights.h"

namespace glt {
namespace {

void check_id(const Book& book, const int64_t* ids, int64_t i) {
  require_index(static_cast<uint64_t>(ids[i]) < static_cast<uint64_t>(book.num_ids), "ids[", i, "] = ", ids[i],
                " is outside [0, ", book.num_ids, ")");
}

}  // namespace

void group_by_owner(const Book& book, const int64_t* ids, int64_t n, int64_t* grouped, uint32_t* position,
                    int64_t* begin) {
  require(n <= UINT32_MAX, n, " ids at once: expected fewer than 2^32");
  std::fill_n(begin, book.num_parts + 1, 0);
  std::visit(
      [&](const auto& owner) {
        for (int64_t i = 0; i < n; ++i) {
          check_id(book, ids, i);
          prefetch_owner(owner, ids[i]);
        }
        for (int64_t i = 0; i < n; ++i) {
          const int64_t part = owner[ids[i]];
          require_index(part < book.num_parts, "node ", ids[i], " is owned by partition ", part, " of ", book.num_parts,
                        ": the partition book is damaged");
          ++begin[part + 1];
        }
        for (int64_t p = 0; p < book.num_parts; ++p) begin[p + 1] += begin[p];
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = begin[owner[ids[i]]]++;
          grouped[at] = ids[i];
          position[at] = static_cast<uint32_t>(i);
        }
      },
      book.owner);
  for (int64_t p = book.num_parts; p > 0; --p) begin[p] = begin[p - 1];
  begin[0] = 0;
}

void find_owners(const Book& book, const int64_t* ids, int64_t n, int64_t* owners) {
  std::visit(
      [&](const auto& owner) {
        for (int64_t i = 0; i < n; ++i) {
          check_id(book, ids, i);
          owners[i] = owner[ids[i]];
        }
      },
      book.owner);
}

void require_owned(const Book& book, const int64_t* ids, int64_t n, int64_t part) {
  std::visit(
      [&](const auto& owner) {
        for (int64_t i = 0; i < n; ++i) {
          check_id(book, ids, i);
          prefetch_owner(owner, ids[i]);
        }
        for (int64_t i = 0; i < n; ++i)
          require_index(owns(owner, part, ids[i]), "ids[", i, "] = ", ids[i], " belongs to partition ",
                        static_cast<int64_t>(owner[ids[i]]), ", not here (partition ", part,
                        "): ask the partition that owns it");
      },
      book.owner);
}

namespace {

// Finds the first id outside [0, bound), or -1. Whole blocks are tested by their maximum, which vectorises.
template <typename T>
int64_t first_out_of_range(const T* ids, int64_t n, int64_t bound) {
  using Unsigned = std::make_unsigned_t<T>;
  // Negative ids are found as large unsigned ones, which a bound beyond the type must not let pass.
  bound = std::clamp<int64_t>(bound, 0, sizeof(T) == 4 ? int64_t{1} << 31 : INT64_MAX);
  constexpr int64_t kBlock = 4096;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    Unsigned top = 0;
    for (int64_t i = begin; i < end; ++i) top = std::max(top, static_cast<Unsigned>(ids[i]));
    if (static_cast<uint64_t>(top) < static_cast<uint64_t>(bound)) continue;
    for (int64_t i = begin; i < end; ++i)
      if (static_cast<uint64_t>(static_cast<Unsigned>(ids[i])) >= static_cast<uint64_t>(bound)) return i;
  }
  return -1;
}

void check_range(const char* name, Ids ids, int64_t n, int64_t bound) {
  std::visit(
      [&](auto* p) {
        const int64_t bad = first_out_of_range(p, n, bound);
        require_index(bad < 0, name, "[", bad, "] = ", bad < 0 ? 0 : p[bad], " is outside [0, ", bound,
                      "): pass num_nodes larger than every id, or drop the edge");
      },
      ids);
}

void check_times(const CsrView& csr) {
  for (int64_t r = 0; r < csr.num_rows; ++r)
    for (int64_t e = csr.indptr[r] + 1; e < csr.indptr[r + 1]; ++e)
      require(csr.time[e - 1] <= csr.time[e], "time[", e, "] = ", csr.time[e], " is below time[", e - 1,
              "] = ", csr.time[e - 1], " of the same row (row ", r, "): sort rows by time (sort_rows_by_time)");
}

// indptr[r + 1] - indptr[r] becomes the number of edges of row r.
void count_edges(const CsrInput& edges, int64_t* indptr) {
  std::fill_n(indptr, edges.num_rows + 1, 0);
  std::visit(
      [&](auto* r) {
        if (edges.row_of)
          for (int64_t i = 0; i < edges.num_edges; ++i) {
            const int64_t row = edges.row_of[r[i]];
            require_index(row < edges.num_rows, edges.row_name, "[", i, "] = ", r[i], " has row ", row,
                          ", but there are ", edges.num_rows);
            ++indptr[row + 1];
          }
        else
          for (int64_t i = 0; i < edges.num_edges; ++i) ++indptr[r[i] + 1];
      },
      edges.rows);
  for (int64_t i = 0; i < edges.num_rows; ++i) indptr[i + 1] += indptr[i];
}

}  // namespace

void validate(const CsrView& csr, bool check_indices) {
  require(csr.indptr[0] == 0, "indptr[0] = ", csr.indptr[0], ": expected 0");
  for (int64_t r = 0; r < csr.num_rows; ++r)
    require(csr.indptr[r] <= csr.indptr[r + 1], "indptr[", r + 1, "] = ", csr.indptr[r + 1], " is below indptr[", r,
            "] = ", csr.indptr[r], ": expected row offsets that never fall");
  require(csr.indptr[csr.num_rows] == csr.num_edges, "indptr[", csr.num_rows, "] = ", csr.indptr[csr.num_rows],
          ": expected the number of edges, ", csr.num_edges);
  if (!check_indices) return;
  check_range("indices", csr.indices, csr.num_edges, csr.num_neighbor_nodes);
  if (csr.time) check_times(csr);
  if (csr.weight_sum) validate_weights(csr.indptr, csr.num_rows, csr.weight_sum, csr.weight_guide);
}

bool build_csr(const CsrInput& edges, const CsrOut& out) {
  bool are_positions = true;
  check_range(edges.row_name, edges.rows, edges.num_edges, edges.num_nodes);
  count_edges(edges, out.indptr);
  check_range(edges.col_name, edges.cols, edges.num_edges, edges.num_neighbor_nodes);
  std::visit(
      [&](auto* row, auto* col, auto* id_in, auto* col_out, auto* id_out) {
        using Col = std::remove_pointer_t<decltype(col_out)>;
        using EdgeId = std::remove_pointer_t<decltype(id_out)>;
        for (int64_t i = 0; i < edges.num_edges; ++i) {
          const int64_t r = edges.row_of ? edges.row_of[row[i]] : row[i];
          const int64_t at = out.indptr[r]++;  // a cursor, until all are placed
          col_out[at] = static_cast<Col>(col[i]);
          const int64_t id = id_in ? id_in[i] : i;
          are_positions &= id == at;
          if (id_out) id_out[at] = static_cast<EdgeId>(id);
        }
      },
      edges.rows, edges.cols, edges.edge_ids, out.indices, out.edge_ids);
  for (int64_t r = edges.num_rows; r > 0; --r) out.indptr[r] = out.indptr[r - 1];
  out.indptr[0] = 0;
  return are_positions;
}

void sort_rows_by_time(const int64_t* indptr, int64_t num_rows, const int64_t* time, int64_t* order) {
  for (int64_t r = 0; r < num_rows; ++r) {
    int64_t *begin = order + indptr[r], *end = order + indptr[r + 1];
    std::iota(begin, end, indptr[r]);
    std::sort(begin, end, [&](int64_t a, int64_t b) { return time[a] != time[b] ? time[a] < time[b] : a < b; });
  }
}

void sort_rows(const int64_t* indptr, int64_t num_rows, MutableIds indices, int64_t* merged_indptr) {
  merged_indptr[0] = 0;
  std::visit(
      [&](auto* ids) {
        for (int64_t r = 0; r < num_rows; ++r) {
          std::sort(ids + indptr[r], ids + indptr[r + 1]);
          int64_t num_distinct = 0;
          for (int64_t e = indptr[r]; e < indptr[r + 1]; ++e) num_distinct += e == indptr[r] || ids[e] != ids[e - 1];
          merged_indptr[r + 1] = merged_indptr[r] + num_distinct;
        }
      },
      indices);
}

void merge_rows(const int64_t* indptr, int64_t num_rows, MutableIds indices, const int64_t* merged_indptr,
                int64_t* neighbor, int64_t* weight) {
  std::visit(
      [&](auto* ids) {
        for (int64_t r = 0; r < num_rows; ++r) {
          int64_t at = merged_indptr[r] - 1;
          for (int64_t e = indptr[r]; e < indptr[r + 1]; ++e) {
            if (e == indptr[r] || ids[e] != ids[e - 1]) {
              neighbor[++at] = ids[e];
              weight[at] = 0;
            }
            ++weight[at];
          }
        }
      },
      indices);
}

}  // namespace glt
