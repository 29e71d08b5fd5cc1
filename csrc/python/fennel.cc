#include "core/fennel.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/csr.h"
#include "core/rng.h"
#include "python/arrays.h"
#include "python/gil.h"

namespace glt::python {
namespace {

Adjacency read_adjacency(const py::array& indptr, const py::array& indices) {
  CsrView view;
  view.indptr = read<int64_t>(indptr, "indptr");
  require(indptr.size() >= 1, "indptr is empty: expected num_nodes + 1 elements");
  view.indices = read_ids(indices, "indices");
  view.num_rows = view.num_nodes = view.num_neighbor_nodes = indptr.size() - 1;
  view.num_edges = indices.size();
  validate(view, /*check_indices=*/true);
  return {view.indptr, view.indices, view.num_rows};
}

Balance read_balance(int64_t num_nodes, int64_t num_parts, const std::optional<py::array>& label,
                     const py::array& label_cap, const std::vector<py::array>& edges, const py::array& edge_cap) {
  require(num_parts >= 1 && num_parts <= 1 << 16, "num_parts = ", num_parts, ": expected 1 to 65536");
  Balance balance{num_parts,
                  nullptr,
                  label_cap.size(),
                  read<int64_t>(label_cap, "label_cap"),
                  {},
                  0,
                  read<int64_t>(edge_cap, "edge_cap")};
  require(balance.num_labels >= 1, "label_cap is empty: expected an element for each label");
  if (label) {
    require_size(*label, "label", num_nodes);
    balance.label = read<uint16_t>(*label, "label");
  }
  int64_t num_counted = 0;
  for (const py::array& each : edges) {
    if (!py::isinstance<py::array_t<int64_t>>(each) || each.ndim() != 2)
      throw py::type_error(text("edges: expected 2-d arrays of int64, [nodes, kinds], got ", describe(each)));
    require_contiguous(each, "edges");
    const OwnedEdges owned{num_counted, num_counted + each.shape(0), balance.num_kinds, each.shape(1),
                           static_cast<const int64_t*>(each.data())};
    require(each.size() == 0 || *std::min_element(owned.count, owned.count + each.size()) >= 0,
            "edges: expected counts of at least 0");
    balance.edges.push_back(owned);
    balance.num_kinds += owned.num_kinds;
    num_counted = owned.end;
  }
  require(edges.empty() || num_counted == num_nodes, "edges are of ", num_counted, " nodes: expected ", num_nodes);
  require_size(edge_cap, "edge_cap", balance.num_kinds * balance.num_labels);
  return balance;
}

Owners write_owners(py::array& owner, int64_t num_nodes, int64_t num_parts) {
  require_size(owner, "owner", num_nodes);
  if (num_parts > 1 << 8) return write<uint16_t>(owner, "owner");
  return write<uint8_t>(owner, "owner");
}

void require_penalty(double penalty) {
  require(std::isfinite(penalty) && penalty >= 0, "penalty = ", penalty, ": expected a finite number of at least 0");
}

}  // namespace

void register_fennel(py::module_& m) {
  m.def(
      "fennel_pass",
      [](const py::array& indptr, const py::array& indices, int64_t num_parts, const std::optional<py::array>& label,
         const py::array& label_cap, const std::vector<py::array>& edges, const py::array& edge_cap, double penalty,
         bool is_first, uint64_t rng_seed, py::array owner) {
        const Adjacency graph = read_adjacency(indptr, indices);
        const Balance balance = read_balance(graph.num_nodes, num_parts, label, label_cap, edges, edge_cap);
        require_penalty(penalty);
        const Owners owners = write_owners(owner, graph.num_nodes, num_parts);
        WithoutGil nogil;
        return fennel_pass(graph, balance, penalty, is_first, derive_key(rng_seed, Purpose::kPartition, 0, 0), owners);
      },
      "Assigns every node once, by Fennel's score; returns the number of edges cut.", py::arg("indptr"),
      py::arg("indices"), py::arg("num_parts"), py::arg("label"), py::arg("label_cap"), py::arg("edges"),
      py::arg("edge_cap"), py::arg("penalty"), py::arg("is_first"), py::arg("rng_seed"), py::arg("owner"));
  m.def(
      "move_overfull",
      [](const py::array& indptr, const py::array& indices, int64_t num_parts, const std::optional<py::array>& label,
         const py::array& label_cap, const std::vector<py::array>& edges, const py::array& edge_cap, int64_t node_cap,
         double penalty, uint64_t rng_seed, py::array owner) {
        const Adjacency graph = read_adjacency(indptr, indices);
        const Balance balance = read_balance(graph.num_nodes, num_parts, label, label_cap, edges, edge_cap);
        require_penalty(penalty);
        const Owners owners = write_owners(owner, graph.num_nodes, num_parts);
        WithoutGil nogil;
        return move_overfull(graph, balance, node_cap, penalty, derive_key(rng_seed, Purpose::kPartition, 0, 0),
                             owners);
      },
      "Moves nodes out of partitions with more than label_cap nodes of a label, more than node_cap nodes, or, as far "
      "as there is room, more than edge_cap edges of a kind; returns how many moves there were.",
      py::arg("indptr"), py::arg("indices"), py::arg("num_parts"), py::arg("label"), py::arg("label_cap"),
      py::arg("edges"), py::arg("edge_cap"), py::arg("node_cap"), py::arg("penalty"), py::arg("rng_seed"),
      py::arg("owner"));
  m.def(
      "sort_rows",
      [](const py::array& indptr, py::array indices, py::array merged_indptr) {
        const Adjacency graph = read_adjacency(indptr, indices);
        require_size(merged_indptr, "merged_indptr", indptr.size());
        const MutableIds ids = write_ids(indices, "indices");
        int64_t* merged = write<int64_t>(merged_indptr, "merged_indptr");
        WithoutGil nogil;
        sort_rows(graph.indptr, graph.num_nodes, ids, merged);
      },
      "Sorts each row in place and fills merged_indptr [num_rows + 1] with the offsets of its distinct neighbours.",
      py::arg("indptr"), py::arg("indices"), py::arg("merged_indptr"));
  m.def(
      "merge_rows",
      [](const py::array& indptr, py::array indices, const py::array& merged_indptr, py::array neighbor,
         py::array weight) {
        const Adjacency graph = read_adjacency(indptr, indices);
        require_size(merged_indptr, "merged_indptr", indptr.size());
        const int64_t* merged = read<int64_t>(merged_indptr, "merged_indptr");
        require_size(neighbor, "neighbor", merged[graph.num_nodes]);
        require_size(weight, "weight", merged[graph.num_nodes]);
        const MutableIds ids = write_ids(indices, "indices");
        int64_t *neighbors = write<int64_t>(neighbor, "neighbor"), *weights = write<int64_t>(weight, "weight");
        WithoutGil nogil;
        merge_rows(graph.indptr, graph.num_nodes, ids, merged, neighbors, weights);
      },
      "Fills neighbor and weight from the rows that sort_rows sorted: each neighbour once, and how often it was there.",
      py::arg("indptr"), py::arg("indices"), py::arg("merged_indptr"), py::arg("neighbor"), py::arg("weight"));
}

}  // namespace glt::python
