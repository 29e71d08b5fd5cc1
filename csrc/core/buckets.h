// Rows that follow each other, cut into ranges of so many edges at most; a row with more is a range of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace glt {

struct BucketRange {
  int64_t first_row, end_row;
  int64_t first_edge, end_edge;

  int64_t num_edges() const { return end_edge - first_edge; }
};

class Buckets {
 public:
  Buckets(const int64_t* indptr, int64_t num_rows, int64_t max_edges) {
    const auto cut_at = [&](int64_t row) {
      if (!row_.empty() && row_.back() == row) return;
      row_.push_back(row);
      edge_.push_back(indptr[row]);
    };
    cut_at(0);
    for (int64_t row = 0; row < num_rows; ++row) {
      if (indptr[row + 1] - edge_.back() > max_edges) cut_at(row);
      if (indptr[row + 1] - indptr[row] > max_edges) cut_at(row + 1);
    }
    cut_at(num_rows);
    while ((num_rows >> shift_) >= kGuideSize) ++shift_;
    for (int64_t j = 0; j <= num_rows >> shift_; ++j)
      guide_.push_back(
          static_cast<uint32_t>(std::upper_bound(row_.begin(), row_.end(), j << shift_) - row_.begin() - 1));
  }

  size_t size() const { return row_.size() - 1; }
  int64_t begin_edge(size_t b) const { return edge_[b]; }
  int64_t end_edge(size_t b) const { return edge_[b + 1]; }
  BucketRange operator[](int64_t b) const { return {row_[b], row_[b + 1], edge_[b], edge_[b + 1]}; }

  // The bucket of a row: a guess from its high bits, which is right or a few short.
  uint32_t find(int64_t row) const {
    uint32_t b = guide_[row >> shift_];
    while (row >= row_[b + 1]) ++b;
    return b;
  }

 private:
  static constexpr int64_t kGuideSize = int64_t{1} << 16;
  std::vector<int64_t> row_, edge_;  // [size() + 1]
  std::vector<uint32_t> guide_;
  int shift_ = 0;
};

}  // namespace glt
