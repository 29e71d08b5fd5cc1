#include "core/parallel_edges.h"

#include <algorithm>

namespace glt {

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
