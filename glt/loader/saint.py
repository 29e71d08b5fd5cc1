"""GraphSAINT: subgraphs of nodes that are drawn, and what they have to be weighed with."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from glt import _core
from glt._checks import check_at_least, check_count, check_flag, check_path
from glt._tracebacks import short_traceback
from glt.data.dataset import Dataset
from glt.data.topology import EdgeWeights
from glt.loader.node_sets import NodeSetLoader, kept_arrays
from glt.sampler.negatives import drawn_items
from glt.sampler.order import BatchIndex, crc32_of
from glt.sampler.walks import RandomWalkSampler

if TYPE_CHECKING:
    from glt.sampler.graph import Output

_ROWS_OF_BLOCK = 64
_BEFOREHAND = 2**32 - 2  # the epoch of subgraphs that are sampled for normalization


class GraphSAINTSampler(NodeSetLoader):
    """What the samplers of GraphSAINT share; see :class:`GraphSAINTRandomWalkSampler`."""

    def __init__(
        self,
        data: Data | Dataset,
        batch_size: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | os.PathLike[str] | None = None,
        log: bool = True,
        *,
        transform: Callable[[Any], Any] | None = None,
        random_seed: int | None = None,
        num_threads: int = 1,
        **kwargs: Any,
    ) -> None:
        batch_size = check_count("batch_size", batch_size, 1, 2**31 - 1)
        num_steps = check_count("num_steps", num_steps, 1, 2**31 - 1)
        sample_coverage = check_at_least("sample_coverage", sample_coverage, 0)
        if save_dir is not None:
            check_path("save_dir", save_dir, "a folder for the counts")
            if sample_coverage == 0:
                raise ValueError(
                    "save_dir is given and sample_coverage = 0: there are no norms to keep; give sample_coverage, or "
                    "leave save_dir out"
                )
        for name in ("node_norm", "edge_norm") if sample_coverage else ():
            if isinstance(data, Data) and name in data:
                raise ValueError(f"data has {name} already, which batches are to have: rename it")
        check_flag("log", log)
        kwargs["batch_size"] = 1  # of steps
        self._open(data, random_seed, num_threads, transform, kwargs, edge_dir="out")
        if self._graph.schema.is_hetero:
            raise ValueError(
                "data has several types: GraphSAINT's laws are for one; use HGTLoader, or RandomNodeLoader"
            )
        self.num_samples: int = batch_size
        self.num_steps: int = num_steps
        self.sample_coverage: int = sample_coverage
        self.num_nodes: int = int(self._graph.num_nodes[0])
        self.num_edges: int = int(self._graph.topologies[0].num_edges)
        if self.num_nodes == 0:
            raise ValueError("data has no nodes: GraphSAINT has nothing to draw")
        self._prepare(num_threads)
        self._complete(num_steps, kwargs)
        self.node_norm: Tensor | None = None
        self.edge_norm: Tensor | None = None
        if sample_coverage > 0:
            self.node_norm, self.edge_norm = self._norms(save_dir, log)

    def _prepare(self, num_threads: int) -> None:
        """Makes what :meth:`_draw` needs, once."""

    @abstractmethod
    def _draw(self, key: int) -> np.ndarray:
        """The nodes of a subgraph, int64, any number of times each."""

    def _nodes_of(self, key: int) -> Tensor:
        return torch.from_numpy(np.sort(self._draw(key))).unique_consecutive()

    def _nodes(self, index: BatchIndex) -> list[tuple[int, Tensor]]:
        return [(0, self._nodes_of(index.key))]

    def _needs_edges(self) -> bool:
        return self.edge_norm is not None or super()._needs_edges()

    def _finish(self, batch: Any, out: Output) -> Data:
        if self.node_norm is not None and self.edge_norm is not None:
            batch.node_norm, batch.edge_norm = self.node_norm[out.node.long()], self.edge_norm[out.edge.long()]
        return batch  # type: ignore[no-any-return]

    def _norms(self, save_dir: str | os.PathLike[str] | None, log: bool) -> tuple[Tensor, Tensor]:
        path = None
        if save_dir is not None:
            told = "_".join(str(each) for each in self._told().values())
            path = Path(save_dir) / f"{type(self).__name__.lower()}_{told}.npz"
        if log and not (path is not None and path.exists()):
            print("Computing GraphSAINT normalization...", file=sys.stderr)
        norms = {
            "node_norm": np.empty(self.num_nodes, np.float32),
            "edge_norm": np.empty(self._num_edge_ids, np.float32),
        }
        topology = self._graph.topologies[0]
        rows = {"indptr": topology.indptr, "indices": topology.indices, "edge_ids": topology.all_edge_ids()}
        kept_arrays(path, norms, lambda: self._count(norms), crc32_of(rows) if path is not None else 0)
        return torch.from_numpy(norms["node_norm"]), torch.from_numpy(norms["edge_norm"])

    def _count(self, norms: dict[str, np.ndarray]) -> None:
        """Counts how often nodes and edges are in subgraphs, until nodes have been ``sample_coverage`` times on
        average."""
        num_of_node, num_of_edge = torch.zeros(self.num_nodes), torch.zeros(self._num_edge_ids)
        total = num_sampled = 0
        for step in count():
            if total >= self.num_nodes * self.sample_coverage:
                break
            key = _core.batch_key(0, _BEFOREHAND, step)  # whatever random_seed is: a loader that resumes has another
            out = self._sampler.sample([(0, self._nodes_of(key))], batch_key=key)
            num_of_node[out.node.long()] += 1
            num_of_edge[out.edge.long()] += 1
            total, num_sampled = total + len(out.node), num_sampled + 1
        topology = self._graph.topologies[0]
        target = topology.coo()[1].long()
        of_edge = torch.zeros(self._num_edge_ids)
        of_edge[topology.all_edge_ids().long()] = num_of_node[target]
        edge_norm = (of_edge / num_of_edge).clamp(0, 1e4)
        edge_norm[edge_norm.isnan()] = 0.1
        num_of_node[num_of_node == 0] = 0.1
        norms["node_norm"][:] = (num_sampled / num_of_node / self.num_nodes).numpy()
        norms["edge_norm"][:] = edge_norm.numpy()

    @property
    def _num_edge_ids(self) -> int:
        return self._graph.topologies[0].num_edge_ids

    def _told(self) -> dict[str, Any]:
        own = {"num_samples": self.num_samples, "num_steps": self.num_steps, "sample_coverage": self.sample_coverage}
        return {name: value for name, value in own.items() if value}


@short_traceback
class GraphSAINTNodeSampler(GraphSAINTSampler):
    """A drop-in ``torch_geometric.loader.GraphSAINTNodeSampler``: the sources of ``batch_size`` edges, drawn uniformly
    with replacement, and the edges among them.

    Arguments, batches and errors are those of :class:`GraphSAINTRandomWalkSampler`, without walks.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.loader.GraphSAINTNodeSampler(data, batch_size=10, num_steps=3, random_seed=7)
        >>> len(loader), next(iter(loader)).num_nodes
        (3, 9)
    """

    def _prepare(self, num_threads: int) -> None:
        if self.num_edges == 0:
            raise ValueError("data has no edges: expected some, whose sources are drawn; RandomNodeLoader needs none")
        self._of_each_block = self._graph.topologies[0].indptr[::_ROWS_OF_BLOCK].clone().numpy()

    def _draw(self, key: int) -> np.ndarray:
        edges, topology = drawn_items(key, self.num_edges, np.arange(self.num_samples)), self._graph.topologies[0]
        if self._graph.edge_dir == "in":
            return topology.indices.numpy()[edges].astype(np.int64)
        edges.sort()  # neighbouring searches read the same memory
        return self._rows_of(edges)

    def _rows_of(self, edges: np.ndarray) -> np.ndarray:
        """In whose row each edge is: the block of rows first, by what a cache holds, and then all within theirs."""
        begin = self._graph.topologies[0].indptr.numpy()
        row = (np.searchsorted(self._of_each_block, edges, side="right") - 1) * _ROWS_OF_BLOCK
        step = _ROWS_OF_BLOCK // 2
        while step:
            row += step * (begin[np.minimum(row + step, self.num_nodes)] <= edges)
            step //= 2
        return row  # type: ignore[no-any-return]


@short_traceback
class GraphSAINTEdgeSampler(GraphSAINTSampler):
    """A drop-in ``torch_geometric.loader.GraphSAINTEdgeSampler``: both ends of ``batch_size`` distinct edges, and the
    edges among them.

    Edges are drawn successively, in proportion to 1 / degree of one end plus 1 / degree of the other, in- and out-edges
    counted together, which keeps the variance low (PyG's weights are the sums of degrees). Arguments, batches and
    errors are those of :class:`GraphSAINTRandomWalkSampler`, without walks; ``batch_size`` is at most half the edges.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.loader.GraphSAINTEdgeSampler(data, batch_size=10, num_steps=3, random_seed=7)
        >>> len(loader), next(iter(loader)).num_nodes
        (3, 18)
    """

    def _prepare(self, num_threads: int) -> None:
        if 2 * self.num_samples > self.num_edges:
            raise ValueError(
                f"batch_size = {self.num_samples}: expected at most half of the {self.num_edges} edges, which are "
                "drawn without replacement"
            )
        self._ends = self._graph.topologies[0].coo().long()
        degree = torch.bincount(self._ends.reshape(-1), minlength=self.num_nodes).double()
        weight = (1 / degree[self._ends]).sum(0).numpy()
        sums = EdgeWeights.build(torch.tensor([0, self.num_edges]), weight).weight_sum  # of one row with every edge
        self._weight_sum = sums.numpy()

    def _draw(self, key: int) -> np.ndarray:
        found = np.empty(0, np.int64)
        for first in count(0, 2 * self.num_samples):
            slots = np.arange(first, first + 2 * self.num_samples)
            drawn = np.concatenate([found, drawn_items(key, self.num_edges, slots, self._weight_sum)])
            found = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
            if len(found) >= self.num_samples:
                break
        return self._ends[:, found[: self.num_samples]].reshape(-1).numpy()


@short_traceback
class GraphSAINTRandomWalkSampler(GraphSAINTSampler):
    """A drop-in ``torch_geometric.loader.GraphSAINTRandomWalkSampler``: the nodes of ``batch_size`` random walks from
    uniform nodes, and the edges among them.

    Batches are PyG's: the attributes of these nodes, by id, and of the edges among them, and with ``sample_coverage``
    what losses and messages are to be multiplied with, ``node_norm [num_nodes]`` and ``edge_norm [num_edges]``, found
    from subgraphs that are sampled beforehand. An edge is normalized by how often its destination is in a subgraph, as
    the paper has it; PyG divides by its source. For a fixed ``random_seed`` the batches of an epoch are always the
    same.

    Args:
        data: A PyG ``Data``, or a :class:`glt.data.Dataset` of one node and edge type, whose batches also have
            ``n_id`` and ``e_id``. Walks go along edges; in a dataset with ``edge_dir='in'``, against them.
        batch_size: Walks; of the other samplers, edges.
        walk_length: Steps of a walk, 1 to 255.
        num_steps: Batches of an epoch.
        sample_coverage: How often nodes are to be sampled on average to count how likely each is. 0: no normalization.
        save_dir: Where norms are kept, and read from if they are there and of the same edges.
        log: Says on stderr when counting begins.
        transform, random_seed, num_threads: As of :class:`RandomNodeLoader`.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``num_workers``.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.

    Source: Zeng et al., "GraphSAINT", ICLR 2020.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.loader.GraphSAINTRandomWalkSampler(data, 4, walk_length=2, num_steps=3, random_seed=7)
        >>> len(loader), next(iter(loader)).num_nodes
        (3, 10)
    """

    def __init__(
        self,
        data: Data | Dataset,
        batch_size: int,
        walk_length: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | os.PathLike[str] | None = None,
        log: bool = True,
        *,
        transform: Callable[[Any], Any] | None = None,
        random_seed: int | None = None,
        num_threads: int = 1,
        **kwargs: Any,
    ) -> None:
        self.walk_length: int = walk_length
        options: dict[str, Any] = {"transform": transform, "random_seed": random_seed, "num_threads": num_threads}
        super().__init__(data, batch_size, num_steps, sample_coverage, save_dir, log, **options, **kwargs)

    def _prepare(self, num_threads: int) -> None:
        options: dict[str, Any] = {"random_seed": self.random_seed, "num_threads": num_threads}
        self._walks = RandomWalkSampler(self._graph, self.walk_length, **options)
        self.walk_length = self._walks.options.walk_length  # an int

    def _draw(self, key: int) -> np.ndarray:
        roots = drawn_items(key, self.num_nodes, np.arange(self.num_samples))
        nodes = self._walks.walk(roots, batch_key=key).reshape(-1).numpy()
        return nodes[nodes >= 0]

    def _told(self) -> dict[str, Any]:
        return {"walk_length": self.walk_length, **super()._told()}
