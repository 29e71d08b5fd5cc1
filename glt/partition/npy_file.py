"""``.npy`` files of a partition: written in pieces with checksums, mapped after checking them.

A checksum is the CRC-32 of each block of the file, as hexadecimal text, so that a large file can be sampled.
"""

import io
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from glt import _core
from glt.data.arrays import map_npy
from glt.errors import PartitionError
from glt.partition.rows import is_storage_of, torch_dtype_name

BLOCK_BYTES: Final = 4 << 20
WHOLE_BYTES: Final = 64 << 20  # files up to this size are verified whole
NUM_SAMPLED_BLOCKS: Final = 8


@dataclass(frozen=True)
class FileEntry:
    """What the manifest says about one file.

    Attributes:
        num_bytes: Size of the file with its header.
        dtype: As in the header, for example ``"<f4"``.
        torch_dtype: The torch dtype that the numbers stand for: differs from ``dtype`` for bfloat16 and float8.
        shape: As in the header.
        checksum: CRC-32 of each block, eight hexadecimal digits per block.
    """

    num_bytes: int
    dtype: str
    torch_dtype: str
    shape: tuple[int, ...]
    checksum: str


class NpyWriter:
    """Writes one ``.npy`` file of known shape in pieces: front to back here, or in any order by native code.

    The file is opened for each piece: a partitioner may have thousands of files under way.

    Attributes:
        path: Of the file, which must not exist.
        rows: What native code needs to write rows: the file, and how many bytes precede the first.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...], torch_dtype: str | None = None) -> None:
        self.path = path
        self._dtype = dtype
        self._shape = shape
        self._torch_dtype = torch_dtype or torch_dtype_name(dtype)
        path.parent.mkdir(parents=True, exist_ok=True)
        header = _header(dtype, shape)
        self._num_bytes = header.size + dtype.itemsize * math.prod(shape)
        self._file = _core.BlockFile(os.fsencode(path), self._num_bytes, BLOCK_BYTES)
        self._file.write(0, header)
        self._at = header.size
        self.rows = (self._file, header.size)

    def write(self, piece: np.ndarray) -> int:
        """Appends rows; returns the number of bytes written."""
        assert piece.dtype == self._dtype and piece.shape[1:] == self._shape[1:]
        self._file.write(self._at, np.ascontiguousarray(piece))
        self._at += piece.nbytes
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
    """Returns the size of a ``.npy`` file."""
    return _header(dtype, shape).size + dtype.itemsize * math.prod(shape)


def map_file(
    path: Path,
    entry: FileEntry,
    *,
    origin: str,
    block_bytes: int,
    whole_bytes: int,
    verify: bool,
    advance: Callable[[int], object] = lambda _: None,
    remedy: str = "copy the directory again, or partition again",
) -> np.ndarray:
    """Maps ``path`` copy-on-write, after checking that it is the file the manifest describes.

    Args:
        path: The file.
        entry: What the manifest says about it.
        origin: The run that the manifest describes, for messages.
        block_bytes: Size of the blocks behind ``entry.checksum``.
        whole_bytes: Files up to this size are verified whole; of larger ones ``NUM_SAMPLED_BLOCKS`` blocks, the first
            and the last among them.
        verify: Whether to read and check contents; size and header are always checked.
        advance: Called with the number of bytes after each block that was checked.
        remedy: What to do, for messages.

    Raises:
        PartitionError: If the file is missing, truncated, altered or another one; names it.
    """
    again = f"expected the file of {origin}; {remedy}"
    try:
        num_bytes = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PartitionError(f"{path} is missing: {again}") from error
    if not path.is_file():
        raise PartitionError(f"{path} is not a file: {again}")
    if num_bytes != entry.num_bytes:
        raise PartitionError(f"{path} has {num_bytes} bytes, the manifest says {entry.num_bytes}: {again}")
    if verify:
        for block, crc in _crcs(path, _sample(num_bytes, block_bytes, whole_bytes), block_bytes):
            wanted = entry.checksum[8 * block : 8 * block + 8]
            if f"{crc:08x}" != wanted:
                first = block * block_bytes
                raise PartitionError(
                    f"{path} was altered or comes from another run: bytes {first} to "
                    f"{min(first + block_bytes, num_bytes) - 1} have checksum {crc:08x}, the manifest says {wanted}: "
                    f"{again}"
                )
            advance(min(block_bytes, num_bytes - block * block_bytes))
    try:
        array = map_npy(path)
    except ValueError as error:
        raise PartitionError(f"{error}: {again}") from error
    if array.shape != entry.shape or array.dtype.str != entry.dtype or not array.flags.c_contiguous:
        raise PartitionError(
            f"{path} holds {array.dtype.str} {list(array.shape)}, the manifest says {entry.dtype} "
            f"{list(entry.shape)}: {again}"
        )
    if not is_storage_of(array.dtype, entry.torch_dtype):
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
    """Returns writable room for ``size`` elements in a nameless file in ``directory``.

    The kernel may write it back and drop it from memory, and frees it with the last reference, even after SIGKILL.
    """
    if size == 0:
        return np.empty(0, dtype)
    with scratch_file(directory, size * dtype.itemsize) as file, os.fdopen(os.dup(file), "r+b") as opened:
        return np.memmap(opened, dtype, mode="r+", shape=(size,))


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    # Readers need the header exactly as NumPy writes it: 64-byte aligned, so mapped rows are aligned too.
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return np.frombuffer(header.getvalue(), np.uint8)


def _sample(num_bytes: int, block_bytes: int, whole_bytes: int) -> Iterable[int]:
    num_blocks = -(-num_bytes // block_bytes)
    if num_bytes <= whole_bytes or num_blocks <= NUM_SAMPLED_BLOCKS:
        return range(num_blocks)
    return np.linspace(0, num_blocks - 1, NUM_SAMPLED_BLOCKS, dtype=np.int64).tolist()


def _crcs(path: Path, blocks: Iterable[int], block_bytes: int) -> Iterable[tuple[int, int]]:
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(min(block_bytes, os.fstat(file.fileno()).st_size)))
        for block in blocks:
            file.seek(block * block_bytes)
            filled = 0
            while filled < len(buffer) and (got := file.readinto(buffer[filled:])):
                filled += got
            yield block, _core.crc32(np.frombuffer(buffer[:filled], np.uint8))
