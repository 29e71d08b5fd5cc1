"""PyG's HGTLoader on glt's sampler."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from glt._checks import check_flag
from glt._reprs import options
from glt._tracebacks import short_traceback
from glt.data.schema import NodeType
from glt.loader.batches import has_edge_attributes
from glt.loader.loaders import NeighborLoader
from glt.sampler.hgt import HGTSampler


@short_traceback
class HGTLoader(NeighborLoader):
    """A drop-in ``torch_geometric.loader.HGTLoader``: batches have about as many nodes of each type, and many edges.

    Batches are PyG's, seeds first, and have all edges among their nodes; :class:`glt.sampler.HGTSampler` says how these
    are drawn. For a fixed ``random_seed`` the batches of an epoch are always the same.

    Args:
        data: As of :class:`NeighborLoader`.
        num_samples: Nodes to draw in each iteration, of each node type: a list, or a dict by node type.
        input_nodes: As of :class:`NeighborLoader`.
        is_sorted: Accepted for PyG's sake: it changes nothing here.
        transform, transform_sampler_output, filter_per_worker, with_edge, random_seed, num_threads: As of the same.
        **kwargs: As of the same: ``custom_cls``, ``input_id`` and the arguments of torch's ``DataLoader``.

    Raises:
        TypeError, ValueError, IndexError: If an argument does not fit; names it.

    Example:
        >>> data = glt.testing.ring_graph().to_data()
        >>> loader = glt.loader.HGTLoader(data, [4, 4], torch.arange(10), batch_size=5, random_seed=7)
        >>> next(iter(loader)).num_nodes
        9
    """

    def __init__(
        self,
        data: Any,
        num_samples: Sequence[int] | Mapping[NodeType, Sequence[int]],
        input_nodes: Any = None,
        is_sorted: bool = False,
        transform: Any = None,
        transform_sampler_output: Any = None,
        filter_per_worker: bool | None = None,
        *,
        with_edge: bool = True,
        random_seed: int | None = None,
        num_threads: int = 1,
        **kwargs: Any,
    ) -> None:
        of_hops = {*inspect.signature(NeighborLoader).parameters}
        if not isinstance(kwargs.get("sampler"), str):
            of_hops.remove("sampler")  # one of torch's: the order of seeds
        for name in [each for each in kwargs if each in of_hops]:
            raise TypeError(
                f"HGTLoader has no argument {name}: nodes are drawn by budget, on the CPU, as num_samples says"
            )
        check_flag("with_edge", with_edge)
        needs_edges = with_edge or has_edge_attributes(data)
        given: dict[str, Any] = {"random_seed": random_seed, "num_threads": num_threads}
        sampler = HGTSampler(data, num_samples, with_edge=needs_edges, **given)
        super().__init__(
            data,
            [],
            input_nodes,
            subgraph_type="induced",
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=sampler,
            with_edge=with_edge,
            num_threads=num_threads,
            **kwargs,
        )

    def _says(self) -> str:
        return options(self.node_sampler.told())

    def _fingerprint(self) -> dict[str, Any]:
        return super()._fingerprint() | {"num_samples": self.node_sampler.num_samples}
