"""Arrays of an ``.npz`` file, unpacked into scratch files: never one of them in memory."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from glt.data.arrays import BAD_HEADER
from glt.partition.inputs.scratch import CHUNK_BYTES, ScratchRows


def npz_members(path: Path, scratch: Path) -> dict[str, np.ndarray]:
    """Returns all arrays of the file by name, mapped; nothing is unpickled.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no ``.npz`` file of plain arrays; names it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): _member(archive, name, scratch) for name in archive.namelist()}
    except (zipfile.BadZipFile, *BAD_HEADER) as error:
        raise ValueError(f"{path} is not a readable .npz file of plain arrays: {error}") from error


def _member(archive: zipfile.ZipFile, name: str, scratch: Path) -> np.ndarray:
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
        if dtype.kind not in "biufc":
            raise ValueError(f"{name} holds {dtype}: expected numbers")
        rows = ScratchRows(scratch, dtype)
        step = CHUNK_BYTES // dtype.itemsize * dtype.itemsize
        while piece := file.read(step):
            rows.append(np.frombuffer(piece, dtype))  # an uneven last piece raises
    flat = rows.array()
    if flat.size != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{name} holds {flat.size} values: expected {list(shape)}")
    return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
