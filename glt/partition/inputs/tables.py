"""Tables of nodes and of edges, read into arrays that are in scratch files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glt.partition.arguments import chunks
from glt.partition.inputs.collected import FoundEdges, FoundNodes
from glt.partition.inputs.fields import Field, read_fields
from glt.partition.inputs.scratch import by_id, pair
from glt.partition.inputs.table_files import TableFiles


@dataclass(frozen=True)
class NodeTable:
    """The nodes of one type.

    Attributes:
        key: What to call it in messages.
        files: Of the columns, if there are any.
        num_nodes: If stated.
        fields: ``id, feat, label, time``; None where there is none.
        attrs: Named tables.
    """

    key: str
    files: TableFiles | None
    num_nodes: int | None
    fields: Mapping[str, Field | None]
    attrs: Mapping[str, Field]

    def read(self, scratch: Path) -> FoundNodes:
        """Reads it.

        Raises:
            ValueError: If the file does not fit: names it.
        """
        arrays, attrs, num_rows = _read(self.key, self.files, self.fields, self.attrs, scratch)
        ids = arrays.pop("id", None)
        if self.num_nodes is not None and num_rows not in (None, self.num_nodes):
            raise ValueError(f"{self.key}: num_nodes = {self.num_nodes}, but its table has {num_rows} rows")
        if ids is not None:
            assert self.fields["id"] is not None
            _require_ids(self.fields["id"].key, ids)
            if not _in_order(self.fields["id"].key, ids):
                arrays = {name: by_id(scratch, rows, ids) for name, rows in arrays.items()}
                attrs = {name: by_id(scratch, rows, ids) for name, rows in attrs.items()}
        return FoundNodes(num_rows if self.num_nodes is None else self.num_nodes, **arrays, attrs=attrs)


@dataclass(frozen=True)
class EdgeTable:
    """The edges of one type.

    Attributes:
        key: What to call it in messages.
        files: Of the columns, if there are any.
        fields: ``src`` and ``dst``, or ``edge_index``; ``feat, weight, time``, None where there is none.
        attrs: Named tables.
    """

    key: str
    files: TableFiles | None
    fields: Mapping[str, Field | None]
    attrs: Mapping[str, Field]

    def read(self, scratch: Path) -> FoundEdges:
        """Reads it.

        Raises:
            ValueError: If the file does not fit: names it.
        """
        arrays, attrs, _ = _read(self.key, self.files, self.fields, self.attrs, scratch)
        edge_index = arrays.pop("edge_index", None)
        if edge_index is None:
            ends = []
            for name in ("src", "dst"):
                field = self.fields[name]
                assert field is not None
                ends.append(_require_ids(field.key, arrays.pop(name)))
            edge_index = pair(scratch, *ends)
        return FoundEdges(edge_index, **arrays, attrs=attrs)


def _read(
    key: str, files: TableFiles | None, fields: Mapping[str, Field | None], attrs: Mapping[str, Field], scratch: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int | None]:
    """Arrays by name, named tables, and the number of rows of the table; None without one."""
    given = {(0, name): field for name, field in fields.items() if field is not None}
    given |= {(1, name): field for name, field in attrs.items()}
    arrays = {at: field.map() for at, field in given.items() if field.path is not None}
    of_table = {f"{level} {name}": field for (level, name), field in given.items() if field.path is None}
    num_rows = None
    if files is None and of_table:
        field = next(iter(of_table.values()))
        raise ValueError(f"{field.key} names the column {field.columns[0]!r}, but {key} has no files: add files")
    if files is not None:
        read = read_fields(files, of_table, scratch)
        num_rows = len(next(iter(read.values()))) if read else files.num_rows()
        for at, rows in read.items():
            level, _, name = at.partition(" ")
            arrays[int(level), name] = rows
    found = ({name: arrays[at, name] for at, name in given if at == level} for level in (0, 1))
    return *found, num_rows  # type: ignore[return-value]


def _require_ids(key: str, ids: np.ndarray) -> np.ndarray:
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise ValueError(f"{key} holds rows of {ids.dtype} {list(ids.shape[1:])}: expected integers, ids of nodes")
    if ids.dtype == np.uint64 and any(int(piece.max()) >= 2**63 for _, piece in chunks(ids)):
        raise ValueError(f"{key} holds ids of 2**63 and more: expected ids of nodes, 0, 1, 2, ...")
    return ids


def _in_order(key: str, ids: np.ndarray) -> bool:
    """Tells whether ids are in order; raises ValueError unless each of ``0 .. rows - 1`` is there once."""
    seen = np.zeros(len(ids), bool)
    in_order = True
    for begin, piece in chunks(ids):
        outside = np.flatnonzero((piece < 0) | (piece >= len(ids)))
        if outside.size:
            raise ValueError(
                f"{key}: row {begin + outside[0]} has id {piece[outside[0]]}: expected the ids 0 to {len(ids) - 1}, "
                f"one for each of {len(ids)} rows; map them"
            )
        in_order &= bool((piece == np.arange(begin, begin + len(piece))).all())
        again = seen[piece]
        again[np.setdiff1d(np.arange(len(piece)), np.unique(piece, return_index=True)[1])] = True
        if again.any():
            at = int(np.flatnonzero(again)[0])
            raise ValueError(f"{key}: row {begin + at} has id {piece[at]} again: expected each id once")
        seen[piece] = True
    return in_order
