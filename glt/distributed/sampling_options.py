"""PyG's sampling options, checked against what the partition directory holds."""

from __future__ import annotations

from typing import Any

from glt.distributed.loader_data import LoaderData
from glt.sampler import config as conflicts
from glt.sampler.config import TEMPORAL_STRATEGIES, SamplingConfig


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
    conflicts.refuse(directed=directed, subgraph_type=subgraph_type)
    if not directed:
        subgraph_type = options["subgraph_type"] = "induced"
    conflicts.refuse(
        time_attr=time_attr, weight_attr=weight_attr, temporal_strategy=temporal_strategy, time_level=time_level,
        input_time=input_time, disjoint=options.get("disjoint"), subgraph_type=subgraph_type,
        exclude_edges=options.get("exclude_edges"),
    )  # fmt: skip
    return SamplingConfig.checked(
        num_neighbors, data.schema, weighted=weight_attr is not None, time_level=time_level,
        temporal=None if time_attr is None else temporal_strategy, **options,
    )  # fmt: skip
