#include "core/row_update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>

#include "core/buffer.h"
#include "core/check.h"
#include "core/halves.h"
#include "core/prefetch.h"
#include "core/row_chunks.h"

namespace glt {
namespace {

struct Float32 {
  using Stored = float;
  static float load(float value) { return value; }
  static float store(float value) { return value; }
};

struct Bfloat16 {
  using Stored = uint16_t;
  static float load(uint16_t value) { return widened(value); }
  static uint16_t store(float value) { return to_bfloat(value); }
};

struct Float16 {
  using Stored = _Float16;
  static float load(_Float16 value) { return static_cast<float>(value); }
  static _Float16 store(float value) { return static_cast<_Float16>(value); }
};

struct Adagrad {
  static constexpr int kNumTables = 1;
  static std::array<RowTable*, kNumTables> tables(const AdagradStep& step) { return {&step.sum}; }
  static void update(const AdagradStep& step, int64_t dim, const float* grad, float* weight, float* const* state) {
    float* sum = state[0];
    for (int64_t d = 0; d < dim; ++d) {
      sum[d] += grad[d] * grad[d];
      weight[d] -= step.lr * (grad[d] / (std::sqrt(sum[d]) + step.eps));
    }
  }
};

struct Adam {
  static constexpr int kNumTables = 2;
  static std::array<RowTable*, kNumTables> tables(const AdamStep& step) { return {&step.mean, &step.square}; }
  static void update(const AdamStep& step, int64_t dim, const float* grad, float* weight, float* const* state) {
    float *mean = state[0], *square = state[1];
    for (int64_t d = 0; d < dim; ++d) {
      mean[d] += (grad[d] - mean[d]) * step.one_less_beta1;
      square[d] += (grad[d] * grad[d] - square[d]) * step.one_less_beta2;
      weight[d] -= step.step_size * (mean[d] / (std::sqrt(square[d]) + step.eps));
    }
  }
};

// The locks of a row in several tables. Neighbours share theirs, which are then kept; when one changes, all are given
// up first, and taken in the order of the tables: so no two threads wait for each other.
template <size_t kNum>
class HeldRow {
 public:
  explicit HeldRow(const std::array<RowTable*, kNum>& tables) : tables_(tables) {}

  void hold(int64_t row) {
    bool same = true;
    for (size_t t = 0; t < kNum; ++t) same &= held_[t].mutex() == &tables_[t]->lock_of(row);
    if (same) return;
    for (auto& each : held_) each = {};
    for (size_t t = 0; t < kNum; ++t) held_[t] = std::unique_lock(tables_[t]->lock_of(row));
  }

 private:
  const std::array<RowTable*, kNum>& tables_;
  std::array<std::unique_lock<RowLock>, kNum> held_;
};

void require_fit(const RowMerge& merge, const RowTable& table, int64_t element_bytes, const char* name) {
  require(table.num_rows() == merge.num_rows() && table.row_bytes() == merge.dim() * element_bytes, name, " has ",
          table.num_rows(), " rows of ", table.row_bytes(), " bytes: expected ", merge.num_rows(), " of ",
          merge.dim() * element_bytes);
}

template <typename Type, typename Kind, typename Step>
void update_rows_of(const RowMerge& merge, RowTable& weights, const Step& step, int num_threads) {
  using Stored = typename Type::Stored;
  constexpr size_t kNum = Kind::kNumTables;
  const int64_t dim = merge.dim();
  const std::array<RowTable*, kNum> states = Kind::tables(step);
  require_fit(merge, weights, sizeof(Stored), "weights");
  for (const RowTable* state : states) require_fit(merge, *state, sizeof(float), "state");
  std::array<RowTable*, kNum + 1> tables{&weights};
  std::copy(states.begin(), states.end(), tables.begin() + 1);

  for_row_chunks(merge.size(), 4 * dim, num_threads, [&](int64_t first, int64_t last) {
    Buffer<float> floats;  // a gradient, weights, and state
    floats.resize((2 + kNum) * dim);
    Buffer<Stored> stored;
    stored.resize(dim);
    float *grad = floats.data(), *weight = grad + dim;
    std::array<float*, kNum> state;
    for (size_t s = 0; s < kNum; ++s) state[s] = weight + (s + 1) * dim;
    const size_t state_bytes = dim * sizeof(float);

    HeldRow<kNum + 1> held(tables);
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = merge.row(i);
      if (i + 1 < last)
        for (const RowTable* table : tables) prefetch(table->row(merge.row(i + 1)));
      merge.sum(i, step.scale, grad);
      held.hold(row);
      const auto* at = reinterpret_cast<const Stored*>(weights.row(row));
      for (int64_t d = 0; d < dim; ++d) weight[d] = Type::load(at[d]);
      for (size_t s = 0; s < kNum; ++s) std::memcpy(state[s], states[s]->row(row), state_bytes);
      Kind::update(step, dim, grad, weight, state.data());
      for (int64_t d = 0; d < dim; ++d) stored[d] = Type::store(weight[d]);
      weights.replace_locked(row, reinterpret_cast<const std::byte*>(stored.data()));
      for (size_t s = 0; s < kNum; ++s) states[s]->replace_locked(row, reinterpret_cast<const std::byte*>(state[s]));
    }
  });
}

template <typename Kind, typename Step>
void update_rows_of_any(const RowMerge& merge, RowTable& weights, Number number, const Step& step, int num_threads) {
  switch (number) {
    case Number::kFloat32:
      return update_rows_of<Float32, Kind>(merge, weights, step, num_threads);
    case Number::kBfloat16:
      return update_rows_of<Bfloat16, Kind>(merge, weights, step, num_threads);
    case Number::kFloat16:
      return update_rows_of<Float16, Kind>(merge, weights, step, num_threads);
    default:
      require(false, "weights: expected float32, bfloat16 or float16");
  }
}

}  // namespace

void update_rows(const RowMerge& merge, RowTable& weights, Number number, const AdagradStep& step, int num_threads) {
  update_rows_of_any<Adagrad>(merge, weights, number, step, num_threads);
}

void update_rows(const RowMerge& merge, RowTable& weights, Number number, const AdamStep& step, int num_threads) {
  update_rows_of_any<Adam>(merge, weights, number, step, num_threads);
}

}  // namespace glt
