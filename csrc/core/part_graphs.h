// The graph files of all partitions: what belongs to a range of edges goes to the partitions that own them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/row_scatter.h"

namespace glt {

class PartGraphs {
 public:
  // Arrays with one element per edge; the guide of weights has its own count, see weights.h.
  enum Array { kIndices, kEdgeIds, kWeightSum, kWeightGuide, kTimedIndices, kTimedEdgeIds, kTime, kNumArrays };
  using Files = std::array<std::vector<RowFile>, kNumArrays>;  // by partition; none of an array that is not wanted

  // Rows of all partitions follow one another: those of part p are [first_row[p], first_row[p + 1]).
  PartGraphs(Files files, std::vector<int64_t> first_row, const int64_t* indptr)
      : files_(std::move(files)), first_row_(std::move(first_row)) {
    for (const int64_t row : first_row_) first_edge_.push_back(indptr[row]);
  }

  // Writes elements of `width` bytes for the edges [begin, begin + n), counted over all partitions.
  void write(Array array, int64_t begin, const void* data, int64_t n, int64_t width) {
    const char* p = static_cast<const char*>(data);
    for_each_part(first_edge_, begin, begin + n, [&](size_t part, int64_t from, int64_t to) {
      write_in(array, part, from - first_edge_[part], p + (from - begin) * width, to - from, width);
    });
  }

  void write_in(Array array, size_t part, int64_t at, const void* data, int64_t n, int64_t width) {
    const RowFile& out = files_[array][part];
    out.file->write(out.header_bytes + at * width, data, n * width);
  }

  // Calls visit(part, from, to) for the rows [begin, end) of each partition.
  template <typename Visit>
  void for_each_part_of_rows(int64_t begin, int64_t end, const Visit& visit) const {
    for_each_part(first_row_, begin, end, visit);
  }

  int64_t first_row(size_t part) const { return first_row_[part]; }
  int64_t first_edge(size_t part) const { return first_edge_[part]; }

 private:
  template <typename Visit>
  static void for_each_part(const std::vector<int64_t>& first, int64_t begin, int64_t end, const Visit& visit) {
    // The last partition that starts at or before `begin`; empty ones before it share its start.
    size_t part = std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1;
    for (; begin < end; ++part) {
      const int64_t to = std::min(end, first[part + 1]);
      if (begin < to) visit(part, begin, to);
      begin = std::max(begin, to);
    }
  }

  Files files_;
  std::vector<int64_t> first_row_, first_edge_;  // [num_parts + 1]
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

}  // namespace glt
