// A validated CsrView together with the arrays it points into.
#pragma once

#include <memory>
#include <optional>

#include "python/arrays.h"

namespace glt::python {

class Csr {
 public:
  Csr(py::array indptr, py::array indices, std::optional<py::array> edge_ids, std::optional<py::array> row_of,
      std::optional<int64_t> num_nodes, std::optional<int64_t> num_neighbor_nodes, bool check_indices,
      std::optional<py::array> book, int64_t part);
  const CsrView& view() const { return view_; }

 private:
  py::array indptr_, indices_;
  std::optional<py::array> edge_ids_, row_of_, book_;
  CsrView view_;
};

}  // namespace glt::python
