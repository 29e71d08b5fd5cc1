"""A forecast of tables: counted, not read, and the same as after reading them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import covering
from test_inputs import EDGES, NODES, edge_columns, node_columns, write

from glt.cli import main
from glt.partition import FennelPartitioner, RandomPartitioner, read_graph
from glt.partition.inputs.arrays import blank
from glt.partition.inputs.tables import EdgeTable, Field, TableFiles, count_lines

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def big(num_nodes: int = 3000, num_edges: int = 70_000) -> dict[str, Any]:
    """A graph of more rows than a record batch has."""
    rng = np.random.default_rng(0)
    return {
        "edge_index": rng.integers(0, num_nodes, (2, num_edges)),
        "node_feat": rng.random((num_nodes, 3)).astype(np.float32),
        "node_label": rng.integers(0, 5, num_nodes),
        "edge_feat": rng.random((num_edges, 2)),
        "edge_weight": rng.random(num_edges),
        "edge_time": rng.integers(0, 99, num_edges),
        "node_attrs": {"train_mask": rng.random(num_nodes) < 0.5, "year": rng.integers(1990, 2020, num_nodes)},
        "edge_attrs": {"kind": rng.integers(0, 3, num_edges)},
    }


def shapes(arguments: Any) -> Any:
    if isinstance(arguments, dict):
        return {name: shapes(value) for name, value in arguments.items()}
    return (arguments.dtype, arguments.shape) if isinstance(arguments, np.ndarray) else arguments


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    arguments = big()
    for name, columns in (("nodes", node_columns(arguments)), ("edges", edge_columns(arguments))):
        write(root / f"{name}.parquet", columns)
        write(root / f"{name}.csv", columns)
        (root / f"{name}.csv.gz").write_bytes(gzip.compress((root / f"{name}.csv").read_bytes(), 1))
    return root


def describe(root: Path, kind: str, typed: bool, counted: bool) -> Path:
    nodes = {"files": f"nodes.{kind}", "id": "id", **NODES} if counted else {}
    edges = {"files": f"edges.{kind}", **EDGES}
    document: dict[str, Any] = {"nodes": nodes, "edges": edges}
    if typed:
        document = {
            "node_types": {"a": nodes, "b": {"num_nodes": 3000}},
            "edge_types": [{"type": ["a", "to", "b"], **edges}, {"type": ["b", "to", "b"], **edges}],
        }
    path = root / f"{kind}{typed}{counted}.json"
    path.write_text(json.dumps(document))
    return path


@covering(typed=[False, True], counted=[False, True], kind=["parquet", "csv", "csv.gz"])
def test_an_outline_has_the_shapes_dtypes_and_forecast_of_the_graph(tables, tmp_path, kind, counted, typed):
    source = describe(tables, kind, typed, counted)
    whole, outline = (read_graph(source, tmp_path, outline=only) for only in (False, True))
    assert shapes(dict(outline)) == shapes(dict(whole))
    for partitioner in (RandomPartitioner, FennelPartitioner):
        made = [partitioner(tmp_path / "parts", 4, **graph) for graph in (whole, outline)]
        assert made[0].forecast() == made[1].forecast()
    tables_of = [outline["edge_feat"], outline["edge_weight"], outline["edge_time"], outline["edge_attrs"]]
    if not typed:  # what was not read is zero
        assert not any(np.any(t) for t in tables_of[:3])


def test_values_of_tables_are_not_read(tables, tmp_path, capsys, monkeypatch):
    read: list[int] = []
    batches = TableFiles.batches

    def counted(self: TableFiles, *given: Any) -> Any:
        for path, first, batch in batches(self, *given):
            read.append(batch.num_rows)
            yield path, first, batch

    monkeypatch.setattr(TableFiles, "batches", counted)
    flags = ["--nodes", str(tables / "nodes.parquet"), "--src", "from", "--dst", "to", "--edge-feat", "g0,g1"]
    command = ["partition", str(tables / "edges.parquet"), "--out", str(tmp_path / "parts"), "--num-parts", "2", *flags]
    assert main([*command, "--dry-run"]) == 0
    assert sum(read) == 3000 + (1 << 16) and list(tmp_path.iterdir()) == []
    forecast = capsys.readouterr().out
    assert forecast.startswith("forecast: 3000 nodes and 70000 edges")
    read.clear()
    assert main([*command, "--node-label", "y", "--balance", "label", "--dry-run"]) == 0  # whose values it needs
    assert sum(read) >= 70_000


def test_the_largest_id_is_that_of_the_statistics_or_else_read(tmp_path):
    ids = {"src": np.array([3, 9, 4]), "dst": np.array([0, 1, 70])}
    columns = {name: pa.array(values) for name, values in ids.items()}
    fields = {name: Field(name, (name,)) for name in ids}
    for name, told in (("told", True), ("untold", False)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(columns), path, write_statistics=told, row_group_size=2)
        files = TableFiles((path,))
        assert [files.largest(end) for end in ids] == ([9, 70] if told else [None, None])
        found = EdgeTable("edges", files, fields, {}).outline(tmp_path, with_ids=True)
        assert found["edge_index"].max(1).tolist() == [9, 70] and found["edge_index"].shape == (2, 3)
        assert (found["edge_index"][:, -1].tolist() == [4, 70]) != told
    pq.write_table(pa.table(columns).slice(0, 0), path)
    assert TableFiles((path,)).largest("src") == -1
    write(tmp_path / "e.csv", ids)
    assert TableFiles((tmp_path / "e.csv",)).largest("src") is None


@pytest.mark.parametrize(
    ("text", "num_lines"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\r\nb\r\n", 2), (b"\n\na\n\n\r\nb\rc", 3), (b"\n", 0)]
)
@pytest.mark.parametrize("block_bytes", [1, 2, 1 << 20])
def test_lines_are_counted_in_blocks(tmp_path, monkeypatch, text, num_lines, block_bytes):
    monkeypatch.setattr("glt.partition.inputs.tables._BLOCK_BYTES", block_bytes)
    (tmp_path / "a.csv").write_bytes(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    assert count_lines(tmp_path / "a.csv") == count_lines(tmp_path / "a.csv.gz") == num_lines


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "e.parquet").write_bytes(b"PAR1")
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(b"src,dst\n" + b"1,2\n" * 99_999)[:-20])
    for name in ("e.parquet", "e.csv.gz"):
        for outline in (True, False):
            with pytest.raises(ValueError, match=f"{name} cannot be read"):
                read_graph(tmp_path / name, tmp_path, outline=outline)


def test_zeros_of_any_size_take_no_memory():
    zeros = blank(np.dtype(np.int64), (1 << 34, 2))  # 256 GiB
    assert zeros.shape == (1 << 34, 2) and zeros.flags.c_contiguous and not zeros[:: 1 << 30].any()
    assert blank(np.dtype(np.float32), (0, 3)).shape == (0, 3)
