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
from glt.data.device import GatherErrors, wait_when_dropped
from glt.data.pinned import PinnedMemory, copy_to_device

NO_ROW = 2**32 - 1

_WIDENED = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.int8: "int8"}


class TieredRows:
    """What the gather kernel of one GPU reads; see ``csrc/cuda/gather.h``. One that is dropped without
    :meth:`close` waits for the gathers under way. Not yet run on a GPU: on the device ``cpu``, for tests, the same
    kernel runs through the host executor, slowly.

    Args:
        tensor: All rows, ``[num_rows, ...]``, contiguous, in host memory. If any are cold, all are pinned, hot ones
            too, since CUDA would refuse others' copies of a table that is pinned in part; only the cold ones of a
            mapped file, or where they are few (``SMALL_BYTES``). Or several such tables of equal rows, at most 8, whose
            rows are counted one table after the other.
        device: Where gathers run and results are.
        num_hot: Rows to keep in device memory; of several tables a list.
        hotness: Hotness of each row ``[num_rows]``: the hottest are kept, ties by row. Default: the first ones are. Of
            several tables a list, None for those without.
        ids: The row of each id, counted from the second element on, ``[num_ids]`` uint32 on the CPU, 2^32 - 1: has
            none; None: ids count rows.
        group: The GPUs that share the hot rows, each an equal part, with ``device`` among them, and the list of these
            parts: one for all GPUs of the group, filled by the first to come. Default: ``device`` alone.
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
        ids: tuple[Tensor | None, int] = (None, 0),
        group: tuple[Sequence[torch.device], list[Tensor]] | None = None,
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
        if several and (scale is not None or (group is not None and len(group[0]) > 1)):
            raise ValueError("several tables: they have no scale or group of GPUs")
        self.device, self.dtype, self.row_shape = device, tensor.dtype, tensor.shape[1:]
        row_of, self._first_id = ids
        members, self._hot = ([device], []) if group is None else group
        if device.type == "cuda":
            for peer in members:
                _core.cuda_enable_peer(device.index, peer.index)
        # In the order of the kernel's tiers: a part in device memory, or a table in host memory and its first cold row.
        self._tiers: list[Tensor | tuple[Tensor, int]] = []
        places: list[np.ndarray] = []
        num_rows, is_ordered = 0, False
        for rows, n, hot_of in zip(map(_rows_of, tables), hot_counts, hotness_of, strict=True):
            order = None
            place = np.arange(num_rows, num_rows + len(rows), dtype=np.int64)
            hot, first_cold = rows[:n], n
            if hot_of is not None and 0 < n < len(rows):  # else no row needs an index
                # The hot rows lie before all rows, cold copies of themselves included: the index tells which to read.
                order = torch.argsort(hot_of, descending=True, stable=True)[:n]
                place += n
                place[order.numpy()] = np.arange(num_rows, num_rows + n)
                hot, first_cold, is_ordered = rows[order], 0, True
            places.append(place)
            if several:
                self._hot.append(copy_to_device(hot, device))
                self._tiers.append(self._hot[-1])
            else:
                if not self._hot:
                    bounds = [n * i // len(members) for i in range(len(members) + 1)]
                    spans = zip(members, bounds, bounds[1:], strict=False)
                    self._hot += [copy_to_device(hot[a:b], d) for d, a, b in spans if a < b]
                    for member in members:
                        if member.type == "cuda":
                            torch.cuda.synchronize(member)
                self._tiers += self._hot
            self._tiers.append((rows, first_cold))
            num_rows += len(hot) + len(rows) - first_cold
        if is_ordered:
            row_of = from_array(_composed(row_of, np.concatenate(places)))
        self._row_of = None if row_of is None else copy_to_device(row_of, device)
        if scale is not None and order is not None:  # then there is one table
            scale = torch.cat([scale[order], scale])
        self._scale = None if scale is None else copy_to_device(scale, device)
        self._width, self._name = _rows_of(tensor).shape[1], name
        self._pins: list[PinnedMemory] = []
        self._addresses: list[int] | None = None  # of the tables that are pinned, if they are
        self._guard: weakref.finalize[..., Any] | None = None
        self._errors = GatherErrors(device)
        self._bind()

    def _bind(self) -> None:
        """Has the kernel read the rows where they are now: see :class:`~glt.data.arrays.NativeView`."""
        self.close()
        self._pins, places, addresses = [], [], self._now_at()
        self._guard = wait_when_dropped(self, self.device)
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
        return [tier[0].data_ptr() for tier in self._tiers if not isinstance(tier, Tensor)]

    def _pinned(self, rows: Tensor, first_cold: int) -> Tensor:
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
        dtype: torch.dtype | None = None,
        wait: bool = True,
        trusted: bool = False,
        max_blocks: int = 0,
        explain: Callable[[Tensor, Tensor | None, int], None],
    ) -> Tensor:
        """Looks up rows on the current stream: as :meth:`glt.data.Feature.gather`, with everything on this device and
        contiguous.

        Args:
            ids: ``[n]``, int32 or int64.
            out: ``[at least n, ...]``. Default: of torch's allocator.
            positions: ``[n]``, uint32.
            dtype, wait, trusted, max_blocks: As in :meth:`glt.data.Feature.gather_on`.
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
            ids_of = ids.data_ptr(), ids.element_size(), len(ids)
            where = 0 if positions is None else positions.data_ptr()
            call = _core.GatherCall(*ids_of, out.data_ptr(), num_out, error, where, 0)
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
        return sum(len(part) for part in self._hot)

    def close(self) -> None:
        """Unpins the rows, after the work under way; they are pinned again when a gather comes."""
        with self._errors.lock:
            self._addresses = None
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # device memory may be taken again on any stream
            if self._guard is not None:
                self._guard.detach()
            for pin in self._pins:
                pin.close()


def widening_of(dtype: torch.dtype) -> str:
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
