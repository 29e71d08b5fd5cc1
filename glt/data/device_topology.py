"""The edges of a graph where kernels of a GPU read them: device memory, pinned host memory in place, or both."""

from __future__ import annotations

import logging
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt._reprs import says
from glt.data.device import free_memory, wait_when_dropped
from glt.data.pinned import PinnedMemory, PinnedPages, copy_to_device
from glt.data.topology import EdgeWeights, TimedEdges, Topology

logger = logging.getLogger(__name__)

Columns = TypeVar("Columns", EdgeWeights, TimedEdges)

COLD = -(2**63)  # in place of a shift: as in csrc/cuda/device_rows.h
_FAN_OUT = 10  # what samplers ask for is not known when rows are chosen
_STEP = 1 << 24  # edges that are copied at a time


class HotRows(NamedTuple):
    """Copies in device memory of the rows that are read most, where the columns stay in host memory.

    ``shift [num_nodes]`` int64: where a row begins here, less where it begins in the columns; :data:`COLD` of rows that
    have no copy. ``indices``, ``edge_ids`` and those by time are as in the topology, hot rows alone.
    """

    shift: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    timed_indices: Tensor | None
    timed_edge_ids: Tensor | None


class DeviceTopology:
    """The arrays of a :class:`~glt.data.topology.Topology`, each at an address that one GPU can read.

    Row offsets are always in device memory. The columns are there too (mode ``'CUDA'``), or stay pinned in the
    topology's own memory (``'ZERO_COPY'``). Of columns that would take more than ``room`` bytes, by default
    :func:`room_for_graphs`, only the neighbours and the edge ids of some rows are there, those that are read most for
    their bytes: by ``hotness [num_nodes]``, how often a node is expanded, or where that is None by the number of its
    edges. ``indptr, indices, edge_ids, weights, by_time`` are as the topology has them, readable by kernels at
    ``data_ptr()``; ``hot`` are the copies.
    """

    def __init__(
        self,
        topology: Topology,
        device: torch.device,
        mode: str,
        pages: PinnedPages | None = None,
        hotness: Tensor | None = None,
        room: int | None = None,
    ) -> None:
        self.topology, self.device, self.mode = topology, device, mode
        self._pages, self._guard = pages, wait_when_dropped(self, device)
        self._pins: list[PinnedMemory] = []
        self._in_place: list[tuple[Tensor, int]] = []  # columns that are not copied, and where they were
        # By address: columns by time may be the plain ones.
        self._brought: dict[tuple[int, torch.dtype], Tensor] = {}
        self.hot: HotRows | None = None
        try:
            self.indptr = copy_to_device(topology.indptr, device)
            if room is None and mode == "CUDA":
                room = room_for_graphs(device)
            self._is_whole = mode == "CUDA" and (room is None or num_bytes(topology) <= room)
            if mode == "CUDA" and room is not None and not self._is_whole:
                self.hot = self._hot_rows(hotness, room)
            self.indices = self._column(topology.indices, "indices")
            self.edge_ids = None if topology.edge_ids is None else self._column(topology.edge_ids, "edge_ids")
            self.weights = self._columns("weights", topology.weights)
            self.by_time = self._columns("by_time", topology.by_time)
        except BaseException:
            self.close()
            raise
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # samplers come on any stream

    def _hot_rows(self, hotness: Tensor | None, room: int) -> HotRows:
        topology, timed = self.topology, self.topology.by_time
        columns: list[Tensor | None] = [topology.indices, topology.edge_ids]
        columns += [None, None] if timed is None else [timed.indices, timed.edge_ids]
        row_bytes = sum(column.element_size() for column in columns if column is not None)
        shift, begins, ends = hottest_rows(
            topology.indptr.numpy(), hotness, (room - 8 * topology.num_nodes) // row_bytes
        )
        num_hot = int((ends - begins).sum())
        logger.info(
            "%s is too large for %s: it keeps %d of %d rows, with %d of %d edges, and reads the others in host memory",
            *(topology, self.device, len(begins), topology.num_nodes, num_hot, topology.num_edges),
        )
        places = np.concatenate([[0], np.cumsum(ends - begins)])
        there = [None if column is None else self._copied(column, begins, ends, places) for column in columns]
        indices = there[0]
        assert indices is not None
        return HotRows(torch.from_numpy(shift).to(self.device), indices, *there[1:])

    def _copied(self, column: Tensor, begins: np.ndarray, ends: np.ndarray, places: np.ndarray) -> Tensor:
        """The elements of some rows, one row after the other, in device memory; ``places`` is where each begins there,
        and where the last ends."""
        out = torch.empty(int(places[-1]), dtype=column.dtype, device=self.device)
        source, first = column.numpy(), 0
        while first < len(begins):  # as many rows at a time as have so many edges
            last = max(first + 1, int(np.searchsorted(places, places[first] + _STEP, "right")) - 1)
            counts = (ends - begins)[first:last]
            at = np.repeat(begins[first:last] - places[first:last], counts) + np.arange(places[first], places[last])
            out[places[first] : places[last]] = torch.from_numpy(source[at]).to(self.device)
            first = last
        return out

    def _column(self, column: Tensor, name: str) -> Tensor:
        if self._is_whole:
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

    def _columns(self, name: str, columns: Columns | None) -> Columns | None:
        if columns is None:
            return None
        named = columns._asdict().items()
        return columns._replace(**{n: self._column(each, f"{name}.{n}") for n, each in named if each is not None})

    @property
    def has_moved(self) -> bool:
        """Whether torch has moved a column that is read in place: this is of no use then."""
        return any(column.data_ptr() != address for column, address in self._in_place)

    def close(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # device memory may be taken again on any stream
        if self._guard is not None:
            self._guard.detach()
        pins, self._pins = self._pins, []
        for pin in pins:
            pin.close()

    @says
    def __repr__(self) -> str:
        return f"{self.topology!r}, mode={self.mode!r}, device={str(self.device)!r}"


def room_for_graphs(device: torch.device) -> int | None:
    """Bytes that graphs may take of a GPU: three quarters of what is free there; None on the host, which has room."""
    free = free_memory(device)
    return None if free is None else free // 4 * 3


def num_bytes(topology: Topology) -> int:
    """Of all columns, those that are others' too counted once."""
    columns = [topology.indices, topology.edge_ids, *(topology.weights or ()), *(topology.by_time or ())]
    return sum({c.data_ptr(): c.nbytes for c in columns if c is not None and c.nbytes}.values())


def hottest_rows(
    indptr: np.ndarray, hotness: Tensor | None, num_edges: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Chooses rows of ``num_edges`` edges together at most: those that give most draws for each edge that is kept.

    A row of degree d that is expanded h times gives ``h * min(d, 10)`` edges, and takes d; where ``hotness`` is None, h
    counts as d. Returns the shifts of
    :class:`HotRows`, and where the chosen rows begin and end in the columns, by node.
    """
    degree = np.diff(indptr)
    score = np.minimum(degree, _FAN_OUT).astype(np.float32)
    if hotness is not None:
        score *= hotness.float().numpy() / np.maximum(degree, 1)
    # To three digits, which sort in linear time; of equal ones the first.
    digits = (score / max(float(score.max(initial=0)), 1e-30)).astype(np.float16).view(np.uint16)
    order = np.argsort(~digits, kind="stable")
    chosen, left = np.zeros(len(degree), bool), num_edges
    while len(order := order[(degree[order] > 0) & (degree[order] <= left)]):  # rows that do not fit end nothing
        taken = max(1, int(np.searchsorted(np.cumsum(degree[order]), left, "right")))
        chosen[order[:taken]] = True
        left -= int(degree[order[:taken]].sum())
        order = order[taken:]
    begins, ends = indptr[:-1][chosen], indptr[1:][chosen]
    shift = np.full(len(degree), COLD, np.int64)
    shift[chosen] = np.cumsum(ends - begins) - ends
    return shift, begins, ends
