"""The edges of a graph where the samplers of one GPU read them."""

from __future__ import annotations

import torch
from torch import Tensor

from glt.data.edge_times import TimedEdges
from glt.data.edge_weights import EdgeWeights
from glt.data.pinned_memory import PinnedMemory, brought
from glt.data.pinned_pages import PinnedPages
from glt.data.topology import Topology
from glt.data.under_way import waited_for


class DeviceTopology:
    """The arrays of a :class:`~glt.data.topology.Topology`, each at an address that one GPU can read.

    Row offsets are always in device memory: every row of a frontier asks for two, and over the bus that would cost as
    much as the neighbours. The columns are there too (``'CUDA'``), or stay in the topology's own memory, pinned, of
    which a sampler reads the few neighbours that it draws (``'ZERO_COPY'``).

    Not yet run on a GPU.

    Args:
        topology: The edges; kept alive.
        device: The GPU.
        mode: ``'CUDA'`` or ``'ZERO_COPY'``.
        pages: As for :class:`PinnedMemory`.

    Attributes:
        indptr, indices, edge_ids, weights, by_time: As the topology has them: tensors of the device, or its own pinned
            ones, small ones copied. ``data_ptr()`` of either is an address for kernels.

    Raises:
        RuntimeError: If the columns cannot be pinned; those pinned before are given back.
        torch.OutOfMemoryError: If the GPU has no room.
    """

    def __init__(self, topology: Topology, device: torch.device, mode: str, pages: PinnedPages | None = None) -> None:
        self.topology, self.device, self.mode = topology, device, mode
        self._pages, self._guard = pages, waited_for(self, device)
        self._pins: list[PinnedMemory] = []
        self._in_place: list[tuple[Tensor, int]] = []  # columns that are not copied, and where they were
        # By where they are: columns by time may be the plain ones.
        self._brought: dict[tuple[int, torch.dtype], Tensor] = {}
        try:
            self.indptr = brought(topology.indptr, device)
            self.indices = self._column(topology.indices, "indices")
            self.edge_ids = self._optional(topology.edge_ids, "edge_ids")
            self.weights: EdgeWeights | None = None
            if topology.weights is not None:
                self.weights = EdgeWeights(*(self._column(array, "weights") for array in topology.weights))
            self.by_time: TimedEdges | None = None
            if topology.by_time is not None:
                indices, edge_ids, time = topology.by_time
                self.by_time = TimedEdges(
                    self._column(indices, "indices by time"), self._optional(edge_ids, "edge_ids by time"),
                    self._column(time, "edge times"),
                )  # fmt: skip
        except BaseException:
            self.close()
            raise
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # samplers come on any stream

    def _column(self, column: Tensor, name: str) -> Tensor:
        if self.mode == "CUDA":
            key = column.data_ptr(), column.dtype  # columns without elements are all at address 0
            if key not in self._brought:
                self._brought[key] = brought(column, self.device)
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
        """Whether torch has put a column elsewhere that is read in place (see :mod:`glt.data.native_view`): what is
        here is of no use then."""
        return any(column.data_ptr() != address for column, address in self._in_place)

    def close(self) -> None:
        """Unpins the columns, after the work under way; nothing may sample from here any more."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # device memory goes, too: to whoever asks next, on any stream
        if self._guard is not None:
            self._guard.detach()
        pins, self._pins = self._pins, []
        for pin in pins:
            pin.close()

    def __repr__(self) -> str:
        return f"DeviceTopology({self.topology!r}, mode={self.mode!r}, device={str(self.device)!r})"
