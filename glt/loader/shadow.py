"""ShaDow's batches: a small subgraph around each seed, side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_edge_index

from glt import _core
from glt._checks import check_at_least
from glt._tracebacks import short_traceback
from glt.data.dataset import Dataset
from glt.loader.node_sets import NodeSetLoader, reordered
from glt.loader.seeds import checked_nodes, ids_of_keys
from glt.sampler.config import SamplingConfig
from glt.sampler.neighbor_sampler import NeighborSampler
from glt.sampler.order import BatchIndex, crc32_of

if TYPE_CHECKING:
    from glt.sampler.graph import Output, SampledGraph


_OF_BATCHES = ("batch", "ptr", "_num_nodes")  # not to come from data that is a batch itself
_VALUE = "_edge_value_of_adj_t"  # of adj_t, while it is edges


def _with_edges(data: Any) -> Data:
    """The same with ``edge_index`` in the place of ``adj_t``."""
    ends, value = to_edge_index(data.adj_t)
    data = copy.copy(data)
    data.adj_t = None
    data.edge_index, data[_VALUE] = ends.flip(0), value
    return data


@short_traceback
class ShaDowKHopSampler(NodeSetLoader):
    """A drop-in ``torch_geometric.loader.ShaDowKHopSampler``: samples nodes around each seed, and yields all edges
    among those of one seed.

    A batch is PyG's: a ``Batch`` of as many graphs as there are seeds, whose nodes are sorted by id and edges by source
    within each; ``root_n_id [number of seeds]`` says which node is the seed, and ``y`` is that of the seeds alone. A
    node is expanded once for each seed. For a fixed ``random_seed`` the batches of an epoch are always the same.
    :class:`glt.NeighborLoader` with ``disjoint=True`` and ``subgraph_type='induced'`` has the same subgraphs of any
    graph, also heterogeneous or distributed, seeds first.

    Args:
        data: A PyG ``Data``, or a :class:`glt.data.Dataset` of one node and edge type, whose batches also have ``n_id``
            and ``e_id``. With ``adj_t`` in the place of ``edge_index``, batches have it too.
        depth: Hops.
        num_neighbors: Edges along which a node is expanded in each hop; -1 takes all.
        node_idx: Seeds: ids, keys, or a bool mask over all nodes. Default: all nodes.
        replace: Draw with replacement.
        transform, random_seed, num_threads: As of :class:`RandomNodeLoader`.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size`` and ``shuffle``.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit; names it.

    Source: Zeng et al., "Decoupling the depth and scope of graph neural networks", NeurIPS 2021.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.loader.ShaDowKHopSampler(data, 1, 2, torch.tensor([7, 3]), batch_size=2, random_seed=7)
        >>> batch = next(iter(loader))
        >>> batch.num_graphs, batch.x[:, 0].tolist(), batch.root_n_id, batch.edge_index
        (2, [5.0, 6.0, 7.0, 1.0, 2.0, 3.0], tensor([2, 5]), tensor([[0, 0, 1, 3, 3, 4],
                [1, 2, 2, 4, 5, 5]]))
    """

    def __init__(
        self,
        data: Data | Dataset,
        depth: int,
        num_neighbors: int,
        node_idx: Any = None,
        replace: bool = False,
        *,
        transform: Callable[[Any], Any] | None = None,
        random_seed: int | None = None,
        num_threads: int = 1,
        **kwargs: Any,
    ) -> None:
        depth = check_at_least("depth", depth, 0)
        SamplingConfig.checked([num_neighbors], replace=replace)  # whatever the depth
        self.depth: int = depth
        self.num_neighbors: int = int(num_neighbors)
        self.replace: bool = replace
        self._is_sparse = isinstance(data, Data) and data.edge_index is None and data.get("adj_t") is not None
        self._open(_with_edges(data) if self._is_sparse else data, random_seed, num_threads, transform, kwargs)
        if self._graph.schema.is_hetero:
            raise ValueError(
                "data has several types: expected one; glt.NeighborLoader with disjoint=True and "
                "subgraph_type='induced' samples such subgraphs of any graph"
            )
        self._has_node_labels = isinstance(data, Dataset) or ("y" in data and data.is_node_attr("y"))
        num_nodes = int(self._graph.num_nodes[0])
        given = torch.arange(num_nodes) if node_idx is None else node_idx
        given = ids_of_keys(given, data.ids) if isinstance(data, Dataset) else given
        self._seeds = checked_nodes(given, self._graph.schema, [num_nodes], "node_idx")[1]["node"]
        self._complete(len(self._seeds), kwargs)

    def _sampler_of(self, graph: SampledGraph, num_threads: int) -> NeighborSampler:
        return NeighborSampler(
            graph,
            [self.num_neighbors] * self.depth,
            subgraph_type="induced",
            disjoint=True,
            replace=self.replace,
            sample_direction="backward" if graph.edge_dir == "out" else "forward",
            random_seed=self.random_seed,
            num_threads=num_threads,
            device="cpu",
        )

    def _nodes(self, index: BatchIndex) -> list[tuple[int, Tensor]]:
        return [(0, self._seeds[index.input_id])]

    def _sample(self, index: BatchIndex) -> Output:
        """The trees one after the other."""
        out, num_seeds = super()._sample(index), len(index)
        node, tree = (each.to(torch.int64).numpy() for each in (out.node, out.batch))
        order, ptr = torch.empty(len(out.node), dtype=torch.int64), torch.empty(num_seeds + 1, dtype=torch.int64)
        _core.order_by_tree(node, tree, num_seeds, order.numpy(), ptr.numpy())
        out.row, out.col, edge_order = reordered(out.row, out.col, order)
        out.node, out.batch = out.node[order], out.batch[order]
        out.edge = None if out.edge is None else out.edge[edge_order]
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order))
        out.metadata = ptr, rank[:num_seeds]
        return out

    def _finish(self, batch: Any, out: Output) -> Batch:
        ptr, root = out.metadata
        if self._is_sparse:
            batch = ToSparseTensor(attr=_VALUE)(batch)
        whole = Batch(batch=out.batch.long(), ptr=ptr)
        for name, value in batch.to_dict().items():
            if name not in _OF_BATCHES:
                whole[name] = value[root] if name == "y" and self._has_node_labels else value
        whole.root_n_id = root
        return whole

    def _told(self) -> dict[str, Any]:
        own = {"depth": self.depth, "num_neighbors": self.num_neighbors}
        return own | ({"replace": True} if self.replace else {})

    def _fingerprint(self) -> dict[str, Any]:
        return super()._fingerprint() | {"seeds_crc32": crc32_of({"node": self._seeds})}
