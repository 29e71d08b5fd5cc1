"""A sampler that the caller brings to a loader, next to options that the loader takes as well."""

from __future__ import annotations

from typing import Any

from torch_geometric.data import Data, GraphStore, HeteroData

from glt.data.dataset import Dataset
from glt.data.schema import HOMOGENEOUS
from glt.sampler.neighbor_sampler import NeighborSampler
from glt.sampler.num_neighbors import per_edge_type


def require_agreement(
    sampler: NeighborSampler, data: Any, num_neighbors: Any, random_seed: int | None, options: dict[str, Any]
) -> None:
    """Refuses a graph or options that a sampler was made without: they would silently lose to the sampler's own.

    Args:
        sampler: What the loader was given.
        data: The loader's graph, of whose nodes and edges batches tell features; it must be of the same size.
        num_neighbors, random_seed: The loader's arguments.
        options: The loader's other arguments for sampling, by name. PyG's defaults stand for "not given".

    Raises:
        ValueError: Naming the first argument that differs, and both values.
    """
    _require_same_size(sampler, data)
    if per_edge_type(num_neighbors, sampler.graph.schema) != sampler.config.num_neighbors:
        raise ValueError(
            f"num_neighbors = {num_neighbors}, but neighbor_sampler was made with "
            f"{sampler.num_neighbors.values}: pass the same"
        )
    if random_seed not in (None, sampler.random_seed):
        raise ValueError(
            f"random_seed = {random_seed}, but neighbor_sampler was given {sampler.random_seed}: give it to one of them"
        )
    config = sampler.config
    made_with = {
        "replace": config.replace,
        "subgraph_type": config.subgraph_type,
        "disjoint": config.disjoint,
        "temporal_strategy": config.temporal or "uniform",
        "time_attr": sampler.time_attr,
        "weight_attr": sampler.weight_attr,
        "directed": config.subgraph_type != "induced",
        "exclude_edges": config.exclude_edges,
    }
    defaults = {
        "replace": False, "subgraph_type": "directional", "disjoint": False, "temporal_strategy": "uniform",
        "time_attr": None, "weight_attr": None, "directed": True, "exclude_edges": None,
    }  # fmt: skip
    for name, value in options.items():
        if value not in (defaults[name], made_with[name]):
            raise ValueError(
                f"{name} = {value!r}, but neighbor_sampler was made with {made_with[name]!r}: pass the same"
            )


def _require_same_size(sampler: NeighborSampler, data: Any) -> None:
    graph = sampler.graph
    edges = [topology.num_edges for topology in graph.topologies]
    has: dict[str, dict[Any, int]] = {
        "nodes": dict(zip(graph.schema.node_types, graph.num_nodes, strict=True)),
        "edges": dict(zip(graph.schema.edge_types, edges, strict=True)),
    }
    for what, counts in _sizes(data).items():
        if counts.keys() != has[what].keys():
            raise ValueError(
                f"neighbor_sampler was made from another graph than data: it has {what} of the types "
                f"{list(has[what])}, data of {list(counts)}; make it from the same"
            )
        for each, count in counts.items():
            if count not in (None, has[what][each]):
                of_type = f" of type {each!r}" if graph.schema.is_hetero else ""
                raise ValueError(
                    f"neighbor_sampler was made from another graph than data: it has {has[what][each]} "
                    f"{what}{of_type}, data has {count}; make it from the same"
                )


def _sizes(data: Any) -> dict[str, dict[Any, int | None]]:
    """Numbers of nodes and edges by type, None where they are not known without reading all edges."""
    if isinstance(data, Dataset):
        edges = [graph.num_edges for graph in data.graphs]
        return {
            "nodes": dict(zip(data.schema.node_types, data.num_nodes_of, strict=True)),
            "edges": dict(zip(data.schema.edge_types, edges, strict=True)),
        }
    if isinstance(data, Data):
        (node_type,), (edge_type,) = HOMOGENEOUS.node_types, HOMOGENEOUS.edge_types
        return {"nodes": {node_type: _num_nodes(data._store)}, "edges": {edge_type: _num_edges(data._store)}}
    if isinstance(data, HeteroData):
        return {
            "nodes": {t: _num_nodes(data[t]) for t in data.node_types},
            "edges": {t: _num_edges(data[t]) for t in data.edge_types},
        }
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], GraphStore):
        types = {attr.edge_type for attr in data[1].get_all_edge_attrs()}
        return {"edges": dict.fromkeys(HOMOGENEOUS.edge_types if types == {None} else types)}
    return {}  # something else is refused where it is read


def _num_nodes(store: Any) -> int | None:
    count: int | None = store.num_nodes if store.can_infer_num_nodes else None
    return count


def _num_edges(store: Any) -> int | None:
    edges = store.get("edge_index")
    return None if edges is None else int(edges.size(1))
