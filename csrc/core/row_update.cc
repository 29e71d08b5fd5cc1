#include "core/row_update.h"

#include <bit>
#include <cmath>

#include "core/buffer.h"
#include "core/row_chunks.h"

namespace glt {
namespace {

struct Float32 {
  using Stored = float;
  static float load(float value) { return value; }
  static float store(float value) { return value; }
};

struct BFloat16 {
  using Stored = uint16_t;
  static float load(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }
  static uint16_t store(float value) {  // to nearest, ties to even
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};

struct Float16 {
  using Stored = _Float16;
  static float load(_Float16 value) { return static_cast<float>(value); }
  static _Float16 store(float value) { return static_cast<_Float16>(value); }
};

void update(const AdagradStep& step, int64_t first, int64_t dim, const float* grad, float* weight) {
  float* sum = step.sum + first;
  for (int64_t d = 0; d < dim; ++d) {
    sum[d] += grad[d] * grad[d];
    weight[d] -= step.lr * (grad[d] / (std::sqrt(sum[d]) + step.eps));
  }
}

void update(const AdamStep& step, int64_t first, int64_t dim, const float* grad, float* weight) {
  float *mean = step.mean + first, *square = step.square + first;
  for (int64_t d = 0; d < dim; ++d) {
    mean[d] += (grad[d] - mean[d]) * step.one_less_beta1;
    square[d] += (grad[d] * grad[d] - square[d]) * step.one_less_beta2;
    weight[d] -= step.step_size * (mean[d] / (std::sqrt(square[d]) + step.eps));
  }
}

template <typename Type, typename Step>
void update_rows_of(const RowMerge& merge, typename Type::Stored* table, const Step& step, int num_threads) {
  const int64_t dim = merge.dim();
  for_row_chunks(merge.size(), 4 * dim, num_threads, [&](int64_t first, int64_t last) {
    Buffer<float> grad, weight;
    grad.resize(dim);
    weight.resize(dim);
    for (int64_t i = first; i < last; ++i) {
      merge.sum(i, step.scale, grad.data());
      auto* stored = table + merge.row(i) * dim;
      for (int64_t d = 0; d < dim; ++d) weight[d] = Type::load(stored[d]);
      update(step, merge.row(i) * dim, dim, grad.data(), weight.data());
      for (int64_t d = 0; d < dim; ++d) stored[d] = Type::store(weight[d]);
    }
  });
}

template <typename Step>
void update_rows_of_any(const RowMerge& merge, const Weights& weights, const Step& step, int num_threads) {
  switch (weights.type) {
    case WeightType::kFloat32:
      return update_rows_of<Float32>(merge, reinterpret_cast<float*>(weights.data), step, num_threads);
    case WeightType::kBFloat16:
      return update_rows_of<BFloat16>(merge, reinterpret_cast<uint16_t*>(weights.data), step, num_threads);
    case WeightType::kFloat16:
      return update_rows_of<Float16>(merge, reinterpret_cast<_Float16*>(weights.data), step, num_threads);
  }
}

}  // namespace

void update_rows(const RowMerge& merge, const Weights& weights, const AdagradStep& step, int num_threads) {
  update_rows_of_any(merge, weights, step, num_threads);
}

void update_rows(const RowMerge& merge, const Weights& weights, const AdamStep& step, int num_threads) {
  update_rows_of_any(merge, weights, step, num_threads);
}

}  // namespace glt
