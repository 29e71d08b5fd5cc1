#include <memory>
#include <utility>
#include <vector>

#include "core/hgt.h"
#include "core/tree_order.h"
#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {
namespace {

std::unique_ptr<OneUser<HgtNodes>> begin_hgt(const std::vector<int64_t>& num_nodes,
                                             const std::vector<std::pair<uint32_t, uint32_t>>& ends,
                                             const std::vector<py::array>& seeds,
                                             const std::vector<std::vector<int64_t>>& num_samples, uint64_t batch_key) {
  std::vector<std::pair<const int64_t*, int64_t>> of_type;
  for (const py::array& each : seeds) of_type.emplace_back(read<int64_t>(each, "seeds"), each.size());
  return std::make_unique<OneUser<HgtNodes>>(HgtSpec{batch_key, num_samples}, num_nodes, ends, of_type);
}

void take(HgtNodes& nodes, uint32_t edge_type, const py::array& count, const py::array& neighbor) {
  const uint32_t* counts = read<uint32_t>(count, "count");
  const int64_t* neighbors = read<int64_t>(neighbor, "neighbor");
  const int64_t n = count.size(), num_edges = neighbor.size();
  WithoutGil nogil;
  nodes.take(edge_type, counts, n, neighbors, num_edges);
}

void draw(HgtNodes& nodes) {
  WithoutGil nogil;
  nodes.draw();
}

py::array_t<int64_t> array_of(const std::vector<int64_t>& values) {
  return copied_array(values.data(), static_cast<int64_t>(values.size()));
}

py::array_t<int64_t> newest(HgtNodes& nodes, uint32_t node_type) {
  return array_of(nodes.newest(node_type));
}

py::array_t<int64_t> drawn(HgtNodes& nodes, uint32_t node_type) {
  return array_of(nodes.drawn(node_type));
}

}  // namespace

void register_node_sets(py::module_& m) {
  constexpr OneUserMethods<HgtNodes> method{"HgtNodes"};
  py::class_<OneUser<HgtNodes>>(m, "HgtNodes", "The nodes of a batch by HGT's budgets, under way; see csrc/core/hgt.h.")
      .def(py::init(&begin_hgt), py::arg("num_nodes"), py::arg("ends"), py::arg("seeds"), py::arg("num_samples"),
           py::arg("batch_key"))
      .def_property_readonly("is_done", &HgtNodes::is_done)
      .def_property_readonly("iteration", &HgtNodes::iteration)
      .def("newest", method(&newest), py::arg("node_type"))
      .def("take", method(&take), py::arg("edge_type"), py::arg("count"), py::arg("neighbor"))
      .def("draw", method(&draw))
      .def("drawn", method(&drawn), py::arg("node_type"));

  m.def(
      "order_by_tree",
      [](const py::array& node, const py::array& tree, int64_t num_trees, py::array order, py::array ptr) {
        const int64_t n = node.size();
        require_size(tree, "tree", n);
        require_size(order, "order", n);
        require_size(ptr, "ptr", num_trees + 1);
        const int64_t *nodes = read<int64_t>(node, "node"), *trees = read<int64_t>(tree, "tree");
        int64_t *out = write<int64_t>(order, "order"), *begin = write<int64_t>(ptr, "ptr");
        WithoutGil nogil;
        order_by_tree(nodes, trees, n, num_trees, out, begin);
      },
      "Sorts the nodes of a disjoint batch by tree and id; see csrc/core/tree_order.h.", py::arg("node"),
      py::arg("tree"), py::arg("num_trees"), py::arg("order"), py::arg("ptr"));
  m.def(
      "reorder_edges",
      [](const py::array& row, const py::array& col, const py::array& order, py::array row_out, py::array col_out,
         py::array edge_order) {
        const int64_t num_edges = row.size(), n = order.size();
        for (const auto& [array, name] : {std::pair(&col, "col"), {&row_out, "row_out"}, {&col_out, "col_out"}})
          require_size(*array, name, num_edges);
        require_size(edge_order, "edge_order", num_edges);
        const int64_t *rows = read<int64_t>(row, "row"), *cols = read<int64_t>(col, "col");
        const int64_t* nodes = read<int64_t>(order, "order");
        int64_t *new_row = write<int64_t>(row_out, "row_out"), *new_col = write<int64_t>(col_out, "col_out");
        int64_t* edges = write<int64_t>(edge_order, "edge_order");
        WithoutGil nogil;
        reorder_edges(rows, cols, num_edges, nodes, n, new_row, new_col, edges);
      },
      "Ends of edges between nodes that are in such an order now, sorted; see csrc/core/tree_order.h.", py::arg("row"),
      py::arg("col"), py::arg("order"), py::arg("row_out"), py::arg("col_out"), py::arg("edge_order"));
}

}  // namespace glt::python
