#include "core/induce.h"
#include "python/csr.h"
#include "python/rows_answer.h"
#include "python/without_gil.h"

namespace glt::python {
namespace {

// The edges that lead from members to the nodes of one request.
class InducedRows : public RowsAnswer {
 public:
  InducedRows(const Csr& csr, const py::array& nodes, const py::array& members, bool with_edge, int num_threads)
      : RowsAnswer(with_edge) {
    const Rows rows{read<int64_t>(nodes, "nodes"), nodes.size()};
    const int64_t* member = read<int64_t>(members, "members");
    const int64_t num_members = members.size(), num_ids = csr.view().num_neighbor_nodes;
    checked_threads(num_threads);
    WithoutGil nogil;
    HashTable table;
    table.begin(num_members);
    for (int64_t i = 0; i < num_members; ++i) {
      require_index(static_cast<uint64_t>(member[i]) < static_cast<uint64_t>(num_ids), "members[", i, "] = ", member[i],
                    " is outside [0, ", num_ids, ")");
      table.find_or_add(member[i], static_cast<uint32_t>(i));
    }
    Chunks chunks;
    const auto find = [&](const auto* ids, int64_t n, uint32_t* local) {
      for (int64_t i = 0; i < n; ++i) table.prefetch(ids[i]);
      for (int64_t i = 0; i < n; ++i) local[i] = find_in(table, ids[i]);
    };
    induce_in_order(PartedCsr(csr.view()), rows, with_edge, false, num_threads, chunks, "nodes", find,
                    [&](const RowSamples& chunk, int64_t, int64_t) { append(chunk); });
  }
};

}  // namespace

void register_induced_rows(py::module_& m) {
  py::class_<InducedRows>(m, "InducedRows")
      .def(py::init<const Csr&, const py::array&, const py::array&, bool, int>(),
           "The edges of each of `nodes` whose neighbour is one of `members`, in row order.", py::arg("csr"),
           py::arg("nodes"), py::arg("members"), py::arg("with_edge") = true, py::arg("num_threads") = 1)
      .def_property_readonly("num_edges", &InducedRows::num_edges)
      .def("copy_out", &InducedRows::copy_out, py::arg("count"), py::arg("neighbor"), py::arg("edge") = py::none());
}

}  // namespace glt::python
