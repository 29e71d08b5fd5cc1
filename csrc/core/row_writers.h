// Rows of the external sort on their way to the files of partitions: bucket by bucket, or streamed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "core/edge_sort.h"
#include "core/memory.h"

namespace glt {

// Rows of one bucket.
struct BucketRange {
  int64_t first_row, end_row;
  int64_t first_edge, end_edge;

  int64_t num_edges() const { return end_edge - first_edge; }
};

// Elements of one array, gathered until a write is worth it.
template <typename T>
class PartStream {
 public:
  // `at`: where the first element goes in the array of `part`.
  PartStream(PartGraphs& graphs, PartGraphs::Array array, size_t part, int64_t at)
      : graphs_(graphs), array_(array), part_(part), at_(at) {}

  // Room for n more elements, to be filled by the caller before the next call.
  T* more(int64_t n) {
    if (size_ + n > kElements) flush();
    if (size_ + n > static_cast<int64_t>(items_.size())) items_.resize(std::max(n, kElements));
    size_ += n;
    return items_.data() + size_ - n;
  }
  void flush() {
    graphs_.write_in(array_, part_, at_, items_.data(), size_, sizeof(T));
    at_ += size_;
    size_ = 0;
  }

 private:
  static constexpr int64_t kElements = int64_t{1} << 16;
  PartGraphs& graphs_;
  PartGraphs::Array array_;
  size_t part_;
  int64_t at_, size_ = 0;
  Buffer<T> items_;
};

// An edge of a row while the row is sorted by time.
struct TimedPlace {
  int64_t time;
  uint32_t place;  // in the row

  bool operator<(const TimedPlace& other) const { return time != other.time ? time < other.time : place < other.place; }
};

// Ids in the width in which a file stores them.
class IdColumn {
 public:
  explicit IdColumn(int64_t width) : width_(width) {}

  void resize(int64_t n) { bytes_.resize(n * width_); }
  void set(int64_t i, int64_t id) {
    if (width_ == 4)
      reinterpret_cast<int32_t*>(bytes_.data())[i] = static_cast<int32_t>(id);
    else
      reinterpret_cast<int64_t*>(bytes_.data())[i] = id;
  }
  // this[i] = other[j]
  void copy(int64_t i, const IdColumn& other, int64_t j) {
    std::memcpy(bytes_.data() + i * width_, other.bytes_.data() + j * width_, width_);
  }
  const void* data() const { return bytes_.data(); }
  int64_t width() const { return width_; }

 private:
  int64_t width_;
  Buffer<std::byte> bytes_;
};

// The rows of one bucket, sorted in memory.
class RowBucket {
 public:
  // `indptr` serves as the cursor of each row of a bucket, and is restored by write().
  RowBucket(const RecordLayout& layout, const SortPlan& plan, int64_t* indptr, PartGraphs& graphs)
      : layout_(layout),
        indptr_(indptr),
        graphs_(graphs),
        neighbor_(plan.indices_width),
        edge_id_(plan.edge_ids_width),
        timed_neighbor_(plan.indices_width),
        timed_edge_id_(plan.edge_ids_width) {}

  void begin(const BucketRange& range);
  void place(const uint32_t* record) {
    const int64_t at = indptr_[RecordLayout::position(record)]++ - range_.first_edge;
    neighbor_.set(at, RecordLayout::neighbor(record));
    edge_id_.set(at, layout_.edge_id(record));
    if (layout_.weight)
      std::memcpy(weight_.data() + at * layout_.weight_bytes, record + layout_.weight, layout_.weight_bytes);
    if (layout_.time) time_[at] = layout_.time_of(record);
  }
  // Places the records of the bucket from the scratch file, which has them in the order of the input.
  void place_all(int scratch);
  // Writes the bucket, whose edges have all been placed, and returns the bytes written.
  int64_t write();

 private:
  int64_t end_of(int64_t row) const { return row + 1 < range_.end_row ? indptr_[row + 1] : range_.end_edge; }
  int64_t write_weights();
  int64_t write_times();

  const RecordLayout& layout_;
  int64_t* indptr_;
  PartGraphs& graphs_;
  BucketRange range_{};
  Buffer<uint32_t> records_;
  IdColumn neighbor_, edge_id_, timed_neighbor_, timed_edge_id_;
  Buffer<std::byte> weight_;
  Buffer<uint64_t> weight_sum_;
  Buffer<int64_t> time_, sorted_time_;
  Buffer<TimedPlace> order_;
};

// A row that alone exceeds a bucket: its records pass through memory piece by piece.
class RowStream {
 public:
  RowStream(const RecordLayout& layout, const SortPlan& plan, int scratch, PartGraphs& graphs)
      : layout_(layout),
        plan_(plan),
        scratch_(scratch),
        graphs_(graphs),
        neighbor_(plan.indices_width),
        edge_id_(plan.edge_ids_width) {}

  // Writes the one row of `range`, whose records are in the scratch file (which it may reorder); returns the bytes
  // written.
  int64_t write(const BucketRange& range);

 private:
  using Visit = std::function<void(const uint32_t* records, int64_t first, int64_t n)>;
  void for_each_piece(const BucketRange& range, const Visit& visit);
  int64_t write_ids(const BucketRange& range);
  int64_t write_weights(const BucketRange& range);
  int64_t write_times(const BucketRange& range);
  void sort_runs(const BucketRange& range);
  double weight_of(const uint32_t* record) const;

  const RecordLayout& layout_;
  SortPlan plan_;
  int scratch_;
  PartGraphs& graphs_;
  Buffer<uint32_t> records_, sorted_;
  Buffer<TimedPlace> order_;
  IdColumn neighbor_, edge_id_;
  Buffer<uint64_t> sum_;
  Buffer<int64_t> time_;
};

}  // namespace glt
