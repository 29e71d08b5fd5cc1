#include <algorithm>
#include <string>
#include <vector>

#include "core/induce.h"
#include "core/rows.h"
#include "core/sample.h"
#include "python/arrays.h"
#include "python/csr.h"
#include "python/gil.h"

namespace glt::python {
namespace {

// What a partition answers to a question about rows: counts, neighbours and edges, copied out in the asker's width.
class RowsAnswer {
 public:
  explicit RowsAnswer(bool with_edge) : with_edge_(with_edge) {}

  void append(const RowSamples& rows) {
    count_.append(rows.count.data(), rows.count.size());
    neighbor_.append(rows.neighbor.data(), rows.neighbor.size());
    edge_.append(rows.edge.data(), rows.edge.size());
  }
  int64_t num_edges() const { return neighbor_.size(); }

  void copy_out(py::array count, py::array neighbor, std::optional<py::array> edge) const {
    require_size(count, "count", count_.size());
    require_size(neighbor, "neighbor", neighbor_.size());
    std::copy_n(count_.data(), count_.size(), write<uint32_t>(count, "count"));
    copy_ids(neighbor_, neighbor, "neighbor");
    if (!edge) return;
    require(with_edge_, "edge was asked for, but the rows were read without edge ids");
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

// The rows of one request, for one requester: what a partition answers.
class OneHop : public RowsAnswer {
 public:
  OneHop(const Csr& csr, const Rows& asked, const HopSpec& spec, int num_threads, const std::string& name)
      : RowsAnswer(spec.with_edge || spec.with_time) {
    WithoutGil nogil;
    ReadBuffers buffers;
    sample_in_order(PartedCsr(csr.view()), asked, spec, num_threads, buffers, name.c_str(),
                    [&](const RowSamples& rows, int64_t, int64_t) { append(rows); });
  }
};

// The edges that lead from members to the nodes of one request.
class InducedRows : public RowsAnswer {
 public:
  InducedRows(const Csr& csr, const py::array& nodes, const py::array& members, bool with_edge, int num_threads,
              const std::optional<py::array>& tree, const std::optional<py::array>& member_tree)
      : RowsAnswer(with_edge) {
    Rows rows{read<int64_t>(nodes, "nodes"), nodes.size()};
    const int64_t* member = read<int64_t>(members, "members");
    require(tree.has_value() == member_tree.has_value(), "tree and member_tree: expected both or neither");
    const uint32_t* tree_of_member = nullptr;
    if (tree) {
      require_size(*tree, "tree", rows.n);
      require_size(*member_tree, "member_tree", members.size());
      rows.tree = read<uint32_t>(*tree, "tree");
      tree_of_member = read<uint32_t>(*member_tree, "member_tree");
    }
    const int64_t num_members = members.size(), num_ids = csr.view().num_neighbor_nodes;
    checked_threads(num_threads);
    WithoutGil nogil;
    for (int64_t i = 0; i < num_members; ++i)
      require_index(static_cast<uint64_t>(member[i]) < static_cast<uint64_t>(num_ids), "members[", i, "] = ", member[i],
                    " is outside [0, ", num_ids, ")");
    // Trees get numbers without gaps: a request may name any.
    std::vector<uint32_t> trees, tree_of_row;
    Buffer<uint32_t> tree_of;
    if (tree_of_member) {
      trees.assign(tree_of_member, tree_of_member + num_members);
      std::sort(trees.begin(), trees.end());
      trees.erase(std::unique(trees.begin(), trees.end()), trees.end());
      const auto number_of = [&](uint32_t wanted) {
        const auto at = std::lower_bound(trees.begin(), trees.end(), wanted);
        return static_cast<uint32_t>(at == trees.end() || *at != wanted ? trees.size() : at - trees.begin());
      };
      tree_of.resize(num_members);
      std::transform(tree_of_member, tree_of_member + num_members, tree_of.data(), number_of);
      tree_of_member = tree_of.data();
      tree_of_row.resize(rows.n);
      std::transform(rows.tree, rows.tree + rows.n, tree_of_row.begin(), number_of);
      rows.tree = tree_of_row.data();
    }
    NodeSet batch(num_ids, /*dense_limit=*/0);
    batch.start(num_members, tree_of_member != nullptr);
    Buffer<int64_t> local;
    local.resize(num_members);
    batch.find_or_add(member, tree_of_member, num_members, local.data());
    batch.index_members();
    ReadBuffers buffers;
    induce_in_order(PartedCsr(csr.view()), rows, {with_edge, /*local_ids=*/false}, num_threads, buffers, "nodes", batch,
                    [&](const RowSamples& chunk, int64_t, int64_t) { append(chunk); });
  }
};

}  // namespace

void register_one_hop(py::module_& m) {
  py::class_<OneHop>(m, "OneHop")
      .def(py::init([](const Csr& csr, const py::array& nodes, int64_t num_neighbors, bool replace, uint64_t batch_key,
                       uint32_t hop, uint32_t edge_type, bool with_edge, int num_threads, const std::string& name,
                       const std::optional<py::array>& tree, const std::optional<py::array>& seed_time, bool last,
                       const Exclusions* exclusions, int64_t time_window, int64_t half_life,
                       std::optional<uint64_t> number_key, bool with_time) {
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
             const HopSpec spec{num_neighbors,
                                draws,
                                batch_key,
                                hop,
                                edge_type,
                                with_edge,
                                last,
                                exclusions,
                                time_window,
                                half_life,
                                number_key.has_value(),
                                number_key.value_or(0),
                                with_time};
             return std::make_unique<OneHop>(csr, rows, spec, checked_threads(num_threads), name);
           }),
           py::arg("csr"), py::arg("nodes"), py::arg("num_neighbors"), py::arg("replace"), py::arg("batch_key"),
           py::arg("hop"), py::arg("edge_type") = 0, py::arg("with_edge") = true, py::arg("num_threads") = 1,
           py::arg("name") = "nodes", py::arg("tree") = py::none(), py::arg("seed_time") = py::none(),
           py::arg("last") = false, py::arg("exclusions") = nullptr, py::arg("time_window") = -1,
           py::arg("half_life") = 0, py::arg("number_key") = py::none(), py::arg("with_time") = false)
      .def_property_readonly("num_edges", &OneHop::num_edges)
      .def("copy_out", &OneHop::copy_out, py::arg("count"), py::arg("neighbor"), py::arg("edge") = py::none());

  py::class_<InducedRows>(m, "InducedRows")
      .def(py::init<const Csr&, const py::array&, const py::array&, bool, int, const std::optional<py::array>&,
                    const std::optional<py::array>&>(),
           "The edges of each of `nodes` whose neighbour is one of `members`, with trees of its own, in row order.",
           py::arg("csr"), py::arg("nodes"), py::arg("members"), py::arg("with_edge") = true,
           py::arg("num_threads") = 1, py::arg("tree") = py::none(), py::arg("member_tree") = py::none())
      .def_property_readonly("num_edges", &InducedRows::num_edges)
      .def("copy_out", &InducedRows::copy_out, py::arg("count"), py::arg("neighbor"), py::arg("edge") = py::none());
}

}  // namespace glt::python
