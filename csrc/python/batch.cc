#include "core/batch.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/read_rows.h"
#include "core/rows.h"
#include "python/arrays.h"
#include "python/csr.h"
#include "python/gil.h"

namespace glt::python {
namespace {

const NodeSet& nodes_of(const Batch& batch, int type) {
  require_index(type >= 0 && type < batch.num_node_types(), "node_type = ", type, ": expected [0, ",
                batch.num_node_types(), ")");
  batch.require_whole();
  return batch.nodes(type);
}

const EdgeSet& edges_of(const Batch& batch, int type) {
  require_index(type >= 0 && type < batch.num_edge_types(), "edge_type = ", type, ": expected [0, ",
                batch.num_edge_types(), ")");
  batch.require_whole();
  return batch.edges(type);
}

void require_trees(const Batch& batch) {
  require(batch.disjoint(), "trees were asked for, but the batch was not started with disjoint = True");
}

void start(Batch& self, const std::vector<std::pair<int, py::array>>& seeds, bool with_edge, bool disjoint,
           const std::optional<py::array>& seed_time) {
  std::vector<Seeds> views;
  for (const auto& [type, nodes] : seeds) views.push_back({type, read<int64_t>(nodes, "seeds"), nodes.size()});
  const int64_t* times = seed_time ? read<int64_t>(*seed_time, "seed_time") : nullptr;
  const int64_t num_times = seed_time ? seed_time->size() : 0;
  WithoutGil nogil;
  self.start(views, with_edge, disjoint, times, num_times);
}

void sample(Batch& self, const std::vector<CsrArg>& csrs, std::vector<std::vector<int64_t>> num_neighbors, bool replace,
            uint64_t batch_key, bool last, const std::optional<std::vector<std::shared_ptr<Exclusions>>>& exclusions,
            std::vector<int64_t> time_window, std::vector<int64_t> half_life, std::optional<uint64_t> shared_key,
            int num_threads) {
  checked_threads(num_threads);
  const std::vector<PartedCsr> graphs = graphs_of(csrs);
  BatchSpec spec{std::move(num_neighbors),
                 replace,
                 batch_key,
                 last,
                 {},
                 std::move(time_window),
                 std::move(half_life),
                 shared_key.has_value(),
                 shared_key.value_or(0)};
  if (exclusions)
    for (const auto& excluded : *exclusions) spec.exclusions.push_back(excluded.get());
  WithoutGil nogil;
  self.sample(graphs, spec, num_threads);
}

void copy_nodes(const Batch& self, int node_type, py::array node, std::optional<py::array> tree) {
  const NodeSet& nodes = nodes_of(self, node_type);
  const int64_t n = nodes.size();
  require_size(node, "node", n);
  const MutableIds node_out = write_ids(node, "node");
  int64_t* tree_out = nullptr;
  if (tree) {
    require_trees(self);
    require_size(*tree, "tree", n);
    tree_out = write<int64_t>(*tree, "tree");
  }
  WithoutGil nogil;
  nodes.copy_to(node_out, tree_out, self.num_threads());
}

void copy_edges(const Batch& self, int edge_type, py::array row, py::array col, std::optional<py::array> edge) {
  const EdgeSet& edges = edges_of(self, edge_type);
  const int64_t n = edges.row.size();
  require_size(row, "row", n);
  require_size(col, "col", n);
  MutableIds edge_out = static_cast<int64_t*>(nullptr);
  if (edge) {
    require(self.with_edge(), "edge was asked for, but the batch was started without edge ids");
    require_size(*edge, "edge", n);
    edge_out = write_ids(*edge, "edge");
  }
  const auto copy_all = [&](auto* row_out) {
    auto* col_out = write<std::remove_pointer_t<decltype(row_out)>>(col, "col");
    WithoutGil nogil;
    edges.copy_to(row_out, col_out, edge_out, self.num_threads());
  };
  std::visit(copy_all, write_ids(row, "row"));
}

// What partitions answered, from Python: tuples (position uint32, count uint32, neighbor, edge or None). Views of the
// arrays in `parts`, which must outlive them.
std::vector<RowsPart> rows_parts(const std::vector<py::tuple>& parts, bool with_edge) {
  std::vector<RowsPart> views;
  for (size_t p = 0; p < parts.size(); ++p) {
    require(parts[p].size() == 4, "part ", p, " has ", parts[p].size(),
            " elements: expected (position, count, neighbor, edge)");
    const auto position = parts[p][0].cast<py::array>(), count = parts[p][1].cast<py::array>(),
               neighbor = parts[p][2].cast<py::array>();
    RowsPart view{};
    view.position = read<uint32_t>(position, "position");
    view.count = read<uint32_t>(count, "count");
    view.num_rows = position.size();
    require_size(count, "count", view.num_rows);
    view.neighbor = read_ids(neighbor, "neighbor");
    view.num_edges = neighbor.size();
    if (with_edge) {
      const auto edge = parts[p][3].cast<py::array>();
      require_size(edge, "edge", view.num_edges);
      view.edge = read_ids(edge, "edge");
    }
    views.push_back(view);
  }
  return views;
}

// Sets of fewer are copied: the allocator behind NumPy reuses so little by itself, and blocks are whole pages.
constexpr int64_t kMinHandedOver = 4096;

template <typename Call>
auto without_gil(const Call& call) {
  WithoutGil nogil;
  return call();
}

py::array_t<int64_t> array_over(BlockPool::Block block, std::vector<py::ssize_t> shape) {
  auto* data = reinterpret_cast<int64_t*>(block.data());
  return owned_array(data, std::move(shape), std::move(block));
}

py::array_t<int64_t> take_nodes(Batch& batch, int type) {
  const NodeSet& nodes = batch.nodes(type);
  const int64_t n = nodes.size();
  if (n < kMinHandedOver) return copied_array(nodes.node(), n);
  return array_over(without_gil([&] { return batch.hand_over_nodes(type); }), {n});
}

py::array_t<int64_t> take_trees(const Batch& batch, int type) {
  const NodeSet& nodes = batch.nodes(type);
  const int64_t n = nodes.size();
  if (n < kMinHandedOver) {
    py::array_t<int64_t> trees(n);
    nodes.copy_to(static_cast<int64_t*>(nullptr), trees.mutable_data(), 1);
    return trees;
  }
  const auto widened = [&] {
    BlockPool::Block block = BlockPool::of_process()->acquire(n * sizeof(int64_t));
    nodes.copy_to(static_cast<int64_t*>(nullptr), reinterpret_cast<int64_t*>(block.data()), batch.num_threads());
    return block;
  };
  return array_over(without_gil(widened), {n});
}

// Both ends [2, n], and edge ids or None.
py::tuple take_edges(Batch& batch, int type, bool expanded_first) {
  const EdgeSet& edges = batch.edges(type);
  const int64_t n = edges.row.size();
  if (n < kMinHandedOver) {
    py::array_t<int64_t> ends({int64_t{2}, n}), edge(batch.with_edge() ? n : 0);
    int64_t *row = ends.mutable_data() + (expanded_first ? n : 0),
            *col = ends.mutable_data() + (expanded_first ? 0 : n);
    edges.copy_to(row, col, batch.with_edge() ? edge.mutable_data() : nullptr, 1);
    return py::make_tuple(ends, batch.with_edge() ? py::object(edge) : py::none());
  }
  auto [ends, edge] = without_gil([&] { return batch.hand_over_edges(type, expanded_first); });
  const py::object ids = batch.with_edge() ? py::object(array_over(std::move(edge), {n})) : py::none();
  return py::make_tuple(array_over(std::move(ends), {2, n}), ids);
}

// Of each node type its ids and, in a disjoint batch, its trees; of each edge type both ends and its ids.
py::tuple hand_over(Batch& batch, bool expanded_first) {
  batch.begin_hand_over();
  py::list nodes, edges;
  for (int t = 0; t < batch.num_node_types(); ++t) {
    const py::object tree = batch.disjoint() ? py::object(take_trees(batch, t)) : py::none();
    nodes.append(py::make_tuple(take_nodes(batch, t), tree));
  }
  for (int r = 0; r < batch.num_edge_types(); ++r) edges.append(take_edges(batch, r, expanded_first));
  return py::make_tuple(nodes, edges);
}

}  // namespace

void register_batch(py::module_& m) {
  py::class_<Exclusions, std::shared_ptr<Exclusions>>(m, "Exclusions")
      .def(py::init([](const py::array& center, const py::array& neighbor) {
             require_size(neighbor, "neighbor", center.size());
             const int64_t* from = read<int64_t>(center, "center");
             const int64_t* to = read<int64_t>(neighbor, "neighbor");
             const int64_t n = center.size();
             WithoutGil nogil;
             return std::make_shared<Exclusions>(from, to, n);
           }),
           "Pairs (expanded node, neighbour) that are never sampled, with all parallel edges between them.",
           py::arg("center"), py::arg("neighbor"));

  constexpr OneUserMethods<Batch> method{"Batch"};
  py::class_<OneUser<Batch>>(m, "Batch")
      .def(py::init<const std::vector<int64_t>&, const std::vector<std::pair<int, int>>&, int64_t>(),
           py::arg("num_nodes"), py::arg("ends"), py::arg("dense_limit") = int64_t{1} << 28)
      .def("start", method(&start),
           "Begins a batch with seeds (node type, ids), the roots of trees 0, 1, 2, ... in order. seed_time: one per "
           "tree.",
           py::arg("seeds"), py::arg("with_edge") = true, py::arg("disjoint") = false,
           py::arg("seed_time") = py::none())
      .def(
          "sample", method(&sample),
          "All hops: num_neighbors[edge type][hop]. csrs: by edge type the graph, its partitions by index, or None: no "
          "edges. time_window and half_life: one per edge type, -1 and 0 for none, or empty. shared_key: rows take the "
          "neighbours whose numbers under it are lowest.",
          py::arg("csrs"), py::arg("num_neighbors"), py::kw_only(), py::arg("replace"), py::arg("batch_key"),
          py::arg("last") = false, py::arg("exclusions") = py::none(), py::arg("time_window") = std::vector<int64_t>{},
          py::arg("half_life") = std::vector<int64_t>{}, py::arg("shared_key") = py::none(), py::arg("num_threads") = 1)
      .def("expand_from", method(+[](Batch& self, int edge_type, const std::vector<py::tuple>& parts) {
             edges_of(self, edge_type);
             const std::vector<RowsPart> views = rows_parts(parts, self.with_edge());
             WithoutGil nogil;
             self.expand_from(edge_type, views);
           }),
           "One hop of an edge type that partitions sampled: tuples (position, count, neighbor, edge) that cover the "
           "frontier once.",
           py::arg("edge_type"), py::arg("parts"))
      .def("end_hop", method(&Batch::end_hop), "The nodes found since the last hop are the frontier now.",
           py::call_guard<WithoutGil>())
      .def("induce", method(+[](Batch& self, const std::vector<CsrArg>& csrs, int num_threads) {
             checked_threads(num_threads);
             const std::vector<PartedCsr> graphs = graphs_of(csrs);
             WithoutGil nogil;
             self.induce(graphs, num_threads);
           }),
           "Replaces the sampled edges by all edges among the sampled nodes.", py::arg("csrs"),
           py::arg("num_threads") = 1)
      .def("begin_induce", method(&Batch::begin_induce),
           "Drops the sampled edges; induce_from brings those among the nodes.")
      .def("induce_from", method(+[](Batch& self, int edge_type, const std::vector<py::tuple>& parts) {
             edges_of(self, edge_type);
             const std::vector<RowsPart> views = rows_parts(parts, self.with_edge());
             WithoutGil nogil;
             self.induce_from(edge_type, views);
           }),
           "The edges of a type among the nodes: tuples as in expand_from, by position among all nodes.",
           py::arg("edge_type"), py::arg("parts"))
      .def("frontier", method(+[](const Batch& self, int node_type) {
             const NodeSet& nodes = nodes_of(self, node_type);
             return copied_array(nodes.node() + nodes.frontier_begin(), nodes.frontier_size());
           }),
           py::arg("node_type"))
      .def("frontier_trees", method(+[](const Batch& self, int node_type) {
             require_trees(self);
             const NodeSet& nodes = nodes_of(self, node_type);
             return copied_array(nodes.tree() + nodes.frontier_begin(), nodes.frontier_size());
           }),
           py::arg("node_type"))
      .def("nodes", method(+[](const Batch& self, int node_type) {
             const NodeSet& nodes = nodes_of(self, node_type);
             return copied_array(nodes.node(), nodes.size());
           }),
           py::arg("node_type"))
      .def("trees", method(+[](const Batch& self, int node_type) {
             require_trees(self);
             const NodeSet& nodes = nodes_of(self, node_type);
             return copied_array(nodes.tree(), nodes.size());
           }),
           py::arg("node_type"))
      .def("edges", method(+[](const Batch& self, int edge_type) {
             require(self.with_edge(), "edges were asked for, but the batch was started without edge ids");
             const EdgeSet& edges = edges_of(self, edge_type);
             return copied_array(edges.edge.data(), edges.edge.size());
           }),
           py::arg("edge_type"))
      .def("num_nodes", method(+[](const Batch& self, int type) { return nodes_of(self, type).size(); }),
           py::arg("node_type"))
      .def("num_edges", method(+[](const Batch& self, int type) { return edges_of(self, type).row.size(); }),
           py::arg("edge_type"))
      .def("num_sampled_nodes", method(+[](const Batch& self, int type) { return nodes_of(self, type).num_sampled(); }),
           py::arg("node_type"))
      .def("num_sampled_edges", method(+[](const Batch& self, int type) { return edges_of(self, type).num_sampled; }),
           py::arg("edge_type"))
      .def("hand_over", method(&hand_over),
           "([(ids, trees or None)] of node types, [(both ends [2, n], edge ids or None)] of edge types), int64: the "
           "batch's own memory where it is much. Ends are neighbours, then expanded nodes, or the other way round. It "
           "takes no call but start afterwards.",
           py::arg("expanded_first") = false)
      .def("copy_nodes", method(&copy_nodes),
           "Ids, as int64, or as int32 if they fit, and, in a disjoint batch, trees, as int64.", py::arg("node_type"),
           py::arg("node"), py::arg("tree") = py::none())
      .def("copy_edges", method(&copy_edges),
           "Local ids of neighbours and of expanded nodes, and edge ids, as int64, or as int32 if they fit.",
           py::arg("edge_type"), py::arg("row"), py::arg("col"), py::arg("edge") = py::none());
}

}  // namespace glt::python
