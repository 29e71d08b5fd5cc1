#include "core/chunks.h"
#include "python/csr.h"
#include "python/rows_answer.h"
#include "python/without_gil.h"

namespace glt::python {
namespace {

// The rows of one request, for one requester: what a partition answers.
class OneHop : public RowsAnswer {
 public:
  OneHop(const Csr& csr, const Rows& asked, const HopSpec& spec, int num_threads, const std::string& name)
      : RowsAnswer(spec.with_edge) {
    WithoutGil nogil;
    Chunks chunks;
    sample_in_order(PartedCsr(csr.view()), asked, spec, num_threads, chunks, name.c_str(),
                    [&](const RowSamples& rows, int64_t, int64_t) { append(rows); });
  }
};

}  // namespace

void register_one_hop(py::module_& m) {
  py::class_<OneHop>(m, "OneHop")
      .def(py::init([](const Csr& csr, const py::array& nodes, int64_t num_neighbors, bool replace, uint64_t batch_key,
                       uint32_t hop, uint32_t edge_type, bool with_edge, int num_threads, const std::string& name,
                       const std::optional<py::array>& tree, const std::optional<py::array>& seed_time, bool last,
                       const Exclusions* exclusions) {
             Rows rows{read<int64_t>(nodes, name.c_str()), nodes.size()};
             if (tree) {
               require_size(*tree, "tree", rows.n);
               rows.tree = read<uint32_t>(*tree, "tree");
             }
             if (seed_time) {
               require_size(*seed_time, "seed_time", rows.n);
               rows.seed_time = read<int64_t>(*seed_time, "seed_time");
             }
             const bool draws = replace && num_neighbors >= 0;  // -1 takes all edges, each once
             const HopSpec spec{num_neighbors, draws, batch_key, hop, edge_type, with_edge, last, exclusions};
             return std::make_unique<OneHop>(csr, rows, spec, checked_threads(num_threads), name);
           }),
           py::arg("csr"), py::arg("nodes"), py::arg("num_neighbors"), py::arg("replace"), py::arg("batch_key"),
           py::arg("hop"), py::arg("edge_type") = 0, py::arg("with_edge") = true, py::arg("num_threads") = 1,
           py::arg("name") = "nodes", py::arg("tree") = py::none(), py::arg("seed_time") = py::none(),
           py::arg("last") = false, py::arg("exclusions") = nullptr)
      .def_property_readonly("num_edges", &OneHop::num_edges)
      .def("copy_out", &OneHop::copy_out, py::arg("count"), py::arg("neighbor"), py::arg("edge") = py::none());
}

}  // namespace glt::python
