#include "core/row_writers.h"

#include <algorithm>
#include <cstddef>
#include <queue>
#include <vector>

#include "core/block_file.h"
#include "core/check.h"
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

namespace {

// A run of records sorted by time, read ahead a little at a time.
class Run {
 public:
  Run(const RecordLayout& layout, int scratch, int64_t begin, int64_t end, int64_t ahead)
      : layout_(layout), scratch_(scratch), next_(begin), end_(end), ahead_(ahead) {
    advance();
  }
  const uint32_t* front() const { return records_.data() + at_ * layout_.words; }
  int64_t time() const { return layout_.time_of(front()); }
  // Moves to the next record; false at the end.
  bool advance() {
    if (++at_ < size_) return true;
    size_ = std::min(ahead_, end_ - next_);
    at_ = 0;
    records_.resize(size_ * layout_.words);
    read_at(scratch_, next_ * layout_.bytes(), records_.data(), size_ * layout_.bytes(), "scratch file");
    next_ += size_;
    return size_ > 0;
  }

 private:
  const RecordLayout& layout_;
  int scratch_;
  int64_t next_, end_, ahead_;
  int64_t at_ = -1, size_ = 0;
  Buffer<uint32_t> records_;
};

}  // namespace

int64_t RowStream::write(const BucketRange& range) {
  int64_t bytes = write_ids(range);
  if (layout_.weight) bytes += write_weights(range);
  if (layout_.time) bytes += write_times(range);
  return bytes;
}

void RowStream::for_each_piece(const BucketRange& range, const Visit& visit) {
  for (int64_t first = range.first_edge; first < range.end_edge; first += plan_.bucket_edges) {
    const int64_t n = std::min(plan_.bucket_edges, range.end_edge - first);
    records_.resize(n * layout_.words);
    read_at(scratch_, first * layout_.bytes(), records_.data(), n * layout_.bytes(), "scratch file");
    visit(records_.data(), first, n);
  }
}

int64_t RowStream::write_ids(const BucketRange& range) {
  for_each_piece(range, [&](const uint32_t* record, int64_t first, int64_t n) {
    neighbor_.resize(n);
    edge_id_.resize(n);
    for (int64_t i = 0; i < n; ++i, record += layout_.words) {
      neighbor_.set(i, RecordLayout::neighbor(record));
      edge_id_.set(i, layout_.edge_id(record));
    }
    graphs_.write(PartGraphs::kIndices, first, neighbor_.data(), n, neighbor_.width());
    graphs_.write(PartGraphs::kEdgeIds, first, edge_id_.data(), n, edge_id_.width());
  });
  return range.num_edges() * (neighbor_.width() + edge_id_.width());
}

double RowStream::weight_of(const uint32_t* record) const {
  if (layout_.weight_bytes == 4) {
    float weight;
    std::memcpy(&weight, record + layout_.weight, sizeof(weight));
    return weight;
  }
  double weight;
  std::memcpy(&weight, record + layout_.weight, sizeof(weight));
  return weight;
}

int64_t RowStream::write_weights(const BucketRange& range) {
  size_t part = 0;
  graphs_.for_each_part_of_rows(range.first_row, range.end_row, [&](size_t p, int64_t, int64_t) { part = p; });
  const int64_t before = graphs_.first_edge(part), row = range.first_row - graphs_.first_row(part);
  const int64_t begin = range.first_edge - before, end = range.end_edge - before, degree = end - begin;
  require(degree <= UINT32_MAX, "row ", row, " has ", degree, " edges: weights allow at most 2^32 - 1");

  double largest = 0;
  for_each_piece(range, [&](const uint32_t* record, int64_t, int64_t n) {
    for (int64_t i = 0; i < n; ++i, record += layout_.words) {
      check_weight(weight_of(record), "edge_weight", layout_.edge_id(record));
      largest = std::max(largest, weight_of(record));
    }
  });
  const WeightScale scaled(largest, degree);
  uint64_t sum = 0;
  for_each_piece(range, [&](const uint32_t* record, int64_t first, int64_t n) {
    sum_.resize(n);
    for (int64_t i = 0; i < n; ++i, record += layout_.words) sum_[i] = sum += scaled(weight_of(record));
    graphs_.write(PartGraphs::kWeightSum, first, sum_.data(), n, sizeof(uint64_t));
  });
  // Cut points need the total, so the sums are made once more.
  const WeightGuide cuts(row, begin, end, sum);
  PartStream<uint32_t> guide(graphs_, PartGraphs::kWeightGuide, part, cuts.first);
  uint64_t j = 0;
  sum = 0;
  for_each_piece(range, [&](const uint32_t* record, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; ++i, record += layout_.words) {
      sum += scaled(weight_of(record));
      for (; j < cuts.size && j << cuts.shift < sum; ++j)
        *guide.more(1) = static_cast<uint32_t>(first + i - range.first_edge);
    }
  });
  for (; j < cuts.size; ++j) *guide.more(1) = static_cast<uint32_t>(degree - 1);
  guide.flush();
  return degree * sizeof(uint64_t) + cuts.size * sizeof(uint32_t);
}

void RowStream::sort_runs(const BucketRange& range) {
  for_each_piece(range, [&](const uint32_t* records, int64_t first, int64_t n) {
    order_.resize(n);
    for (int64_t i = 0; i < n; ++i)
      order_[i] = {layout_.time_of(records + i * layout_.words), static_cast<uint32_t>(i)};
    std::sort(order_.data(), order_.end());
    sorted_.clear();
    for (int64_t i = 0; i < n; ++i) sorted_.append(records + int64_t{order_[i].place} * layout_.words, layout_.words);
    write_at(scratch_, first * layout_.bytes(), sorted_.data(), n * layout_.bytes(), "scratch file");
  });
}

int64_t RowStream::write_times(const BucketRange& range) {
  sort_runs(range);
  const int64_t num_runs = (range.num_edges() + plan_.bucket_edges - 1) / plan_.bucket_edges;
  const int64_t ahead = std::max<int64_t>(1, plan_.bucket_edges / (2 * num_runs));
  std::vector<Run> runs;
  const auto later = [&](size_t a, size_t b) {  // edges of one time keep their order, which is that of the runs
    const int64_t time_a = runs[a].time(), time_b = runs[b].time();
    return time_a != time_b ? time_a > time_b : a > b;
  };
  std::priority_queue<size_t, std::vector<size_t>, decltype(later)> front(later);
  for (int64_t r = 0; r < num_runs; ++r) {
    const int64_t begin = range.first_edge + r * plan_.bucket_edges;
    runs.emplace_back(layout_, scratch_, begin, std::min(begin + plan_.bucket_edges, range.end_edge), ahead);
  }
  for (size_t r = 0; r < runs.size(); ++r) front.push(r);

  const int64_t piece = std::max<int64_t>(1, plan_.bucket_edges / 2);
  neighbor_.resize(piece);
  edge_id_.resize(piece);
  time_.resize(piece);
  int64_t at = range.first_edge, n = 0;
  const auto flush = [&] {
    graphs_.write(PartGraphs::kTimedIndices, at, neighbor_.data(), n, neighbor_.width());
    graphs_.write(PartGraphs::kTimedEdgeIds, at, edge_id_.data(), n, edge_id_.width());
    graphs_.write(PartGraphs::kTime, at, time_.data(), n, sizeof(int64_t));
    at += n;
    n = 0;
  };
  while (!front.empty()) {
    const size_t r = front.top();
    front.pop();
    const uint32_t* record = runs[r].front();
    neighbor_.set(n, RecordLayout::neighbor(record));
    edge_id_.set(n, layout_.edge_id(record));
    time_[n] = layout_.time_of(record);
    if (++n == piece) flush();
    if (runs[r].advance()) front.push(r);
  }
  flush();
  return range.num_edges() * (neighbor_.width() + edge_id_.width() + sizeof(int64_t));
}

}  // namespace glt
