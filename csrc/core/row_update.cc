#include "core/row_update.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/check.h"
#include "core/memory.h"
#include "core/row_table.h"
#include "core/threads.h"

namespace glt {
namespace {

constexpr int64_t kChunkRows = 128;  // dealt with at a time by each thread

}  // namespace

RowMerge::RowMerge(const std::vector<RowGradients>& parts, int64_t num_rows, int64_t dim)
    : num_rows_(num_rows), dim_(dim) {
  int64_t total = 0;
  for (const RowGradients& part : parts) total += part.n;
  entries_.resize(total);
  Entry* entry = entries_.data();
  for (size_t p = 0; p < parts.size(); ++p)
    for (int64_t i = 0; i < parts[p].n; ++i) {
      const int64_t row = parts[p].rows[i];
      require_index(static_cast<uint64_t>(row) < static_cast<uint64_t>(num_rows), "parts[", p, "]: row ", row,
                    " at position ", i, " is outside [0, ", num_rows, ")");
      *entry++ = {row, parts[p].grads + i * dim};
    }
  sort();
  for (int64_t i = 0; i < total; ++i)
    if (i == 0 || entries_[i].row != entries_[i - 1].row) begin_.push_back(i);
  begin_.push_back(total);
}

// By digits, the lowest first: equal rows keep the order in which they came.
void RowMerge::sort() {
  constexpr int kBits = 11;
  const int64_t n = entries_.size();
  // One trainer's rows are distinct and ascending: its client has merged them.
  if (std::is_sorted(entries_.data(), entries_.end(), [](const Entry& a, const Entry& b) { return a.row < b.row; }))
    return;
  other_.resize(n);
  const int width = std::bit_width(static_cast<uint64_t>(num_rows_ - 1));
  for (int shift = 0; shift < width; shift += kBits) {
    std::array<int64_t, 1 << kBits> place{};
    const auto digit = [&](const Entry& entry) { return (entry.row >> shift) & ((1 << kBits) - 1); };
    for (int64_t i = 0; i < n; ++i) ++place[digit(entries_[i])];
    int64_t begin = 0;
    for (int64_t& each : place) begin += std::exchange(each, begin);
    for (int64_t i = 0; i < n; ++i) other_[place[digit(entries_[i])]++] = entries_[i];
    std::swap(entries_, other_);
  }
}

void RowMerge::sum(int64_t i, float scale, float* out) const {
  const int64_t begin = begin_[i], end = begin_[i + 1];
  std::memcpy(out, entries_[begin].grad, dim_ * sizeof(float));
  for (int64_t e = begin + 1; e < end; ++e) {
    const float* grad = entries_[e].grad;
    for (int64_t d = 0; d < dim_; ++d) out[d] += grad[d];
  }
  if (scale != 1.0F)
    for (int64_t d = 0; d < dim_; ++d) out[d] *= scale;
}

void RowMerge::sum_all(float scale, int64_t* rows, float* out, int num_threads) const {
  for_row_chunks(size(), kChunkRows, dim_, num_threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      rows[i] = row(i);
      sum(i, scale, out + i * dim_);
    }
  });
}

namespace {

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

template <typename Stored, typename Kind, typename Step>
void update_rows_of(const RowMerge& merge, RowTable& weights, const Step& step, int num_threads) {
  constexpr size_t kNum = Kind::kNumTables;
  const int64_t dim = merge.dim();
  const std::array<RowTable*, kNum> states = Kind::tables(step);
  require_fit(merge, weights, sizeof(Stored), "weights");
  for (const RowTable* state : states) require_fit(merge, *state, sizeof(float), "state");
  std::array<RowTable*, kNum + 1> tables{&weights};
  std::copy(states.begin(), states.end(), tables.begin() + 1);

  for_row_chunks(merge.size(), kChunkRows, 4 * dim, num_threads, [&](int64_t first, int64_t last) {
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
      std::memcpy(stored.data(), weights.row(row), dim * sizeof(Stored));
      for (int64_t d = 0; d < dim; ++d) weight[d] = static_cast<float>(stored[d]);
      for (size_t s = 0; s < kNum; ++s) std::memcpy(state[s], states[s]->row(row), state_bytes);
      Kind::update(step, dim, grad, weight, state.data());
      for (int64_t d = 0; d < dim; ++d) stored[d] = static_cast<Stored>(weight[d]);
      weights.replace_locked(row, reinterpret_cast<const std::byte*>(stored.data()));
      for (size_t s = 0; s < kNum; ++s) states[s]->replace_locked(row, reinterpret_cast<const std::byte*>(state[s]));
    }
  });
}

template <typename Kind, typename Step>
void update_rows_of_any(const RowMerge& merge, RowTable& weights, Number number, const Step& step, int num_threads) {
  switch (number) {
    case Number::kFloat32:
      return update_rows_of<float, Kind>(merge, weights, step, num_threads);
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
