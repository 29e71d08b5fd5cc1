// A Book together with the array it points into.
#pragma once

#include "core/owner.h"
#include "python/arrays.h"

namespace glt::python {

class PartitionBook {
 public:
  // The owner of each id, uint8, uint16 or uint32.
  PartitionBook(py::array owner, int64_t num_parts);
  // Contiguous ids: where the range of each partition begins, and the number of ids.
  explicit PartitionBook(py::array offset);

  const Book& view() const { return view_; }
  bool has_ranges() const { return std::holds_alternative<Ranges>(view_.owner); }
  // The first id of a partition, and its number of ids; throws std::invalid_argument where it has no range.
  std::pair<int64_t, int64_t> range(int64_t part) const;

 private:
  py::array array_;
  Book view_;
};

}  // namespace glt::python
