"""Graphs to sample from, out of what users have: PyG's data, glt's datasets, feature and graph stores."""

from __future__ import annotations

import copy
from typing import TypeAlias

import torch
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

from glt.data.dataset import Dataset
from glt.data.graph import Graph
from glt.data.pyg import arrays_of_pyg, require_num_nodes
from glt.data.stores import DatasetGraphStore, dataset_of_stores
from glt.sampler.graph import SampledGraph

Source: TypeAlias = Graph | Dataset | Data | HeteroData | tuple[FeatureStore, GraphStore]


def sampled_graph(
    source: Source | SampledGraph, *, edge_dir: str, time_attr: str | None, weight_attr: str | None
) -> SampledGraph:
    """Returns ``source`` as samplers see it. ``edge_dir`` is for PyG's data and stores, which have no direction of
    their own; a dataset has times of one name, and the weights that it was built with.

    Raises:
        IndexError, KeyError, TypeError, ValueError: If the source or an attribute does not fit; names it.
        NotImplementedError: If weights are asked for of stores other than glt's.
    """
    if isinstance(source, SampledGraph):
        return source
    if isinstance(source, Graph):
        source = Dataset(source)
    if isinstance(source, Dataset):
        return _of_dataset(source, time_attr, weight_attr)
    if isinstance(source, Data) and source.get("edge_index") is None and source.get("adj_t") is None:
        require_num_nodes(source)
        source = copy.copy(source)  # a graph without edges, as PyG has it
        source.edge_index = torch.empty(2, 0, dtype=torch.int64)
    if isinstance(source, Data | HeteroData):
        arrays = arrays_of_pyg(source, weight_attr=weight_attr, time_attr=time_attr, with_tables=False)
        return SampledGraph.from_arrays(arrays, edge_dir)
    if (
        isinstance(source, tuple | list)
        and len(source) == 2
        and isinstance(source[0], FeatureStore)
        and isinstance(source[1], GraphStore)
    ):
        if weight_attr is not None and not isinstance(source[1], DatasetGraphStore):
            raise NotImplementedError(
                f"weight_attr = {weight_attr!r} and a (FeatureStore, GraphStore): stores do not say what the weights "
                "of their edges are; use a Data, HeteroData or glt Dataset"
            )
        dataset = dataset_of_stores(source[0], source[1], edge_dir=edge_dir, time_attr=time_attr)
        return _of_dataset(dataset, time_attr, weight_attr)
    raise TypeError(
        f"data has type {type(source).__name__}: expected a PyG Data or HeteroData, a glt Dataset or Graph, or a pair "
        "(FeatureStore, GraphStore)"
    )


def _of_dataset(dataset: Dataset, time_attr: str | None, weight_attr: str | None) -> SampledGraph:
    topologies = tuple(graph.topology for graph in dataset.graphs)
    level = dataset.time_level
    if level is None and len(topologies) == 1 and topologies[0].by_time is not None:
        level, known = "edge", time_attr  # a bare Graph, whose times have no name
    else:
        known = dataset.time_attr
    if time_attr not in (None, known):
        raise ValueError(
            f"time_attr = {time_attr!r}: the dataset has "
            f"{'no times' if known is None else f'the times {known!r}'}; build it with node_time or edge_time"
        )
    if weight_attr is not None and all(t.weights is None for t in topologies):
        raise ValueError(f"weight_attr = {weight_attr!r}: the dataset has no weights; build it with edge_weight")
    if time_attr is None:
        level = None
    node_time = tuple(
        tables[time_attr].tensor.view(-1) if level == "node" and time_attr in tables else None
        for tables in dataset.node_tables
    )
    return SampledGraph(
        dataset.schema,
        dataset.edge_dir,
        dataset.num_nodes_of,
        topologies,
        level,
        node_time,
        graphs=tuple(dataset.graphs),
    )
