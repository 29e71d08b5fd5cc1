// A finished batch as arrays that own its memory.
#pragma once

#include "core/batch.h"
#include "python/owned_array.h"
#include "python/without_gil.h"

namespace glt::python {

// Sets of fewer are copied: the allocator behind NumPy reuses so little by itself, and blocks are whole pages.
constexpr int64_t kFew = 4096;

template <typename Call>
auto without_gil(const Call& call) {
  WithoutGil nogil;
  return call();
}

inline py::array_t<int64_t> array_over(BlockPool::Block block, std::vector<py::ssize_t> shape) {
  auto* data = reinterpret_cast<int64_t*>(block.data());
  return owned_array(data, std::move(shape), std::move(block));
}

inline py::array_t<int64_t> take_nodes(Batch& batch, int type) {
  const NodeSet& nodes = batch.nodes(type);
  const int64_t n = nodes.size();
  if (n < kFew) return copied_array(nodes.node(), n);
  return array_over(without_gil([&] { return batch.hand_over_nodes(type); }), {n});
}

inline py::array_t<int64_t> take_trees(const Batch& batch, int type) {
  const NodeSet& nodes = batch.nodes(type);
  const int64_t n = nodes.size();
  if (n < kFew) {
    py::array_t<int64_t> trees(n);
    nodes.copy_to(nullptr, trees.mutable_data(), 1);
    return trees;
  }
  const auto widened = [&] {
    BlockPool::Block block = BlockPool::of_process()->acquire(n * sizeof(int64_t));
    nodes.copy_to(nullptr, reinterpret_cast<int64_t*>(block.data()), batch.num_threads());
    return block;
  };
  return array_over(without_gil(widened), {n});
}

// Both ends [2, n], and edge ids or None.
inline py::tuple take_edges(Batch& batch, int type) {
  const EdgeSet& edges = batch.edges(type);
  const int64_t n = edges.row.size();
  if (n < kFew) {
    py::array_t<int64_t> ends({int64_t{2}, n}), edge(batch.with_edge() ? n : 0);
    edges.copy_to(ends.mutable_data(), ends.mutable_data() + n, batch.with_edge() ? edge.mutable_data() : nullptr, 1);
    return py::make_tuple(ends, batch.with_edge() ? py::object(edge) : py::none());
  }
  auto [ends, edge] = without_gil([&] { return batch.hand_over_edges(type); });
  const py::object ids = batch.with_edge() ? py::object(array_over(std::move(edge), {n})) : py::none();
  return py::make_tuple(array_over(std::move(ends), {2, n}), ids);
}

// Of each node type its ids and, in a disjoint batch, its trees; of each edge type both ends and its ids.
inline py::tuple hand_over(Batch& batch) {
  batch.begin_hand_over();
  py::list nodes, edges;
  for (int t = 0; t < batch.num_node_types(); ++t) {
    const py::object tree = batch.disjoint() ? py::object(take_trees(batch, t)) : py::none();
    nodes.append(py::make_tuple(take_nodes(batch, t), tree));
  }
  for (int r = 0; r < batch.num_edge_types(); ++r) edges.append(take_edges(batch, r));
  return py::make_tuple(nodes, edges);
}

}  // namespace glt::python
