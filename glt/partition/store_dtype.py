"""Which tables of a graph are stored smaller: what ``store_dtype`` of a partitioner says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch

from glt.partition.graph_input import EdgeInput, GraphInput, NodeInput

StoreDtype = str | torch.dtype | Mapping[Any, Any]

Input = TypeVar("Input", NodeInput, EdgeInput)
Wanted = dict[Any, dict[str, Any]]  # by type, by name of a table: how to store it


def packed_graph(graph: GraphInput, store_dtype: StoreDtype | None) -> GraphInput:
    """Returns the graph with the tables packed that ``store_dtype`` of a partitioner says.

    Raises KeyError where it names a type or a table that there is not, ValueError of a table of a TensorFrame or where
    there are no features, TypeError of a table that holds no floats.
    """
    if store_dtype is None:
        return graph
    wanted = _wanted(graph, store_dtype)
    nodes = tuple(_packed(each, "node", at, graph, wanted) for at, each in enumerate(graph.nodes))
    edges = tuple(_packed(each, "edge", at, graph, wanted) for at, each in enumerate(graph.edges))
    for type_, named in wanted.items():
        for name in named:  # those that no type has taken
            of_type = f" of {type_!r}" if graph.schema.is_hetero else ""
            inputs: list[NodeInput | EdgeInput] = [*graph.nodes, *graph.edges]
            known = {name for each in inputs if not of_type or _type_of(each) == type_ for name in each.named}
            raise KeyError(
                f"store_dtype names the table {name!r}{of_type}: expected features or an attribute, one of "
                f"{sorted(known)}"
            )
    return replace(graph, nodes=nodes, edges=edges)


def _type_of(each: NodeInput | EdgeInput) -> Any:
    return each.node_type if isinstance(each, NodeInput) else each.edge_type


def _wanted(graph: GraphInput, store_dtype: StoreDtype) -> Wanted:
    inputs: dict[Any, NodeInput | EdgeInput] = {each.node_type: each for each in graph.nodes}
    inputs |= {each.edge_type: each for each in graph.edges}
    if not isinstance(store_dtype, Mapping):
        with_features = [type_ for type_, each in inputs.items() if each.feat is not None]
        if not with_features:
            raise ValueError(f"store_dtype = {store_dtype!r}: the graph has no features that could be stored so")
        return {type_: {inputs[type_].feat_name: store_dtype} for type_ in with_features}
    if not graph.schema.is_hetero:
        for name, each in store_dtype.items():
            if isinstance(each, Mapping):
                raise ValueError(
                    f"store_dtype names tables {list(each)} of {name!r}: tables of a type (TYPE:TABLE=DTYPE) are for "
                    "graphs of several types, and this one has no types: expected TABLE=DTYPE, tables alone"
                )
        nodes, edges = graph.nodes[0], graph.edges[0]
        of_edges = {name: each for name, each in store_dtype.items() if name in edges.named}
        of_nodes = {name: each for name, each in store_dtype.items() if name not in of_edges}
        return {nodes.node_type: of_nodes, edges.edge_type: of_edges}
    wanted: Wanted = {}
    for type_, given in store_dtype.items():
        if type_ not in inputs:
            raise KeyError(f"store_dtype names {type_!r}: expected one of the types {list(inputs)}")
        wanted[type_] = dict(given) if isinstance(given, Mapping) else {inputs[type_].feat_name: given}
    return wanted


def _packed(each: Input, level: str, at: int, graph: GraphInput, wanted: Wanted) -> Input:
    """Packs the tables that are wanted of a type, and takes them out of ``wanted``."""
    type_, schema = _type_of(each), graph.schema
    framed = {name: f.name for f in schema.frames if (f.level, f.type_index) == (level, at) for name in f.tables()}
    named, of_type = dict(each.named), f" of {type_!r}" if schema.is_hetero else ""
    for name in [name for name in wanted.get(type_, ()) if name in named]:
        if name in framed:
            raise ValueError(
                f"store_dtype names {name!r}{of_type}, which is part of the TensorFrame {framed[name]!r}: expected "
                "plain tables"
            )
        named[name] = named[name].packed(wanted[type_].pop(name), f"{name}{of_type}")
    feat = named.pop(each.feat_name, None)
    return replace(each, feat=feat, attrs=named)
