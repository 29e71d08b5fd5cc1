// The rows of one bucket, sorted in memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <variant>

#include "core/buckets.h"
#include "core/buffer.h"
#include "core/edge_records.h"
#include "core/part_graphs.h"

namespace glt {

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

class RowBucket {
 public:
  // `indptr` serves as the cursor of each row of a bucket, and is restored by write().
  RowBucket(const RecordLayout& layout, int64_t indices_width, int64_t edge_ids_width, int64_t* indptr,
            PartGraphs& graphs)
      : layout_(layout),
        indptr_(indptr),
        graphs_(graphs),
        neighbor_(indices_width),
        edge_id_(edge_ids_width),
        timed_neighbor_(indices_width),
        timed_edge_id_(edge_ids_width) {}

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

}  // namespace glt
