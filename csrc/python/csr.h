// Csr and Book of Python: views of the core, together with the arrays they point into.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "core/csr.h"
#include "python/arrays.h"

namespace glt::python {

// A Book together with the array it points into.
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

// A validated CsrView together with the arrays it points into.
class Csr {
 public:
  Csr(py::array indptr, py::array indices, std::optional<py::array> edge_ids, std::optional<py::array> row_of,
      std::optional<int64_t> num_nodes, std::optional<int64_t> num_neighbor_nodes, bool check_indices,
      std::shared_ptr<const PartitionBook> book, int64_t part, std::optional<py::array> weight_sum,
      std::optional<py::array> weight_guide, std::optional<py::array> time);
  const CsrView& view() const { return view_; }

 private:
  py::array indptr_, indices_;
  std::optional<py::array> edge_ids_, row_of_, weight_sum_, weight_guide_, time_;
  std::shared_ptr<const PartitionBook> book_;
  CsrView view_;
};

}  // namespace glt::python
