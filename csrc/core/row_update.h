// A step of an optimizer on the rows that have a gradient, each read and written once.
//
// What torch.optim.Adagrad and torch.optim.SparseAdam compute for sparse gradients: rows without one keep their
// weights and their state. Adagrad: Duchi et al., JMLR 12, 2011. Adam: Kingma and Ba, ICLR 2015, arXiv 1412.6980.
#pragma once

#include "core/row_merge.h"
#include "core/row_table.h"

namespace glt {

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
