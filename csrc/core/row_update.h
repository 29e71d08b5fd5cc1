// A step of an optimizer on the rows that have a gradient, each read and written once.
//
// What torch.optim.Adagrad and torch.optim.SparseAdam compute for sparse gradients: rows without one keep their
// weights and their state. Adagrad: Duchi et al., JMLR 12, 2011. Adam: Kingma and Ba, ICLR 2015, arXiv 1412.6980.
#pragma once

#include <cstdint>
#include <vector>

#include "core/memory.h"
#include "core/row_table.h"

namespace glt {

// What one trainer brings.
struct RowGradients {
  const int64_t* rows;  // [n]
  const float* grads;   // [n, dim]
  int64_t n;
};

// Gradients of rows that several trainers bring, each row perhaps many times, as one sum per row.
//
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

// sum += g^2; weight -= lr g / (sqrt(sum) + eps), with g = scale times the summed gradient.
struct AdagradStep {
  RowTable& sum;  // of float32
  float scale, lr, eps;
};

// mean += (g - mean)(1 - beta1); square += (g^2 - square)(1 - beta2); weight -= step_size mean / (sqrt(square) + eps).
// The corrections of the bias are in step_size.
struct AdamStep {
  RowTable& mean;    // of float32
  RowTable& square;  // of float32
  float scale, step_size, one_less_beta1, one_less_beta2, eps;
};

// Of a row, the weights and each kind of state are changed under their locks: others read them before or after. Weights
// are float32, or halves, which are rounded to nearest even, once per step. Throws std::invalid_argument if a table has
// other rows than `merge`. The same result with any num_threads.
void update_rows(const RowMerge& merge, RowTable& weights, Number number, const AdagradStep& step, int num_threads);
void update_rows(const RowMerge& merge, RowTable& weights, Number number, const AdamStep& step, int num_threads);

}  // namespace glt
