// A validated CsrView together with the arrays it points into.
#pragma once

#include <memory>
#include <optional>

#include "python/arrays.h"
#include "python/book.h"

namespace glt::python {

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
