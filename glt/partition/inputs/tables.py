"""Tables of nodes and of edges, read into arrays that are in scratch files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from glt.partition.arguments import chunks
from glt.partition.inputs.collected import FoundEdges, FoundNodes
from glt.partition.inputs.fields import Field, outline_fields, read_fields
from glt.partition.inputs.scratch import blank, by_id, pair, pair_dtype
from glt.partition.inputs.table_files import TableFiles

_Reader = Callable[[TableFiles, Mapping[str, Field]], dict[str, np.ndarray]]


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
        found, ids = self._found(partial(read_fields, scratch=scratch))
        if ids is not None:
            assert self.fields["id"] is not None
            _require_ids(self.fields["id"].key, ids)
            if not _in_order(self.fields["id"].key, ids):
                for name in ("feat", "label", "time"):
                    rows = getattr(found, name)
                    setattr(found, name, None if rows is None else by_id(scratch, rows, ids))
                found.attrs = {name: by_id(scratch, rows, ids) for name, rows in found.attrs.items()}
        return found

    def outline(self) -> FoundNodes:
        """Counts its rows: tables are zeros of the shapes and dtypes that they would have, see
        :func:`glt.partition.inputs.fields.outline_fields`.

        Raises:
            ValueError: If what is looked at of the file does not fit: names it.
        """
        found, _ = self._found(outline_fields)
        return found

    def _found(self, read: _Reader) -> tuple[FoundNodes, np.ndarray | None]:
        """The tables in the order of their rows, and the ids of these."""
        arrays, attrs, num_rows = _read(self.key, self.files, self.fields, self.attrs, read)
        ids = arrays.pop("id", None)
        if self.num_nodes is not None and num_rows not in (None, self.num_nodes):
            raise ValueError(f"{self.key}: num_nodes = {self.num_nodes}, but its table has {num_rows} rows")
        return FoundNodes(num_rows if self.num_nodes is None else self.num_nodes, **arrays, attrs=attrs), ids


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
        arrays, attrs, _ = _read(self.key, self.files, self.fields, self.attrs, partial(read_fields, scratch=scratch))
        edge_index = arrays.pop("edge_index", None)
        if edge_index is None:
            edge_index = pair(scratch, *self._ends(arrays))
        return FoundEdges(edge_index, **arrays, attrs=attrs)

    def outline(self, scratch: Path, with_ids: bool) -> FoundEdges:
        """Counts its rows, as :meth:`NodeTable.outline`.

        Args:
            scratch: For ids, if they have to be read.
            with_ids: Whether the largest id of either end is to be among the ids, which are zeros else. The statistics
                of Parquet tell it; others are read.

        Raises:
            ValueError: If what is looked at of the file does not fit: names it.
        """
        arrays, attrs, _ = _read(self.key, self.files, self.fields, self.attrs, outline_fields)
        edge_index = arrays.pop("edge_index", None)
        if edge_index is None:
            ends = self._ends(arrays)
            edge_index = blank(pair_dtype(*ends), (2, len(ends[0])))
            if with_ids and edge_index.size:
                largest = [self._largest(name) for name in ("src", "dst")]
                if None in largest:
                    assert self.files is not None
                    fields = {name: self.fields[name] for name in ("src", "dst")}
                    edge_index = pair(scratch, *self._ends(read_fields(self.files, fields, scratch)))  # type: ignore[arg-type]
                else:
                    edge_index[:, 0] = largest
        return FoundEdges(edge_index, **arrays, attrs=attrs)

    def _ends(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Takes the ids of both ends out of what was read."""
        ends = []
        for name in ("src", "dst"):
            field = self.fields[name]
            assert field is not None
            ends.append(_require_ids(field.key, arrays.pop(name)))
        return ends

    def _largest(self, end: str) -> int | None:
        field = self.fields[end]
        assert self.files is not None and field is not None
        return self.files.largest(field.columns[0])


def _read(
    key: str, files: TableFiles | None, fields: Mapping[str, Field | None], attrs: Mapping[str, Field], read: _Reader
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
        of_files = read(files, of_table)
        num_rows = len(next(iter(of_files.values()))) if of_files else files.num_rows()
        for at, rows in of_files.items():
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
