"""Loaders over a :class:`DistGraph`, as DGL has them: around nodes, around edges, and of any sampler of one's own."""

from __future__ import annotations

import inspect
import reprlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling, NumNeighbors
from torch_geometric.sampler.base import SubgraphType

from glt._checks import check_count, check_flag, check_one_of, refuse_unknown
from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids
from glt.data.schema import EdgeType
from glt.distributed.graph.blocks import Block, layered
from glt.distributed.graph.graph import DistGraph
from glt.distributed.graph.samplers import LaborSampler, MultiLayerNeighborSampler
from glt.distributed.loader.loaders import DistLinkNeighborLoader, DistNeighborLoader
from glt.distributed.tensors.graph_data import WrittenRows, table_names
from glt.distributed.tensors.tensor import DistTensor
from glt.distributed.wire.threads import NativePool
from glt.sampler.order import OneThread, SeedOrder, check_random_seed, draw_random_seed

_Tables = tuple[list[str], list[str]]


@short_traceback
class NodeDataLoader(DistNeighborLoader):
    """Batches around nodes of a graph; see :class:`glt.distributed.DistNeighborLoader`.

    Args:
        graph: The graph.
        nodes: Seeds of this trainer: ids, or a mask (bool, or zeros and ones in uint8), such as
            ``graph.ndata["train_mask"]`` for a job of one trainer; of a heterogeneous graph, a dict with one node type.
            Several trainers take shares of :func:`node_split`.
        sampler: Edges per node and hop, from the seeds outwards; or a :class:`MultiLayerNeighborSampler` or
            :class:`LaborSampler`.
        batch_size, shuffle, drop_last: As of the loader.
        blocks: Yield ``(input nodes, seeds, blocks)`` in place of batches: ids ``[n]`` and ``[batch_size]``, and a list
            of :class:`Block`, the widest first. Of a heterogeneous graph ids are dicts by node type. With
            ``collect_features=True`` blocks have the stored tables of their nodes and edges.
        num_workers: Processes that sample; 0: none of their own.
        options: The others of the loader, such as ``time_attr``, ``time_window`` and ``half_life``.
            ``collect_features`` is True by default without ``blocks``: batches have the
            tables that the graph was partitioned with, and of these the rows in ``ndata`` and ``edata``: what was
            written, or assigned to the name of a table, before an epoch is in all of its batches, what this trainer
            writes also in batches that it takes later. Read tensors of other names from ``ndata`` and ``edata``.

    Raises:
        The same as :class:`glt.distributed.DistNeighborLoader`; ValueError also if an option does not go with blocks.

    Example:
        >>> glt.distributed.initialize(part_config="parts")
        >>> graph = glt.distributed.DistGraph("ring")
        >>> with glt.distributed.NodeDataLoader(graph, torch.arange(20), [2, 2], 10, random_seed=7) as loader:
        ...     [batch.x.shape for batch in loader]
        ...
        [torch.Size([14, 4]), torch.Size([14, 4])]
        >>> glt.distributed.finalize()
    """

    def __init__(
        self,
        graph: DistGraph,
        nodes: Any,
        sampler: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        blocks: bool = False,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        refuse_unknown(type(self).__name__, options, inspect.signature(DistNeighborLoader).parameters)
        given = _loader_options(graph, sampler, blocks, num_workers, options, _node_blocks)
        self._graph = graph
        if isinstance(nodes, Mapping):
            node_type, nodes = _only(nodes, "nodes", "node type")
            nodes = node_type, _read(nodes, "nodes")
        else:
            nodes = _read(nodes, "nodes")
        super().__init__(_data(graph), given.pop("num_neighbors"), nodes, batch_size, shuffle, drop_last, **given)

    def _written_rows(self) -> WrittenRows | None:
        return self._graph.written_rows()


@short_traceback
class EdgeDataLoader(DistLinkNeighborLoader):
    """Batches around edges of a graph; see :class:`glt.distributed.DistLinkNeighborLoader`.

    ``input_id`` of a batch has the ids of its seed edges.

    Args:
        graph: The graph.
        edges: Ids of the seed edges of this trainer, or a mask; of a heterogeneous graph, a dict with one edge type.
        sampler, batch_size, shuffle, drop_last, num_workers: As of :class:`NodeDataLoader`.
        exclude: ``'self'``: seed edges of a batch are not sampled in it; ``'reverse'`` (or ``'reverse_id'``): nor are
            their reverses; ``'reverse_types'``: those are of the type that ``reverse_etypes`` names. Edges are compared
            by their ends, not by ids; others are sampled in their place.
        reverse_etypes: The edge type that holds the reverses, by edge type.
        negative_sampler: :func:`PerSourceUniform`, :func:`GlobalUniform`, or PyG's ``NegativeSampling``.
        blocks: Yield ``(input nodes, positive graph, blocks)`` in place of batches, or with negatives ``(input nodes,
            positive graph, negative graph, blocks)``. Graphs have ``edge_index [2, n]``, positions in the output of the
            last block, and its nodes' ids as ``n_id``; the positive one also the ids of its edges as ``input_id [n]``,
            and ``edge_label [n]`` where labels were given. Of a heterogeneous graph they are ``HeteroData``, with all
            node types and the edge type of the seeds.
        options: The others of the loader.

    Raises:
        The same as :class:`glt.distributed.DistLinkNeighborLoader`.

    Example:
        >>> glt.distributed.initialize(part_config="parts")
        >>> graph = glt.distributed.DistGraph("ring")
        >>> with glt.distributed.EdgeDataLoader(graph, torch.arange(20), [2], batch_size=10, random_seed=7) as loader:
        ...     [batch.edge_label_index.shape for batch in loader]
        ...
        [torch.Size([2, 10]), torch.Size([2, 10])]
        >>> glt.distributed.finalize()
    """

    def __init__(
        self,
        graph: DistGraph,
        edges: Any,
        sampler: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        exclude: Any = None,
        reverse_etypes: Mapping[Any, Any] | None = None,
        negative_sampler: Any = None,
        blocks: bool = False,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        refuse_unknown(type(self).__name__, options, inspect.signature(DistLinkNeighborLoader).parameters)
        _data(graph)
        self._graph = graph
        if not isinstance(negative_sampler, NegativeSampling | str | Mapping | None):
            raise TypeError(
                f"negative_sampler = {reprlib.repr(negative_sampler)}: expected PerSourceUniform(k), GlobalUniform(k), "
                "PyG's NegativeSampling, or None"
            )
        edge_type = None
        if isinstance(edges, Mapping):
            edge_type, edges = _only(edges, "edges", "edge type")
        if graph.is_hetero:
            edge_type = graph.schema.edge_types[graph.schema.edge_index(edge_type)]
        split = partial(_edge_blocks, edge_type)
        given = _loader_options(graph, sampler, blocks, num_workers, options, split)
        ids = as_ids(_read(edges, "edges"), "edges", graph.num_edges(edge_type))
        ends = graph.find_edges(ids, edge_type)
        super().__init__(
            _data(graph),
            given.pop("num_neighbors"),
            ends if edge_type is None else (edge_type, ends),
            batch_size,
            shuffle,
            drop_last,
            input_id=ids,
            exclude_edges=_excluded(exclude, reverse_etypes, edge_type),
            neg_sampling=negative_sampler,
            **given,
        )

    def _written_rows(self) -> WrittenRows | None:
        return self._graph.written_rows()


@short_traceback
class DistDataLoader:
    """Batches that a function makes of ids, for samplers of one's own. They are made ahead, and come in order.

    Args:
        dataset: Ids of this trainer ``[n]``, or any sequence.
        batch_size, shuffle, drop_last: As of the loaders.
        collate_fn: Makes a batch of some of them: a tensor of a tensor, else a list. Runs on ``num_threads`` threads,
            several at a time, where it waits for servers most of the time.
        queue_size: Batches that are made ahead. Default: twice as many as there are threads.
        num_threads: How many.
        random_seed: Of the order. Default: drawn from torch's generator.

    Raises:
        TypeError, ValueError: If an argument does not fit; names it.

    Example:
        >>> loader = glt.distributed.DistDataLoader(torch.arange(5), batch_size=2, collate_fn=lambda ids: ids * 10)
        >>> [batch.tolist() for batch in loader]
        [[0, 10], [20, 30], [40]]
    """

    dataset: Any
    collate_fn: Callable[[Any], Any]
    num_threads: int
    queue_size: int

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        queue_size: int | None = None,
        *,
        num_threads: int = 1,
        random_seed: int | None = None,
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise TypeError(f"dataset is a {type(dataset).__name__}: expected ids, or a sequence")
        if not callable(collate_fn):
            raise TypeError(f"collate_fn = {collate_fn!r}: expected a function of some of dataset")
        num_threads = check_count("num_threads", num_threads, 1, 1024)
        queue_size = 2 * num_threads if queue_size is None else queue_size
        queue_size = check_count("queue_size", queue_size, 1, 1 << 20)
        self.dataset, self.collate_fn = dataset, collate_fn
        self.num_threads, self.queue_size = num_threads, queue_size
        seed = draw_random_seed() if random_seed is None else check_random_seed(random_seed)
        self._order = SeedOrder(len(dataset), batch_size, shuffle, drop_last, seed)
        self._epoch, self._one_thread = 0, OneThread[Any]()

    def __len__(self) -> int:
        return len(self._order)

    @short_traceback
    def __iter__(self) -> Iterator[Any]:
        with self._one_thread:
            epoch, self._epoch = self._epoch, self._epoch + 1
        return self._one_thread.over(self._batches(epoch))

    def _batches(self, epoch: int) -> Generator[Any, None, None]:
        coming: deque[Future[Any]] = deque()
        pool = NativePool(self.num_threads, "glt-collate")
        try:
            for index in self._order.batches(epoch):
                coming.append(pool.submit(self._make, index.input_id))
                if len(coming) > self.queue_size:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for each in coming:
                each.cancel()
            pool.shutdown(0.0)

    def _make(self, positions: Tensor) -> Any:
        if isinstance(self.dataset, Tensor):
            return self.collate_fn(self.dataset[positions])
        return self.collate_fn([self.dataset[at] for at in positions.tolist()])

    @says
    def __repr__(self) -> str:
        order = self._order
        told = options({"shuffle": order.shuffle, "drop_last": order.drop_last, "random_seed": order.random_seed})
        return f"{self.num_threads} threads, {len(order)} batches of {order.batch_size} ids, {told}"


def _data(graph: DistGraph) -> Any:
    if not isinstance(graph, DistGraph):
        raise TypeError(f"graph is a {type(graph).__name__}: expected a DistGraph")
    return graph.world.data


# What these options may be, the default first.
_FIT_FOR_BLOCKS = {
    "subgraph_type": (None, "directional", SubgraphType.directional),
    "transform": (None,),
    "custom_cls": (None,),
    "directed": (True,),
}


def _loader_options(
    graph: DistGraph,
    sampler: Any,
    blocks: bool,
    num_workers: int,
    options: dict[str, Any],
    split: Callable[[_Tables, Any], Any],
) -> dict[str, Any]:
    _data(graph)
    check_flag("blocks", blocks)
    num_workers = check_count("num_workers", num_workers, 0, 1024)
    if not isinstance(sampler, MultiLayerNeighborSampler | LaborSampler | list | tuple | Mapping | NumNeighbors):
        raise TypeError(
            f"sampler = {reprlib.repr(sampler)}: expected a list with the edges per node of each hop, a dict of such "
            "by edge type, a MultiLayerNeighborSampler, or for LABOR a LaborSampler"
        )
    if "num_neighbors" in options:
        raise TypeError("num_neighbors is given: expected it in the place of sampler")
    if "worker_options" in options and num_workers:
        raise ValueError(f"num_workers = {num_workers} with worker_options: leave one of them out")
    given = {"collect_features": not blocks, "worker_options": graph.world.worker_options(num_workers), **options}
    if isinstance(sampler, MultiLayerNeighborSampler | LaborSampler):
        for name in sampler.options():
            if name in options:
                raise ValueError(f"{name} = {options[name]!r} with {sampler}: expected it there alone")
        given |= {**sampler.options(), "num_neighbors": sampler.num_neighbors()}
    else:
        given["num_neighbors"] = sampler
    if blocks:
        for name, fit in _FIT_FOR_BLOCKS.items():
            if options.get(name, fit[0]) not in fit:
                raise ValueError(f"{name} = {options[name]!r} with blocks = True: leave one of them out")
        hops = given["num_neighbors"]
        if not (hops if isinstance(hops, list | tuple | dict) else True):
            raise ValueError(f"sampler = {sampler!r} with blocks = True: expected at least one layer")
        assert graph.world.data is not None
        given["transform"] = partial(split, table_names(graph.world.data.manifest))
    return given


def _only(given: Mapping[Any, Any], name: str, kind: str) -> tuple[Any, Any]:
    if len(given) != 1:
        raise ValueError(
            f"{name} are of {len(given)} types, {list(given)}: expected one {kind}; make a loader for each"
        )
    return next(iter(given.items()))


def _read(given: Any, name: str) -> Any:
    if not isinstance(given, DistTensor):
        return given
    if given.ndim != 1:
        raise ValueError(f"{name} has shape {list(given.shape)}: expected one dimension")
    return given[:]


_EXCLUSIONS = ("self", "reverse", "reverse_id", "reverse_types")


def _excluded(exclude: Any, reverse_etypes: Mapping[Any, Any] | None, edge_type: Any) -> Any:
    if not isinstance(exclude, str | tuple | list | None):
        raise TypeError(f"exclude = {reprlib.repr(exclude)}: expected None or one of {list(_EXCLUSIONS)}")
    if isinstance(exclude, str):
        check_one_of("exclude", exclude, (None, *_EXCLUSIONS))
    if exclude == "reverse_types":
        if reverse_etypes is None or edge_type not in reverse_etypes:
            raise ValueError(f"exclude = 'reverse_types': expected reverse_etypes to name the reverse of {edge_type!r}")
        return reverse_etypes[edge_type]
    if reverse_etypes is not None:
        raise ValueError(f"reverse_etypes is given, and exclude = {exclude!r}: expected 'reverse_types'")
    return "reverse" if exclude == "reverse_id" else exclude


def _node_blocks(tables: _Tables, batch: Data | HeteroData) -> tuple[Any, Any, list[Block]]:
    blocks = layered(batch, tables)
    seeds = blocks[-1].dst_id
    if isinstance(batch, HeteroData):
        seeds = {t: ids for t, ids in seeds.items() if len(ids)}
    return blocks[0].src_id, seeds, blocks


def _edge_blocks(edge_type: EdgeType | None, tables: _Tables, batch: Data | HeteroData) -> tuple[Any, ...]:
    blocks = layered(batch, tables)
    links = source = target = batch
    if edge_type is not None:
        links, source, target = batch[edge_type], batch[edge_type[0]], batch[edge_type[2]]
    count = len(links.input_id)
    if "src_index" in source:
        negative = target.dst_neg_index.reshape(count, -1)
        repeated = source.src_index.repeat_interleave(negative.size(1))
        ends: Sequence[Tensor] = (
            torch.stack([source.src_index, target.dst_pos_index]),
            torch.stack([repeated, negative.flatten()]),
        )
    else:
        ends = [links.edge_label_index[:, :count]]
        if links.edge_label_index.size(1) > count:
            ends.append(links.edge_label_index[:, count:])
    graphs = [_pairs(each, edge_type, blocks[-1].dst_id) for each in ends]
    positive = graphs[0] if isinstance(graphs[0], Data) else graphs[0][edge_type]
    positive.input_id = links.input_id
    if "edge_label" in links:
        positive.edge_label = links.edge_label[:count]
    return (blocks[0].src_id, *graphs, blocks)


def _pairs(ends: Tensor, edge_type: EdgeType | None, ids: Any) -> Data | HeteroData:
    if not isinstance(ids, dict):
        return Data(edge_index=ends, n_id=ids, num_nodes=len(ids))
    graph = HeteroData()
    for node_type, of_type in ids.items():
        graph[node_type].n_id, graph[node_type].num_nodes = of_type, len(of_type)
    graph[edge_type].edge_index = ends
    return graph
