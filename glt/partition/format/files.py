"""The files of a partition, ``.npy``: written in pieces with checksums, mapped after checking them; and the directory
that a partitioner works in until its result is whole, which the next run removes if it dies.

A checksum is the CRC-32 of each block of the file, as hexadecimal text, so that what is wrong can be named.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import logging
import math
import os
import re
import shutil
import stat
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from glt import _core
from glt._checks import naming_the_limit
from glt.data.arrays import map_npy
from glt.errors import PartitionError
from glt.partition.format import layout
from glt.partition.format.rows import RAW, torch_dtype_name

BLOCK_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class FileEntry:
    """What the manifest says about one file: its size with the header, ``dtype`` and ``shape`` as in the header, the
    torch dtype that the numbers stand for, and the checksum, eight hexadecimal digits per block.
    """

    num_bytes: int
    dtype: str
    torch_dtype: str
    shape: tuple[int, ...]
    checksum: str


class NpyWriter:
    """Writes one ``.npy`` file of known shape in pieces: front to back here, or in any order by native code, which
    needs ``rows``: the file, and how many bytes precede the first row. The file is opened for each piece: a partitioner
    may have thousands of files under way.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...], torch_dtype: str | None = None) -> None:
        self.path = path
        self._dtype = dtype
        self._shape = shape
        self._torch_dtype = torch_dtype or torch_dtype_name(dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        header, self._num_bytes = _header(dtype, shape), npy_bytes(dtype, shape)
        self._file = _core.BlockFile(os.fsencode(path), self._num_bytes, BLOCK_BYTES)
        self._file.write(0, header)
        self._num_rows = 0  # that were appended
        self.rows = (self._file, header.size)

    def write(self, piece: np.ndarray) -> int:
        """Appends rows; returns the number of bytes written."""
        self.put(self._num_rows, piece)
        self._num_rows += len(piece)
        return piece.nbytes

    def put(self, first_row: int, rows: np.ndarray) -> None:
        """Writes rows to their place; each row once, in any order."""
        assert rows.dtype == self._dtype and rows.shape[1:] == self._shape[1:]
        row_bytes = self._dtype.itemsize * math.prod(self._shape[1:])
        self._file.write(self.rows[1] + first_row * row_bytes, np.ascontiguousarray(rows))

    def close(self) -> FileEntry:
        """Returns the entry of the file, which must be complete."""
        checksum = "".join(f"{crc:08x}" for crc in self._file.checksum())
        return FileEntry(self._num_bytes, self._dtype.str, self._torch_dtype, self._shape, checksum)


def npy_bytes(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return _header(dtype, shape).size + dtype.itemsize * math.prod(shape)


def require_file(path: Path, entry: FileEntry, again: str) -> None:
    """Raises PartitionError unless a file of the right size is there; ``again`` says what was expected, and what to
    do."""
    try:
        with naming_the_limit(path):
            found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PartitionError(f"{path} is missing: {again}") from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise PartitionError(f"{path} is a loop of symbolic links: {again}") from error
    if not stat.S_ISREG(found.st_mode):
        raise PartitionError(f"{path} is not a file: {again}")
    if found.st_size != entry.num_bytes:
        raise PartitionError(f"{path} has {found.st_size} bytes, the manifest says {entry.num_bytes}: {again}")


def map_file(
    path: Path, entry: FileEntry, *, origin: str, remedy: str = "copy the directory again, or partition again"
) -> np.ndarray:
    """Maps ``path`` copy-on-write, after checking that size and header are those of the file that ``entry`` of the
    manifest describes; else raises PartitionError naming it. ``origin`` (the run that the manifest describes) and
    ``remedy`` are for messages. Contents are another matter: see :mod:`glt.partition.format.verify`.
    """
    again = f"expected the file of {origin}; {remedy}"
    require_file(path, entry, again)
    try:
        array = map_npy(path)
    except ValueError as error:
        raise PartitionError(f"{error}: {again}") from error
    if array.shape != entry.shape or array.dtype.str != entry.dtype or not array.flags.c_contiguous:
        raise PartitionError(
            f"{path} holds {array.dtype.str} {list(array.shape)}, the manifest says {entry.dtype} "
            f"{list(entry.shape)}: {again}"
        )
    dtype = getattr(torch, entry.torch_dtype, None)
    try:
        stored = torch_dtype_name(array.dtype)
    except TypeError:
        stored = ""  # torch has no such numbers
    if stored != str(RAW.get(dtype, dtype)).removeprefix("torch."):
        raise PartitionError(f"{path} holds {entry.dtype}, which cannot store torch.{entry.torch_dtype}: {again}")
    return array


@contextmanager
def scratch_file(directory: Path, num_bytes: int) -> Iterator[int]:
    """Yields the descriptor of a nameless file in ``directory``, which the kernel frees even after SIGKILL."""
    with tempfile.TemporaryFile(dir=directory) as file:
        if num_bytes:
            try:
                os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk is an error here, not hours later
            except OSError as error:  # of a descriptor: it says nowhere which disk
                where = f"{directory} (a scratch file of {num_bytes / 1e9:.3g} GB)"
                raise OSError(error.errno, error.strerror, where) from error
        yield file.fileno()


def scratch_array(directory: Path, size: int, dtype: np.dtype) -> np.ndarray:
    """Returns writable room for ``size`` elements in a nameless file, which the kernel frees with the last
    reference."""
    if size == 0:
        return np.empty(0, dtype)
    with scratch_file(directory, size * dtype.itemsize) as file, os.fdopen(os.dup(file), "r+b") as opened:
        return np.memmap(opened, dtype, mode="r+", shape=(size,))


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    # Readers need the header exactly as NumPy writes it: 64-byte aligned, so mapped rows are aligned too.
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return np.frombuffer(header.getvalue(), np.uint8)


logger = logging.getLogger(__name__)


# The directories that glt puts into one of partitions; their files end with .npy.
_OURS = re.compile(r"part\d+|keys|(node|edge)_(book|row|map|map_inverse)")


def _not_ours(root: Path) -> str | None:
    """The first file in a directory that is no part of partitions: what a user has put there."""
    for path in sorted(path for path in root.rglob("*") if not path.is_dir()):
        inside = path.relative_to(root)
        if inside.parent == Path():
            is_ours = inside.name == layout.MANIFEST or _is_part_config(path)
        else:
            is_ours = _OURS.fullmatch(inside.parts[0]) is not None and path.suffix == ".npy"
        if not is_ours:
            return str(inside)
    return None


def _is_part_config(path: Path) -> bool:
    try:
        return path.suffix == ".json" and path.is_file() and "num_parts" in json.loads(path.read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def require_free(target: Path, name: str = "output_dir", overwrite: bool | None = None) -> None:
    """Raises PartitionError unless ``target`` does not exist or is an empty directory that a rename can replace; with
    ``overwrite``, also a partition directory and nothing else. None: callers cannot ask for that."""
    if os.path.ismount(target):
        raise PartitionError(
            f"{name} {target} is a mount point, which cannot be replaced by the finished directory: "
            f"choose one inside it, such as {target / 'new'}"
        )
    if target.is_dir() and (found := sorted(path.name for path in target.iterdir())):
        other = _not_ours(target) if overwrite else None
        if overwrite and (other is not None or layout.MANIFEST not in found):
            why = f"lacks {layout.MANIFEST}" if other is None else f"holds {other!r}, which is not glt's"
            raise PartitionError(
                f"{name} {target} {why}: overwrite=True replaces partition directories, and nothing else; delete it "
                "or choose another"
            )
        if not overwrite:
            hint = "" if overwrite is None else ", or say overwrite=True to replace the partitions that are there"
            raise PartitionError(
                f"{name} {target} is not empty (it holds {found[0]!r}): expected a new or empty directory; "
                f"delete it or choose another{hint}"
            )
    if target.exists() and not target.is_dir():
        raise PartitionError(f"{name} {target} is a file: expected a new or empty directory; choose another")


def require_writable(target: Path) -> None:
    """Raises PartitionError unless ``target`` can be created, which creating another directory there finds out."""
    absolute = target.absolute()
    existing = next(path for path in absolute.parents if path.exists())
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".glt-", dir=existing))
    except OSError as error:
        raise PartitionError(
            f"output_dir {target} cannot be created: {existing} takes no directories ({error.strerror}); choose a "
            "place that you may write to"
        ) from error


def require_space(target: Path, need_bytes: int, name: str = "output_dir") -> None:
    """Raises PartitionError unless the file system of ``target``, which need not exist, has ``need_bytes`` free."""
    existing = next(path for path in (target, *target.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if need_bytes > free_bytes:
        raise PartitionError(
            f"{name} {target} needs {need_bytes / 1e9:.3g} GB, scratch files included, but its file system has "
            f"{free_bytes / 1e9:.3g} GB free: free some, or choose a directory on another file system"
        )


@contextmanager
def staging(
    target: Path, name: str = "output_dir", durable: bool = False, overwrite: bool | None = None
) -> Iterator[Path]:
    """Yields a temporary directory beside ``target`` that becomes ``target`` in one rename, or vanishes on an error.
    With ``overwrite`` partitions that are there are renamed first, to ``<target>.old-...``, and removed afterwards.

    The directory is locked (``flock``) for as long as its process lives, so that the next run can tell what a killed
    one has left, and removes it. Errors call ``target`` by ``name``. With ``durable`` this returns only when the disk
    has all of it, which a host that loses power afterwards still has.
    """
    require_free(target, name, overwrite)
    existing = next(path for path in target.absolute().parents if path.exists())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(target)
        with scratch_directory(target) as temporary:
            yield temporary
            if durable:
                for directory, _, files in os.walk(temporary):
                    for each in (*(os.path.join(directory, file) for file in files), directory):
                        sync(each)
            require_free(target, name, overwrite)
            if overwrite and target.exists():
                _replace(target, temporary)
            else:
                temporary.rename(target)  # atomic; fails if the target was filled since
    except OSError as error:
        if error.errno not in _REMEDIES or not _is_beside(error.filename, target):
            raise
        text = f"{error.strerror}: {name} = {os.fspath(target)!r} cannot be written; {_REMEDIES[error.errno]}"
        raise OSError(error.errno, text, os.fsdecode(error.filename)) from error
    if durable:
        _sync_names(target.absolute(), existing)


def _replace(target: Path, whole: Path) -> None:
    """Puts ``whole`` in the place of ``target``, which takes the name of ``whole``. A process that is killed in between
    leaves what was there under a name that no run removes."""
    old = target.with_name(f"{target.name}.old-{uuid.uuid4().hex[:8]}")
    target.rename(old)
    try:
        whole.rename(target)
    except OSError:
        old.rename(target)
        raise
    old.rename(whole)


_FULL = "free some, or choose a directory on another file system"
_FORBIDDEN = "choose a directory in which this user may write"
_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL)
_REMEDIES |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT), _FORBIDDEN)


def _is_beside(path: object, target: Path) -> bool:
    """Whether a path is in the temporary directory of ``target``, or one of its parents."""
    if not isinstance(path, str | bytes):
        return False
    return os.fsdecode(path).startswith(f"{target}.tmp-") or Path(os.fsdecode(path)) in target.parents


def _sync_names(target: Path, existing: Path) -> None:
    """Makes the name of ``target`` last, and those of its parents up to one that was there before."""
    try:
        for parent in target.parents:
            sync(parent)
            if parent == existing:
                return
    except OSError:
        shutil.rmtree(target, ignore_errors=True)  # what is reported as failed is not to be found later
        raise


def sync(path: str | os.PathLike[str]) -> None:
    """Waits until the disk has a file, or the names in a directory; an OSError names the file."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:  # of a descriptor: it does not say which
        if error.errno == errno.EINVAL and os.path.isdir(path):
            return  # a file system that keeps names without being asked, or cannot be asked
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        os.close(opened)


@contextmanager
def scratch_directory(target: Path) -> Iterator[Path]:
    """Yields a locked directory beside ``target``; what is still there in the end vanishes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, lock = locked_directory(target)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # an error before is the one to report
        os.close(lock)


def remove_stale(target: Path) -> None:
    """Removes the staging directories of ``target`` that dead processes of this host have left."""
    ours = re.compile(re.escape(target.name) + rf"\.tmp-{_host()}-\d+-[0-9a-f]{{8}}")
    for path in target.parent.iterdir():
        if not ours.fullmatch(path.name):  # another host's: whether that one lives cannot be told from here
            continue
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # became the target, or was removed, this moment
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # alive; or a file system without locks, which cannot tell
            continue
        else:
            logger.warning("removing %s, left by a process that was killed", path)
            shutil.rmtree(path, ignore_errors=True)  # by two at once; what remains is for the next run
        finally:
            os.close(lock)


def locked_directory(target: Path) -> tuple[Path, int]:
    """Creates a staging directory of ``target`` and returns it, and the descriptor whose closing frees it."""
    while True:
        path = target.with_name(f"{target.name}.tmp-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        path.mkdir()
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # taken for stale between the two calls, and about to be removed
            os.close(lock)
            continue
        except OSError:  # a file system without locks: the next run cannot remove it either
            logger.warning("%s cannot be locked: if this run is killed, remove it by hand", path)
        if path.exists():
            return path, lock
        os.close(lock)


def _host() -> str:
    """Tells hosts apart that share a file system."""
    return f"{zlib.crc32(os.uname().nodename.encode()):08x}"
