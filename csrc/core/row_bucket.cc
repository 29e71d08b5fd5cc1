#include "core/row_bucket.h"

#include <algorithm>

#include "core/block_file.h"
#include "core/weights.h"

namespace glt {

void RowBucket::begin(const BucketRange& range) {
  range_ = range;
  const int64_t n = range.num_edges();
  neighbor_.resize(n);
  edge_id_.resize(n);
  weight_.resize(n * layout_.weight_bytes);
  if (layout_.time) time_.resize(n);
}

void RowBucket::place_all(int scratch) {
  const int64_t n = range_.num_edges();
  records_.resize(n * layout_.words);
  read_at(scratch, range_.first_edge * layout_.bytes(), records_.data(), n * layout_.bytes(), "scratch file");
  forget_at(scratch, range_.first_edge * layout_.bytes(), n * layout_.bytes());
  for (int64_t i = 0; i < n; ++i) place(records_.data() + i * layout_.words);
}

int64_t RowBucket::write() {
  // Each cursor stands at the end of its row, which is the begin of the next. Those of other buckets are theirs.
  for (int64_t row = range_.end_row - 1; row > range_.first_row; --row) indptr_[row] = indptr_[row - 1];
  indptr_[range_.first_row] = range_.first_edge;
  const int64_t n = range_.num_edges();
  graphs_.write(PartGraphs::kIndices, range_.first_edge, neighbor_.data(), n, neighbor_.width());
  graphs_.write(PartGraphs::kEdgeIds, range_.first_edge, edge_id_.data(), n, edge_id_.width());
  int64_t bytes = n * (neighbor_.width() + edge_id_.width());
  if (layout_.weight) bytes += write_weights();
  if (layout_.time) bytes += write_times();
  return bytes;
}

int64_t RowBucket::write_weights() {
  const int64_t n = range_.num_edges();
  int64_t bytes = n * sizeof(uint64_t);
  weight_sum_.resize(n);
  const auto weights_from = [&](int64_t e) -> Weights {
    if (layout_.weight_bytes == 4) return reinterpret_cast<const float*>(weight_.data()) + e;
    return reinterpret_cast<const double*>(weight_.data()) + e;
  };
  graphs_.for_each_part_of_rows(range_.first_row, range_.end_row, [&](size_t part, int64_t from, int64_t to) {
    const int64_t before = graphs_.first_edge(part), first_row = graphs_.first_row(part);
    PartStream<uint32_t> guide(graphs_, PartGraphs::kWeightGuide, part,
                               ((indptr_[from] - before) >> 3) + from - first_row);
    for (int64_t row = from; row < to; ++row) {
      const int64_t begin = indptr_[row] - before, end = end_of(row) - before;
      const int64_t size = (end >> 3) - (begin >> 3) + 1, at = indptr_[row] - range_.first_edge;
      build_weight_row(row - first_row, begin, end, weights_from(at), weight_sum_.data() + at, guide.more(size),
                       "edge_weight");
      bytes += size * sizeof(uint32_t);
    }
    guide.flush();
  });
  graphs_.write(PartGraphs::kWeightSum, range_.first_edge, weight_sum_.data(), n, sizeof(uint64_t));
  return bytes;
}

int64_t RowBucket::write_times() {
  const int64_t n = range_.num_edges();
  timed_neighbor_.resize(n);
  timed_edge_id_.resize(n);
  sorted_time_.resize(n);
  for (int64_t row = range_.first_row; row < range_.end_row; ++row) {
    const int64_t begin = indptr_[row] - range_.first_edge, degree = end_of(row) - indptr_[row];
    order_.resize(degree);
    for (int64_t i = 0; i < degree; ++i) order_[i] = {time_[begin + i], static_cast<uint32_t>(i)};
    std::sort(order_.data(), order_.end());
    for (int64_t i = 0; i < degree; ++i) {
      const int64_t from = begin + order_[i].place;
      timed_neighbor_.copy(begin + i, neighbor_, from);
      timed_edge_id_.copy(begin + i, edge_id_, from);
      sorted_time_[begin + i] = order_[i].time;
    }
  }
  graphs_.write(PartGraphs::kTimedIndices, range_.first_edge, timed_neighbor_.data(), n, timed_neighbor_.width());
  graphs_.write(PartGraphs::kTimedEdgeIds, range_.first_edge, timed_edge_id_.data(), n, timed_edge_id_.width());
  graphs_.write(PartGraphs::kTime, range_.first_edge, sorted_time_.data(), n, sizeof(int64_t));
  return n * (timed_neighbor_.width() + timed_edge_id_.width() + sizeof(int64_t));
}

}  // namespace glt
