"""Distributed tensors on disk: a directory of open ``.npy`` files and a manifest with checksums.

``tensor0.npy`` and so on have one tensor each, whole, in the order of its rows, as NumPy maps them (bfloat16 and float8
as unsigned integers). Nothing in it depends on how many servers or trainers there were.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from glt._checks import check_path
from glt.data.arrays import from_array
from glt.errors import CheckpointError, PartitionError
from glt.partition.format.files import BLOCK_BYTES, FileEntry, NpyWriter, map_file, npy_bytes, require_space, staging
from glt.partition.format.manifest import digest_of, installed_version, text_of
from glt.partition.format.rows import Rows, as_torch_dtype
from glt.partition.format.verify import Contents

if TYPE_CHECKING:
    from glt.distributed.tensors.tensor import DistTensor

FORMAT: Final = "glt-tensors"
VERSION: Final = 1
_MANIFEST: Final = "manifest.json"
_BLOCK_BYTES: Final = 64 << 20  # of rows in memory at a time
_REMEDY: Final = "copy the directory again, or load another one"


def save_tensors(
    tensors: Mapping[str, DistTensor], path: str | os.PathLike[str], about: Mapping[str, Any] | None = None
) -> None:
    """Saves tensors into a directory that appears when it is whole: a failure, or a kill, leaves none that loads.

    When this returns, the disk has it: it survives a crash of the host. One trainer calls it, and its disk gets the
    files. What others write meanwhile is there or not, row by row; a barrier before and after avoids that.

    Args:
        tensors: By the name to save each under.
        path: A new or empty directory.
        about: More to keep, as JSON has it, for example a number of steps.

    Raises:
        glt.errors.CheckpointError: If ``path`` is taken, or the disk has no room for it, which is found out before
            anything is read.
        OSError: If the disk fills up or fails.
        glt.errors.PeerLost: If a server is lost.
    """
    check_path("path", path, "a directory")
    target = Path(path)
    try:
        with staging(target, "path", durable=True) as directory:
            num_bytes = sum(npy_bytes(_no_rows(each).array.dtype, tuple(each.shape)) for each in tensors.values())
            require_space(target, num_bytes, "path")  # after staging has removed what killed runs left
            _write(tensors, directory, dict(about or {}))
    except PartitionError as error:
        raise CheckpointError(str(error)) from error


def _write(tensors: Mapping[str, DistTensor], directory: Path, about: dict[str, Any]) -> None:
    files: dict[str, FileEntry] = {}
    for i, tensor in enumerate(tensors.values()):
        stored, name = _no_rows(tensor), f"tensor{i}.npy"
        writer = NpyWriter(directory / name, stored.array.dtype, tuple(tensor.shape), stored.torch_dtype)
        for block in _blocks(tensor):
            rows = tensor[block]
            writer.write(Rows.of("rows", rows, len(rows), "row").given)
        files[name] = writer.close()
    document = {
        "format": FORMAT,
        "version": VERSION,
        "glt_version": installed_version(),
        "checksum_block_bytes": BLOCK_BYTES,
        "tensors": dict(zip(tensors, files, strict=True)),
        "files": {name: asdict(entry) for name, entry in files.items()},
        "about": about,
    }
    document = json.loads(json.dumps(document))  # as it will be read: tuples would have another digest
    (directory / _MANIFEST).write_bytes(text_of({**document, "run_id": digest_of(document)}))


def load_tensors(tensors: Mapping[str, DistTensor], path: str | os.PathLike[str]) -> dict[str, Any]:
    """Overwrites tensors with saved ones, and returns what was added in ``about``.

    One trainer calls it, and reads the files from its disk; the others wait at a barrier. Nothing is written before all
    names, shapes, dtypes and checksums have been compared.

    Args:
        tensors: By the name that each was saved under; some of those that were saved, or all.
        path: What :func:`save_tensors` wrote.

    Raises:
        glt.errors.CheckpointError: If a file is missing, damaged or of another save; names it.
        LookupError: If no tensor was saved under a name; names those that were.
        ValueError: If a saved tensor has another shape or dtype.
        glt.errors.PeerLost: If a server is lost.
    """
    saved = Checkpoint.open(path)
    for name, tensor in tensors.items():
        saved.require_fit(name, tensor)
    arrays = {name: as_torch_dtype(saved.array(name), saved.entry(name).torch_dtype) for name in tensors}
    for name, tensor in tensors.items():
        rows = arrays[name]
        rows = rows if isinstance(rows, torch.Tensor) else from_array(rows)
        for block in _blocks(tensor):
            tensor.write_async(block, rows[block])
        tensor.flush()
    return saved.about


@dataclass(frozen=True)
class Checkpoint:
    """A directory that :func:`save_tensors` wrote: the file of each tensor, what each file must be, what was added
    (``about``), and the digest of all that (``id``)."""

    path: Path
    tensors: dict[str, str]
    files: dict[str, FileEntry]
    about: dict[str, Any]
    id: str
    block_bytes: int

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        check_path("path", path, "a directory that was saved")
        root = Path(path)
        manifest = root / _MANIFEST
        try:
            content = manifest.read_bytes()
            document = json.loads(content)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointError(
                f"{manifest} is missing: {root} holds no saved tensors, or not all of them"
            ) from error
        except ValueError as error:
            raise CheckpointError(f"{manifest} is truncated or altered ({error}): {_REMEDY}") from error
        found = (document.get("format"), document.get("version")) if isinstance(document, dict) else (None, None)
        if found != (FORMAT, VERSION):
            raise CheckpointError(
                f"{manifest} has format {found[0]!r} of version {found[1]!r}: this glt ({installed_version()}) reads "
                f"{FORMAT!r} of version {VERSION}"
            )
        if document.get("run_id") != digest_of(document) or text_of(document) != content:
            raise CheckpointError(f"{manifest} was altered: it does not have its digest; {_REMEDY}")
        try:
            return cls._of(root, document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CheckpointError(
                f"{manifest} does not follow version {VERSION} of the format ({type(error).__name__}: {error})"
            ) from error

    @classmethod
    def _of(cls, root: Path, document: dict[str, Any]) -> Checkpoint:
        files = {
            name: FileEntry(**{**entry, "shape": tuple(entry["shape"])}) for name, entry in document["files"].items()
        }
        tensors, about = dict(document["tensors"]), dict(document["about"])
        if not files.keys() >= set(tensors.values()) or any(Path(name).name != name for name in files):
            raise ValueError(f"tensors {tensors} in files {list(files)}")
        return cls(root, tensors, files, about, document["run_id"], int(document["checksum_block_bytes"]))

    def entry(self, name: str) -> FileEntry:
        """What the file of a tensor is; raises LookupError, which names those there are."""
        if name not in self.tensors:
            raise LookupError(f"{self.path} has no tensor {name!r}: it has {sorted(self.tensors)}")
        return self.files[self.tensors[name]]

    def array(self, name: str) -> np.ndarray:
        """Maps the rows of a tensor whose checksums were compared; CheckpointError names a file that is missing,
        damaged or of another save."""
        try:
            file, entry, origin = self.path / self.tensors[name], self.entry(name), f"save {self.id}"
            Contents(file, entry, self.block_bytes, origin, _REMEDY).compare()
            return map_file(file, entry, origin=origin, remedy=_REMEDY)
        except PartitionError as error:
            raise CheckpointError(str(error)) from error

    def require_fit(self, name: str, tensor: DistTensor) -> None:
        entry, dtype = self.entry(name), tensor.spec.dtype
        if entry.shape != tuple(tensor.shape) or entry.torch_dtype != dtype:
            raise ValueError(
                f"tensor {name!r} was saved in {self.path} with shape {list(entry.shape)}, dtype {entry.torch_dtype}: "
                f"expected shape {list(tensor.shape)}, dtype {dtype}, as {tensor.name!r} has"
            )


def _no_rows(tensor: DistTensor) -> Rows:
    return Rows.of("tensor", torch.empty((0, *tensor.shape[1:]), dtype=tensor.dtype), 0, "row")


def _blocks(tensor: DistTensor) -> Iterator[slice]:
    step = max(1, _BLOCK_BYTES // max(tensor.spec.row_bytes, 1))
    return (slice(at, min(at + step, len(tensor))) for at in range(0, len(tensor), step))
