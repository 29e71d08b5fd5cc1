#include "python/csr.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/csr.h"
#include "core/rows.h"
#include "core/weights.h"
#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {
namespace {

// Null pointers of the right variant for arrays that were not given.
const uint32_t* optional_rows(const std::optional<py::array>& row_of, int64_t num_nodes) {
  if (!row_of) return nullptr;
  require_size(*row_of, "row_of", num_nodes);
  return read<uint32_t>(*row_of, "row_of");
}

// The number of rows of an indptr that is fit to be followed.
int64_t checked_rows(const py::array& indptr, int64_t num_edges) {
  CsrView rows;
  rows.indptr = read<int64_t>(indptr, "indptr");
  require(indptr.size() >= 1, "indptr is empty: expected num_rows + 1 elements");
  rows.num_rows = indptr.size() - 1;
  rows.num_edges = num_edges;
  validate(rows, /*check_indices=*/false);
  return rows.num_rows;
}

Weights read_weights(const py::array& a, const char* name) {
  if (py::isinstance<py::array_t<float>>(a)) return read<float>(a, name);
  if (py::isinstance<py::array_t<double>>(a)) return read<double>(a, name);
  throw py::type_error(text(name, ": expected a 1-d array of float32 or float64, got ", describe(a)));
}

void require_fits(const py::array& out, const char* name, int64_t largest) {
  require(out.itemsize() == 8 || largest <= INT32_MAX, name, " is int32, but holds ids up to ", largest,
          ": pass an int64 array");
}

}  // namespace

PartitionBook::PartitionBook(py::array owner, int64_t num_parts)
    : array_(std::move(owner)), view_{static_cast<const uint8_t*>(nullptr), array_.size(), num_parts} {
  require(num_parts >= 1, "num_parts = ", num_parts, ": expected at least 1");
  std::visit([&](auto* owners) { view_.owner = owners; }, owner_array(array_, num_parts, "owner").owner);
}

PartitionBook::PartitionBook(py::array offset) : array_(std::move(offset)) {
  const int64_t* at = read<int64_t>(array_, "offset");
  const int64_t num_parts = array_.size() - 1;
  require(num_parts >= 1, "offset has ", array_.size(), " elements: expected one more than partitions, at least 2");
  require(at[0] == 0, "offset[0] = ", at[0], ": expected 0");
  for (int64_t p = 0; p < num_parts; ++p)
    require(at[p] <= at[p + 1], "offset[", p + 1, "] = ", at[p + 1], " is below offset[", p, "] = ", at[p],
            ": expected ranges of ids, one behind the other");
  view_ = {Ranges{at, num_parts}, at[num_parts], num_parts};
}

std::pair<int64_t, int64_t> PartitionBook::range(int64_t part) const {
  const auto* ranges = std::get_if<Ranges>(&view_.owner);
  require(ranges, "the book has no ranges: it lists the owner of each id");
  require(part >= 0 && part < view_.num_parts, "part = ", part, ": expected 0 to ", view_.num_parts - 1);
  return {ranges->offset[part], ranges->offset[part + 1] - ranges->offset[part]};
}

Csr::Csr(py::array indptr, py::array indices, std::optional<py::array> edge_ids, std::optional<py::array> row_of,
         std::optional<int64_t> num_nodes, std::optional<int64_t> num_neighbor_nodes, bool check_indices,
         std::shared_ptr<const PartitionBook> book, int64_t part, std::optional<py::array> weight_sum,
         std::optional<py::array> weight_guide, std::optional<py::array> time, int64_t first_edge_id)
    : indptr_(std::move(indptr)),
      indices_(std::move(indices)),
      edge_ids_(std::move(edge_ids)),
      row_of_(std::move(row_of)),
      weight_sum_(std::move(weight_sum)),
      weight_guide_(std::move(weight_guide)),
      time_(std::move(time)),
      book_(std::move(book)),
      ascending_(std::max<int64_t>(indptr_.size() - 1, 0)) {
  view_.ascending = &ascending_;
  view_.indptr = read<int64_t>(indptr_, "indptr");
  require(indptr_.size() >= 1, "indptr is empty: expected num_rows + 1 elements");
  view_.indices = read_ids(indices_, "indices");
  view_.num_rows = indptr_.size() - 1;
  view_.num_nodes = num_nodes.value_or(view_.num_rows);
  view_.num_neighbor_nodes = num_neighbor_nodes.value_or(view_.num_nodes);
  view_.num_edges = indices_.size();
  if (edge_ids_) {
    require_size(*edge_ids_, "edge_ids", view_.num_edges);
    view_.edge_ids = read_ids(*edge_ids_, "edge_ids");
    view_.has_edge_ids = true;
  }
  require(first_edge_id >= 0 && first_edge_id <= INT64_MAX - view_.num_edges, "first_edge_id = ", first_edge_id,
          ": expected at least 0, and ids below 2^63");
  view_.first_edge_id = first_edge_id;
  if (book_) {
    require(book_->view().num_ids == view_.num_nodes, "book has ", book_->view().num_ids, " ids: expected ",
            view_.num_nodes);
    require(part >= 0 && part < book_->view().num_parts, "part = ", part, ": expected 0 to ",
            book_->view().num_parts - 1);
    view_.book = book_->view();
    view_.part = part;
  }
  view_.row_of = optional_rows(row_of_, view_.num_nodes);
  if (book_ && book_->has_ranges()) {
    const auto [first, count] = book_->range(part);
    require(!row_of_, "row_of: expected none beside a book of ranges, which says what the rows are");
    require(count == view_.num_rows, "partition ", part, " owns ", count, " nodes but indptr has ", view_.num_rows,
            " rows: expected one for each");
    view_.first_node = first;
  } else {
    require(row_of_ || view_.num_nodes == view_.num_rows, "num_nodes = ", view_.num_nodes, " but indptr has ",
            view_.num_rows, " rows: pass row_of to map nodes to rows");
  }
  require(weight_sum_.has_value() == weight_guide_.has_value(),
          "weight_sum and weight_guide belong together: pass both, as build_weights made them, or neither");
  if (weight_sum_) {
    require_size(*weight_sum_, "weight_sum", view_.num_edges);
    require_size(*weight_guide_, "weight_guide", weight_guide_size(view_.num_rows, view_.num_edges));
    view_.weight_sum = read<uint64_t>(*weight_sum_, "weight_sum");
    view_.weight_guide = read<uint32_t>(*weight_guide_, "weight_guide");
  }
  if (time_) {
    require_size(*time_, "time", view_.num_edges);
    view_.time = read<int64_t>(*time_, "time");
  }
  WithoutGil nogil;
  validate(view_, check_indices);
}

namespace {

void register_book(py::module_& m) {
  py::class_<PartitionBook, std::shared_ptr<PartitionBook>>(m, "Book")
      .def(py::init<py::array, int64_t>(), py::arg("owner"), py::arg("num_parts"))
      .def_static(
          "of_ranges", [](py::array offset) { return std::make_shared<PartitionBook>(std::move(offset)); },
          py::arg("offset"))
      .def_property_readonly("num_ids", [](const PartitionBook& b) { return b.view().num_ids; })
      .def_property_readonly("num_parts", [](const PartitionBook& b) { return b.view().num_parts; });

  m.def(
      "group_by_owner",
      [](const PartitionBook& book, const py::array& ids) {
        const int64_t* p = read<int64_t>(ids, "ids");
        const int64_t n = ids.size();
        py::array_t<int64_t> grouped(n), begin(book.view().num_parts + 1);
        py::array_t<uint32_t> position(n);
        int64_t *g = grouped.mutable_data(), *b = begin.mutable_data();
        uint32_t* pos = position.mutable_data();
        {
          WithoutGil nogil;
          group_by_owner(book.view(), p, n, g, pos, b);
        }
        return py::make_tuple(grouped, position, begin);
      },
      "Returns (ids grouped by owner, where each stood, [num_parts + 1] bounds of the groups).", py::arg("book"),
      py::arg("ids"));

  m.def(
      "find_owners",
      [](const PartitionBook& book, const py::array& ids) {
        const int64_t* p = read<int64_t>(ids, "ids");
        const int64_t n = ids.size();
        py::array_t<int64_t> owners(n);
        int64_t* out = owners.mutable_data();
        {
          WithoutGil nogil;
          find_owners(book.view(), p, n, out);
        }
        return owners;
      },
      "The partition that owns each id.", py::arg("book"), py::arg("ids"));

  m.def(
      "require_owned",
      [](const PartitionBook& book, const py::array& ids, int64_t part) {
        const int64_t* p = read<int64_t>(ids, "ids");
        const int64_t n = ids.size();
        require(part >= 0 && part < book.view().num_parts, "part = ", part, ": expected 0 to ",
                book.view().num_parts - 1);
        WithoutGil nogil;
        require_owned(book.view(), p, n, part);
      },
      py::arg("book"), py::arg("ids"), py::arg("part"));
}

}  // namespace

void register_csr(py::module_& m) {
  register_book(m);
  py::class_<Csr, std::shared_ptr<Csr>>(m, "Csr")
      .def(py::init<py::array, py::array, std::optional<py::array>, std::optional<py::array>, std::optional<int64_t>,
                    std::optional<int64_t>, bool, std::shared_ptr<PartitionBook>, int64_t, std::optional<py::array>,
                    std::optional<py::array>, std::optional<py::array>, int64_t>(),
           py::arg("indptr"), py::arg("indices"), py::arg("edge_ids") = py::none(), py::arg("row_of") = py::none(),
           py::arg("num_nodes") = py::none(), py::arg("num_neighbor_nodes") = py::none(),
           py::arg("check_indices") = true, py::arg("book") = py::none(), py::arg("part") = 0,
           py::arg("weight_sum") = py::none(), py::arg("weight_guide") = py::none(), py::arg("time") = py::none(),
           py::arg("first_edge_id") = 0)
      .def_property_readonly("num_rows", [](const Csr& c) { return c.view().num_rows; })
      .def_property_readonly("num_nodes", [](const Csr& c) { return c.view().num_nodes; })
      .def_property_readonly("num_edges", [](const Csr& c) { return c.view().num_edges; });

  m.def(
      "build_csr",
      [](py::array rows, py::array cols, int64_t num_nodes, int64_t num_neighbor_nodes, py::array indptr,
         py::array indices, std::optional<py::array> edge_ids, std::optional<py::array> edge_ids_in,
         std::optional<py::array> row_of, int64_t largest_edge_id, const std::string& row_name,
         const std::string& col_name) {
        const int64_t num_edges = rows.size();
        require(indptr.size() >= 1, "indptr is empty: expected num_rows + 1 elements");
        const int64_t num_rows = indptr.size() - 1;
        require_size(cols, col_name.c_str(), num_edges);
        require_size(indices, "indices", num_edges);
        require_fits(indices, "indices", num_neighbor_nodes - 1);
        const uint32_t* row_map = optional_rows(row_of, num_nodes);
        require(row_map || num_rows == num_nodes, "indptr has ", num_rows, " rows: expected num_nodes = ", num_nodes);
        CsrOut out{write<int64_t>(indptr, "indptr"), write_ids(indices, "indices"), static_cast<int64_t*>(nullptr)};
        Ids ids_in = static_cast<const int64_t*>(nullptr);
        if (edge_ids) {
          require_size(*edge_ids, "edge_ids", num_edges);
          require_fits(*edge_ids, "edge_ids", edge_ids_in ? largest_edge_id : num_edges - 1);
          out.edge_ids = write_ids(*edge_ids, "edge_ids");
        }
        if (edge_ids_in) {
          require_size(*edge_ids_in, "edge_ids_in", num_edges);
          ids_in = read_ids(*edge_ids_in, "edge_ids_in");
        }
        const CsrInput edges{.rows = read_ids(rows, row_name.c_str()),
                             .cols = read_ids(cols, col_name.c_str()),
                             .edge_ids = ids_in,
                             .row_of = row_map,
                             .num_edges = num_edges,
                             .num_rows = num_rows,
                             .num_nodes = num_nodes,
                             .num_neighbor_nodes = num_neighbor_nodes,
                             .row_name = row_name.c_str(),
                             .col_name = col_name.c_str()};
        WithoutGil nogil;
        return build_csr(edges, out);
      },
      "Sorts edges into rows by counting; the edges of a row keep their input order. Fills indptr [num_rows + 1] "
      "int64, indices [num_edges] and, when given, edge_ids [num_edges] (from edge_ids_in, else positions in "
      "rows and cols). Returns whether the id of each edge is its position in indices.",
      py::arg("rows"), py::arg("cols"), py::arg("num_nodes"), py::arg("num_neighbor_nodes"), py::arg("indptr"),
      py::arg("indices"), py::arg("edge_ids") = py::none(), py::arg("edge_ids_in") = py::none(),
      py::arg("row_of") = py::none(), py::arg("largest_edge_id") = INT64_MAX, py::arg("row_name") = "rows",
      py::arg("col_name") = "cols");

  m.def(
      "sort_rows_by_time",
      [](const py::array& indptr, const py::array& time, py::array order) {
        const int64_t num_rows = checked_rows(indptr, time.size());
        require_size(order, "order", time.size());
        const int64_t* offsets = read<int64_t>(indptr, "indptr");
        const int64_t* t = read<int64_t>(time, "time");
        int64_t* out = write<int64_t>(order, "order");
        WithoutGil nogil;
        sort_rows_by_time(offsets, num_rows, t, out);
      },
      "Fills order [num_edges] int64 with the positions of each row's edges, earliest first; stable.",
      py::arg("indptr"), py::arg("time"), py::arg("order"));

  m.def("weight_guide_size", &weight_guide_size, "Elements of weight_guide.", py::arg("num_rows"),
        py::arg("num_edges"));
  m.def(
      "build_weights",
      [](const py::array& indptr, const py::array& weight, py::array weight_sum, py::array weight_guide,
         const std::string& name) {
        const int64_t num_edges = weight.size(), num_rows = checked_rows(indptr, num_edges);
        require_size(weight_sum, "weight_sum", num_edges);
        require_size(weight_guide, "weight_guide", weight_guide_size(num_rows, num_edges));
        const int64_t* offsets = read<int64_t>(indptr, "indptr");
        const Weights w = read_weights(weight, name.c_str());
        uint64_t* sum = write<uint64_t>(weight_sum, "weight_sum");
        uint32_t* guide = write<uint32_t>(weight_guide, "weight_guide");
        WithoutGil nogil;
        build_weights(offsets, num_rows, w, sum, guide, name.c_str());
      },
      "Fills weight_sum [num_edges] uint64 and weight_guide [weight_guide_size] uint32 from weights in row order.",
      py::arg("indptr"), py::arg("weight"), py::arg("weight_sum"), py::arg("weight_guide"), py::arg("name") = "weight");

  m.def(
      "has_edges",
      [](const Csr& csr, const py::array& centers, const py::array& neighbors, py::array out) {
        const int64_t n = centers.size();
        require_size(neighbors, "neighbors", n);
        require_size(out, "out", n);
        const int64_t* center = read<int64_t>(centers, "centers");
        const int64_t* neighbor = read<int64_t>(neighbors, "neighbors");
        uint8_t* found = write<uint8_t>(out, "out");
        WithoutGil nogil;
        has_edges(csr.view(), center, neighbor, n, found, "centers");
      },
      "out[i] = 1 if centers[i] has an edge with neighbors[i], else 0.", py::arg("csr"), py::arg("centers"),
      py::arg("neighbors"), py::arg("out"));
}

}  // namespace glt::python
