"""A topology and where samplers may read it from."""

from __future__ import annotations

import torch

from glt import _core
from glt.data.topology import Topology

_MODES = ("CPU", "ZERO_COPY")


class Graph:
    """A :class:`Topology` placed for sampling.

    Args:
        topology: The edges.
        mode: ``'CPU'`` and ``'ZERO_COPY'`` both keep the edges in host memory, where CPU samplers read them in place;
            they differ only for samplers on a GPU, which this build does not have yet.
        device: The device of the samplers. Default: CPU.

    Raises:
        ValueError: If the mode or device is unknown or not available here.
    """

    def __init__(self, topology: Topology, mode: str = "CPU", device: torch.device | int | str | None = None) -> None:
        if mode == "CUDA":
            raise ValueError("mode = 'CUDA': this build has no GPU sampler; use 'CPU' or 'ZERO_COPY'")
        if mode not in _MODES:
            raise ValueError(f"mode = {mode!r}: expected one of {_MODES}")
        if device is not None and torch.device(device).type != "cpu":
            raise ValueError(f"device = {device!r}: this build samples on the CPU only; leave device out")
        self.topology = topology
        self.mode = mode

    @property
    def csr(self) -> _core.Csr:
        return self.topology.csr

    @property
    def csr_by_time(self) -> _core.Csr:
        return self.topology.csr_by_time

    @property
    def num_nodes(self) -> int:
        """Number of nodes that can be expanded."""
        return self.topology.num_nodes

    @property
    def num_neighbor_nodes(self) -> int:
        return self.topology.num_neighbor_nodes

    @property
    def num_edges(self) -> int:
        return self.topology.num_edges

    @property
    def edge_dir(self) -> str:
        return self.topology.edge_dir

    def __repr__(self) -> str:
        return f"Graph({self.topology!r}, mode={self.mode!r})"
