"""The loaders of a distributed job, around nodes, edges and of whole subgraphs, and the checks of their arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from glt._checks import check_flag, check_one_of
from glt._tracebacks import short_traceback
from glt.channel.message import MAX_DIMS, Message
from glt.data.arrays import as_tensor, checked_times, require_in_range
from glt.data.schema import EdgeType, Schema
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.sampling_job import SeedTable
from glt.distributed.engine.seeds import LinkSeeds, Negatives, NodeSeeds
from glt.distributed.loader.base import DistLoader, LoaderOptions
from glt.distributed.loader.deployment import LoaderData, opened
from glt.distributed.options import WorkerOptions
from glt.distributed.server.client import RemoteDataset
from glt.distributed.server.server import SPLITS
from glt.loader.seeds import (
    checked_edges,
    checked_input_id,
    checked_nodes,
    ids_of_keys,
    links_of_keys,
    matching_types,
    split_edge_type,
)
from glt.sampler.config import GIVEN, TEMPORAL_STRATEGIES, SamplingConfig, refuse_conflicts
from glt.sampler.link import checked_negatives, find_reverse, refuse_induced_trees, require_summable
from glt.sampler.negatives import Endpoint

# PyG's sampling options, checked against what the partition directory holds.


def checked_config(
    data: LoaderData,
    num_neighbors: Any,
    *,
    temporal_strategy: str = "uniform",
    time_attr: str | None = None,
    weight_attr: str | None = None,
    input_time: Any = None,
    directed: bool = True,
    **options: Any,
) -> SamplingConfig:
    """Returns what to sample."""
    check_one_of("temporal_strategy", temporal_strategy, TEMPORAL_STRATEGIES)
    check_flag("directed", directed)
    time_level = require_attributes(data, time_attr, weight_attr)
    subgraph_type = getattr(options["subgraph_type"], "value", options["subgraph_type"])
    refuse_conflicts(directed=directed, subgraph_type=subgraph_type)
    if not directed:
        subgraph_type = options["subgraph_type"] = "induced"
    refuse_conflicts(
        time_attr=time_attr,
        weight_attr=weight_attr,
        temporal_strategy=temporal_strategy,
        time_level=time_level,
        input_time=input_time,
        time_bound=options.get("time_bound"),
        time_window=options.get("time_window"),
        half_life=options.get("half_life"),
        disjoint=options.get("disjoint"),
        subgraph_type=subgraph_type,
        exclude_edges=options.get("exclude_edges"),
    )
    return SamplingConfig.checked(
        num_neighbors,
        data.schema,
        weighted=weight_attr is not None,
        time_level=time_level,
        temporal=None if time_attr is None else temporal_strategy,
        timed=[entry.has_time for entry in data.manifest.edge_types],
        **options,
    )


def require_attributes(data: LoaderData, time_attr: Any, weight_attr: Any) -> str | None:
    """Returns what carries the times that are asked for, ``'node'`` or ``'edge'``; raises TypeError or ValueError if
    the partitions have no times or weights."""
    for name, value in (("time_attr", time_attr), ("weight_attr", weight_attr)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} = {value!r}: expected the name of an attribute, or None")
    stored = data.manifest.time_level
    where = f"the partition directory {data.load_args['graph_dir']!r}"
    if time_attr is not None and stored is None:
        raise ValueError(
            f"time_attr = {time_attr!r}: {where} has no times; partition with edge_time=... or node_time=..."
        )
    if weight_attr is not None and not any(entry.has_weight for entry in data.manifest.edge_types):
        raise ValueError(f"weight_attr = {weight_attr!r}: {where} has no weights; partition with edge_weight=...")
    return None if time_attr is None else stored


def checked_class(custom_cls: Any, filter_per_worker: Any, data: LoaderData) -> Any:
    """Returns the class that batches are to be of, None for PyG's own; checks ``filter_per_worker`` too."""
    if filter_per_worker is not None and not isinstance(filter_per_worker, bool):
        raise TypeError(f"filter_per_worker = {filter_per_worker!r}: expected None, True or False")
    refuse_conflicts(data="DistDataset", filter_per_worker=filter_per_worker)
    base = HeteroData if data.schema.is_hetero else Data
    if custom_cls is not None and not (isinstance(custom_cls, type) and issubclass(custom_cls, base)):
        raise TypeError(f"custom_cls = {custom_cls!r}: expected a class derived from {base.__name__}, or None")
    return custom_cls


# What link loaders are given as seed edges and labels, checked when it is given.


class SeedLinks(NamedTuple):
    """Seed edges of one trainer, of a type that has ``num_edges``: ends ``[2, B]``, int64, and their ids ``[B]``, where
    they are all edges of a partition; None where the ends were given."""

    edge_type: int
    num_edges: int
    ends: Tensor
    ids: Tensor | None

    def per_edge(self, name: str, given: Any) -> Any:
        """What was given for each seed edge; of all edges, it is given for each edge of the whole graph, by id."""
        if self.ids is None:
            return given
        tensor = as_tensor(name, given, "a tensor with a row per edge")
        if tensor.dim() == 0 or len(tensor) != self.num_edges:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}: edge_label_index names no edges, so that they are all of the "
                f"type; expected one row for each edge of the whole graph, {self.num_edges}, in the order of their ids"
            )
        return tensor[self.ids]


def checked_links(edge_label_index: Any, data: LoaderData) -> SeedLinks:
    """Returns the seed edges of this trainer."""
    schema = data.schema
    edge_type, edges = None, edge_label_index
    if schema.is_hetero:
        types = list(schema.edge_types)
        edge_type, edges = split_edge_type(edge_label_index, types)
        fits = matching_types(edge_type, types)
        if len(fits) != 1:
            raise ValueError(
                f"edge_label_index names edge type {edge_type!r}: expected one of {types}. A type to predict that has "
                "no edges in the graph is partitioned with none, "
                "edge_index[type] = torch.empty(2, 0, dtype=torch.int64)"
            )
        (edge_type,) = fits
    index = schema.edge_index(edge_type)
    if edges is None:
        return SeedLinks(index, data.num_edges_of[index], *data.all_edges(index))
    untyped = "" if schema.is_hetero else " without an edge type, the graph being homogeneous"
    edges = checked_edges(edges, f"integer ids, [2, B]{untyped}").to("cpu", torch.int64).contiguous()
    source, _, target = schema.edge_types[index]
    for row, node_type in enumerate((source, target)):
        num_nodes = data.num_nodes_of[schema.node_index(node_type)]
        note = f", the nodes{f' of type {node_type!r}' if schema.is_hetero else ''}"
        require_in_range(f"edge_label_index[{row}, {{}}]", edges[row], num_nodes, note)
    return SeedLinks(index, data.num_edges_of[index], edges, None)


def checked_label(given: Any, num_edges: int, drawn: NegativeSampling | None) -> Tensor:
    """Returns the labels of the seed edges ``[num_edges, ...]``."""
    label = as_tensor("edge_label", given, "numbers, one per seed edge")
    if drawn is not None and drawn.is_triplet():
        raise ValueError("edge_label is given and neg_sampling is 'triplet': triplets have no labels; leave one out")
    if not 1 <= label.dim() <= MAX_DIMS or len(label) != num_edges:
        raise ValueError(
            f"edge_label has shape {list(label.shape)}: expected one per seed edge, {num_edges}, and at most "
            f"{MAX_DIMS} dimensions"
        )
    if label.layout != torch.strided or label.is_complex():
        raise TypeError(f"edge_label is {label.layout} of {label.dtype}: expected dense real numbers")
    return label.detach().cpu().contiguous()


_SUFFIXES = (".pt", ".npy")


def seeds_by_name(name: str, given: Any, data: Any, options: Any) -> Any:
    """Returns the seeds that ``given`` names on servers, or ``given`` itself where it names none.

    Files are on the first server that samples. ``name`` is what an error calls the seeds.
    """
    if not isinstance(data, RemoteDataset):
        return given
    schema = data.schema
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    type_, named = given if schema.is_hetero and is_pair else (None, given)
    if _is_name(named) and is_pair == schema.is_hetero:
        if named in SPLITS and (not schema.is_hetero or (isinstance(type_, str) and type_ in schema.node_types)):
            seeds = data.seeds_of_split(named, schema.node_index(type_))
        else:
            seeds = data.seeds_of_file(os.fspath(named), options.ranks(data.client_rank, data.num_servers)[0])
        return (type_, seeds) if schema.is_hetero else seeds
    may_be = f"one of {', '.join(map(repr, SPLITS))}, or a file on the server that ends in {' or '.join(_SUFFIXES)}"
    types = list(schema.node_types)
    if isinstance(given, str) and not schema.is_hetero:
        raise ValueError(f"{name} = {given!r}: expected ids, or a name: {may_be}")
    if isinstance(given, str) and given not in types:
        raise ValueError(f"{name} = {given!r}: expected one of the types {types}, or a type and a name: {may_be}")
    if isinstance(named, str) and named is not given and (type_ in types or isinstance(type_, tuple)):
        raise ValueError(f"{name} = {given!r}: expected with a type its ids, or a name: {may_be}")
    return given


def _is_name(given: Any) -> bool:
    return isinstance(given, PurePath) or (isinstance(given, str) and (given in SPLITS or given.endswith(_SUFFIXES)))


# Batches around edges, for one trainer of a distributed job.


_NO_SUM = (torch.uint16, torch.uint32, torch.uint64)  # dtypes that torch does not add


@short_traceback
class DistLinkNeighborLoader(DistLoader):
    """Iterates over sampled neighbourhoods of the seed edges of this trainer, and of negatives, over all partitions.

    Batches are those of :class:`glt.loader.LinkNeighborLoader` on the whole graph, element for element, in every mode:
    ``edge_label_index [2, B + negatives]`` in local ids, ``edge_label``, ``edge_label_time``; of triplets
    ``src_index``, ``dst_pos_index``, ``dst_neg_index`` and ``seed_time``; ``input_id [B]``; and the sample as in
    :class:`glt.distributed.DistNeighborLoader`, without ``batch_size``. Negatives are no edges of the whole graph: the
    partitions that own them are asked.

    Args:
        data: The partition of this trainer, loaded.
        num_neighbors: Edges per node and hop, a list or a dict by edge type; -1 takes all, 0 none.
        edge_label_index: Seed edges of this trainer ``[2, B]``, source and destination ids (or two lists of keys, where
            nodes have some), edges of the graph or not;
            of a heterogeneous graph a pair of their edge type and these. None, or the edge type alone: all edges of
            this trainer's partition, in the order of their ids, so that those of all trainers together are all edges;
            one that several trainers have loaded is shared out among them. Of a client of servers: its share of all
            edges, by id, as long as those of the others but for one. ``input_id`` then tells edge ids, and what
            else is given per seed edge is given for all edges of the graph, by id, the same on all trainers.
        edge_label: Label of each seed edge ``[B, ...]``. With binary negatives, whose label is 0, labels that start at
            0 go up by 1: if they do on one trainer, then on all. Clients of servers, which do not meet, look at their
            own each; where the seeds are all edges, at all labels.
        edge_label_time: Time of each seed edge ``[B]``, integers; needs ``time_attr``.
        neg_sampling: ``'binary'``, ``'triplet'``, a dict or PyG's ``NegativeSampling``; None: no negatives. A triplet
            whose source has an edge to (almost) every destination is an error in place of its batch, since no process
            knows all edges beforehand; PyG would train on an edge as a negative.
        neg_sampling_ratio: PyG's old name for the amount of binary negatives.
        exclude_edges: ``'self'``: the seed edges of a batch are not sampled in it, others taking their place;
            ``'reverse'``: nor are their reverses; an edge type: the same, naming the type that holds these.
        batch_size, shuffle, drop_last, replace, subgraph_type, disjoint, temporal_strategy, time_attr: As in
            :class:`glt.distributed.DistNeighborLoader`, and so are all that follow.

    Raises:
        Exception: The same as :class:`glt.distributed.DistNeighborLoader`.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=1, rank=0)
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> options = glt.distributed.CollocatedDistSamplingWorkerOptions()
        >>> edges = torch.tensor([[0, 1], [1, 2]])
        >>> with glt.distributed.DistLinkNeighborLoader(
        ...     dataset, [2], edges, batch_size=2, neg_sampling="binary", random_seed=7, worker_options=options
        ... ) as loader:
        ...     [batch.edge_label.tolist() for batch in loader]
        [[1.0, 1.0, 0.0, 0.0]]
    """

    _seed_kind = "edges"

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: Any,
        edge_label_index: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        exclude_edges: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        sampler: str = "neighbor",
        batch_dependency: int = 1,
        time_bound: str = "<=",
        time_window: int | Mapping[EdgeType, int] | None = None,
        half_life: int | Mapping[EdgeType, int] | None = None,
        weight_attr: str | None = None,
        with_edge: bool = False,
        edge_dir: str | None = None,
        collect_features: bool = False,
        to_device: torch.device | str | int | None = None,
        transform: Callable[[Any], Any] | None = None,
        input_id: Tensor | None = None,
        is_sorted: bool = False,
        directed: bool = True,
        filter_per_worker: bool | None = None,
        custom_cls: Any = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        graph, worker_options = opened(data, worker_options, edge_dir)
        options = LoaderOptions(
            batch_size, shuffle, drop_last, collect_features, to_device, transform, random_seed, worker_options
        )
        self.custom_cls: Any = checked_class(custom_cls, filter_per_worker, graph)
        refuse_conflicts(edge_label_time=edge_label_time, time_attr=None if time_attr is None else GIVEN)
        config = checked_config(
            graph,
            num_neighbors,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            sampler=sampler,
            batch_dependency=batch_dependency,
            time_bound=time_bound,
            time_window=time_window,
            half_life=half_life,
            weight_attr=weight_attr,
            input_time=edge_label_time,
            replace=replace,
            subgraph_type=subgraph_type,
            directed=directed,
            disjoint=disjoint,
            with_edge=with_edge,
            exclude_edges=exclude_edges,
        )
        refuse_induced_trees(config.disjoint, config.subgraph_type)
        edge_label_index = links_of_keys(edge_label_index, graph.ids)
        links = checked_links(seeds_by_name("edge_label_index", edge_label_index, graph, worker_options), graph)
        source, _, target = graph.schema.edge_types[links.edge_type]
        ends = graph.schema.node_index(source), graph.schema.node_index(target)
        if config.exclude_edges not in (None, "self"):
            find_reverse(graph.schema, links.edge_type, config.exclude_edges)
        drawn = checked_negatives(neg_sampling, neg_sampling_ratio, int(options.batch_size))
        negatives = None
        if drawn is not None:
            for side, end in zip(("src", "dst"), ends, strict=True):
                Endpoint.of(side, graph.num_nodes_of[end], drawn)  # refuses weights that do not fit
            negatives = Negatives(drawn.mode.value, drawn.amount, drawn.src_weight, drawn.dst_weight)

        self._takes_all = links.ids is not None
        num_links = links.ends.shape[1]
        columns = {"row": links.ends[0], "col": links.ends[1]}
        if input_id is not None:
            columns["input_id"] = checked_input_id(links.per_edge("input_id", input_id), num_links)
        elif links.ids is not None:
            columns["input_id"] = links.ids
        self._lowest_label: float | None = None  # of this trainer, where 0 is the label of negatives
        if edge_label is not None:
            columns["label"] = label = checked_label(links.per_edge("edge_label", edge_label), num_links, drawn)
            # Those of all edges are known here: clients, which do not meet, agree by that.
            known = checked_label(edge_label, links.num_edges, drawn) if self._takes_all else label
            if drawn is not None:
                require_summable(label, *_NO_SUM)
            if drawn is not None and known.numel():
                # torch has no minimum of some unsigned integers.
                comparable = known if known.is_floating_point() or known.dtype == torch.bool else known.long()
                self._lowest_label = float(comparable.min())
        if edge_label_time is not None:
            time = links.per_edge("edge_label_time", edge_label_time)
            columns["time"] = checked_times("edge_label_time", time, num_links)
        seeds = LinkSeeds(links.edge_type, ends, negatives)
        super().__init__(graph, config, seeds, SeedTable(columns, seeds.extras()), options)

    def _announcement(self) -> dict[str, Any]:
        all_of = self.data.partition_idx if self._takes_all else None
        return {"lowest_label": self._lowest_label, "all edges of": all_of}

    def _settle(self, announced: list[dict[str, Any]]) -> None:
        # Trainers that take all edges of the same partition take turns: each edge is a seed of one of them.
        mine, columns = self.data.partition_idx, self.table.columns
        sharing = [rank for rank, each in enumerate(announced) if mine is not None and each["all edges of"] == mine]
        if self._takes_all and len(sharing) > 1:
            turn = slice(sharing.index(self.context.rank), None, len(sharing))
            columns |= {name: column[turn].contiguous() for name, column in columns.items()}
        # Labels that start at 0 on any trainer go up on all of them: a label means the same to every rank.
        lowest = [each["lowest_label"] for each in announced if each["lowest_label"] is not None]
        if not lowest or min(lowest) != 0 or "label" not in columns:
            return
        label = columns["label"]
        bounds = None if label.is_floating_point() or label.dtype == torch.bool else torch.iinfo(label.dtype)
        if bounds is not None and label.numel() and int(label.long().max()) == bounds.max:
            raise ValueError(
                f"edge_label holds {bounds.max}, and goes up by one since 0 is the label of negatives: {label.dtype} "
                "has no larger number; convert it to int64"
            )
        columns["label"] = label + 1 if label.dtype not in _NO_SUM else (label.long() + 1).to(label.dtype)


# Batches around nodes, for one trainer of a distributed job.


def node_columns(
    data: LoaderData,
    config: SamplingConfig,
    nodes: Any,
    time: Any,
    input_id: Any,
    names: tuple[str, str] = ("input_nodes", "input_time"),
) -> tuple[int, dict[str, Tensor]]:
    """Returns the position of the type of seed nodes, and what is known of each, as columns; ``names`` are those of
    nodes and times in errors."""
    seed_type, columns = checked_nodes(ids_of_keys(nodes, data.ids), data.schema, data.num_nodes_of, names[0])
    num_seeds = len(columns["node"])
    if input_id is not None:
        columns["input_id"] = checked_input_id(input_id, num_seeds)
    if time is not None:
        columns["time"] = checked_times(names[1], time, num_seeds)
    elif config.temporal is not None and not data.manifest.node_types[seed_type].has_time:
        raise ValueError(
            f"{names[1]} is not given and {data.schema.node_types[seed_type]!r} nodes have no time in "
            f"{data.load_args['graph_dir']!r}: give one time per seed, or partition with node_time=..."
        )
    return seed_type, columns


def with_batch_size(batch: Data | HeteroData, schema: Schema, seed_type: int) -> Data | HeteroData:
    """Tells a batch around nodes how many seeds it has."""
    store = batch[schema.node_types[seed_type]] if schema.is_hetero else batch
    store.batch_size = len(store.input_id)
    return batch


@short_traceback
class DistNeighborLoader(DistLoader):
    """Iterates over sampled neighbourhoods of the seeds of this trainer, as PyG ``Data`` or ``HeteroData``.

    Sampling and feature lookup run ahead of the trainer, in processes of their own or on threads of this one, over all
    partitions of the graph. For a fixed ``random_seed`` the batches are the same in every mode, with any number of
    partitions, workers and batches in flight, and equal to those of :class:`glt.loader.NeighborLoader` on the whole
    graph. They come in index order. Leaving an epoch early is safe. All trainers create their loaders, and shut them
    down, in the same order.

    Attributes of a batch are PyG's: ``n_id [N], edge_index [2, E], input_id [batch_size]``, ``e_id [E]`` (with
    ``with_edge``), all int64; ``x, y, time [N, ...], edge_attr [E, ...]`` (with ``collect_features``, where the dataset
    has them) and all tables that the graph was partitioned with by name, such as ``train_mask``; ``batch_size``, the
    number of seeds; ``num_sampled_nodes, num_sampled_edges``, lists with a number per hop, that of nodes beginning with
    the seeds; ``batch [N]``, the tree of each node, of disjoint batches; ``seed_time``, where given. In heterogeneous
    batches they are those of a node or edge type, and all types are there, if empty. Edges run neighbour -> expanded
    node; with ``edge_dir='out'`` that is the reverse of the edge, and edge types are the reverse types: ``('a', 'to',
    'b')`` becomes ``('b', 'rev_to', 'a')``.

    Args:
        data: The partition of this trainer, loaded. Each partition is loaded by at least one trainer. None on a client:
            servers have the partitions.
        num_neighbors: Edges per node and hop: a list for all edge types, a dict by edge type, or PyG's
            ``NumNeighbors``; -1 takes all, 0 none.
        input_nodes: Seeds of this trainer: ids ``[num_seeds]``, or a bool mask over all nodes. Of a heterogeneous graph
            ``(node type, ids or mask)``, or a node type, for all its nodes. On a client also, in place of ids,
            ``'train'``, ``'valid'`` or ``'test'``, its share of the nodes whose ``train_mask``, ``valid_mask`` or
            ``test_mask`` is set in the partitions; or the path of a ``.pt`` or ``.npy`` file below ``seed_dir`` of the
            server.
        batch_size: Seeds per batch.
        shuffle: Permute the seeds anew in each epoch.
        drop_last: Leave out a last batch that is not full.
        input_time: Time of each seed, integers; needs ``time_attr``. Default: the times of the nodes themselves.
        replace: Draw with replacement.
        subgraph_type: ``'directional'``: the sampled edges; ``'bidirectional'``: and their reverses; ``'induced'``: all
            edges among the sampled nodes.
        disjoint: A tree of its own for each seed.
        time_attr, temporal_strategy: Any name: only edges no later than the seed, drawn uniformly (``'uniform'``), the
            latest of them (``'last'``), or drawn by age (``'decay'``), by the times that the graph was partitioned with
            (``edge_time``, or ``node_time`` for that of the neighbour). Edge types without times are not bound. Implies
            ``disjoint``.
        sampler, batch_dependency, time_bound, time_window, half_life: As of :class:`glt.sampler.NeighborSampler`.
        weight_attr: Any name: draw proportionally to the weights that the graph was partitioned with. Among the
            d edges that a node is expanded along, a weight above 0 counts as no less than about 2 d 10^-18 times the
            largest.
        with_edge: Return edge ids as ``e_id``.
        edge_dir: ``'in'`` or ``'out'``; must be how the graph was partitioned, which is the default.
        collect_features: Look up features, labels and times of nodes, and features of edges.
        to_device: Where batches go. To a GPU each is one copy, on a stream of its own; that of the next batch goes on
            while the trainer works on this one, if workers have ``pin_memory``. Batches of a sampler on that GPU beside
            the trainer are there already. Default: they stay where they are made, in CPU memory shared with the
            samplers or on the GPU that samples.
        transform: Called with each batch; what it returns is the batch.
        input_id: What batches tell of each seed as ``input_id``. Default: its position in ``input_nodes``; of a mask,
            the node.
        is_sorted: Accepted for PyG's sake; partitions are always sorted.
        directed: False is PyG's old name for ``subgraph_type='induced'``.
        filter_per_worker: None or True, PyG's word for what is always so here: samplers look up features.
        custom_cls: Class of the batches, derived from PyG's ``Data`` or ``HeteroData``; it is made without arguments.
        random_seed: Used as given, in [0, 2^63). Default: drawn once per job by rank 0, from torch's generator, and
            made different for each rank; :attr:`random_seed` tells which.
        worker_options: Where sampling runs. Default: one worker process; of a client, the server of its turn.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit; names it.
        RuntimeError: Without ``init_worker_group``.
        MemoryError: If there is no room for the channels.
        glt.errors.RendezvousError: If the trainers do not find each other or were given different options.
        glt.errors.PeerLost: If another trainer, or a worker of one, died or gave up during start-up.
        glt.errors.WorkerDied: If a worker of this trainer does not come up.
        glt.errors.RemoteError: If one raises an exception while it does; carries its traceback.

    Iterating raises ``PeerLost``, ``WorkerDied`` and ``RemoteError`` too, in the place of the batch that is missing.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=1, rank=0)
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> options = glt.distributed.CollocatedDistSamplingWorkerOptions()
        >>> loader = glt.distributed.DistNeighborLoader(
        ...     dataset, [2, 2], torch.arange(40), 10, collect_features=True, random_seed=7, worker_options=options
        ... )
        >>> with loader:
        ...     [batch.x.shape[0] for batch in loader]
        ...
        [14, 14, 14, 14]
    """

    _exclude_edges: Any = None

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: Any,
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        sampler: str = "neighbor",
        batch_dependency: int = 1,
        time_bound: str = "<=",
        time_window: int | Mapping[EdgeType, int] | None = None,
        half_life: int | Mapping[EdgeType, int] | None = None,
        weight_attr: str | None = None,
        with_edge: bool = False,
        edge_dir: str | None = None,
        collect_features: bool = False,
        to_device: torch.device | str | int | None = None,
        transform: Callable[[Any], Any] | None = None,
        input_id: Tensor | None = None,
        is_sorted: bool = False,
        directed: bool = True,
        filter_per_worker: bool | None = None,
        custom_cls: Any = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
    ) -> None:
        graph, worker_options = opened(data, worker_options, edge_dir)
        options = LoaderOptions(
            batch_size, shuffle, drop_last, collect_features, to_device, transform, random_seed, worker_options
        )
        self.custom_cls = checked_class(custom_cls, filter_per_worker, graph)
        config = checked_config(
            graph,
            num_neighbors,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            sampler=sampler,
            batch_dependency=batch_dependency,
            time_bound=time_bound,
            time_window=time_window,
            half_life=half_life,
            weight_attr=weight_attr,
            input_time=input_time,
            replace=replace,
            subgraph_type=subgraph_type,
            directed=directed,
            disjoint=disjoint,
            with_edge=with_edge,
            exclude_edges=self._exclude_edges,
        )
        given = seeds_by_name("input_nodes", input_nodes, graph, worker_options)
        self._seed_type, columns = node_columns(graph, config, given, input_time, input_id)
        super().__init__(graph, config, *self._input(graph, columns), options)

    def _input(self, graph: LoaderData, columns: dict[str, Tensor]) -> tuple[NodeSeeds, SeedTable]:
        """The kind of seeds, and their table; ``columns`` are those of :func:`node_columns`."""
        return NodeSeeds(self._seed_type), SeedTable(columns)

    def _collate(self, message: Message) -> Data | HeteroData:
        return with_batch_size(super()._collate(message), self.data.schema, self._seed_type)


@short_traceback
class DistSubGraphLoader(DistNeighborLoader):
    """Samples around seed nodes and returns *all* edges among the nodes found, with where the seeds are.

    The batches of :class:`glt.loader.SubGraphLoader` on the whole graph: those of :class:`DistNeighborLoader` with
    ``subgraph_type='induced'``, plus ``mapping [batch_size]``: seed i is node ``mapping[i]`` of its type. Arguments and
    errors are those of :class:`DistNeighborLoader`; the fan-outs bound which nodes are found, not which edges are
    returned.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=1, rank=0)
        >>> dataset = glt.distributed.DistDataset().load("parts", partition_idx=0)
        >>> options = glt.distributed.CollocatedDistSamplingWorkerOptions()
        >>> with glt.distributed.DistSubGraphLoader(
        ...     dataset, [2], torch.tensor([0, 1]), batch_size=2, random_seed=7, worker_options=options
        ... ) as loader:
        ...     [(batch.mapping.tolist(), batch.num_edges) for batch in loader]
        [([0, 1], 5)]
    """

    def __init__(
        self, data: DistDataset | None, num_neighbors: Any, input_nodes: Any, *args: Any, **kwargs: Any
    ) -> None:
        subgraph_type = kwargs.pop("subgraph_type", "induced")
        if getattr(subgraph_type, "value", subgraph_type) != "induced":
            raise ValueError(
                f"subgraph_type = {subgraph_type!r}: subgraphs are 'induced'; use DistNeighborLoader for others"
            )
        super().__init__(data, num_neighbors, input_nodes, *args, subgraph_type="induced", **kwargs)

    def _input(self, graph: LoaderData, columns: dict[str, Tensor]) -> tuple[NodeSeeds, SeedTable]:
        return NodeSeeds(self._seed_type, with_mapping=True), SeedTable(columns)
