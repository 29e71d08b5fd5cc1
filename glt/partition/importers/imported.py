"""A partitioned graph as an importer read it, and how it becomes a partition directory of glt."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from glt.data.schema import Schema
from glt.errors import PartitionError
from glt.partition.arguments import chunks
from glt.partition.assigned_partitioner import AssignedPartitioner
from glt.partition.importers.assembly import integers
from glt.partition.manifest import Manifest
from glt.partition.rows import Array
from glt.partition.staging import require_free


@dataclass
class Imported:
    """What an importer found. Lists have one entry per type, None where there is nothing.

    Attributes:
        schema: The types.
        num_parts: Number of partitions.
        edge_assign_strategy: ``"by_src"`` or ``"by_dst"``.
        origin: Where it comes from, for the manifest.
        owners: Partition of each node, by node type.
        edge_index: By edge type.
        node_tables, edge_tables: Arguments of a partitioner, such as ``node_feat``, each a list by type.
        node_attrs, edge_attrs: Named tables, each a list by type.
    """

    schema: Schema
    num_parts: int
    edge_assign_strategy: str
    origin: dict[str, Any]
    owners: list[Array]
    edge_index: list[np.ndarray]
    node_tables: dict[str, list[Array | None]] = field(default_factory=dict)
    edge_tables: dict[str, list[Array | None]] = field(default_factory=dict)
    node_attrs: dict[str, list[Array | None]] = field(default_factory=dict)
    edge_attrs: dict[str, list[Array | None]] = field(default_factory=dict)

    def write(self, output_dir: str | os.PathLike[str], progress: bool, graph: Mapping[str, Any]) -> Manifest:
        """Writes the partition directory, the assignment kept; ``graph`` are arguments that the source lacks."""
        tables = {
            name: values
            for kind, by_type in (
                (self.schema.by_node_type, self.node_tables),
                (self.schema.by_edge_type, self.edge_tables),
            )
            for name, given in by_type.items()
            if (values := self._argument(kind, given)) is not None
        }
        for name, kind, attrs in (
            ("node_attrs", self.schema.by_node_type, self.node_attrs),
            ("edge_attrs", self.schema.by_edge_type, self.edge_attrs),
        ):
            if attrs:
                tables[name] = self._argument(kind, _by_position(attrs))
        twice = sorted(tables.keys() & graph.keys())
        if twice:
            raise ValueError(f"{twice[0]} is given, but the imported directory holds it too: leave it out")
        return AssignedPartitioner(
            output_dir,
            self.num_parts,
            self._by_type(self.schema.by_node_type, [len(owner) for owner in self.owners]),
            self._by_type(self.schema.by_edge_type, self.edge_index),
            owners=self._by_type(self.schema.by_node_type, self.owners),
            origin=self.origin,
            edge_assign_strategy=self.edge_assign_strategy,
            **tables,
            **graph,
        ).partition(progress=progress)

    def _by_type(self, by_type: Any, values: list[Any]) -> Any:
        return by_type(values) if self.schema.is_hetero else values[0]

    def _argument(self, by_type: Any, values: list[Any]) -> Any:
        if not self.schema.is_hetero:
            return values[0]
        return {key: value for key, value in by_type(values).items() if value is not None} or None


def _by_position(attrs: Mapping[str, list[Array | None]]) -> list[dict[str, Array] | None]:
    """From a list by type for each name to a dict by name for each type, None of a type without tables."""
    by_type = [
        {name: table for name, table in zip(attrs, tables, strict=True) if table is not None}
        for tables in zip(*attrs.values(), strict=True)
    ]
    return [tables or None for tables in by_type]


@contextmanager
def scratch_for(output_dir: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a directory in the file system of ``output_dir`` for scratch files; ``output_dir`` must be free."""
    target = Path(os.path.realpath(output_dir))
    require_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.scratch-", dir=target.parent) as directory:
        yield Path(directory)


def require_directory(source: Path, what: str) -> None:
    """Raises PartitionError unless ``source`` is a directory."""
    if not source.is_dir():
        raise PartitionError(f"{source} is not a directory: expected what {what} wrote")


def require_owners(path: Path, book: object, num_parts: int) -> np.ndarray:
    """Returns a book, the partition of each node; a PartitionError names ``path`` where it is none."""
    owner = integers(path, "owners", book)
    for _, chunk in chunks(owner):
        bad = chunk[(chunk < 0) | (chunk >= num_parts)]
        if bad.size:
            raise PartitionError(f"{path} names partition {bad[0]}: expected 0 to {num_parts - 1}; it is damaged")
    return owner


def entry(path: Path, stored: object, *keys: str) -> Any:
    """Returns what dicts within dicts of a file hold under ``keys``; a PartitionError names ``path`` and the key."""
    for key in keys:
        if not isinstance(stored, Mapping) or key not in stored:
            raise PartitionError(f"{path} has no {key!r} where its library puts it: it is damaged, or another file")
        stored = stored[key]
    return stored


def require_owned(origin: Path, owner: np.ndarray, ids: np.ndarray, part: int, what: str) -> None:
    """Raises PartitionError where one of the nodes ``ids`` belongs to another partition."""
    for _, chunk in chunks(ids):
        beyond = chunk[(chunk < 0) | (chunk >= owner.size)]
        if beyond.size:
            raise PartitionError(f"{origin} holds {what} {beyond[0]}: expected ids in [0, {owner.size})")
        foreign = chunk[owner[chunk] != part]
        if foreign.size:
            raise PartitionError(
                f"{origin} holds {what} {foreign[0]} of partition {owner[foreign[0]]}: expected those of partition "
                f"{part}; the directory is of another run, or altered"
            )


def require_plain_names(schema: Schema) -> None:
    """Raises ValueError if a type's name would lead out of the directory that names files by types."""
    for name in (*schema.node_types, *(part for edge_type in schema.edge_types for part in edge_type)):
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"type {name!r} names no file")
