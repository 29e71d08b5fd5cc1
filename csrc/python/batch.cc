#include "core/batch.h"

#include "python/arrays.h"
#include "python/csr.h"

namespace glt::python {
namespace {

py::array_t<int64_t> copy_of(const int64_t* data, int64_t n) {
  return py::array_t<int64_t>(n, data);
}

int64_t* optional_edges(std::optional<py::array>& edge, bool with_edge, int64_t num_edges) {
  if (!edge) return nullptr;
  require(with_edge, "edge was asked for, but the batch was started without edge ids");
  require_size(*edge, "edge", num_edges);
  return write<int64_t>(*edge, "edge");
}

HopPart hop_part(const py::tuple& part, bool with_edge) {
  const auto position = part[0].cast<py::array>(), count = part[1].cast<py::array>(),
             neighbor = part[2].cast<py::array>();
  HopPart out{};
  out.frontier_position = read<uint32_t>(position, "position");
  out.count = read<uint32_t>(count, "count");
  out.num_rows = position.size();
  require_size(count, "count", out.num_rows);
  out.neighbor = read_ids(neighbor, "neighbor");
  out.num_edges = neighbor.size();
  if (with_edge) {
    const auto edge = part[3].cast<py::array>();
    require_size(edge, "edge", out.num_edges);
    out.edge = read_ids(edge, "edge");
  }
  return out;
}

}  // namespace

void register_batch(py::module_& m) {
  py::class_<Batch>(m, "Batch")
      .def(py::init([](int64_t num_nodes, int64_t dense_limit) {
             require(num_nodes >= 0, "num_nodes = ", num_nodes, ": expected at least 0");
             return std::make_unique<Batch>(num_nodes, dense_limit);
           }),
           py::arg("num_nodes"), py::arg("dense_limit") = int64_t{1} << 28)
      .def(
          "start",
          [](Batch& self, const py::array& seeds, bool with_edge) {
            const int64_t* ids = read<int64_t>(seeds, "seeds");
            const int64_t n = seeds.size();
            py::gil_scoped_release nogil;
            self.start(ids, n, with_edge);
          },
          py::arg("seeds"), py::arg("with_edge") = true)
      .def(
          "sample",
          [](Batch& self, const Csr& csr, const py::array& seeds, const std::vector<int64_t>& num_neighbors,
             bool replace, uint64_t batch_key, bool with_edge, int num_threads) {
            const int64_t* ids = read<int64_t>(seeds, "seeds");
            const int64_t n = seeds.size();
            checked_threads(num_threads);
            py::gil_scoped_release nogil;
            self.start(ids, n, with_edge);
            for (size_t hop = 0; hop < num_neighbors.size(); ++hop)
              self.expand(csr.view(),
                          {num_neighbors[hop], replace, batch_key, static_cast<uint32_t>(hop), 0, with_edge},
                          num_threads);
          },
          "A whole batch: start(seeds), then one hop per element of num_neighbors.", py::arg("csr"), py::arg("seeds"),
          py::arg("num_neighbors"), py::arg("replace"), py::arg("batch_key"), py::arg("with_edge") = true,
          py::arg("num_threads") = 1)
      .def(
          "expand_from",
          [](Batch& self, const std::vector<py::tuple>& parts) {
            std::vector<HopPart> views;
            for (const auto& part : parts) views.push_back(hop_part(part, self.with_edge()));
            py::gil_scoped_release nogil;
            self.expand_from(views);
          },
          "One hop that partitions sampled: tuples (position, count, neighbor, edge) that cover the frontier once.",
          py::arg("parts"))
      .def("frontier",
           [](const Batch& self) {
             return copy_of(self.node().data() + self.frontier_begin(), self.frontier_end() - self.frontier_begin());
           })
      .def("nodes", [](const Batch& self) { return copy_of(self.node().data(), self.node().size()); })
      .def("edges",
           [](const Batch& self) {
             require(self.with_edge(), "edges were asked for, but the batch was started without edge ids");
             return copy_of(self.edge().data(), self.edge().size());
           })
      .def_property_readonly("num_nodes", [](const Batch& self) { return self.node().size(); })
      .def_property_readonly("num_edges", &Batch::num_edges)
      .def_property_readonly("num_sampled_nodes", &Batch::num_sampled_nodes)
      .def_property_readonly("num_sampled_edges", &Batch::num_sampled_edges)
      .def(
          "copy_out",
          [](const Batch& self, py::array node, py::array row, py::array col, std::optional<py::array> edge) {
            const int64_t num_edges = self.num_edges();
            require_size(node, "node", self.node().size());
            require_size(row, "row", num_edges);
            require_size(col, "col", num_edges);
            int64_t* n = write<int64_t>(node, "node");
            int64_t* r = write<int64_t>(row, "row");
            int64_t* c = write<int64_t>(col, "col");
            int64_t* e = optional_edges(edge, self.with_edge(), num_edges);
            py::gil_scoped_release nogil;
            self.copy_out(n, r, c, e);
          },
          py::arg("node"), py::arg("row"), py::arg("col"), py::arg("edge") = py::none());
}

}  // namespace glt::python
