"""Loaders whose batches are sets of nodes with all edges among them."""

from __future__ import annotations

import math
import time
import uuid
import zipfile
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from glt import _core
from glt._checks import check_at_least, check_function, refuse_unknown
from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.arrays import require_in_range
from glt.data.dataset import Dataset
from glt.data.pyg import counted
from glt.loader.batches import BatchFeatures, has_edge_attributes
from glt.loader.keyed import OF_TORCH, KeyedLoader
from glt.sampler.graph import sampled_graph
from glt.sampler.neighbor_sampler import NeighborSampler
from glt.sampler.order import BatchIndex, as_json

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from glt.sampler.graph import Output, SampledGraph, Source


class NodeSetLoader(KeyedLoader, DataLoader[Any]):
    """What these loaders share: which nodes are in a batch is a function of its seeds and key.

    A batch has the attributes of the graph for these nodes, in the order that :meth:`_nodes` names, and for the edges
    among them, as PyG's have. Of a :class:`glt.data.Dataset` it also has ``n_id`` and ``e_id``.

    A subclass calls :meth:`_open` with its arguments, and then :meth:`_complete`.
    """

    def _open(
        self,
        data: Source | SampledGraph,
        random_seed: int | None,
        num_threads: int,
        transform: Callable[[Any], Any] | None,
        kwargs: dict[str, Any],
        *,
        edge_dir: str = "in",
    ) -> None:
        """Checks what all of them take."""
        for name in ("dataset", "collate_fn"):  # PyTorch Lightning gives them
            kwargs.pop(name, None)
        refuse_unknown(type(self).__name__, kwargs, OF_TORCH - {"dataset", "collate_fn"})
        check_function("transform", transform, "a batch")
        num_threads = check_at_least("num_threads", num_threads, 1)
        self._choose_seed(random_seed, kwargs)
        data = counted(data)
        self.transform: Callable[[Any], Any] | None = transform
        self._graph = sampled_graph(data, edge_dir=edge_dir, time_attr=None, weight_attr=None)
        self._sampler = self._sampler_of(self._graph, num_threads)
        self._features = BatchFeatures(data, num_threads=num_threads, with_sample=isinstance(data, Dataset))  # type: ignore[arg-type]

    def _sampler_of(self, graph: SampledGraph, num_threads: int) -> Any:
        # Along out-edges as along in-edges, edges keep their direction in a batch.
        direction = "backward" if graph.edge_dir == "out" else "forward"
        options: dict[str, Any] = {"random_seed": self.random_seed, "num_threads": num_threads, "device": "cpu"}
        return NeighborSampler(graph, [], subgraph_type="induced", sample_direction=direction, **options)

    def _complete(self, num_seeds: int, kwargs: dict[str, Any]) -> None:
        DataLoader.__init__(self, range(num_seeds), collate_fn=self.collate_fn, **kwargs)  # type: ignore[arg-type]
        self._complete_order()

    def _nodes(self, index: BatchIndex) -> list[tuple[int, Tensor]]:
        """The nodes of a batch: ids by position of the node type."""
        raise NotImplementedError

    def _sample(self, index: BatchIndex) -> Output:
        config = replace(self._sampler.config, with_edge=self._needs_edges())
        return self._sampler.begin(self._nodes(index), batch_key=index.key, config=config)()  # type: ignore[no-any-return]

    def _needs_edges(self) -> bool:
        """Whether a batch needs the ids of its edges."""
        return self._features.with_sample or has_edge_attributes(self._features.source)

    def _finish(self, batch: Any, out: Output) -> Data | HeteroData:
        """Adds to a batch what is the loader's own."""
        return batch  # type: ignore[no-any-return]

    def collate_fn(self, index: BatchIndex) -> Any:  # type: ignore[override]
        """Makes a batch."""
        require_in_range("positions that sampler yields", index.input_id, len(self.dataset))
        began_s = time.perf_counter()
        out = self._sample(index)
        self._counts.take_sample(len(index), began_s, out)
        sampled_s = time.perf_counter()
        batch = self._features.batch(out)
        for node_type, node in out.node.items() if isinstance(out.node, dict) else [(None, out.node)]:
            store = batch._store if node_type is None else batch[node_type]
            if not store.can_infer_num_nodes:
                store.num_nodes = len(node)
        batch = self._finish(batch, out)
        self._counts.take_gathering(sampled_s)
        return self._counts.transformed(self.transform, batch)

    def _told(self) -> dict[str, Any]:
        """The loader's own options, for states and representations."""
        return {}

    def _fingerprint(self) -> dict[str, Any]:
        graph = self._graph
        size = {
            "num_nodes": [int(each) for each in graph.num_nodes],
            "num_edges": [int(each.num_edges) for each in graph.topologies],
        }
        return as_json(self._order_options() | self._told() | size)  # type: ignore[no-any-return]

    @says
    def __repr__(self) -> str:
        where = f"in {self.num_workers} processes" if self.num_workers else "in this process"
        count = self._num_batches()
        told = self._told() | {"shuffle": self._shuffles, "drop_last": self.drop_last, "random_seed": self.random_seed}
        return f"{where}, {'' if count is None else f'{count} '}batches, {options(told)}"


def reordered(row: Tensor, col: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ends of edges when node ``order[i]`` has become node i, sorted by row and then by column, and which edge each is:
    three of ``[number of edges]``, the last int64."""
    rows, cols = (each.to(torch.int64).numpy() for each in (row, col))
    new_row, new_col, edge_order = np.empty((3, len(row)), np.int64)
    _core.reorder_edges(rows, cols, order.numpy(), new_row, new_col, edge_order)
    return (
        torch.from_numpy(new_row).to(row.dtype),
        torch.from_numpy(new_col).to(row.dtype),
        torch.from_numpy(edge_order),
    )


def kept_arrays(path: Path | None, like: dict[str, np.ndarray], make: Callable[[], None], graph_crc32: int) -> None:
    """Fills arrays with what a run before has kept at ``path`` of the graph with this checksum; else has them made, and
    keeps them there. None: nowhere. Raises ValueError, naming the file, if it is of another graph, or damaged."""
    if path is None:
        make()
        return
    if path.exists():
        try:
            with np.load(path, allow_pickle=False) as kept:
                found = {name: kept[name] for name in (*like, "graph_crc32")}
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is damaged, or no file of this loader: remove it, and it is made anew") from error
        fits = all(found[name].shape == each.shape and found[name].dtype == each.dtype for name, each in like.items())
        if not fits or found["graph_crc32"] != graph_crc32:
            raise ValueError(f"{path} is of another graph, whose edges differ: remove it, or name another place")
        for name, each in like.items():
            each[:] = found[name]
        return
    make()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")  # trainers may begin at the same time
    with partial.open("wb") as file:
        np.savez(file, graph_crc32=np.array(graph_crc32), **like)  # type: ignore[arg-type]
    partial.replace(path)


@short_traceback
class RandomNodeLoader(NodeSetLoader):
    """A drop-in ``torch_geometric.loader.RandomNodeLoader``: divides the nodes into parts at random, and yields the
    subgraph of each part.

    Batches are PyG's: the attributes of these nodes and of all edges among them. In a heterogeneous graph the nodes of
    all types are divided together. For a fixed ``random_seed`` the batches of an epoch are always the same.

    Args:
        data: A PyG ``Data`` or ``HeteroData``, or a :class:`glt.data.Dataset`, whose batches also have ``n_id`` and
            ``e_id``.
        num_parts: How many parts, which are the batches of an epoch; fewer where nodes run out, parts being equal.
        transform: Called with each batch; what it returns is yielded.
        random_seed: Seed of shuffling, in [0, 2^63). Default: drawn from torch's generator.
        num_threads: Threads that find edges and gather rows.
        **kwargs: Arguments of ``torch.utils.data.DataLoader`` but ``batch_size``. Without ``shuffle=True`` parts are
            runs of ids.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.loader.RandomNodeLoader(data, num_parts=4, shuffle=True, random_seed=7)
        >>> loader
        RandomNodeLoader(in this process, 4 batches, num_parts=4, shuffle=True, random_seed=7)
        >>> next(iter(loader)).x.shape
        torch.Size([10, 4])
    """

    def __init__(
        self,
        data: Source,
        num_parts: int,
        *,
        transform: Callable[[Any], Any] | None = None,
        random_seed: int | None = None,
        num_threads: int = 1,
        **kwargs: Any,
    ) -> None:
        num_parts = check_at_least("num_parts", num_parts, 1)
        if "batch_size" in kwargs:
            raise ValueError(
                f"batch_size = {kwargs['batch_size']!r}: num_parts says how large batches are; leave it out"
            )
        self._open(data, random_seed, num_threads, transform, kwargs)
        self.num_parts: int = num_parts
        self._first = [0, *accumulate(int(each) for each in self._graph.num_nodes)]
        num_nodes = self._first[-1]
        self._complete(num_nodes, kwargs | {"batch_size": max(1, math.ceil(num_nodes / num_parts))})

    def _nodes(self, index: BatchIndex) -> list[tuple[int, Tensor]]:
        ids, bounds = index.input_id, pairwise(self._first)
        return [(t, ids[(ids >= first) & (ids < end)] - first) for t, (first, end) in enumerate(bounds)]

    def _told(self) -> dict[str, Any]:
        return {"num_parts": self.num_parts}
