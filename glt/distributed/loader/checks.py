"""Arguments of the loaders of a distributed job, checked when they are given."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from glt.channel.message import MAX_DIMS
from glt.data.arrays import require_in_range
from glt.distributed.loader.deployment import LoaderData
from glt.distributed.server.client import RemoteDataset
from glt.distributed.server.server import SPLITS
from glt.loader.seeds import as_tensor, checked_edges, matching_types, split_edge_type
from glt.sampler.config import TEMPORAL_STRATEGIES, SamplingConfig, refuse_conflicts
from glt.sampler.graph import require_distinct_reverses

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
    """Returns what to sample.

    Args:
        data: The partition; a directory holds one set of weights and one of times, so that the names of these matter
            only in that they are given.
        num_neighbors, **options: As :meth:`SamplingConfig.checked` takes them.
        temporal_strategy, time_attr, weight_attr: As in PyG.
        input_time: Times of the seeds, if given.
        directed: False is PyG's old name for ``subgraph_type='induced'``.

    Raises:
        TypeError, ValueError: If an option does not fit, two exclude each other, or the directory lacks what they need;
            names them.
    """
    if temporal_strategy not in TEMPORAL_STRATEGIES:
        raise ValueError(f"temporal_strategy = {temporal_strategy!r}: expected one of {list(TEMPORAL_STRATEGIES)}")
    for name, value in (("time_attr", time_attr), ("weight_attr", weight_attr)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} = {value!r}: expected the name of an attribute, or None")
    if not isinstance(directed, bool):
        raise TypeError(f"directed = {directed!r}: expected True or False")
    stored = data.manifest.time_level
    where = f"the partition directory {data.load_args['graph_dir']!r}"
    if time_attr is not None and stored is None:
        raise ValueError(
            f"time_attr = {time_attr!r}: {where} has no times; partition with edge_time=... or node_time=..."
        )
    if weight_attr is not None and not any(entry.has_weight for entry in data.manifest.edge_types):
        raise ValueError(f"weight_attr = {weight_attr!r}: {where} has no weights; partition with edge_weight=...")
    time_level = None if time_attr is None else stored
    subgraph_type = getattr(options.get("subgraph_type"), "value", options.get("subgraph_type"))
    refuse_conflicts(directed=directed, subgraph_type=subgraph_type)
    if not directed:
        subgraph_type = options["subgraph_type"] = "induced"
    refuse_conflicts(
        time_attr=time_attr,
        weight_attr=weight_attr,
        temporal_strategy=temporal_strategy,
        time_level=time_level,
        input_time=input_time,
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
        **options,
    )


def require_edge_dir(data: LoaderData, edge_dir: str | None) -> None:
    """Raises unless the graph was partitioned for ``edge_dir``, if that is given, and batches of it can be had."""
    if edge_dir not in (None, data.edge_dir):
        raise ValueError(
            f"edge_dir = {edge_dir!r}: the graph was partitioned for {data.edge_dir!r}; partition it with "
            f"edge_assign_strategy={'by_src' if edge_dir == 'out' else 'by_dst'!r}, or leave edge_dir out"
        )
    require_distinct_reverses(data.schema, data.edge_dir)


def checked_class(custom_cls: Any, data: LoaderData) -> Any:
    """Returns the class that batches are to be of, None for PyG's own."""
    base = HeteroData if data.schema.is_hetero else Data
    if custom_cls is not None and not (isinstance(custom_cls, type) and issubclass(custom_cls, base)):
        raise TypeError(f"custom_cls = {custom_cls!r}: expected a class derived from {base.__name__}, or None")
    return custom_cls


def require_node_time(data: LoaderData, node_type: int) -> None:
    """Raises unless nodes of the type have times of their own, to be looked at when no others are given."""
    if not data.manifest.node_types[node_type].has_time:
        raise ValueError(
            f"input_time is not given and {data.schema.node_types[node_type]!r} nodes have no time in "
            f"{data.load_args['graph_dir']!r}: give one time per seed, or partition with node_time=..."
        )


# What link loaders are given as seed edges and labels, checked when it is given.


class SeedLinks(NamedTuple):
    """Seed edges of one trainer.

    Attributes:
        edge_type: Position of their type.
        ends: Sources and destinations ``[2, B]``, int64.
        ids: Ids of the edges ``[B]``, where they are all those of a partition; None where they were given.
    """

    edge_type: int
    ends: Tensor
    ids: Tensor | None

    def per_edge(self, name: str, given: Any, num_edges: int) -> Any:
        """What was given for each seed edge; of all edges, it is given for each edge of the whole graph, by id.

        Args:
            name: What it is called, in errors.
            given: A tensor, or what becomes one; None: nothing.
            num_edges: Edges of the type in the whole graph.
        """
        if given is None or self.ids is None:
            return given
        tensor = as_tensor(name, given, "a tensor with a row per edge")
        if tensor.dim() == 0 or len(tensor) != num_edges:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}: edge_label_index names no edges, so that they are all of the "
                f"type; expected one row for each edge of the whole graph, {num_edges}, in the order of their ids"
            )
        return tensor[self.ids]


def checked_links(edge_label_index: Any, data: LoaderData) -> SeedLinks:
    """Returns the seed edges of this trainer.

    Args:
        edge_label_index: ``[2, B]``; None: all edges of its partition. Of a heterogeneous graph a pair of an edge type
            and one of these, or an edge type alone.
        data: The graph.
    """
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
        ends, ids = data.all_edges(index)
        return SeedLinks(index, ends, ids)
    untyped = "" if schema.is_hetero else " without an edge type, the graph being homogeneous"
    edges = checked_edges(edges, f"integer ids, [2, B]{untyped}").to("cpu", torch.int64).contiguous()
    source, _, target = schema.edge_types[index]
    for row, node_type in enumerate((source, target)):
        num_nodes = data.num_nodes_of[schema.node_index(node_type)]
        note = f", the nodes{f' of type {node_type!r}' if schema.is_hetero else ''}"
        require_in_range(f"edge_label_index[{row}, {{}}]", edges[row], num_nodes, note)
    return SeedLinks(index, edges, None)


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
    """Returns the seeds that ``given`` names, or ``given`` itself where it names none.

    Args:
        name: What an error calls them.
        given: ``'train'``, ``'valid'`` or ``'test'``: this client's share of the nodes whose mask is set. A path, or
            text that ends in ``.pt`` or ``.npy``: what that file holds, below the server's ``seed_dir``. Of a
            heterogeneous graph, a pair of a type and one of these.
        data: The graph; names mean something on servers only.
        options: Of the workers: files are on the first server that samples.

    Raises:
        ValueError: If it is text that names nothing; says what may be named.
    """
    if not isinstance(data, RemoteDataset):
        return given
    server_rank = options.ranks(data.client_rank, data.num_servers)[0]
    if isinstance(given, tuple | list) and len(given) == 2 and data.schema.is_hetero and _is_name(given[1]):
        type_, named = given
        if isinstance(type_, str) and type_ in data.schema.node_types and named in SPLITS:
            return type_, data.seeds_of_split(named, data.schema.node_index(type_))
        return type_, data.seeds_of_file(os.fspath(named), server_rank)
    if not data.schema.is_hetero and _is_name(given):
        if given in SPLITS:
            return data.seeds_of_split(given, 0)
        return data.seeds_of_file(os.fspath(given), server_rank)
    _refuse_unknown(name, given, data)
    return given


def _refuse_unknown(name: str, given: Any, data: RemoteDataset) -> None:
    may_be = f"one of {', '.join(map(repr, SPLITS))}, or a file on the server that ends in {' or '.join(_SUFFIXES)}"
    if not data.schema.is_hetero:
        if isinstance(given, str):
            raise ValueError(f"{name} = {given!r}: expected ids, or a name: {may_be}")
        return
    types = list(data.schema.node_types)
    if isinstance(given, str) and given not in types:
        raise ValueError(f"{name} = {given!r}: expected one of the types {types}, or a type and a name: {may_be}")
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if is_pair and isinstance(given[1], str) and (given[0] in types or isinstance(given[0], tuple)):
        raise ValueError(f"{name} = {given!r}: expected with a type its ids, or a name: {may_be}")


def _is_name(given: Any) -> bool:
    return isinstance(given, PurePath) or (isinstance(given, str) and (given in SPLITS or given.endswith(_SUFFIXES)))
