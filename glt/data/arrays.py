"""Arrays of tensors, files and users: as NumPy sees them without copies, checked, and in memory that is used again."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import reprlib
import time
import tokenize
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt import _deadlines as deadlines
from glt._checks import available_memory, is_of_machine, naming_the_limit

# What the native core made of tensors, for as long as their memory stays where it is.


T = TypeVar("T")


class NativeView(Generic[T]):
    """A native object over the memory of tensors, made on first use, and again once that memory has moved.

    torch moves the memory of a tensor in place when the tensor, or one that shares its memory, is sent to another
    process or gets ``share_memory_()``. What holds an address longer than a call asks here for it. ``make`` must not
    hold the owner of this view, which would then live too long.
    """

    def __init__(self, tensors: Iterable[Tensor | None], make: Callable[[], T]) -> None:
        self._tensors, self._make = [tensor for tensor in tensors if tensor is not None], make
        self._made: tuple[list[int], T] | None = None

    def get(self) -> T:
        places = [tensor.data_ptr() for tensor in self._tensors]
        made = self._made
        if made is None or made[0] != places:
            made = self._made = places, self._make()
        return made[1]


# Arrays that others saved as ``.npy`` files; nothing in them is executed.


# What NumPy raises for a damaged file, its header being a Python literal: 120,000 random damages gave these.
BAD_HEADER = (ValueError, SyntaxError, EOFError, TypeError, SystemError, tokenize.TokenError)

FilePath = str | os.PathLike[str]


def map_npy(path: FilePath, name: str | None = None, mode: Literal["c", "r"] = "c") -> np.ndarray:
    """As :func:`load_npy`, but maps it: copy-on-write, or to be read only."""
    return load_npy(path, name, mode)


def load_npy(path: FilePath, name: str | None = None, mode: Literal["c", "r"] | None = None) -> np.ndarray:
    """Reads, or maps with ``mode``, the array of a ``.npy`` file, called ``name`` (default: its path) in errors. Raises
    FileNotFoundError or another OSError of the machine, or ValueError if it is no such file or one of several
    arrays."""
    name = os.fspath(path) if name is None else name
    try:
        with naming_the_limit(path):
            try:
                array = np.load(path, mmap_mode=mode, allow_pickle=False)
            except OSError as error:
                if error.errno != errno.ENOMEM or mode != "c":
                    raise
                array = _mapped_unreserved(path)
    except FileNotFoundError:
        raise
    except (*BAD_HEADER, OSError) as error:
        if is_of_machine(error):
            raise
        # NumPy advises to unpickle what it cannot read.
        why = "it has no .npy header, or holds Python objects, which are not read" if "pickle" in str(error) else error
        raise ValueError(f"{name} is not a readable .npy file: {why}") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{name} is an .npz file of several arrays: expected an .npy file of one")
    return array


_MAP_NORESERVE = 0x4000  # of Linux; the mmap module names it from Python 3.12 on


def _mapped_unreserved(path: FilePath) -> np.memmap:
    """Maps an ``.npy`` file copy-on-write whose size is more than this host's memory: the kernel refuses that unless it
    need not set memory aside for the copies."""
    read_only: np.memmap = np.load(path, mmap_mode="r", allow_pickle=False)
    flags, prot = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    with open(path, "rb") as file:
        pages = mmap.mmap(file.fileno(), read_only.offset + read_only.nbytes, flags=flags, prot=prot)
    place = pages, read_only.offset, read_only.strides
    array: np.memmap = np.ndarray.__new__(np.memmap, read_only.shape, read_only.dtype, *place)
    array.offset, array.filename, array.mode = read_only.offset, read_only.filename, "c"
    array._mmap = pages  # type: ignore[attr-defined]  # as NumPy does
    return array


# The core moves rows as bytes, so a dtype that NumPy lacks travels as an integer of the same size.
_CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def as_numpy(tensor: Tensor) -> np.ndarray:
    """Returns ``tensor`` (CPU, contiguous, any dtype) as an array that shares its memory."""
    if tensor.dtype not in _NUMPY_HAS:
        if tensor.dim() == 0:
            tensor = tensor.reshape(1)
        tensor = tensor.view(_CARRIER[tensor.element_size()])
    return tensor.detach().numpy()


def has_huge_pages() -> bool:
    """Whether the kernel's transparent huge pages are there, and not off."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[never]" not in setting.read_text()


def move_to_huge_pages(tables: Iterable[Tensor]) -> int:
    """Moves tables in memory from pages of 4 KiB to pages of 2 MiB: rows read in no order then miss the TLB far less
    often. Returns how many bytes have such pages now: what two seconds were enough for. Those of small tables, of
    mapped files and of memory that another process has, too, stay as they are; all do where the kernel's transparent
    huge pages are off.
    """
    if not has_huge_pages():
        return 0
    until, moved, large = time.monotonic() + deadlines.MOVE_S, 0, 0
    for table in tables:
        # Where a page of 2 MiB was written in part, the rest of it takes memory now.
        if table.nbytes >= _HUGE_TABLE and available_memory()[0] >= table.nbytes:
            moved += _core.collapse_to_huge_pages(as_numpy(table), until - time.monotonic())
            large += table.nbytes
    if large:
        logger.info("%.2f of %.2f GiB of tables have pages of 2 MiB", moved / 2**30, large / 2**30)
    return moved


logger = logging.getLogger(__name__)


_HUGE_TABLE = 32 << 20  # bytes: with 4 KiB pages the TLBs of processors cover up to a third of it

_NUMPY_HAS = {
    getattr(torch, name)
    for name in "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
}


def require_data(value: Any, name: str) -> None:
    """Raises, naming it, TypeError of a nested tensor, ValueError of one on the meta device."""
    if isinstance(value, Tensor) and value.is_nested:
        raise TypeError(f"{name} is a nested tensor: expected a dense one, as of torch.nested.to_padded_tensor")
    if isinstance(value, Tensor) and value.is_meta:
        raise ValueError(
            f"{name} is a tensor {list(value.shape)} on the meta device, which has no data: expected one in CPU "
            "memory; was it made under torch.device('meta')?"
        )


class Packed(NamedTuple):
    """A tensor on its way through pickle, which loads unsigned tensors of 16, 32 and 64 bits wrongly or not at all
    (torch 2.13: ``UntypedStorage has no attribute dtype``): they travel as signed ones."""

    tensor: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor | None) -> Any:
        if tensor is None or tensor.dtype not in (torch.uint16, torch.uint32, torch.uint64):
            return tensor
        return cls(tensor.view(_CARRIER[tensor.element_size()]), tensor.dtype)

    @staticmethod
    def open(packed: Any) -> Any:
        return packed.tensor.view(packed.dtype) if isinstance(packed, Packed) else packed


def from_array(array: np.ndarray) -> Tensor:
    """Returns ``array``, also a read-only one, as a tensor that shares its memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))


def as_ids(value: Any, name: str, num_ids: int | None = None) -> Tensor:
    """Returns ``value`` as a contiguous one-dimensional int64 CPU tensor of ids; see :func:`ids_in_place`."""
    return ids_in_place(value, name, num_ids).to(device="cpu", dtype=torch.int64).contiguous()


def ids_in_place(value: Any, name: str, num_ids: int | None = None) -> Tensor:
    """Returns ids, given as a tensor, array or sequence of integers or a mask, as a one-dimensional tensor of their own
    integer type and device. With ``num_ids``, the length of a mask, uint8 is a mask too, as bool always is. Raises
    TypeError or ValueError, naming ``name``."""
    try:
        ids = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:  # text, objects, lists of several lengths, integers of more than 64 bits
        raise TypeError(
            f"{name} = {reprlib.repr(value)}: expected integer ids, or a mask, as a tensor, array or list ({error})"
        ) from error
    require_data(ids, name)
    if ids.layout != torch.strided:
        raise TypeError(f"{name} has layout {ids.layout}: expected a dense tensor, such as that of .to_dense()")
    if ids.dim() != 1:
        raise ValueError(f"{name} has shape {list(ids.shape)}: expected one dimension")
    if is_mask(ids, num_ids):
        wider = "" if ids.dtype == torch.bool else "; uint8 is a mask: convert ids to int64, with .long()"
        if num_ids is not None and len(ids) != num_ids:
            raise ValueError(f"{name} is a mask of {len(ids)} elements: expected {num_ids}, one for each id{wider}")
        if ids.dtype == torch.uint8 and ids.numel() and int(ids.max()) > 1:
            at = int((ids > 1).nonzero()[0])
            raise ValueError(f"{name}[{at}] = {int(ids[at])}: expected 0 or 1{wider}")
        ids = ids.nonzero().view(-1)
    if ids.numel() == 0 and not isinstance(value, Tensor):
        ids = ids.to(torch.int64)
    if ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"{name} has dtype {ids.dtype}: expected integer ids; convert them, with .long()")
    return ids


def as_tensor(name: str, given: Any, expected: str) -> Tensor:
    """Returns ``given`` as a tensor; raises TypeError or ValueError, naming it, if it cannot be one or has no data."""
    if isinstance(given, Tensor):
        require_data(given, name)
        return given
    try:
        made = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        hint = f"; give list({name})" if isinstance(given, Iterable) and not isinstance(given, Sequence) else ""
        kind = type(given).__name__
        raise TypeError(f"{name} is a {kind} that is no tensor ({error}): expected {expected}{hint}") from error
    # What is empty has no numbers that could tell of which kind it is: torch makes floats of it.
    return made.to(torch.int64) if made.numel() == 0 and not hasattr(given, "dtype") else made


def checked_times(name: str, times: Any, num_seeds: int) -> Tensor:
    """One time per seed ``[num_seeds]``, int64 on the CPU; raises TypeError or ValueError."""
    times = as_tensor(name, times, f"one time per seed, [{num_seeds}]")
    if times.is_floating_point() or times.is_complex() or times.dtype in (torch.bool, torch.uint64):
        raise TypeError(f"{name} has dtype {times.dtype}: expected integers, such as seconds; convert it to int64")
    if tuple(times.shape) != (num_seeds,):
        raise ValueError(f"{name} has shape {list(times.shape)}: expected one time per seed, [{num_seeds}]")
    return times.to("cpu", torch.int64).contiguous()


def require_in_range(name: str, ids: Tensor, end: int, note: str = "") -> None:
    """Raises IndexError, naming the first, unless all ids are in ``[0, end)``. ``{}`` in ``name`` stands for the
    position of that id; ``note`` ends the error."""
    bad = ((ids < 0) | (ids >= end)).nonzero()
    if len(bad):
        at = int(bad[0])
        where = name.format(at) if "{}" in name else f"{name}[{at}]"
        raise IndexError(f"{where} = {int(ids[at])} is outside [0, {end}){note}")


def is_mask(ids: Any, num_ids: int | None) -> bool:
    """Whether a tensor tells by position what is chosen of ``num_ids``; see :func:`ids_in_place`."""
    return isinstance(ids, Tensor) and (ids.dtype == torch.bool or (num_ids is not None and ids.dtype == torch.uint8))


def as_rows(value: Any, name: str) -> Tensor:
    """Returns a table of rows, a tensor, an array, the path of an ``.npy`` file (mapped) or a sequence, as a tensor
    that shares its memory. Raises TypeError or ValueError, naming ``name``."""
    if isinstance(value, str | os.PathLike):
        value = map_npy(value, f"{name} = {os.fspath(value)!r}", "r")
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise TypeError(f"{name} has dtype {value.dtype}: expected numbers")
        value = from_array(value)
    elif isinstance(value, list | tuple):
        value = torch.as_tensor(value)
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        kind = f"{value.layout} tensor" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} is a {kind}: expected a dense tensor, an array or the path of an .npy file")
    require_data(value, name)
    if value.dim() == 0:
        raise ValueError(f"{name} is a single value: expected one row per node or edge")
    return value


# Memory for results that are made again and again, one batch after the other.
#
# A batch of a few megabytes from ``torch.empty`` is fresh memory from the kernel every time: writing it costs a page
# fault per 4 KiB, several times the work of the copy itself. :func:`pooled_empty` hands out memory of earlier batches.


SMALL_BYTES = 64 << 10  # below this torch.empty reuses memory by itself


# The pool of this process keeps up to 1 GiB of free memory for reuse, beside what tensors use; a fork has none.
process_pool = _core.BlockPool.of_process


def pooled_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Returns a contiguous, 64-byte aligned CPU tensor of undefined content, whose memory is used again when the last
    view of it is gone; its storage cannot be resized."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < SMALL_BYTES:
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(process_pool().acquire(nbytes)).view(dtype)
    return flat if len(shape) == 1 else flat.view(shape)  # a call where caches are cold takes 5 us


# Files of ``torch.save``, read without unpickling anything but tensors and plain containers (docs/design.md, law 7).


def load_saved(path: Path, name: str, expected: str, mmap: bool = False) -> Any:
    """Returns the object in a file of ``torch.save``, its tensors mapped with ``mmap``; errors call it ``name`` and say
    what was ``expected``: OSError if it cannot be read, ValueError if it is damaged or holds what is not read.

    The checksums of the zip file are compared first, which torch does not: 0.25 s per GiB in memory. Files of
    ``torch.save`` before version 1.6 have none.
    """
    try:
        with naming_the_limit(path):
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as file:
                    altered = file.testzip()
                if altered is not None:
                    raise zipfile.BadZipFile(f"its record {altered} does not match its checksum")
            return torch.load(path, mmap=mmap, weights_only=True)
    except Exception as error:  # whatever damaged bytes make the unpickler stumble over: it promises no exception
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise  # EINVAL: torch seeks where damaged bytes send it
        raise damaged(name, expected, error) from error


def damaged(name: str, expected: str, error: Exception) -> ValueError:
    """Returns the error that says so, with the first line of ``error`` last."""
    reason = next(iter(str(error).strip().splitlines()), "")
    return ValueError(
        f"{name} is damaged, or not what torch.save made of that: expected {expected}; copy the file again, or save it "
        f"again ({type(error).__name__}: {reason})"
    )
