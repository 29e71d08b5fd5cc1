// Compressed sparse rows: who owns which ids, a view of rows, and their construction from an edge list.
//
// The same structure serves both directions: over out-edges it is a CSR (row = source), over in-edges a CSC
// (row = destination). A partition keeps rows only for the nodes it owns, which are any, and mapped to rows by
// `row_of`, or a range.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "core/memory.h"

namespace glt {

// Contiguous ids: partition p owns [offset[p], offset[p + 1]).
struct Ranges {
  const int64_t* offset;  // [num_parts + 1], from 0, never falling
  int64_t num_parts;

  int64_t operator[](int64_t id) const {
    // The last partition that begins at or before the id, so never an empty one. The step is a conditional move.
    const int64_t* first = offset;
    for (int64_t left = num_parts; left > 1; left -= left / 2) first += first[left / 2] <= id ? left / 2 : 0;
    return first - offset;
  }
};

// The partition that owns each id, in the smallest width that holds the number of partitions.
struct OwnerArray {
  std::variant<const uint8_t*, const uint16_t*, const uint32_t*> owner;  // [num_ids]
  int64_t num_ids;
  int64_t num_parts;
};

// The partition that owns each id: `owner[id]`, whatever the kind, which is looked at once per call.
struct Book {
  std::variant<const uint8_t*, const uint16_t*, const uint32_t*, Ranges> owner;
  int64_t num_ids;
  int64_t num_parts;
};

template <typename T>
bool owns(const T* owner, int64_t part, int64_t id) {
  return owner[id] == part;
}
inline bool owns(const Ranges& owner, int64_t part, int64_t id) {
  return owner.offset[part] <= id && id < owner.offset[part + 1];
}

template <typename T>
void prefetch_owner(const T* owner, int64_t id) {
  prefetch(owner + id);
}
inline void prefetch_owner(const Ranges&, int64_t) {}  // small enough to stay in the cache

// Groups ids[0, n) by owner, stably: those of part p become grouped[begin[p], begin[p + 1]), and position[i] tells
// where in `ids` grouped[i] stood. begin has num_parts + 1 elements. Throws std::out_of_range naming a bad id.
void group_by_owner(const Book& book, const int64_t* ids, int64_t n, int64_t* grouped, uint32_t* position,
                    int64_t* begin);

// owners[i] = the partition that owns ids[i]. Throws std::out_of_range naming a bad id.
void find_owners(const Book& book, const int64_t* ids, int64_t n, int64_t* owners);

// Throws std::out_of_range naming the first id that `part` does not own.
void require_owned(const Book& book, const int64_t* ids, int64_t n, int64_t part);

// An array of node or edge ids in one of two widths.
using Ids = std::variant<const int32_t*, const int64_t*>;
using MutableIds = std::variant<int32_t*, int64_t*>;

class AscendingRows;  // see induce.h

struct CsrView {
  const int64_t* indptr = nullptr;  // [num_rows + 1], in edges
  Ids indices;                      // [num_edges], neighbour ids, each in [0, num_neighbor_nodes)
  bool has_edge_ids = false;        // without: the id of an edge is first_edge_id + its position
  Ids edge_ids;                     // [num_edges]
  int64_t first_edge_id = 0;
  // Edge weights as draws need them, see weights.h; null: all edges weigh the same.
  const uint64_t* weight_sum = nullptr;    // [num_edges], inclusive prefix sums within each row
  const uint32_t* weight_guide = nullptr;  // [weight_guide_size(num_rows, num_edges)]
  const int64_t* time = nullptr;           // [num_edges], never falling within a row; null: edges have no time
  const uint32_t* row_of = nullptr;        // [num_nodes], node -> row; null: node - first_node
  int64_t first_node = 0;                  // the node of row 0, where `part` owns a range of them
  std::optional<Book> book;                // owners of [num_nodes] nodes, of which those of `part` have rows here
  int64_t part = 0;
  int64_t num_rows = 0;
  int64_t num_nodes = 0;           // ids of expanded nodes are in [0, num_nodes)
  int64_t num_neighbor_nodes = 0;  // ids of neighbours are in [0, num_neighbor_nodes)
  int64_t num_edges = 0;
  AscendingRows* ascending = nullptr;  // what is found out about the rows; null: nothing is
};

// Throws std::invalid_argument, naming the first offender, unless indptr starts at 0, never falls and ends at
// num_edges, and, with `check_indices`, every neighbour id is in range, times never fall within a row and weights are
// what build_weights makes. Everything that reads a CsrView relies on this.
void validate(const CsrView& csr, bool check_indices);

// Edges on their way to rows, and the names of their arrays in errors.
struct CsrInput {
  Ids rows, cols;          // [num_edges]
  Ids edge_ids;            // [num_edges]; a null pointer: 0, 1, 2, ...
  const uint32_t* row_of;  // as in CsrView
  int64_t num_edges, num_rows, num_nodes, num_neighbor_nodes;
  const char *row_name, *col_name;
};

struct CsrOut {
  int64_t* indptr;      // [num_rows + 1]
  MutableIds indices;   // [num_edges]
  MutableIds edge_ids;  // [num_edges]; a null pointer: not wanted
};

// Places every edge in its row by counting sort; the edges of a row keep their input order. Peak extra memory is the
// output alone. Returns whether the id of each edge is its position in the rows. Throws std::out_of_range naming the
// first row outside [0, num_nodes) or column outside [0, num_neighbor_nodes).
bool build_csr(const CsrInput& edges, const CsrOut& out);

// Fills order [num_edges] with the positions of each row's edges, earliest first; edges of one time keep their order.
void sort_rows_by_time(const int64_t* indptr, int64_t num_rows, const int64_t* time, int64_t* order);

// Parallel edges become one edge with a weight, which is what METIS takes, by two calls. The first sorts each row of
// `indices` in place and fills merged_indptr [num_rows + 1] with the offsets of distinct neighbours.
void sort_rows(const int64_t* indptr, int64_t num_rows, MutableIds indices, int64_t* merged_indptr);

// Fills neighbor and weight [merged_indptr[num_rows]] from sorted rows: each neighbour once, and how often it was
// there.
void merge_rows(const int64_t* indptr, int64_t num_rows, MutableIds indices, const int64_t* merged_indptr,
                int64_t* neighbor, int64_t* weight);

}  // namespace glt
