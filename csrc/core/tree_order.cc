#include "core/tree_order.h"

#include <algorithm>
#include <vector>

#include "core/check.h"

namespace glt {
namespace {

// Positions [0, n) sorted by key(i) in [0, num_keys), equal ones in the order of from [n], or of themselves if it is
// null; `begin` [num_keys + 1] is where each key begins.
template <typename Key>
void counting_sort(int64_t n, int64_t num_keys, const int64_t* from, const Key& key, int64_t* begin, int64_t* sorted) {
  std::fill_n(begin, num_keys + 1, 0);
  for (int64_t i = 0; i < n; ++i) ++begin[key(i) + 1];
  for (int64_t k = 0; k < num_keys; ++k) begin[k + 1] += begin[k];
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = from ? from[i] : i;
    sorted[begin[key(at)]++] = at;
  }
  for (int64_t k = num_keys; k > 0; --k) begin[k] = begin[k - 1];  // the ends are where the next ones begin
  begin[0] = 0;
}

}  // namespace

void order_by_tree(const int64_t* node, const int64_t* tree, int64_t n, int64_t num_trees, int64_t* order,
                   int64_t* ptr) {
  for (int64_t i = 0; i < n; ++i)
    require_index(tree[i] >= 0 && tree[i] < num_trees, "tree[", i, "] = ", tree[i], " is outside [0, ", num_trees, ")");
  counting_sort(n, num_trees, nullptr, [&](int64_t i) { return tree[i]; }, ptr, order);
  for (int64_t t = 0; t < num_trees; ++t)
    std::sort(order + ptr[t], order + ptr[t + 1],
              [&](int64_t a, int64_t b) { return node[a] != node[b] ? node[a] < node[b] : a < b; });
}

void reorder_edges(const int64_t* row, const int64_t* col, int64_t num_edges, const int64_t* order, int64_t n,
                   int64_t* row_out, int64_t* col_out, int64_t* edge_order) {
  for (int64_t e = 0; e < num_edges; ++e)
    require_index(row[e] >= 0 && row[e] < n && col[e] >= 0 && col[e] < n, "edge ", e, " is (", row[e], ", ", col[e],
                  "): expected ends in [0, ", n, ")");
  std::vector<int64_t> rank(n), begin(n + 1), by_col(num_edges);
  for (int64_t i = 0; i < n; ++i) {
    require_index(order[i] >= 0 && order[i] < n, "order[", i, "] = ", order[i], " is outside [0, ", n, ")");
    rank[order[i]] = i;
  }
  counting_sort(num_edges, n, nullptr, [&](int64_t e) { return rank[col[e]]; }, begin.data(), by_col.data());
  counting_sort(num_edges, n, by_col.data(), [&](int64_t e) { return rank[row[e]]; }, begin.data(), edge_order);
  for (int64_t e = 0; e < num_edges; ++e) {
    row_out[e] = rank[row[edge_order[e]]];
    col_out[e] = rank[col[edge_order[e]]];
  }
}

}  // namespace glt
