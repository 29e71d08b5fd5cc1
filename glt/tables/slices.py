"""A rank's part of a built graph, for a partitioner that many ranks run."""

from __future__ import annotations

import json
import os
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from glt._tracebacks import short_traceback
from glt.errors import TableError
from glt.tables.engines.output import num_rows_of, read_shards, shards_of

_TABLES = {"x": "feat", "label": "label", "time": "time", "weight": "weight"}


@short_traceback
def read_slice(folder: str | os.PathLike[str], rank: int, num_ranks: int) -> dict[str, Any]:
    """Reads an equal part of the nodes and edges of a graph that ``glt build`` made, as arguments of
    :func:`glt.partition.partition_distributed`. A rank holds its part only.

    Args:
        folder: What ``glt build`` wrote, on a file system that all ranks see.
        rank, num_ranks: Which part, of how many: of a table of ``n`` rows those from ``rank * n // num_ranks`` to below
            ``(rank + 1) * n // num_ranks``.

    Returns:
        ``num_nodes`` of the whole graph, ``edge_index``, tables and ``node_keys``, dicts by type.

    Raises:
        FileNotFoundError: If there is no such graph.
        ValueError: If there is no such rank.

    Example:
        >>> edges = {"type": ["account", "pays", "account"], "files": "payments.csv", "src": "from", "dst": "to"}
        >>> with open("payments.csv", "w") as file:
        ...     _ = file.write("from,to\\nann,bob\\nbob,carl\\nann,carl\\n")
        ...
        >>> counts = glt.tables.build({"node_types": {"account": {}}, "edge_types": [edges]}, "paid")
        >>> glt.tables.read_slice("paid", rank=1, num_ranks=2)["edge_index"]
        {('account', 'pays', 'account'): array([[0, 1],
               [2, 2]])}
    """
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank = {rank}, num_ranks = {num_ranks}: expected 0 <= rank < num_ranks")
    base = Path(folder)
    if not (base / "graph.json").is_file():
        raise FileNotFoundError(f"{base / 'graph.json'} does not exist: expected a graph that glt built")
    document = json.loads((base / "graph.json").read_text())
    found: dict[str, Any] = {"num_nodes": {}, "node_keys": {}, "edge_index": {}}
    for name, node in document["node_types"].items():
        found["num_nodes"][name] = node["num_nodes"]
        found["node_keys"][name] = base / node["keys"]
        if "files" in node:
            _put(found, "node", name, node, _columns(base / node["files"], rank, num_ranks))
    for edge in document["edge_types"]:
        columns = _columns(base / edge["files"], rank, num_ranks)
        found["edge_index"][tuple(edge["type"])] = np.stack([columns["src"], columns["dst"]])
        _put(found, "edge", tuple(edge["type"]), edge, columns)
    return found


def _put(found: dict[str, Any], level: str, type_: Any, entry: dict[str, Any], columns: dict[str, np.ndarray]) -> None:
    for column, key in _TABLES.items():
        if key in entry:
            found.setdefault(f"{level}_{key}", {})[type_] = columns[column]
    if "attrs" in entry:
        found.setdefault(f"{level}_attrs", {})[type_] = {name: columns[name] for name in entry["attrs"]}


def _columns(folder: Path, rank: int, num_ranks: int) -> dict[str, np.ndarray]:
    """The rows of this rank, by column."""
    paths = shards_of(folder)
    if not paths:
        raise TableError(f"{folder} has no files: expected those of a graph that glt built; build again")
    fields = [each for each in pa.parquet.read_schema(paths[0]) if each.name != "id"]
    ends = list(accumulate(map(num_rows_of, paths)))
    first, last = (ends[-1] * each // num_ranks for each in (rank, rank + 1))
    table = pa.Table.from_batches(read_shards(paths, fields, first, last), pa.schema(fields))
    return {name: _numbers(table.column(name)) for name in table.column_names}


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    if not pa.types.is_fixed_size_list(column.type):
        return np.asarray(column)
    pieces = [np.asarray(each.flatten()).reshape(len(each), -1) for each in column.chunks]
    width = column.type.list_size
    return np.concatenate(pieces) if pieces else np.empty((0, width), np.float32)
