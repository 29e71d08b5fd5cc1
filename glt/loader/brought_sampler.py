"""A sampler that the caller brings to a loader, next to options that the loader takes as well."""

from __future__ import annotations

from typing import Any

from glt.sampler.neighbor_sampler import NeighborSampler
from glt.sampler.num_neighbors import per_edge_type


def require_agreement(
    sampler: NeighborSampler, num_neighbors: Any, random_seed: int | None, options: dict[str, Any]
) -> None:
    """Refuses options that a sampler was made without: they would silently lose to the sampler's own.

    Args:
        sampler: What the loader was given.
        num_neighbors, random_seed: The loader's arguments.
        options: The loader's other arguments for sampling, by name. PyG's defaults stand for "not given".

    Raises:
        ValueError: Naming the first argument that differs, and both values.
    """
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
