#include "cuda/device_batch.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "core/rows.h"
#include "python/device.h"
#include "python/gil.h"

namespace glt::python {

std::unique_ptr<cuda::Launcher> launcher_of(int device, const std::string& order, uint64_t shuffle_seed,
                                            int num_threads, bool replays) {
  if (device >= 0) {
#if GLT_HAS_CUDA
    return cuda::cuda_launcher(device, replays);
#else
    throw std::invalid_argument(text("device = ", device,
                                     ": glt was built without CUDA; install a CUDA toolkit, set CUDA_HOME and build it "
                                     "again with GLT_CUDA=1"));
#endif
  }
  require(order == "forward" || order == "backward" || order == "shuffled", "order = '", order,
          "': expected 'forward', 'backward' or 'shuffled'");
  const cuda::Order by = order == "forward"    ? cuda::Order::kForward
                         : order == "backward" ? cuda::Order::kBackward
                                               : cuda::Order::kShuffled;
  return cuda::host_launcher(by, shuffle_seed, checked_threads(num_threads), replays);
}

namespace {

using cuda::DeviceBatch;
using cuda::DeviceRows;

// With what the batch in hand points to.
class KeptBatch : public DeviceBatch {
 public:
  using DeviceBatch::DeviceBatch;
  std::vector<std::shared_ptr<DeviceRows>> graphs;
  std::vector<std::shared_ptr<Exclusions>> exclusions;
};

void require_node_type(const DeviceBatch& batch, int type) {
  require_index(type >= 0 && type < batch.num_node_types(), "node_type = ", type, ": expected [0, ",
                batch.num_node_types(), ")");
}

void require_edge_type(const DeviceBatch& batch, int type) {
  require_index(type >= 0 && type < batch.num_edge_types(), "edge_type = ", type, ": expected [0, ",
                batch.num_edge_types(), ")");
}

}  // namespace

void register_device_batch(py::module_& m) {
  py::class_<DeviceRows, std::shared_ptr<DeviceRows>>(
      m, "DeviceRows", "A validated graph by the addresses of its arrays, 0 where there is none.")
      .def(py::init([](uintptr_t indptr, uintptr_t indices, bool wide_indices, uintptr_t edge_ids, bool wide_edge_ids,
                       uintptr_t weight_sum, uintptr_t weight_guide, uintptr_t time, int64_t num_nodes,
                       int64_t num_neighbor_nodes, int64_t num_edges, int64_t first_edge_id, uintptr_t hot_shift,
                       uintptr_t hot_indices, uintptr_t hot_edge_ids) {
             return std::make_shared<DeviceRows>(DeviceRows{at<const int64_t>(indptr),
                                                            {at<const void>(indices), wide_indices},
                                                            {at<const void>(edge_ids), wide_edge_ids},
                                                            at<const uint64_t>(weight_sum),
                                                            at<const uint32_t>(weight_guide),
                                                            at<const int64_t>(time),
                                                            num_nodes,
                                                            num_neighbor_nodes,
                                                            num_edges,
                                                            first_edge_id,
                                                            at<const int64_t>(hot_shift),
                                                            at<const void>(hot_indices),
                                                            at<const void>(hot_edge_ids)});
           }),
           py::kw_only(), py::arg("indptr"), py::arg("indices"), py::arg("wide_indices"), py::arg("edge_ids") = 0,
           py::arg("wide_edge_ids") = false, py::arg("weight_sum") = 0, py::arg("weight_guide") = 0,
           py::arg("time") = 0, py::arg("num_nodes"), py::arg("num_neighbor_nodes"), py::arg("num_edges"),
           py::arg("first_edge_id") = 0, py::arg("hot_shift") = 0, py::arg("hot_indices") = 0,
           py::arg("hot_edge_ids") = 0);

  constexpr OneUserMethods<KeptBatch> method{"DeviceBatch"};
  py::class_<OneUser<KeptBatch>>(m, "DeviceBatch")
      .def(py::init([](const std::vector<int64_t>& num_nodes, const std::vector<std::pair<int, int>>& ends,
                       int64_t dense_limit, int64_t first_room, int device, const std::string& order,
                       uint64_t shuffle_seed, int num_threads, bool replays) {
             return std::make_unique<OneUser<KeptBatch>>(
                 num_nodes, ends, dense_limit, first_room,
                 launcher_of(device, order, shuffle_seed, num_threads, replays));
           }),
           "device -1 runs the kernels' bodies on the host, threads and blocks in `order`.", py::arg("num_nodes"),
           py::arg("ends"), py::arg("dense_limit") = int64_t{1} << 31, py::arg("first_room") = int64_t{1} << 22,
           py::kw_only(), py::arg("device"), py::arg("order") = "forward", py::arg("shuffle_seed") = 0,
           py::arg("num_threads") = 1, py::arg("replays") = true)
      .def_property_readonly("num_replays", method(&DeviceBatch::num_replays))
      .def("prepare",
           method(+[](KeptBatch& self, const std::vector<std::shared_ptr<DeviceRows>>& graphs,
                      const std::vector<std::tuple<int, uintptr_t, int64_t, uintptr_t>>& seeds,
                      std::vector<std::vector<int64_t>> num_neighbors, bool replace, uint64_t batch_key, bool last,
                      bool with_edge, bool disjoint, uintptr_t seed_time, int64_t num_times,
                      const std::vector<std::shared_ptr<Exclusions>>& exclusions, int64_t first_hop,
                      std::vector<int64_t> time_window, std::vector<int64_t> half_life,
                      std::optional<uint64_t> shared_key) {
             std::vector<const DeviceRows*> views;
             for (const auto& graph : graphs) views.push_back(graph.get());
             std::vector<const Exclusions*> excluded;
             for (const auto& each : exclusions) excluded.push_back(each.get());
             std::vector<cuda::DeviceSeeds> given;
             for (const auto& [type, nodes, n, trees] : seeds)
               given.push_back({type, at<const int64_t>(nodes), n, at<const uint32_t>(trees)});
             const cuda::DeviceNeeds needs =
                 self.prepare(views, given,
                              {std::move(num_neighbors), replace, batch_key, last, with_edge, disjoint,
                               at<const int64_t>(seed_time), num_times, excluded, first_hop, std::move(time_window),
                               std::move(half_life), shared_key.has_value(), shared_key.value_or(0)});
             self.graphs = graphs;
             self.exclusions = exclusions;
             return py::make_tuple(needs.workspace_bytes, needs.table_words);
           }),
           "Plans a batch; returns (bytes of the workspace, words of each node type's table). Seeds: (node type, ids, "
           "their number, trees or 0).",
           py::arg("graphs"), py::arg("seeds"), py::arg("num_neighbors"), py::kw_only(), py::arg("replace") = false,
           py::arg("batch_key"), py::arg("last") = false, py::arg("with_edge") = true, py::arg("disjoint") = false,
           py::arg("seed_time") = 0, py::arg("num_times") = 0,
           py::arg("exclusions") = std::vector<std::shared_ptr<Exclusions>>{}, py::arg("first_hop") = 0,
           py::arg("time_window") = std::vector<int64_t>{}, py::arg("half_life") = std::vector<int64_t>{},
           py::arg("shared_key") = py::none())
      .def("launch",
           method(+[](KeptBatch& self, uintptr_t workspace, const std::vector<uintptr_t>& tables, uintptr_t stream) {
             std::vector<uint32_t*> words;
             for (const uintptr_t table : tables) words.push_back(at<uint32_t>(table));
             WithoutGil nogil;
             self.launch(at<void>(workspace), words, at<void>(stream));
           }),
           "Launches the planned batch on a stream.", py::arg("workspace"), py::arg("tables"), py::arg("stream") = 0)
      .def("wait", method(&DeviceBatch::wait), "Waits; False: too little room, prepare again.",
           py::call_guard<WithoutGil>())
      .def("induced_bytes", method(&DeviceBatch::induced_bytes), "Bytes of the workspace of induce.")
      .def("induce", method(+[](KeptBatch& self, uintptr_t workspace) {
             WithoutGil nogil;
             self.induce(at<void>(workspace));
             self.wait_induced();
           }),
           "Replaces the sampled edges by all edges among the sampled nodes; waits for their number.",
           py::arg("workspace"))
      .def("num_nodes", method(+[](const KeptBatch& self, int type) {
             require_node_type(self, type);
             return self.num_nodes(type);
           }),
           py::arg("node_type"))
      .def("num_edges", method(+[](const KeptBatch& self, int type) {
             require_edge_type(self, type);
             return self.num_edges(type);
           }),
           py::arg("edge_type"))
      .def("num_sampled_nodes", method(+[](const KeptBatch& self, int type) {
             require_node_type(self, type);
             return self.num_sampled_nodes(type);
           }),
           py::arg("node_type"))
      .def("num_sampled_edges", method(+[](const KeptBatch& self, int type) {
             require_edge_type(self, type);
             return self.num_sampled_edges(type);
           }),
           py::arg("edge_type"))
      .def("copy_out",
           method(+[](KeptBatch& self, const std::vector<std::pair<uintptr_t, uintptr_t>>& nodes,
                      const std::vector<std::tuple<uintptr_t, uintptr_t, uintptr_t>>& edges) {
             std::vector<cuda::NodesOut> nodes_out;
             for (const auto& [node, tree] : nodes) nodes_out.push_back({at<int64_t>(node), at<int64_t>(tree)});
             std::vector<cuda::EdgesOut> edges_out;
             for (const auto& [row, col, edge] : edges)
               edges_out.push_back({at<int64_t>(row), at<int64_t>(col), at<int64_t>(edge)});
             WithoutGil nogil;
             self.copy_out(nodes_out, edges_out);
           }),
           "Results to the addresses of int64 arrays, 0 for what is not wanted: of each node type (ids, trees), "
           "[num_nodes]; of each edge type (local ids of neighbours, of expanded nodes, edge ids), [num_edges].",
           py::arg("nodes"), py::arg("edges"));
}

}  // namespace glt::python
