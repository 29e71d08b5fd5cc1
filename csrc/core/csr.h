// Compressed sparse rows: a view of them, and their construction from an edge list.
//
// The same structure serves both directions: over out-edges it is a CSR (row = source), over in-edges a CSC
// (row = destination). A partition keeps rows only for the nodes it owns, which are any, and mapped to rows by
// `row_of`, or a range.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "core/owner.h"

namespace glt {

// An array of node or edge ids in one of two widths.
using Ids = std::variant<const int32_t*, const int64_t*>;

struct CsrView {
  const int64_t* indptr = nullptr;  // [num_rows + 1], in edges
  Ids indices;                      // [num_edges], neighbour ids, each in [0, num_neighbor_nodes)
  bool has_edge_ids = false;        // without: the id of an edge is its position
  Ids edge_ids;                     // [num_edges]
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
};

// Throws std::invalid_argument, naming the first offender, unless indptr starts at 0, never falls and ends at
// num_edges, and, with `check_indices`, every neighbour id is in range, times never fall within a row and weights are
// what build_weights makes. Everything that reads a CsrView relies on this.
void validate(const CsrView& csr, bool check_indices);

// Counts edges per row: indptr[r + 1] - indptr[r] = number of i with rows[i] == r. `row_of` as in CsrView.
// Throws std::out_of_range naming the first row outside [0, num_nodes).
void build_indptr(const char* name, Ids rows, int64_t num_edges, const uint32_t* row_of, int64_t num_nodes,
                  int64_t num_rows, int64_t* indptr);

// Places every edge in its row by counting sort; the edges of a row keep their input order.
//
// `indptr` comes from build_indptr and is used as the cursor while filling; it is restored before returning.
// `edge_ids_in` null stands for 0, 1, 2, ...; `edge_ids_out` null (as variant holding a null pointer): not wanted.
// Peak extra memory is the output alone.
struct CsrOut {
  std::variant<int32_t*, int64_t*> indices;
  std::variant<int32_t*, int64_t*> edge_ids;  // a null pointer: not wanted
};
void fill_rows(const char* col_name, Ids rows, Ids cols, Ids edge_ids_in, int64_t num_edges, const uint32_t* row_of,
               int64_t num_rows, int64_t num_neighbor_nodes, int64_t* indptr, CsrOut out);

// Fills order [num_edges] with the positions of each row's edges, earliest first; edges of one time keep their order.
void sort_rows_by_time(const int64_t* indptr, int64_t num_rows, const int64_t* time, int64_t* order);

}  // namespace glt
