"""Named arrays in an ``.npz`` file, read with errors that name the file and the array."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from glt.data.npy_array import BAD_HEADER


class NpzFile:
    """An open ``.npz`` file of plain arrays; nothing in it is unpickled. A context manager.

    Args:
        path: The file.
        reader: Name of the function that reads, which errors begin with.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no ``.npz`` file.
    """

    def __init__(self, path: str | Path, reader: str) -> None:
        self.path, self.reader = Path(path), reader
        if not self.path.is_file():
            raise FileNotFoundError(f"{reader}: {self.path} does not exist or is not a file")
        try:
            arrays = np.load(self.path, allow_pickle=False)
        except (*BAD_HEADER, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{reader}: {self.path} is not a readable .npz file: {error}") from error
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError(f"{reader}: {self.path} holds one array, expected an .npz file of named arrays")
        self._arrays = arrays

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self._arrays.close()

    def __contains__(self, key: str) -> bool:
        return key in self._arrays.files

    @property
    def names(self) -> list[str]:
        return list(self._arrays.files)

    def array(self, key: str) -> np.ndarray:
        """Reads one array.

        Raises:
            ValueError: If it is missing or damaged.
        """
        if key not in self:
            raise ValueError(f"{self.reader}: {self.path} has no array {key!r}; it has {sorted(self.names)}")
        try:
            return self._arrays[key]
        except Exception as error:  # zlib, zipfile and numpy each have their own way to say "damaged"
            raise ValueError(f"{self.reader}: {self.path}: array {key!r} cannot be read: {error}") from error

    def meta(self) -> dict[str, Any]:
        """Reads ``meta``, a JSON object in bytes.

        Raises:
            ValueError: If it is missing or no such object.
        """
        try:
            meta = json.loads(self.array("meta").tobytes())
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{self.reader}: {self.path}: array 'meta' is no JSON in bytes: {error}") from error
        if not isinstance(meta, dict):
            raise ValueError(f"{self.reader}: {self.path}: array 'meta' holds {meta!r}: expected a JSON object")
        return meta

    def features(self, key: str) -> np.ndarray:
        """Reads a float32 matrix that is dense as ``key``, or a CSR matrix as ``key_indptr``, ``key_indices``,
        ``key_data`` and ``key_shape``, which comes back dense."""
        if key in self or f"{key}_indptr" not in self:
            return np.ascontiguousarray(self.array(key), np.float32)
        indptr, columns, values, shape = (
            self.array(f"{key}_{part}") for part in ("indptr", "indices", "data", "shape")
        )
        num_rows, num_columns = (int(size) for size in shape)
        counts = np.diff(indptr)
        if (
            len(counts) != num_rows
            or counts.min(initial=0) < 0
            or counts.sum() != len(columns)
            or len(columns) != len(values)
        ):
            raise ValueError(
                f"{self.reader}: {self.path}: {key}_indptr ({len(indptr)} offsets), {key}_indices ({len(columns)}) and "
                f"{key}_data ({len(values)}) do not describe a CSR matrix of {key}_shape [{num_rows}, {num_columns}]"
            )
        if len(columns) and not 0 <= columns.min() <= columns.max() < num_columns:
            raise ValueError(
                f"{self.reader}: {self.path}: {key}_indices spans [{columns.min()}, {columns.max()}], {key}_shape has "
                f"{num_columns} columns"
            )
        x = np.zeros((num_rows, num_columns), np.float32)
        # add, not assign: a CSR matrix may list a cell twice and means the sum.
        np.add.at(x, (np.repeat(np.arange(num_rows), counts), columns), values.astype(np.float32))
        return x
