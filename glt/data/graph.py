"""A topology and where samplers may read it from."""

from __future__ import annotations

import threading
from typing import Any

import torch

from glt import _core
from glt.data.accelerator import Accelerator, accelerator_of, is_accelerator, require_accelerator
from glt.data.cuda_device import missing_for_cuda
from glt.data.device_topology import DeviceTopology
from glt.data.topology import Topology

_MODES = ("CPU", "ZERO_COPY", "CUDA")


class Graph:
    """A :class:`Topology` placed for sampling.

    Whatever the mode, the edges stay in host memory too, where CPU samplers read them in place. The modes say where
    samplers on a GPU find them, once one asks (:meth:`placed`); each process places them for itself, and processes
    that share the memory of the topology pin the same pages.

    Args:
        topology: The edges.
        mode: ``'CPU'``: nowhere. ``'ZERO_COPY'``: columns in pinned host memory, row offsets on the GPU; where there is
            no GPU this means the same as ``'CPU'``. ``'CUDA'``: all in device memory; needs a GPU.
        device: The GPU of the samplers: ``'cuda'``, ``'cuda:0'`` or a number; ``'host'`` runs their kernels on the
            host, for tests. Default: torch's current one.

    Raises:
        TypeError, ValueError: If the mode or device is unknown or not available here; says what is missing.
    """

    def __init__(self, topology: Topology, mode: str = "CPU", device: torch.device | int | str | None = None) -> None:
        if mode not in _MODES:
            raise ValueError(f"mode = {mode!r}: expected one of {_MODES}")
        missing = missing_for_cuda() if mode == "CUDA" and device is None else None
        if missing is not None:
            raise ValueError(f"mode = 'CUDA': {missing}. Or use 'CPU' or 'ZERO_COPY', which need no GPU")
        if mode == "CPU" and is_accelerator(device, "device"):
            raise ValueError(f"device = {device!r}: mode = 'CPU' is not for GPUs; use 'ZERO_COPY' or 'CUDA'")
        if accelerator_of(device, "device") is None and device is not None and mode == "CUDA":
            raise ValueError(f"device = {device!r}: mode = 'CUDA' is for a GPU, such as 'cuda:0'")
        self.topology = topology
        self.mode = mode
        self.device = device
        self._start()

    def _start(self) -> None:
        self._placed: dict[Accelerator, DeviceTopology] = {}
        self._lock = threading.Lock()

    def placed(self, device: Accelerator | torch.device | int | str | None = None) -> DeviceTopology:
        """Returns the edges as samplers on a GPU read them; places them there the first time, which takes a while, and
        again when torch has moved the memory that these read.

        Args:
            device: The GPU. Default: the graph's.

        Raises:
            RuntimeError: If the columns cannot be pinned.
            torch.OutOfMemoryError: If the GPU has no room.
            ValueError: If there is no such GPU, or the mode is ``'CPU'``.
        """
        if self.mode == "CPU":
            raise ValueError("mode = 'CPU': the edges are for CPU samplers; use mode 'ZERO_COPY' or 'CUDA' for a GPU")
        wanted = self.device if device is None and is_accelerator(self.device, "device") else device
        place = require_accelerator("cuda" if wanted is None else wanted, "device")
        with self._lock:
            if place in self._placed and self._placed[place].has_moved:
                self._placed.pop(place).close()
            if place not in self._placed:
                self._placed[place] = DeviceTopology(self.topology, place.device, self.mode)
            return self._placed[place]

    def close(self) -> None:
        """Gives back device memory and unpins the columns; they are placed again when they are asked for again."""
        with self._lock:
            placed, self._placed = self._placed, {}
        for each in placed.values():
            each.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"topology": self.topology, "mode": self.mode, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

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
