"""Rows of values, one per node or edge, looked up by id: in host memory, and by GPUs in tiers."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._reprs import brief, says, size_of
from glt._tracebacks import short_traceback
from glt.data.arrays import Packed, as_ids, as_numpy, from_array, ids_in_place, pooled_empty
from glt.data.device import (
    Accelerator,
    DeviceGroup,
    GatherErrors,
    group_of,
    let_read,
    require_accelerator,
    wait_when_dropped,
)
from glt.data.packing import FLOATS, Packing, RowPacker
from glt.data.pinned import PinnedMemory, copy_to_device
from glt.data.schema import PartitionBook

NO_ROW = 2**32 - 1

# What _core.gather_from reads: a table, ids, positions, the rows of ids, and the first id.
Source = tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None, int]

BLOCKS_FOR_A_BUS = 32
"""Blocks of 256 threads that fill a bus. More would keep a trainer's kernels off the GPU while they wait: on an H200 a
matrix product beside a gather from pinned memory took 3.1 times as long, and with 32 blocks as long as alone."""


class TieredRows:
    """What the gather kernel of one GPU reads; see ``csrc/cuda/gather.h``. On the device ``cpu``, for tests, the
    same kernel runs through the host executor.

    Args:
        tensor: All rows, ``[num_rows, ...]``, contiguous, in host memory, or at most 8 such tables of equal rows,
            counted one table after the other. If any are cold, all are pinned, hot ones too, since CUDA would refuse
            others' copies of a table that is pinned in part; only the cold ones of a mapped file, or where they are
            few.
        device: Where gathers run and results are.
        num_hot: Rows to keep in device memory; of several tables a list.
        hotness: Hotness of each row ``[num_rows]``: the hottest are kept, by default the first ones. Of several tables
            a list, None for those without.
        ids: The row of each id, counted from the second element on, ``[num_ids]`` uint32, 2^32 - 1: none; None: ids
            count rows.
        group: The GPUs that share the hot rows, each an equal part, with ``device`` among them, and the list of these
            parts: one for all GPUs of the group, filled by the first to come. Of one table. Default: ``device`` alone.
        packing: How rows of float32 are packed, where they are.
        name: What to call the rows in errors.
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
        packing: Packing | None = None,
        name: str = "tensor",
    ) -> None:
        tables = [tensor] if isinstance(tensor, Tensor) else list(tensor)
        hot_counts = [num_hot] * len(tables) if isinstance(num_hot, int) else num_hot
        hotness_of = [hotness] * len(tables) if hotness is None or isinstance(hotness, Tensor) else hotness
        self.device, self.packing = device, packing
        self.dtype, self.row_shape = tables[0].dtype, tables[0].shape[1:]
        if packing is not None:
            self.dtype, self.row_shape = torch.float32, torch.Size(packing.row_shape)
        row_of, self._first_id = ids
        members, self._hot = ([device], []) if group is None else group
        if len(tables) > 1 and len(members) > 1:
            raise ValueError("several tables: they have no group of GPUs")
        is_first = not self._hot  # of the group, to bring the hot rows
        if device.type == "cuda":
            for peer in members:
                let_read(device, peer)
        # In the order of the kernel's tiers: a part in device memory, or a table in host memory and its first cold row.
        self._tiers: list[Tensor | tuple[Tensor, int]] = []
        places: list[np.ndarray] = []
        num_rows, order = 0, None
        for rows, n, hot_of in zip(map(_rows_of, tables), hot_counts, hotness_of, strict=True):
            place = np.arange(num_rows, num_rows + len(rows), dtype=np.int64)
            hot, first_cold = rows[:n], n
            if hot_of is not None and 0 < n < len(rows):  # else no row needs an index
                # The hot rows lie before all rows, cold copies of themselves included: the index tells which to read.
                order = torch.argsort(hot_of, descending=True, stable=True)[:n]
                place += n
                place[order.numpy()] = np.arange(num_rows, num_rows + n)
                hot, first_cold = rows[order], 0
            places.append(place)
            parts = list(self._hot)
            if is_first:
                bounds = [n * i // len(members) for i in range(len(members) + 1)]
                spans = zip(members, bounds, bounds[1:], strict=False)
                parts = [copy_to_device(hot[a:b], member) for member, a, b in spans if a < b]
                self._hot += parts
            self._tiers += [*parts, (rows, first_cold)]
            num_rows += len(hot) + len(rows) - first_cold
        for member in members if is_first else ():
            if member.type == "cuda":
                torch.cuda.synchronize(member)
        if order is not None:
            row_of = from_array(_composed(row_of, np.concatenate(places)))
        self._row_of = None if row_of is None else copy_to_device(row_of, device)
        self._has_host_rows = any(
            first_cold < len(rows) for rows, first_cold in (t for t in self._tiers if not isinstance(t, Tensor))
        )
        self._width, self._name = rows.shape[1], name
        self._pins: list[PinnedMemory] = []
        self._addresses: list[int] | None = None  # of the tables that are pinned, if they are
        self._guard: weakref.finalize[..., Any] | None = None
        self._errors = GatherErrors(device)
        self._bind()

    def _bind(self) -> None:
        """Has the kernel read the rows where they are now: torch may move them."""
        self.close()
        self._pins, addresses = [], self._now_at()
        self._guard = wait_when_dropped(self, self.device)
        parts = [tier if isinstance(tier, Tensor) else self._pinned(*tier) for tier in self._tiers]
        places = [(part.data_ptr(), len(part), self._width) for part in parts]
        index = None if self._row_of is None else (self._row_of.data_ptr(), len(self._row_of))
        packing = None if self.packing is None else self.packing.native
        self._table = _core.TieredTable(self._width, places, row_of=index, first_id=self._first_id, packing=packing)
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
        wait: bool = True,
        trusted: bool = False,
        max_blocks: int | None = None,
        explain: Callable[[Tensor, Tensor | None, int], None],
    ) -> Tensor:
        """As :meth:`glt.data.Feature.gather_on`, with everything on this device, contiguous and checked. ``explain`` is
        called on the host with the ids, the positions and the rows of ``out`` when one is out of range: it raises the
        error that names it. ``max_blocks`` of 256 threads are used, 0: all that there is room for. Default:
        :data:`BLOCKS_FOR_A_BUS` where rows are in host memory, else all."""
        if max_blocks is None:
            max_blocks = BLOCKS_FOR_A_BUS if self._has_host_rows else 0
        if out is None:
            out = torch.empty((len(ids), *self.row_shape), dtype=self.dtype, device=self.device)
        num_out = len(out)

        def launch(error: int) -> torch.cuda.Event | None:
            stream = launch_gather(self._table, ids, out, error, positions, max_blocks)
            return None if stream is None else stream.record_event()

        def explain_on_host() -> None:
            explain(ids.cpu(), None if positions is None else positions.cpu(), num_out)

        with self._errors.lock:
            if self._now_at() != self._addresses:
                self._bind()
            if trusted:
                self._errors.trust(launch)
                return out
            self._errors.add(launch, explain_on_host)
            if wait:
                self.check()
        return out

    def check(self) -> None:
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


def launch_gather(
    table: _core.TieredTable, ids: Tensor, out: Tensor, error: int, positions: Tensor | None = None, max_blocks: int = 0
) -> torch.cuda.Stream | None:
    """Gathers on the current stream of the GPU that ``out`` is on, and returns that; on the host at once."""
    where = 0 if positions is None else positions.data_ptr()
    ids_of = ids.data_ptr(), ids.element_size(), len(ids)
    call = _core.GatherCall(*ids_of, out.data_ptr(), len(out), error, where, 0)
    if not out.is_cuda:
        _core.host_gather(table, call, 64)
        return None
    stream = torch.cuda.current_stream(out.device)
    _core.cuda_gather(table, call, out.device.index, stream.cuda_stream, max_blocks)
    return stream


def _rows_of(tensor: Tensor) -> Tensor:
    """The rows as bytes ``[num_rows, row_bytes]``, sharing memory: any dtype and shape moves alike."""
    width = math.prod(tensor.shape[1:]) * tensor.element_size()
    # Flat first: of one column the strides may be any.
    return tensor.detach().reshape(-1).view(torch.uint8).view(len(tensor), width)


def _composed(row_of: Tensor | None, place: np.ndarray) -> np.ndarray:
    if int(place.max(initial=0)) >= NO_ROW:
        raise ValueError(f"hotness: expected fewer than 2^32 - 1 rows, hot ones counted twice, got {len(place)}")
    if row_of is None:
        return place.astype(np.uint32)
    rows = row_of.numpy()
    here = rows < len(place)
    composed = np.full(len(rows), NO_ROW, np.uint32)
    composed[here] = place[rows[here]]
    return composed


@short_traceback
class Feature:
    """A table of rows in host memory, mapped files included; for GPUs, hot rows in their memory and the rest pinned.

    Ids on the CPU are looked up in host memory. With a ``device``, ids on a GPU are looked up by that GPU:
    ``split_ratio`` of the rows in its own memory, all others in place in pinned host memory. Each process places the
    rows when it first asks for them; processes that share the memory of ``tensor`` pin the same pages.

    Args:
        tensor: The rows, shape ``[num_rows, ...]``, any dtype. Used in place if contiguous, else copied once.
        row_of: Row of each id ``[num_ids]``, uint32, where only some ids have rows (GLT's ``id2index``). Default: the
            id.
        owned: In place of ``row_of``, a book and the partition whose rows these are: other ids are then refused.
        split_ratio: Share of the rows to keep in device memory, in [0, 1]: the first ones, or the hottest by
            ``hotness``.
        device: The GPU that looks rows up: ``'cuda'``, ``'cuda:0'`` or a number. Default: none, or any of
            ``device_group_list``. With ids on another GPU that one keeps rows, too.
        device_group_list: GPUs that keep the hot rows together, each group all of them; see :class:`DeviceGroup`.
            Default: each GPU by itself.
        hotness: How often each row is wanted, in any unit ``[num_rows]``; see
            :meth:`glt.sampler.NeighborSampler.sample_prob`.
        store_dtype: Store rows of floats smaller: ``'float16'``, ``'bfloat16'``, ``'int8'`` or ``'int4'``, the latter
            two with a factor per row; what is looked up is float32. Packs a copy, unless ``tensor`` has that dtype
            already. Or a :class:`Packing`, by which ``tensor [num_rows, row_bytes]``, uint8, is packed.

    Attributes:
        tensor: The rows as they are stored.
        packing: How they are packed; None where they are not.

    Raises:
        TypeError, ValueError: If ``tensor`` is not a CPU tensor of at least one dimension, an option does not fit, or a
            GPU is asked for that cannot be used here; says what is missing.

    Example:
        >>> feature = glt.data.Feature(torch.arange(6.0).view(3, 2))
        >>> feature.gather(torch.tensor([2, 0]))
        tensor([[4., 5.],
                [0., 1.]])
    """

    split_ratio: float
    device: torch.device | str | int | None
    packing: Packing | None

    def __init__(
        self,
        tensor: Tensor,
        row_of: Tensor | None = None,
        owned: tuple[PartitionBook, int] | None = None,
        *,
        split_ratio: float = 0.0,
        device: torch.device | str | int | None = None,
        device_group_list: Sequence[DeviceGroup] | None = None,
        hotness: Tensor | None = None,
        store_dtype: str | torch.dtype | Packing | None = None,
    ) -> None:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"tensor has type {type(tensor).__name__}: expected a torch.Tensor")
        if tensor.dim() == 0 or tensor.device.type != "cpu":
            raise ValueError(f"tensor has shape {tuple(tensor.shape)} on {tensor.device}: expected rows in CPU memory")
        tensor, self.packing = _packed(tensor.detach().contiguous(), store_dtype)
        self.tensor: Tensor = tensor
        self.row_of: Tensor | None = row_of if owned is None else owned[0].row_of
        self.owned = owned
        self._first_id = 0 if owned is None else owned[0].first_id(owned[1])
        if isinstance(split_ratio, bool) or not isinstance(split_ratio, int | float) or not 0 <= split_ratio <= 1:
            raise ValueError(f"split_ratio = {split_ratio!r}: expected a share of the rows, 0 to 1")
        self.split_ratio, self.device = float(split_ratio), device
        self.device_group_list: tuple[DeviceGroup, ...] = tuple(device_group_list or ())
        self.hotness: Tensor | None = checked_hotness(hotness, len(tensor))
        if device is not None:
            group_of(require_accelerator(device, "device").device, self.device_group_list)
        for group in self.device_group_list:
            for member in group.device_list:
                require_accelerator(member, f"device_list of group {group.group_id}")
        if (self.split_ratio or hotness is not None) and not self.uses_gpu:
            raise ValueError(f"split_ratio = {split_ratio}: expected device or device_group_list, GPUs to keep rows")
        self._placed: dict[Accelerator, TieredRows] = {}
        self._hot: dict[tuple[torch.device, ...], list[Tensor]] = {}  # by group of GPUs, in equal parts
        self._lock = threading.Lock()

    @property
    def dtype(self) -> torch.dtype:
        """Of what is looked up."""
        return self.tensor.dtype if self.packing is None else torch.float32

    @property
    def row_shape(self) -> torch.Size:
        return self.tensor.shape[1:] if self.packing is None else torch.Size(self.packing.row_shape)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self.row_shape))

    def dense(self) -> Tensor:
        """All rows as they are looked up, ``[num_rows, ...]``: ``tensor`` itself, but of packed rows a copy."""
        if self.packing is None:
            return self.tensor
        out = pooled_empty(tuple(self.shape), self.dtype)
        _core.gather_rows(as_numpy(self.tensor), None, as_numpy(out), packing=self.packing.native)
        return out

    @property
    def has_row_per_id(self) -> bool:
        """Whether the row of an id is the id; not so in a partition."""
        return self.row_of is None and self.owned is None

    @property
    def num_ids(self) -> int:
        """One more than the largest id that may have a row here."""
        return len(self.row_of) if self.row_of is not None else self._first_id + len(self)

    @property
    def uses_gpu(self) -> bool:
        return self.device is not None or bool(self.device_group_list)

    def __len__(self) -> int:
        return len(self.tensor)

    @short_traceback
    def gather(
        self,
        ids: Tensor,
        out: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        num_threads: int = 1,
        wait: bool = True,
    ) -> Tensor:
        """Looks up rows: ``out[i] = row of ids[i]``, or ``out[positions[i]]`` where positions are given.

        With ids on a GPU, and a ``device``, that GPU's current stream does it, and everything is there; the result
        equals that of the CPU bit for bit (of NaNs that were packed, some bits may differ).

        Args:
            ids: Ids ``[n]``, any integer dtype; a bool mask stands for the positions of its true elements.
            out: Where to write, ``[at least n, ...]``, contiguous; returned. Default: a new tensor ``[n, ...]``, on the
                CPU in memory of earlier results.
            positions: Row of ``out`` for each id ``[n]``, uint32. Default: 0, 1, 2, ...
            num_threads: Threads to copy with; the result does not depend on it.
            wait: On a GPU, whether to wait until it is done, to raise what is wrong here. False: an id out of range
                gives zeros and is raised by :meth:`check`, or by one of the next eight gathers.

        Raises:
            IndexError: If an id has no row here or is another partition's, or a position is outside ``out``; names the
                first.
            TypeError, ValueError: If the dtype, shape or layout of an argument does not fit.
        """
        if self.uses_gpu and isinstance(ids, Tensor) and ids.is_cuda:
            return self.gather_on(ids.device, ids, out, positions=positions, wait=wait)
        ids = as_ids(ids, "ids")
        if out is None:
            if positions is not None:
                raise ValueError("positions needs out: the rows in between must come from somewhere")
            out = pooled_empty((len(ids), *self.row_shape), self.dtype)
        elif out.dtype != self.dtype:
            raise TypeError(f"out has dtype {out.dtype}: expected {self.dtype}, the table's")
        self._gather(ids, out, positions, num_threads, None if self.packing is None else self.packing.native)
        return out

    def _gather(
        self, ids: Tensor, out: Tensor, positions: Tensor | None, num_threads: int, packing: tuple[str, int] | None
    ) -> None:
        if self.owned is not None:
            _core.require_owned(self.owned[0].native, ids.numpy(), self.owned[1])
        # Looked at anew each time: torch may have moved the memory of both.
        table, row_of = as_numpy(self.tensor), None if self.row_of is None else self.row_of.numpy()
        at = None if positions is None else positions.numpy()
        try:
            given = row_of, at, num_threads, self._first_id, packing
            _core.gather_rows(table, ids.numpy(), as_numpy(out), *given)
        except IndexError as error:  # of an id: raised here, so that tracebacks are short
            raise IndexError(*error.args) from None

    def sources(
        self, ids: np.ndarray, positions: np.ndarray | None, stats: dict[str, float] | None = None
    ) -> list[Source]:
        """Where rows of these ids are, for ``_core.gather_from``; that ids of other partitions are not among them is
        for the caller to know. What it takes is added to ``stats``."""
        row_of = None if self.row_of is None else self.row_of.numpy()
        return [(as_numpy(self.tensor), ids, positions, row_of, self._first_id)]

    def gather_stored(self, ids: Tensor, out: Tensor) -> None:
        """As :meth:`gather` with ids on the CPU, but rows stay packed: ``out [n, row_bytes]`` is uint8 then."""
        self._gather(as_ids(ids, "ids"), out, None, 1, None)

    @short_traceback
    def __getitem__(self, ids: Tensor) -> Tensor:
        return self.gather(ids)

    def gather_on(
        self,
        device: Accelerator | torch.device | str | int,
        ids: Tensor,
        out: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        wait: bool = True,
        trusted: bool = False,
    ) -> Tensor:
        """As :meth:`gather` with ids on a GPU, whether or not the feature was given a ``device``. With ``trusted`` the
        ids are known to have rows: nothing waits, or is kept to name one that has none; its row is zeros, and
        :meth:`check` still tells that there was one."""
        place = require_accelerator(device, "device")
        ids = ids_in_place(ids, "ids")  # all is checked here: the kernel takes addresses
        if ids.device != place.device:
            raise ValueError(f"ids is on {ids.device}: expected {place.device}")
        ids = (ids if ids.dtype in (torch.int32, torch.int64) else ids.to(torch.int64)).contiguous()
        if positions is not None:
            if out is None:
                raise ValueError("positions needs out: the rows in between must come from somewhere")
            if positions.dtype != torch.uint32 or positions.shape != ids.shape or positions.device != ids.device:
                raise ValueError(
                    f"positions is {positions.dtype} {list(positions.shape)} on {positions.device}: expected "
                    f"torch.uint32 {list(ids.shape)} on {ids.device}"
                )
            positions = positions.contiguous()
        if out is not None:
            if out.dtype != self.dtype:
                raise TypeError(f"out has dtype {out.dtype}: expected {self.dtype}")
            if out.device != ids.device or out.shape[1:] != self.row_shape or not out.is_contiguous():
                raise ValueError(
                    f"out has shape {tuple(out.shape)} on {out.device}: expected contiguous rows "
                    f"{list(self.row_shape)} on {ids.device}"
                )
            if positions is None and len(out) < len(ids):
                raise ValueError(f"out has {len(out)} rows: expected at least {len(ids)}")
        options: dict[str, Any] = {"wait": wait, "trusted": trusted}
        return self.placed(place).gather(ids, out, positions=positions, explain=self._explain, **options)

    def _explain(self, ids: Tensor, positions: Tensor | None, num_out: int) -> None:
        self.gather(ids, torch.empty((num_out, *self.row_shape), dtype=self.dtype), positions=positions)

    def placed(self, device: Accelerator | torch.device | str | int) -> TieredRows:
        """Returns the rows as a GPU reads them; places them there the first time, which takes a while. Raises
        RuntimeError or torch.OutOfMemoryError if there is no room or they cannot be pinned, ValueError if there is no
        such GPU, or it is in none of the groups."""
        place = require_accelerator(device, "device")
        with self._lock:
            if place not in self._placed:
                group = group_of(place.device, self.device_group_list)
                self._placed[place] = self._place(place.device, group)
            return self._placed[place]

    def _place(self, device: torch.device, group: Sequence[torch.device]) -> TieredRows:
        row_of = self.row_of
        if self.owned is not None and row_of is not None:  # foreign ids have rows too, of other partitions
            book, part = self.owned
            row_of = from_array(np.where(book.owners() == part, row_of.numpy(), np.uint32(NO_ROW)))
        return TieredRows(
            self.tensor,
            device,
            num_hot=round(self.split_ratio * len(self)),
            hotness=self.hotness,
            ids=(row_of, self._first_id),
            group=(group, self._hot.setdefault(tuple(group), [])),
            packing=self.packing,
            name="the rows of a Feature",
        )

    def check(self) -> None:
        """Waits for all gathers on GPUs; raises the IndexError of those that were not waited for."""
        for rows in list(self._placed.values()):
            rows.check()

    def close(self) -> None:
        """Gives back device memory and unpins the rows; they are placed again when they are asked for again."""
        with self._lock:
            placed, self._placed, self._hot = self._placed, {}, {}
        for rows in placed.values():
            rows.close()

    def __getstate__(self) -> dict[str, Any]:
        row_of = None if self.owned else Packed.of(self.row_of)
        options = {name: getattr(self, name) for name in _OPTIONS} | {"store_dtype": self.packing}
        return {"tensor": Packed.of(self.tensor), "row_of": row_of, "owned": self.owned, "options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensor, row_of = Packed.open(state["tensor"]), Packed.open(state["row_of"])
        self.__init__(tensor, row_of, state["owned"], **state["options"])  # type: ignore[misc]

    @says
    def __repr__(self) -> str:
        where = f", split_ratio={self.split_ratio}" if self.uses_gpu else ""
        stored = "" if self.packing is None else f", stored as {self.packing.store_dtype}"
        rows = brief(self.tensor) if self.packing is None else f"float32 {list(self.shape)}"
        return f"{rows}{stored}{where}, {size_of([self.tensor])}"


_OPTIONS = ("split_ratio", "device", "device_group_list", "hotness")


def _packed(tensor: Tensor, store_dtype: str | torch.dtype | Packing | None) -> tuple[Tensor, Packing | None]:
    if store_dtype is None:
        return tensor, None
    if isinstance(store_dtype, Packing):
        expected = (len(tensor), store_dtype.row_bytes)
        if tensor.dtype != torch.uint8 or tensor.shape != expected:
            raise ValueError(
                f"tensor is {tensor.dtype} {list(tensor.shape)}: expected torch.uint8 {list(expected)}, rows packed as "
                f"{store_dtype}"
            )
        # Kernels read the factor of a row at once.
        return tensor if tensor.data_ptr() % 4 == 0 else tensor.clone(), store_dtype
    packing = Packing.of(store_dtype, tuple(tensor.shape[1:]))
    if tensor.dtype not in FLOATS:
        raise TypeError(f"store_dtype = {store_dtype!r} of rows of {tensor.dtype}: expected floats up to 64 bits")
    if tensor.dtype == getattr(torch, packing.store_dtype, None):
        return _rows_of(tensor), packing
    return RowPacker(packing, "tensor").pack(tensor), packing


def checked_hotness(value: Tensor | None, num_rows: int) -> Tensor | None:
    """Returns the hotness of so many rows, contiguous; raises ValueError unless it is a number per row on the CPU."""
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.shape != (num_rows,) or value.device.type != "cpu" or value.is_complex():
        kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"hotness is {kind}: expected numbers [{num_rows}] on the CPU, one per row")
    value = value.detach().contiguous()
    if value.is_floating_point() and bool(value.isnan().any()):
        at = int(value.isnan().nonzero()[0])
        raise ValueError(f"hotness[{at}] is not a number: expected how often each row is wanted")
    return value
