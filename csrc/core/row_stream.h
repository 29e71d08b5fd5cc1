// A row that alone exceeds a bucket: its records pass through memory piece by piece.
#pragma once

#include <cstdint>
#include <functional>

#include "core/edge_sort.h"
#include "core/row_bucket.h"

namespace glt {

class RowStream {
 public:
  RowStream(const RecordLayout& layout, const SortPlan& plan, int64_t indices_width, int64_t edge_ids_width,
            int scratch, PartGraphs& graphs)
      : layout_(layout),
        plan_(plan),
        scratch_(scratch),
        graphs_(graphs),
        neighbor_(indices_width),
        edge_id_(edge_ids_width) {}

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
