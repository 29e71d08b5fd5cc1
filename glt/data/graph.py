"""A topology and where samplers may read it from."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from glt import _core
from glt.data.device import (
    Accelerator,
    accelerator_of,
    is_accelerator,
    missing_for_cuda,
    require_accelerator,
    wait_when_dropped,
)
from glt.data.pinned import PinnedMemory, PinnedPages, copy_to_device
from glt.data.topology import EdgeWeights, TimedEdges, Topology

# The edges of a graph where the samplers of one GPU read them.


class DeviceTopology:
    """The arrays of a :class:`~glt.data.topology.Topology`, each at an address that one GPU can read.

    Row offsets are always in device memory: every row of a frontier asks for two. The columns are there too (mode
    ``'CUDA'``), or stay pinned in the topology's own memory, of which a sampler reads the few neighbours that it draws
    (``'ZERO_COPY'``). ``indptr, indices, edge_ids, weights, by_time`` are as the topology has them, readable by kernels
    at ``data_ptr()``. If a column cannot be pinned, those pinned before are given back. Not yet run on a GPU.
    """

    def __init__(self, topology: Topology, device: torch.device, mode: str, pages: PinnedPages | None = None) -> None:
        self.topology, self.device, self.mode = topology, device, mode
        self._pages, self._guard = pages, wait_when_dropped(self, device)
        self._pins: list[PinnedMemory] = []
        self._in_place: list[tuple[Tensor, int]] = []  # columns that are not copied, and where they were
        # By where they are: columns by time may be the plain ones.
        self._brought: dict[tuple[int, torch.dtype], Tensor] = {}
        try:
            self.indptr = copy_to_device(topology.indptr, device)
            self.indices = self._column(topology.indices, "indices")
            self.edge_ids = self._optional(topology.edge_ids, "edge_ids")
            self.weights: EdgeWeights | None = None
            if topology.weights is not None:
                self.weights = EdgeWeights(*(self._column(array, "weights") for array in topology.weights))
            self.by_time: TimedEdges | None = None
            if topology.by_time is not None:
                indices, edge_ids, time = topology.by_time
                self.by_time = TimedEdges(
                    self._column(indices, "indices by time"),
                    self._optional(edge_ids, "edge_ids by time"),
                    self._column(time, "edge times"),
                )
        except BaseException:
            self.close()
            raise
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # samplers come on any stream

    def _column(self, column: Tensor, name: str) -> Tensor:
        if self.mode == "CUDA":
            key = column.data_ptr(), column.dtype  # columns without elements are all at address 0
            if key not in self._brought:
                self._brought[key] = copy_to_device(column, self.device)
            return self._brought[key]
        self._in_place.append((column, column.data_ptr()))
        if self.device.type == "cpu" and self._pages is None:
            return column  # the host in the place of a GPU reads it as it is
        pin = PinnedMemory(column, self.device, f"the {name} of {self.topology!r}", self._pages)
        self._pins.append(pin)
        return pin.tensor

    def _optional(self, column: Tensor | None, name: str) -> Tensor | None:
        return None if column is None else self._column(column, name)

    @property
    def has_moved(self) -> bool:
        """Whether torch has moved a column that is read in place (see :class:`~glt.data.arrays.NativeView`): this is of
        no use then."""
        return any(column.data_ptr() != address for column, address in self._in_place)

    def close(self) -> None:
        """Unpins the columns, after the work under way; nothing may sample from here any more."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # device memory may be taken again on any stream
        if self._guard is not None:
            self._guard.detach()
        pins, self._pins = self._pins, []
        for pin in pins:
            pin.close()

    def __repr__(self) -> str:
        return f"DeviceTopology({self.topology!r}, mode={self.mode!r}, device={str(self.device)!r})"


_MODES = ("CPU", "ZERO_COPY", "CUDA")


class Graph:
    """A :class:`Topology` placed for sampling.

    The edges stay in host memory in every mode, where CPU samplers read them in place. The mode says where samplers on
    a GPU find them, once one asks (:meth:`placed`); each process places them for itself, and processes that share the
    memory of the topology pin the same pages.

    Args:
        topology: The edges.
        mode: ``'CPU'``: nowhere. ``'ZERO_COPY'``: columns in pinned host memory, row offsets on the GPU; without a GPU
            the same as ``'CPU'``. ``'CUDA'``: all in device memory; needs a GPU.
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
        """Returns the edges as samplers on a GPU, by default the graph's, read them; places them there the first time,
        which takes a while, and again when torch has moved their memory.

        Raises:
            RuntimeError, torch.OutOfMemoryError: If the columns cannot be pinned, or the GPU has no room.
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
