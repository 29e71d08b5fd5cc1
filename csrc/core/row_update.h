// A step of an optimizer on the rows that have a gradient, each read and written once.
//
// What torch.optim.Adagrad and torch.optim.SparseAdam compute for sparse gradients: rows without one keep their
// weights and their state. Adagrad: Duchi et al., JMLR 12, 2011. Adam: Kingma and Ba, ICLR 2015, arXiv 1412.6980.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/row_merge.h"

namespace glt {

enum class WeightType { kFloat32, kBFloat16, kFloat16 };

struct Weights {
  std::byte* data;  // [num_rows, dim]
  WeightType type;
};

// sum += g^2; weight -= lr g / (sqrt(sum) + eps), with g = scale times the summed gradient.
struct AdagradStep {
  float* sum;  // [num_rows, dim]
  float scale, lr, eps;
};

// mean += (g - mean)(1 - beta1); square += (g^2 - square)(1 - beta2); weight -= step_size mean / (sqrt(square) + eps).
// The corrections of the bias are in step_size.
struct AdamStep {
  float* mean;    // [num_rows, dim]
  float* square;  // [num_rows, dim]
  float scale, step_size, one_less_beta1, one_less_beta2, eps;
};

// The same result with any num_threads.
void update_rows(const RowMerge& merge, const Weights& weights, const AdagradStep& step, int num_threads);
void update_rows(const RowMerge& merge, const Weights& weights, const AdamStep& step, int num_threads);

}  // namespace glt
