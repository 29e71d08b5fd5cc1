"""PyG's loaders on glt's sampler and gather: around nodes, around links, and enclosing subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import BaseSampler
from torch_geometric.typing import InputEdges, InputNodes

from glt._tracebacks import short_traceback
from glt.data.arrays import as_tensor, checked_times, require_data
from glt.data.dataset import Dataset
from glt.data.pyg import counted
from glt.data.schema import HOMOGENEOUS, EdgeType
from glt.loader.base import KeyedBatches
from glt.loader.batches import as_pyg
from glt.loader.seeds import (
    checked_edges,
    ids_of_keys,
    is_edge_type,
    links_of_keys,
    matching_types,
    nodes_for_pyg,
    require_nodes,
    require_per_seed,
    split_edge_type,
    split_node_type,
)
from glt.sampler.config import GIVEN, refuse_conflicts
from glt.sampler.link import checked_negatives, refuse_induced_trees, require_summable
from glt.sampler.neighbor_sampler import NeighborSampler

if TYPE_CHECKING:
    from glt.sampler.graph import Output


@short_traceback
class NeighborLoader(KeyedBatches, torch_geometric.loader.NeighborLoader):
    """A drop-in ``torch_geometric.loader.NeighborLoader``.

    Batches follow PyG's contract, point by point; duplicate seeds, which PyG gets wrong, are right. For a fixed
    ``random_seed`` the batches of an epoch are always the same, and equal to those of
    :class:`glt.distributed.DistNeighborLoader` with the same seeds and options.

    Args:
        data: A PyG ``Data`` or ``HeteroData``, a :class:`glt.data.Dataset`, or a pair ``(FeatureStore, GraphStore)``.
        num_neighbors: Edges per node and hop: a list, or in heterogeneous graphs also a dict by edge type; -1 takes
            all, 0 none.
        input_nodes: Seeds: ids, a bool mask over all nodes, or None for all nodes; in heterogeneous graphs a node type,
            or a pair of one and the seeds.
        input_time: Time of each seed, ``[number of seeds]``, integers. Default: the seeds' own.
        replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted, directed: As in
            :class:`glt.sampler.NeighborSampler`, and so are batch_dependency, time_bound, time_window
            and half_life.
        sampler: ``'neighbor'`` or ``'labor'``, as in :class:`glt.sampler.NeighborSampler`; or one of torch's: the order
            of seeds.
        neighbor_sampler: Another sampler with PyG's interface. A :class:`glt.sampler.NeighborSampler` brings its own
            options, seed and number of threads to sample with.
        random_seed: Seed of shuffling and sampling, in [0, 2^63). Default: drawn from torch's generator.
        num_threads: Threads to sample and gather with; the batches do not depend on it.
        with_edge: Return edge ids as ``e_id``, as PyG does. False: they are sampled only where the data has attributes
            of edges; reading ids costs up to a third of the sampling.
        device: The GPU that samples, and that batches are on, bit for bit those of the CPU; needs a
            :class:`glt.data.Dataset` with mode ``'CUDA'`` or ``'ZERO_COPY'``. Rows come from its memory as far as
            tables have a ``split_ratio``, else from pinned host memory. ``'host'`` and the default: as in the sampler.
        batches_ahead: With a GPU, batches that a thread makes ahead of the trainer, on a stream of its own. Default: 2.
            Two more are being sampled, each with 4 bytes per node of the graph. A ``sampler`` or ``batch_sampler`` of a
            class of your own, or a ``RandomSampler`` that draws with replacement, is asked for a batch only when the
            trainer asks.
        gather_window: With a GPU, batches whose distinct rows are fetched once; for rows that come over PCIe: of 8
            batches of 21% of the nodes each, 40% of the rows are distinct. As many batches more are sampled ahead.
            Default: 1, each by itself, as are those of an order of your own.
        transform, transform_sampler_output, filter_per_worker: As in PyG.
        **kwargs: As in PyG: ``custom_cls``, ``input_id`` and every argument of ``torch.utils.data.DataLoader``. And
            ``num_workers="auto"``: the loader tries no worker, one, two and more during the first batches, up to one
            per core and eight, goes on with the fewest that are as fast as the fastest to a tenth, and logs which.
            Batches are the same.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or two exclude each other; names them.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.NeighborLoader(data, [2, 2], batch_size=10, shuffle=True, random_seed=7)
        >>> loader
        NeighborLoader(in this process, 4 batches of 10 nodes, 40 seeds, num_neighbors=[2, 2], shuffle=True,
        random_seed=7)
        >>> batch = next(iter(loader))
        >>> batch.batch_size, batch.n_id[:4].tolist(), batch.x[:4, 0].tolist()
        (10, [16, 19, 0, 36], [16.0, 19.0, 0.0, 36.0])
    """

    _seeds = "nodes"

    def __init__(
        self,
        data: Data | HeteroData | Dataset | tuple[FeatureStore, GraphStore],
        num_neighbors: Any,
        input_nodes: InputNodes = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Any = None,
        transform_sampler_output: Any = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        sampler: Any = "neighbor",
        batch_dependency: int = 1,
        time_bound: str = "<=",
        time_window: int | Mapping[EdgeType, int] | None = None,
        half_life: int | Mapping[EdgeType, int] | None = None,
        random_seed: int | None = None,
        num_threads: int = 1,
        device: torch.device | int | str | None = None,
        with_edge: bool = True,
        batches_ahead: int | None = None,
        gather_window: int | None = None,
        **kwargs: Any,
    ) -> None:
        data = counted(data)  # else PyG hands out whole the attributes of a type that has no ``x``
        given = locals()
        source = as_pyg(data)
        sampler = self._choose_sampler(given)
        schema = HOMOGENEOUS if isinstance(source, Data) else None
        if isinstance(sampler, NeighborSampler):
            schema, time_attr = sampler.graph.schema, sampler.time_attr
            refuse_conflicts(input_time=input_time, time_level=sampler.config.time_level)
        elif not hasattr(sampler, "sample_from_nodes"):
            raise TypeError(f"neighbor_sampler has type {type(sampler).__name__}: expected a PyG BaseSampler")
        refuse_conflicts(input_time=input_time, time_attr=time_attr)
        if isinstance(given["data"], Dataset):
            input_nodes = ids_of_keys(input_nodes, given["data"].ids)
        input_nodes = nodes_for_pyg(input_nodes, schema, kwargs.get("input_id"))
        if input_time is not None:
            input_time = as_tensor("input_time", input_time, "one time per seed")
        require_data(kwargs.get("input_id"), "input_id")
        super().__init__(source, num_neighbors, input_nodes, input_time, time_attr=time_attr, **kwargs)
        self._check_inputs()
        self._complete_init(data, num_threads)

    def _check_inputs(self) -> None:
        """Refuses seeds outside the graph, or without times, when they are given: not when their batch comes up."""
        sampler, seeds, time = self._sampler, self.input_data.node, self.input_data.time
        if not isinstance(sampler, NeighborSampler):
            return
        node_type = sampler.graph.schema.node_index(self.input_data.input_type)
        num_nodes = sampler.graph.num_nodes[node_type]
        mask = split_node_type(self.input_nodes)[1]
        if isinstance(mask, Tensor) and mask.dtype == torch.bool and len(mask) != num_nodes:
            raise ValueError(f"input_nodes is a mask of {len(mask)} elements: expected one per node, {num_nodes}")
        require_nodes(seeds, num_nodes)
        if time is not None:
            checked_times("input_time", time, len(seeds))
        elif sampler.is_temporal:
            sampler.graph.seed_time(node_type, seeds[:0])

    def _with_seeds(self, data: Any, out: Output) -> Data | HeteroData:
        input_type = self.input_data.input_type
        seeds = data if input_type is None else data[input_type]
        seeds.input_id, seeds.seed_time = out.metadata[:2]
        seeds.batch_size = len(seeds.input_id)
        return data

    def _seed_columns(self) -> dict[str, Tensor | None]:
        inputs = self.input_data
        return {"node": inputs.node, "time": inputs.time, "input_id": inputs.input_id}


@short_traceback
class SubGraphLoader(NeighborLoader):
    """Samples around seed nodes and returns *all* edges among the nodes found, with where the seeds are.

    What SEAL-like link prediction learns from (Zhang and Chen, "Link Prediction Based on Graph Neural Networks",
    NeurIPS 2018): let the seeds of a batch be the ends of links. Arguments, errors and batches are those of
    :class:`NeighborLoader` with ``subgraph_type='induced'``, plus ``mapping [batch_size]``: seed i is node
    ``mapping[i]`` of the batch. In heterogeneous graphs it stands in the store of the seeds' type. The fan-outs bound
    which nodes are found, not which edges are returned.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.SubGraphLoader(data, [2], torch.tensor([0, 1]), batch_size=2, random_seed=0)
        >>> batch = next(iter(loader))
        >>> batch.mapping, batch.n_id
        (tensor([0, 1]), tensor([ 0,  1, 38, 39]))
    """

    def __init__(self, data: Any, num_neighbors: Any, input_nodes: Any = None, **kwargs: Any) -> None:
        subgraph_type = kwargs.pop("subgraph_type", "induced")
        if getattr(subgraph_type, "value", subgraph_type) != "induced":
            raise ValueError(f"subgraph_type = {subgraph_type!r}: subgraphs are 'induced'; NeighborLoader has others")
        transform = _WithMapping(kwargs.pop("transform", None))
        super().__init__(data, num_neighbors, input_nodes, subgraph_type="induced", transform=transform, **kwargs)


class _WithMapping:
    """Adds ``mapping`` before the user's transform sees the batch."""

    def __init__(self, transform: Callable[[Any], Any] | None) -> None:
        self.transform: Callable[[Any], Any] | None = transform
        if isinstance(transform, _WithMapping):  # of a loader that is made anew from the options of another
            self.transform = transform.transform

    def __call__(self, data: Any) -> Any:
        for store in data.stores:
            if "batch_size" in store:
                where = store.input_id.device if "input_id" in store else None
                store.mapping = torch.arange(store.batch_size, device=where)
        return data if self.transform is None else self.transform(data)


def edges_for_pyg(data: Any, edge_label_index: Any) -> Any:
    """Returns seed edges as PyG's loaders take them, with ids as a tensor; all edges of a dataset in the order of their
    ids. Raises TypeError or ValueError if they are not ``[2, B]`` integers, or name no known edge type."""
    is_dataset = isinstance(data, Dataset)
    if is_dataset:
        edge_label_index = links_of_keys(edge_label_index, data.ids)
    if isinstance(data, Data) or (is_dataset and not data.schema.is_hetero):
        if edge_label_index is None:
            return _all_edges(data, None) if is_dataset else None
        parts = edge_label_index if isinstance(edge_label_index, tuple | list) else ()
        if is_edge_type(parts) or (len(parts) and is_edge_type(parts[0])):
            raise ValueError("edge_label_index names an edge type, but the graph has none: expected [2, B] alone")
        return checked_edges(edge_label_index)
    known: list[EdgeType] | None = None  # stores tell
    if isinstance(data, HeteroData) or is_dataset:
        known = data.edge_types if isinstance(data, HeteroData) else list(data.schema.edge_types)
    named, edges = split_edge_type(edge_label_index, known)
    edges = None if edges is None else checked_edges(edges)
    if known is None:
        return edge_label_index if edges is None else (named, edges)
    fits = matching_types(named, known)
    if len(fits) != 1 and (is_dataset or edges is None):
        raise ValueError(f"edge_label_index names edge type {named!r}: expected one of {known}")
    if is_dataset:
        return fits[0], _all_edges(data, fits[0]) if edges is None else edges
    return named, edges


def _all_edges(data: Dataset, edge_type: EdgeType | None) -> Tensor:
    topology = data.get_graph(edge_type).topology
    edges = topology.coo()
    return edges if topology.edge_ids is None else edges[:, topology.edge_ids.argsort(stable=True)]


@short_traceback
class LinkNeighborLoader(KeyedBatches, torch_geometric.loader.LinkNeighborLoader):
    """A drop-in ``torch_geometric.loader.LinkNeighborLoader``: samples around both ends of edges, and negatives.

    Batches follow PyG's contract, point by point, with two differences that are PyG's "to do". Negatives are never
    edges of the graph, and uniform (or by weight) over all pairs that are not, of nodes that are no later than the
    link; see :class:`glt.sampler.negatives.NegativeRounds`. And the edges to predict can be kept out of the sample:
    leave them in the graph, so that no negative is one of them, and use ``exclude_edges``. For a fixed ``random_seed``
    the batches of an epoch are always the same, and equal to those of
    :class:`glt.distributed.DistLinkNeighborLoader` with the same seed edges and options.

    Args:
        data, num_neighbors: As in :class:`NeighborLoader`.
        edge_label_index: Seed edges ``[2, B]``, edges of the graph or not; None: all edges. In heterogeneous graphs an
            edge type, or a pair of that and the seed edges. Of a dataset with keys, ends may be keys: ``(["ann"],
            ["bob"])``.
        edge_label: Label of each seed edge. With binary negatives, whose label is 0, labels that start at 0 go up by 1.
        edge_label_time: Time of each seed edge, int64; needs ``time_attr``. No node or edge that is later is sampled.
        neg_sampling: ``'binary'``, ``'triplet'``, a dict or a ``NegativeSampling``; None: no negatives. Triplets need a
            destination that their source has no edge to: a seed edge without one is refused, where PyG would train on
            an edge as a negative.
        neg_sampling_ratio: PyG's old name for the amount of binary negatives.
        replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted, directed: As in
            :class:`glt.sampler.NeighborSampler`, and so are batch_dependency, time_bound, time_window
            and half_life.
        sampler: ``'neighbor'`` or ``'labor'``, as in :class:`glt.sampler.NeighborSampler`; or one of torch's: the order
            of seeds.
        exclude_edges: As in :class:`glt.sampler.NeighborSampler`.
        neighbor_sampler, random_seed, num_threads, device, with_edge, batches_ahead, gather_window: As in
            :class:`NeighborLoader`.
        transform, transform_sampler_output, filter_per_worker: As in PyG.
        **kwargs: As in PyG: ``custom_cls``, ``input_id`` and every argument of ``torch.utils.data.DataLoader``. And
            ``num_workers="auto"``: the loader tries no worker, one, two and more during the first batches, up to one
            per core and eight, goes on with the fewest that are as fast as the fastest to a tenth, and logs which.
            Batches are the same.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or two exclude each other; names them.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.LinkNeighborLoader(data, [2], batch_size=10, neg_sampling="binary", random_seed=0)
        >>> batch = next(iter(loader))
        >>> batch.edge_label_index.shape, batch.edge_label.tolist()[8:12]
        (torch.Size([2, 20]), [1.0, 1.0, 0.0, 0.0])
    """

    _seeds = "edges"

    def __init__(
        self,
        data: Data | HeteroData | Dataset | tuple[FeatureStore, GraphStore],
        num_neighbors: Any,
        edge_label_index: InputEdges = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Any = None,
        transform_sampler_output: Any = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        sampler: Any = "neighbor",
        batch_dependency: int = 1,
        time_bound: str = "<=",
        time_window: int | Mapping[EdgeType, int] | None = None,
        half_life: int | Mapping[EdgeType, int] | None = None,
        exclude_edges: str | EdgeType | None = None,
        random_seed: int | None = None,
        num_threads: int = 1,
        device: torch.device | int | str | None = None,
        with_edge: bool = True,
        batches_ahead: int | None = None,
        gather_window: int | None = None,
        **kwargs: Any,
    ) -> None:
        data = counted(data)  # else PyG hands out whole the attributes of a type that has no ``x``
        given = locals()
        source = as_pyg(data)
        sampler = self._choose_sampler(given)
        if isinstance(sampler, NeighborSampler):
            time_attr = sampler.time_attr
            refuse_induced_trees(sampler.config.disjoint, sampler.config.subgraph_type)
        elif exclude_edges is not None:
            raise ValueError(f"exclude_edges = {exclude_edges!r}: the neighbor_sampler given does not know that option")
        refuse_conflicts(edge_label_time=edge_label_time, time_attr=None if time_attr is None else GIVEN)
        neg_sampling = checked_negatives(neg_sampling, neg_sampling_ratio, kwargs.get("batch_size") or 1)
        columns = {"edge_label": edge_label, "edge_label_time": edge_label_time, "input_id": kwargs.get("input_id")}
        for name, value in columns.items():
            kwargs[name] = value if value is None else as_tensor(name, value, "a tensor with a row per seed edge")
        if edge_label is not None and neg_sampling is not None:
            require_summable(kwargs["edge_label"])
        kwargs |= {"neg_sampling": neg_sampling, "time_attr": time_attr}
        super().__init__(source, num_neighbors, edges_for_pyg(data, edge_label_index), **kwargs)
        self._check_inputs()
        self._complete_init(data, num_threads)

    def _check_inputs(self) -> None:
        """Refuses seed edges, and what comes with them, when they are given: not when their batch comes up."""
        inputs, size = self.input_data, len(self.input_data.row)
        for name, given in (("edge_label", inputs.label), ("input_id", inputs.input_id)):
            if given is not None:
                require_per_seed(name, given, size)
        if inputs.time is not None:
            checked_times("edge_label_time", inputs.time, size)
        if isinstance(self._sampler, NeighborSampler):
            self._sampler.check_links(inputs, self.neg_sampling)

    def _sample_options(self) -> dict[str, Any]:
        return {"neg_sampling": self.neg_sampling}

    def _options(self) -> dict[str, Any]:
        drawn = self.neg_sampling
        return {"neg_sampling": None if drawn is None else {"mode": drawn.mode.value, "amount": drawn.amount}}

    def _seed_columns(self) -> dict[str, Tensor | None]:
        inputs, drawn = self.input_data, self.neg_sampling
        weights = {} if drawn is None else {"src_weight": drawn.src_weight, "dst_weight": drawn.dst_weight}
        return {name: getattr(inputs, name) for name in ("row", "col", "label", "time", "input_id")} | weights

    def _with_seeds(self, data: Any, out: Output) -> Data | HeteroData:
        input_type = self.input_data.input_type
        links = data if input_type is None else data[input_type]
        links.input_id = out.metadata[0]
        if self.neg_sampling is None or self.neg_sampling.is_binary():
            links.edge_label_index, links.edge_label, links.edge_label_time = out.metadata[1:]
            return data
        src, dst = (data, data) if input_type is None else (data[input_type[0]], data[input_type[-1]])
        src.src_index, dst.dst_pos_index, dst.dst_neg_index, time = out.metadata[1:]
        src.seed_time = dst.seed_time = time
        for name in ("edge_label_index", "edge_label_time"):  # of the source, which say nothing of the batch
            if name in links:
                del links[name]
        return data
