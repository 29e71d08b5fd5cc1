"""A table that a graph was partitioned with, as the first values of a distributed tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StoredTable:
    """Names one. Servers take its rows from the mapped files, and copy them when somebody first writes.

    Attributes:
        kind: ``'node'`` or ``'edge'``.
        type_index: Position of the type.
        table: Its name in partitions: ``'x'``, ``'y'``, ``'time'``, ``'edge_attr'`` or that of a named table.
    """

    kind: str
    type_index: int
    table: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"kind": "table", "of": self.kind, "type": self.type_index, "table": self.table}


def require_writable(table: str, what: str) -> None:
    """Raises ValueError if samplers decide by the rows of a table, which are those of the files, sorted for them."""
    if table == "time":
        raise ValueError(
            f"{what} has the times that edges were sorted by when the graph was partitioned: they are read, and not "
            "written; partition it again with node_time = the new times, or keep yours under another name"
        )
