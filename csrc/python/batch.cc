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

int threads(int num_threads) {
  require(num_threads >= 1 && num_threads <= 1024, "num_threads = ", num_threads, ": expected 1 to 1024");
  return num_threads;
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

// The rows of one request, for one requester: what a partition answers.
class OneHop {
 public:
  OneHop(const Csr& csr, const py::array& nodes, const HopSpec& spec, int num_threads, const std::string& name)
      : with_edge_(spec.with_edge) {
    const int64_t* ids = read<int64_t>(nodes, name.c_str());
    const int64_t n = nodes.size();
    py::gil_scoped_release nogil;
    ChunkSlots slots;
    sample_in_order(csr.view(), ids, n, spec, num_threads, slots, name.c_str(),
                    [&](const RowSamples& rows, int64_t, int64_t num_rows) {
                      count_.append(rows.count.data(), num_rows);
                      neighbor_.append(rows.neighbor.data(), rows.neighbor.size());
                      edge_.append(rows.edge.data(), rows.edge.size());
                    });
  }
  int64_t num_edges() const { return neighbor_.size(); }

  void copy_out(py::array count, py::array neighbor, std::optional<py::array> edge) const {
    require_size(count, "count", count_.size());
    require_size(neighbor, "neighbor", neighbor_.size());
    std::copy_n(count_.data(), count_.size(), write<uint32_t>(count, "count"));
    copy_ids(neighbor_, neighbor, "neighbor");
    if (!edge) return;
    require(with_edge_, "edge was asked for, but the hop was sampled without edge ids");
    require_size(*edge, "edge", edge_.size());
    copy_ids(edge_, *edge, "edge");
  }

 private:
  static void copy_ids(const Buffer<int64_t>& from, py::array& to, const char* name) {
    if (py::isinstance<py::array_t<int32_t>>(to)) {
      int32_t* out = write<int32_t>(to, name);
      for (int64_t i = 0; i < from.size(); ++i) out[i] = static_cast<int32_t>(from[i]);
    } else {
      std::copy_n(from.data(), from.size(), write<int64_t>(to, name));
    }
  }

  bool with_edge_;
  Buffer<uint32_t> count_;
  Buffer<int64_t> neighbor_, edge_;
};

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
            threads(num_threads);
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

  py::class_<OneHop>(m, "OneHop")
      .def(py::init([](const Csr& csr, const py::array& nodes, int64_t num_neighbors, bool replace, uint64_t batch_key,
                       uint32_t hop, bool with_edge, int num_threads, const std::string& name) {
             return std::make_unique<OneHop>(csr, nodes, HopSpec{num_neighbors, replace, batch_key, hop, 0, with_edge},
                                             threads(num_threads), name);
           }),
           py::arg("csr"), py::arg("nodes"), py::arg("num_neighbors"), py::arg("replace"), py::arg("batch_key"),
           py::arg("hop"), py::arg("with_edge") = true, py::arg("num_threads") = 1, py::arg("name") = "nodes")
      .def_property_readonly("num_edges", &OneHop::num_edges)
      .def("copy_out", &OneHop::copy_out, py::arg("count"), py::arg("neighbor"), py::arg("edge") = py::none());
}

}  // namespace glt::python
