"""Enclosing subgraphs of seed nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from glt.loader.neighbor_loader import NeighborLoader


class SubGraphLoader(NeighborLoader):
    """Samples around seed nodes and returns *all* edges among the nodes found, with where the seeds are.

    What SEAL-like link prediction learns from (Zhang and Chen, "Link Prediction Based on Graph Neural Networks",
    NeurIPS 2018): let the seeds of a batch be the ends of links. Batches are those of :class:`NeighborLoader` with
    ``subgraph_type='induced'``, plus ``mapping [batch_size]``: seed i is node ``mapping[i]`` of the batch. In
    heterogeneous graphs it stands in the store of the seeds' type.

    Args:
        data, num_neighbors, input_nodes, **kwargs: As in :class:`NeighborLoader`. The fan-outs bound which nodes are
            found, not which edges are returned.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit, or two exclude each other; names them.
    """

    def __init__(self, data: Any, num_neighbors: Any, input_nodes: Any = None, **kwargs: Any) -> None:
        subgraph_type = kwargs.pop("subgraph_type", "induced")
        if getattr(subgraph_type, "value", subgraph_type) != "induced":
            raise ValueError(
                f"subgraph_type = {subgraph_type!r}: subgraphs are 'induced'; use NeighborLoader for others"
            )
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
