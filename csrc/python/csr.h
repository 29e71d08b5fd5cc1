// Csr and Book of Python: views of the core, together with the arrays they point into.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "core/csr.h"
#include "core/induce.h"
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
      std::optional<py::array> weight_guide, std::optional<py::array> time, int64_t first_edge_id);
  Csr(const Csr&) = delete;  // the view points into it
  const CsrView& view() const { return view_; }

 private:
  py::array indptr_, indices_;
  std::optional<py::array> edge_ids_, row_of_, weight_sum_, weight_guide_, time_;
  std::shared_ptr<const PartitionBook> book_;
  AscendingRows ascending_;
  CsrView view_;
};

// Of an edge type: nothing, all its rows, or those of its partitions.
using CsrArg = std::variant<std::shared_ptr<Csr>, std::vector<std::shared_ptr<Csr>>>;

inline PartedCsr graph_of(const std::shared_ptr<Csr>& csr) {
  return csr ? PartedCsr(csr->view()) : PartedCsr();
}

inline PartedCsr graph_of(const std::vector<std::shared_ptr<Csr>>& parts) {
  std::vector<CsrView> views;
  for (const auto& csr : parts) {
    require(csr != nullptr, "csrs: None is no partition of a graph: expected a Csr of each");
    views.push_back(csr->view());
  }
  return PartedCsr(std::move(views));
}

inline std::vector<PartedCsr> graphs_of(const std::vector<CsrArg>& csrs) {
  std::vector<PartedCsr> graphs;
  for (const CsrArg& csr : csrs) graphs.push_back(std::visit([](const auto& given) { return graph_of(given); }, csr));
  return graphs;
}

}  // namespace glt::python
