"""What a build will do, before it does: rows, memory, disk and time, and what of a sample would be dropped."""

from __future__ import annotations

import shutil
import time
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from glt.tables.building import Old, Tables
from glt.tables.columns.rows import columns_of
from glt.tables.columns.sources import Source
from glt.tables.descriptions.description import EdgeTable, NodeTable
from glt.tables.engines.plan import DST, KEY, SRC

_SAMPLE_ROWS: Final = 100_000
_PER_ROW_READ: Final = 6.0  # a build takes about so many times as long as reading its tables once
_BYTES_PER_KEY: Final = 24


def estimate(tables: Tables, out: Path, memory_bytes: int | None, old: Old | None) -> dict[str, Any]:
    """What :func:`glt.tables.build` returns with ``dry_run``. It reads metadata, a sample of each table, and the keys
    of nodes that edges are looked up in."""
    found: dict[str, Any] = {"node_types": {}, "edge_types": {}}
    disk_bytes, seconds, largest = 0, 0.0, 0
    described: list[NodeTable | EdgeTable] = [*tables.description.node_types, *tables.description.edge_types]
    for table, source in zip(described, [*tables.nodes, *tables.edges], strict=True):
        if source is None:
            continue
        sample, read_s = _sample(source)
        num_rows, is_exact = _num_rows(source)
        row_bytes = _row_bytes(table)
        disk_bytes += num_rows * row_bytes * (2 if isinstance(table, EdgeTable) and table.reverse else 1)
        largest = max(largest, num_rows * (row_bytes + 2 * _BYTES_PER_KEY))
        seconds += _PER_ROW_READ * read_s * num_rows / max(1, sum(map(len, sample)))
        entry: dict[str, Any] = {"num_files": len(source.files), "num_bytes": source.num_bytes, "num_rows": num_rows}
        entry |= {"num_rows_is_exact": is_exact}
        if isinstance(table, NodeTable):
            found["node_types"][table.name] = entry
        else:
            entry |= {"missing": table.missing, "num_sampled": sum(map(len, sample))}
            entry["num_sampled_without_end"] = _num_without_end(tables, table, sample, old)
            found["edge_types"]["__".join(table.type)] = entry
    spilled = 0 if memory_bytes is None else 2 * max(0, largest - memory_bytes)
    place = next(each for each in (out.absolute(), *out.absolute().parents) if each.is_dir())
    return found | {
        "memory_bytes": memory_bytes,
        "disk_bytes": disk_bytes,
        "scratch_bytes": spilled,
        "free_bytes": shutil.disk_usage(place).free,
        "seconds": seconds,
    }


def _sample(source: Source) -> tuple[list[pa.RecordBatch], float]:
    """Rows of the first, the last and a middle piece, checked as a build checks them, and how long that took."""
    pieces = source.pieces()
    chosen = {at: pieces[at] for at in (0, len(pieces) // 2, len(pieces) - 1) if pieces}
    began_s, found = time.perf_counter(), []
    for piece in chosen.values():
        left = _SAMPLE_ROWS // len(chosen)
        for batch in source.read(piece):
            found.append(batch.slice(0, left))
            left -= len(found[-1])
            if left <= 0:
                break
    return found, time.perf_counter() - began_s


def _num_rows(source: Source) -> tuple[int, bool]:
    exact = source.num_rows()
    if exact is not None:
        return exact, True
    per_row = source.bytes_per_row()
    return (round(source.num_bytes / per_row) if per_row else 0), False


def _row_bytes(table: NodeTable | EdgeTable) -> int:
    """Of a row that is written, not compressed."""
    width = 0
    for each in table.features:
        width += {"category": each.max + 1, "timestamp": 2 * len(each.parts)}.get(each.kind, each.length or 1)
        width += each.missing == "indicator"
    ends = 16 if isinstance(table, EdgeTable) else 8 + _BYTES_PER_KEY
    return ends + 4 * width + 8 * sum(not each.name.startswith("feature") for each in columns_of(table))


def _num_without_end(tables: Tables, table: EdgeTable, sample: list[pa.RecordBatch], old: Old | None) -> int:
    """How many rows of a sample have an end that no table of nodes has, nor the graph that is updated."""
    is_missing = [False] * sum(map(len, sample))
    for end, prefix, columns in zip(tables.ends(table), (SRC, DST), (table.src, table.dst), strict=True):
        nodes = tables.nodes[end]
        if nodes is None or not sample:
            continue
        width = len(columns)
        names = [f"{prefix}{i}" for i in range(width)]
        wanted = [key for batch in sample for key in zip(*(batch.column(n).to_pylist() for n in names), strict=True)]
        missing = {key for key in wanted if None not in key}
        keys = nodes.batches([f"{KEY}{i}" for i in range(width)])
        known = () if old is None else old.keys(tables.description.node_types[end].name, tables.key_types[end])
        for batch in chain(known, keys):
            if not missing:
                break
            missing.difference_update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        is_missing = [was or None in key or key in missing for was, key in zip(is_missing, wanted, strict=True)]
    return sum(is_missing)
