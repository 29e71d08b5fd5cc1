#include "core/row_merge.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/row_chunks.h"

namespace glt {

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
  for_row_chunks(size(), dim_, num_threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      rows[i] = row(i);
      sum(i, scale, out + i * dim_);
    }
  });
}

}  // namespace glt
