"""Rows for one GPU: the hot ones in device memory, the rest in pinned host memory, looked up together."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import from_array
from glt.data.device import GatherErrors, waited_for
from glt.data.pinned import PinnedMemory, brought

NO_ROW = 2**32 - 1

_WIDENED = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.int8: "int8"}


class TieredRows:
    """What the gather kernel of one GPU reads; see ``csrc/cuda/gather.h``. One that is dropped without
    :meth:`close` waits for the gathers under way.

    Not yet run on a GPU. On the CPU (``device`` = cpu) the same kernel runs through the host executor, thread by thread
    and slowly: for tests.

    Args:
        tensor: All rows, ``[num_rows, ...]``, contiguous, in host memory; kept, and pinned if any are cold: hot ones
            too, though that takes 0.1 s per GB, since CUDA would refuse others' copies of a table that is pinned in
            part. Only the cold ones of a mapped file, or where they are few (``SMALL_BYTES``). Or several such tables
            of equal rows, at most 8, whose rows are counted one table after the other.
        device: Where gathers run and results are.
        num_hot: Rows to keep in device memory; of several tables a list.
        hotness: Hotness of each row ``[num_rows]``: the hottest are kept, ties by row. Default: the first ones are. Of
            several tables a list, None for those without.
        row_of: Row of each id, counted from ``first_id``, ``[num_ids]`` uint32 on the CPU; 2^32 - 1: has none. Default:
            ids count rows.
        first_id: The id that the first entry of ``row_of``, or the first row, is of.
        group: The GPUs that share the hot rows: each holds an equal part; with ``device`` among them.
        parts: These parts, one list for all GPUs of the group: empty at first, the first GPU to come fills it. Default:
            of this one alone.
        scale: Factor of each row ``[num_rows]``, float32, where int8 rows are widened. Default: 1.
        name: What to call the rows in errors.

    Raises:
        RuntimeError: If the rows cannot be pinned, or a GPU of the group cannot read another's memory.
    """

    def __init__(
        self,
        tensor: Tensor | Sequence[Tensor],
        device: torch.device,
        *,
        num_hot: int | Sequence[int] = 0,
        hotness: Tensor | Sequence[Tensor | None] | None = None,
        row_of: Tensor | None = None,
        first_id: int = 0,
        group: Sequence[torch.device] | None = None,
        parts: list[Tensor] | None = None,
        scale: Tensor | None = None,
        name: str = "tensor",
    ) -> None:
        tables = [tensor] if isinstance(tensor, Tensor) else list(tensor)
        several = len(tables) > 1
        tensor, num_tables = tables[0], len(tables)
        hot_counts = [num_hot] if isinstance(num_hot, int) and num_hot else list(num_hot or [0] * num_tables)
        hotness_of = [hotness] if isinstance(hotness, Tensor) else list(hotness or [None] * num_tables)
        if len(hot_counts) != num_tables or len(hotness_of) != num_tables:
            raise ValueError(f"{num_tables} tables: expected as many elements in num_hot and hotness, one for each")
        if several and (scale is not None or (group is not None and len(group) > 1)):
            raise ValueError("several tables: they have no scale or group of GPUs")
        self.device, self.dtype, self.row_shape = device, tensor.dtype, tensor.shape[1:]
        group = (device,) if group is None else tuple(group)
        if device.type == "cuda":
            for peer in group:
                _core.cuda_enable_peer(device.index, peer.index)
        self._hot = [] if parts is None else parts
        # In the order of the kernel's tiers: a part in device memory, or a table in host memory and its first cold row.
        self._tiers: list[Tensor | tuple[Tensor, int]] = []
        places: list[np.ndarray] = []
        num_rows, is_ordered = 0, False
        for rows, n, hot_of in zip(map(_rows_of, tables), hot_counts, hotness_of, strict=True):
            order = None
            place = np.arange(num_rows, num_rows + len(rows), dtype=np.int64)
            hot, first_cold = rows[:n], n
            if hot_of is not None and 0 < n < len(rows):  # of all rows none need be told apart
                # The hot rows lie before all rows, cold copies of themselves included: the index tells which to read.
                order = torch.argsort(hot_of, descending=True, stable=True)[:n]
                place += n
                place[order.numpy()] = np.arange(num_rows, num_rows + n)
                hot, first_cold, is_ordered = rows[order], 0, True
            places.append(place)
            if several:
                self._hot.append(brought(hot, device))
                self._tiers.append(self._hot[-1])
            else:
                if not self._hot:
                    bounds = [n * i // len(group) for i in range(len(group) + 1)]
                    spans = zip(group, bounds, bounds[1:], strict=False)
                    self._hot += [brought(hot[a:b], d) for d, a, b in spans if a < b]
                    for member in group:
                        if member.type == "cuda":
                            torch.cuda.synchronize(member)
                self._tiers += self._hot
            self._tiers.append((rows, first_cold))
            num_rows += len(hot) + len(rows) - first_cold
        if is_ordered:
            row_of = from_array(_composed(row_of, np.concatenate(places)))
        self._row_of = None if row_of is None else brought(row_of, device)
        if scale is not None and order is not None:  # then there is one table
            scale = torch.cat([scale[order], scale])
        self._scale = None if scale is None else brought(scale, device)
        self._width, self._first_id, self._name = _rows_of(tensor).shape[1], first_id, name
        self._pins: list[PinnedMemory] = []
        self._addresses: list[int] | None = None  # of the tables that are pinned, if they are
        self._guard: weakref.finalize[..., Any] | None = None
        self._errors = GatherErrors(device)
        self._bind()

    def _bind(self) -> None:
        """Has the kernel read the rows where they are now: torch may move them, see :mod:`glt.data.arrays`."""
        self.close()
        self._pins, places, addresses = [], [], self._now_at()
        self._guard = waited_for(self, self.device)
        for tier in self._tiers:
            part = tier if isinstance(tier, Tensor) else self._pinned(*tier)
            places.append((part.data_ptr(), len(part), self._width))
        index = None if self._row_of is None else (self._row_of.data_ptr(), len(self._row_of))

        def table(**options: int | str) -> _core.TieredTable:
            return _core.TieredTable(self._width, places, row_of=index, first_id=self._first_id, **options)  # type: ignore[arg-type]

        self._table = table()
        self._widened: _core.TieredTable | None = None
        if self.dtype in _WIDENED:
            factor = 0 if self._scale is None else self._scale.data_ptr()
            self._widened = table(widen=_WIDENED[self.dtype], scale=factor)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # gathers come on any stream
        self._addresses = addresses

    def _now_at(self) -> list[int]:
        """Where the tables in host memory are."""
        return [tier[0].data_ptr() for tier in self._tiers if not isinstance(tier, Tensor)]

    def _pinned(self, rows: Tensor, first_cold: int) -> Tensor:
        """The cold rows of a table where the device reads them in host memory."""
        part = rows[first_cold:]
        if self.device.type == "cuda" and len(part):
            self._pins.append(PinnedMemory(part, self.device, self._name, whole=rows))
            return self._pins[-1].tensor
        return part

    def gather(
        self,
        ids: Tensor,
        out: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        count: Tensor | None = None,
        dtype: torch.dtype | None = None,
        wait: bool = True,
        trusted: bool = False,
        max_blocks: int = 0,
        explain: Callable[[Tensor, Tensor | None, int], None],
    ) -> Tensor:
        """Looks up rows on the current stream: as :meth:`glt.data.Feature.gather`, with everything on this device.

        Args:
            ids: ``[n]``, int32 or int64, contiguous.
            out: ``[at least n, ...]``, contiguous. Default: of torch's allocator.
            positions: ``[n]``, uint32, contiguous.
            count: Number of ids ``[1]``, int32, where only the device knows it; ``n`` is the most it can be.
            dtype: float32 to widen, or the rows' own.
            wait: Whether to wait for the GPU and raise errors here; False: see :meth:`check`.
            trusted: As in :meth:`glt.data.Feature.gather_on`.
            max_blocks: Blocks of 256 GPU threads to use at most, so that a gather over PCIe leaves the others to
                training; 0: all.
            explain: Called on the host with the ids, the positions and the rows of ``out`` when one is out of range:
                raises the error that names it.
        """
        dtype = self.dtype if dtype is None else dtype
        if dtype != self.dtype and (dtype != torch.float32 or self.dtype not in _WIDENED):
            raise TypeError(f"dtype = {dtype}: expected {self.dtype}, the rows' own" + widening_of(self.dtype))
        if out is None:
            out = torch.empty((len(ids), *self.row_shape), dtype=dtype, device=self.device)
        num_out = len(out)

        def launch(error: int) -> torch.cuda.Event | None:
            call = _core.GatherCall(
                ids.data_ptr(), ids.element_size(), len(ids), out.data_ptr(), num_out, error,
                0 if positions is None else positions.data_ptr(), 0 if count is None else count.data_ptr(),
            )  # fmt: skip
            if self.device.type != "cuda":
                _core.host_gather(table, call, 64)
                return None
            stream = torch.cuda.current_stream(self.device)
            _core.cuda_gather(table, call, self.device.index, stream.cuda_stream, max_blocks)
            return stream.record_event()

        def explain_on_host(_: int) -> None:
            explain(ids.cpu(), None if positions is None else positions.cpu(), num_out)

        with self._errors.lock:
            if self._now_at() != self._addresses:
                self._bind()
            table = self._table if dtype == self.dtype or self._widened is None else self._widened
            if trusted:
                self._errors.trust(launch)
                return out
            self._errors.add(launch, explain_on_host)
            if wait:
                self.check()
        return out

    def check(self) -> None:
        """Waits for the gathers so far; raises the error of those that were not waited for."""
        self._errors.check()

    @property
    def num_hot(self) -> int:
        """Rows in device memory, of this GPU and its group."""
        return sum(len(part) for part in self._hot)

    def close(self) -> None:
        """Unpins the rows, after the work under way; they are pinned again when a gather comes."""
        with self._errors.lock:
            self._addresses = None
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # device memory goes, too: to whoever asks next, on any stream
            if self._guard is not None:
                self._guard.detach()
            for pin in self._pins:
                pin.close()


def widening_of(dtype: torch.dtype) -> str:
    """Says what rows of this dtype may be widened to, as the end of an error."""
    return " or torch.float32" if dtype in _WIDENED else f"; rows of {dtype} are not widened"


def _rows_of(tensor: Tensor) -> Tensor:
    """The rows as bytes ``[num_rows, row_bytes]``, sharing memory: any dtype and shape moves alike."""
    width = math.prod(tensor.shape[1:]) * tensor.element_size()
    # Flat first: of one column the strides may be any.
    return tensor.detach().reshape(-1).view(torch.uint8).view(len(tensor), width)


def _composed(row_of: Tensor | None, place: np.ndarray) -> np.ndarray:
    """``place[row_of]``, uint32, and no row where there was none."""
    if int(place.max(initial=0)) >= NO_ROW:
        raise ValueError(f"hotness: expected fewer than 2^32 - 1 rows, hot ones counted twice, got {len(place)}")
    if row_of is None:
        return place.astype(np.uint32)
    rows = row_of.numpy()
    here = rows < len(place)
    composed = np.full(len(rows), NO_ROW, np.uint32)
    composed[here] = place[rows[here]]
    return composed
