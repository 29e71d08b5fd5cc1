// Gradients of rows that several trainers bring, each row perhaps many times, as one sum per row.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"

namespace glt {

// What one trainer brings.
struct RowGradients {
  const int64_t* rows;  // [n]
  const float* grads;   // [n, dim]
  int64_t n;
};

// Rows come out ascending, each once. Its gradients are added in a fixed order: trainers as they are given, and what
// one trainer brings by position. So a sum depends on its own row alone: not on what else is merged, on how rows are
// spread over servers, or on the number of threads.
class RowMerge {
 public:
  // Keeps pointing into `parts`. Throws std::out_of_range, naming the part and the position, for a row outside
  // [0, num_rows).
  RowMerge(const std::vector<RowGradients>& parts, int64_t num_rows, int64_t dim);

  int64_t size() const { return begin_.size() - 1; }  // distinct rows
  int64_t dim() const { return dim_; }
  int64_t num_rows() const { return num_rows_; }  // of the table
  int64_t row(int64_t i) const { return entries_[begin_[i]].row; }

  // out[dim] = scale times the sum of the gradients of row(i).
  void sum(int64_t i, float scale, float* out) const;
  // The same for all of them: rows [size()], out [size(), dim].
  void sum_all(float scale, int64_t* rows, float* out, int num_threads) const;

 private:
  struct Entry {
    int64_t row;
    const float* grad;
  };
  void sort();

  int64_t num_rows_, dim_;
  Buffer<Entry> entries_, other_;
  Buffer<int64_t> begin_;  // of each distinct row in entries_, and their end
};

}  // namespace glt
