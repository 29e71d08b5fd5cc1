"""DGL's mappings: the original id of each node or edge, which DGL numbers anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt.errors import PartitionError
from glt.partition.importers.assembly import integers
from glt.partition.importers.dgl_config import DglConfig
from glt.partition.importers.dgl_file import read_tensors
from glt.partition.importers.dgl_ranges import Ranges

Mapped = Any  # a tensor or array, or a dict of them by type, as DGL's return_mapping gives


def read_mapping(
    config: DglConfig, name: str, given: Mapped | None, types: list[str], ranges: Ranges
) -> list[np.ndarray | None]:
    """Returns the original id of each node or edge, by type; None where nothing says it.

    Args:
        config: The directory, whose ``part<i>/<name>.dgl`` are read if ``given`` is None.
        name: ``"orig_nids"`` or ``"orig_eids"``.
        given: What DGL returned, or None.
        types: What DGL calls the types.
        ranges: The ids that DGL gave.

    Raises:
        PartitionError: If only some partitions have the file, or one is damaged.
        TypeError, ValueError: If ``given`` is no mapping of these ids.
    """
    origin = Path(name)
    if given is None:
        paths = [config.path.parent / f"part{part}" / f"{name}.dgl" for part in range(config.num_parts)]
        missing = [path for path in paths if not path.exists()]
        if len(missing) == len(paths):
            return [None] * len(types)
        if missing:
            raise PartitionError(f"{missing[0]} is missing, but other partitions have theirs: copy it here first")
        given, origin = _joined([read_tensors(path) for path in paths]), paths[0]
    if not isinstance(given, Mapping):
        if len(types) > 1:
            raise TypeError(f"{name} is a {type(given).__name__}: expected a dict by type, the graph having types")
        given = {types[0]: given}
    by_name = {":".join(key) if isinstance(key, tuple) else key: value for key, value in given.items()}
    result: list[np.ndarray | None] = []
    for type_, total in zip(types, ranges.totals, strict=True):
        ids = integers(origin, f"ids of {type_}", by_name.get(type_, np.empty(0, np.int64))).astype(np.int64)
        if ids.size != total or not np.array_equal(np.sort(ids), np.arange(total)):
            raise ValueError(
                f"{name} of {type_} from {origin} has {ids.size} ids: expected each of [0, {total}) once, as DGL's "
                "return_mapping gives"
            )
        result.append(ids)
    return result


def _joined(pieces: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    types = {type_ for piece in pieces for type_ in piece}
    return {type_: np.concatenate([np.asarray(piece[type_]) for piece in pieces if type_ in piece]) for type_ in types}
