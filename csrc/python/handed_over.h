// A finished batch as arrays that own its memory.
#pragma once

#include "core/batch.h"
#include "python/owned_array.h"

namespace glt::python {

// Less than this is copied: the allocator behind NumPy reuses it by itself, and blocks are whole pages.
constexpr int64_t kFewElements = 8192;

inline py::array_t<int64_t> array_over(BlockPool::Block block, std::vector<py::ssize_t> shape) {
  auto* data = reinterpret_cast<int64_t*>(block.data());
  return owned_array(data, std::move(shape), std::move(block));
}

inline py::array_t<int64_t> take_nodes(Batch& batch, int type) {
  const NodeSet& nodes = batch.nodes(type);
  const int64_t n = nodes.size();
  if (n < kFewElements) return py::array_t<int64_t>(n, nodes.node());
  return array_over(batch.hand_over_nodes(type), {n});
}

inline py::array_t<int64_t> take_trees(const Batch& batch, int type) {
  const NodeSet& nodes = batch.nodes(type);
  py::array_t<int64_t> out =
      nodes.size() < kFewElements
          ? py::array_t<int64_t>(nodes.size())
          : array_over(BlockPool::of_process()->acquire(nodes.size() * sizeof(int64_t)), {nodes.size()});
  std::copy_n(nodes.tree(), nodes.size(), out.mutable_data());
  return out;
}

// Both ends [2, n], and edge ids or None.
inline py::tuple take_edges(Batch& batch, int type) {
  const EdgeSet& edges = batch.edges(type);
  const int64_t n = edges.row.size();
  if (2 * n < kFewElements) {
    py::array_t<int64_t> ends({int64_t{2}, n}), edge(batch.with_edge() ? n : 0);
    edges.copy_to(ends.mutable_data(), ends.mutable_data() + n, batch.with_edge() ? edge.mutable_data() : nullptr, 1);
    return py::make_tuple(ends, batch.with_edge() ? py::object(edge) : py::none());
  }
  std::optional<std::pair<BlockPool::Block, BlockPool::Block>> blocks;
  {
    py::gil_scoped_release nogil;
    blocks.emplace(batch.hand_over_edges(type));
  }
  py::object edge = py::none();
  if (batch.with_edge()) edge = array_over(std::move(blocks->second), {n});
  return py::make_tuple(array_over(std::move(blocks->first), {2, n}), edge);
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
