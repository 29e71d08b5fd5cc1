"""What is large, what is empty, what changes, and what there is no room for."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import glt
from glt.errors import TableError
from glt.tables import directory
from glt.tables.columns.sources import Source
from glt.tables.engines.output import Shards


def described(tmp_path, node=None, **edges):
    pays = {"type": ["n", "r", "n"], "files": str(tmp_path / "edges.csv"), "src": "a", "dst": "b", **edges}
    return {"node_types": {"n": node or {}}, "edge_types": [pays]}


def test_a_thousand_columns(tmp_path):
    """All kinds; each number comes where ``feature_names`` says."""
    rows = 3000
    columns = {f"c{i}": np.random.default_rng(i).normal(i, 2, rows) for i in range(1000)}
    pq.write_table(pa.table({"key": np.arange(rows)[::-1], **columns}), tmp_path / "nodes.parquet")
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n")
    node = {"files": str(tmp_path / "nodes.parquet"), "key": "key"}
    node["features"] = {name: "standardize" if i % 2 else "number" for i, name in enumerate(columns)}
    built = glt.tables.build(described(tmp_path, node), tmp_path / "out", memory="700MB")
    assert built["feature_names"]["node type 'n'"] == list(columns)
    x = np.stack(pq.read_table(tmp_path / "out/nodes/n")["x"].to_pylist())
    assert x.shape == (rows, 1000)
    np.testing.assert_allclose(x[:, 4], columns["c4"][::-1], rtol=1e-6)
    scaled = (columns["c7"] - columns["c7"].mean()) / columns["c7"].std()
    np.testing.assert_allclose(x[:, 7], scaled[::-1], rtol=1e-4, atol=1e-5)


def test_wide_rows_are_written_in_smaller_groups(tmp_path):
    """Else a group of them would be held, and copied, at 4 kB a row."""
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(1000 * 20_000, np.float32)), 1000)
    shards = Shards(tmp_path / "wide", [pa.field("x", x.type)])
    for _ in range(2):
        shards.add({"x": x})
    shards.close()
    metadata = pq.read_metadata(tmp_path / "wide/part-00000.parquet")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [16384, 16384, 7232]


def test_a_missing_column_among_a_thousand_is_named_shortly(tmp_path):
    (tmp_path / "edges.csv").write_text(",".join(f"c{i}" for i in range(1000)) + "\n")
    with pytest.raises(TableError, match=r"has no column 'a': it has 'c0', .* 'c11' and 988 more$"):
        glt.tables.build(described(tmp_path), tmp_path / "out")


@pytest.mark.integration
def test_ten_thousand_files(tmp_path):
    (tmp_path / "many").mkdir()
    for i in range(10_000):
        (tmp_path / f"many/{i}.csv").write_text(f"a,b\n{i % 97},{i % 89}\n")
    counts = glt.tables.build(described(tmp_path, files=str(tmp_path / "many")), tmp_path / "out")
    assert counts["edge_types"]["n__r__n"]["num_kept"] == 10_000 and counts["node_types"]["n"]["num_kept"] == 97
    (tmp_path / "many/7777.csv").write_text("a,b\n1,x\n")
    (tmp_path / "nodes.csv").write_text("id\n1\n")
    node = {"files": str(tmp_path / "nodes.csv"), "key": "id", "key_type": "int"}
    with pytest.raises(TableError, match=r"7777.csv, column 'b', row 0: 'x'"):
        glt.tables.build(described(tmp_path, node, files=str(tmp_path / "many"), missing="add"), tmp_path / "new")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_without_rows(tmp_path, form):
    empty = pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())})
    if form == "csv":
        (tmp_path / "edges.csv").write_text("a,b\n")
    else:
        pq.write_table(empty, tmp_path / "edges.parquet")
    counts = glt.tables.build(described(tmp_path, files=str(tmp_path / f"edges.{form}")), tmp_path / "out")
    assert counts["edge_types"]["n__r__n"]["num_kept"] == 0 and counts["node_types"]["n"]["num_kept"] == 0


def test_a_file_without_a_byte_is_named(tmp_path):
    (tmp_path / "edges.csv").write_text("")
    with pytest.raises(TableError, match=r"edges.csv cannot be read: Empty CSV file"):
        glt.tables.build(described(tmp_path), tmp_path / "out")


def test_a_file_that_is_written_while_it_is_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n1,2\n")
    read = Source.batches

    def writing(self, names=None):
        yield from read(self, names)
        with open(tmp_path / "edges.csv", "a") as file:
            file.write("2,0\n")

    monkeypatch.setattr(Source, "batches", writing)
    with pytest.raises(TableError, match=r"edges.csv was written while it was read: build again when it is whole"):
        glt.tables.build(described(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system of 3 MB can be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_no_room_is_said_and_the_build_goes_on_when_there_is(tmp_path, small_disk, command):
    random = np.random.default_rng(0)
    table = {"a": random.integers(0, 1 << 50, 300_000), "b": random.integers(0, 1 << 50, 300_000)}
    pq.write_table(pa.table(table), tmp_path / "edges.parquet")
    (tmp_path / "graph.json").write_text(json.dumps(described(tmp_path, files="edges.parquet")))
    words = "build", tmp_path / "graph.json", "--out", small_disk / "out", "--memory", "700MB"
    status, _, said = command(*words)
    assert status == 1 and "space" in said.lower() and not (small_disk / "out").exists()
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    assert command(*words, "--resume")[0] == 0
    assert glt.partition.read_graph(small_disk / "out/graph.json", tmp_path).num_edges == 300_000


def test_too_little_memory_is_said(tmp_path, command, monkeypatch):
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n")
    with pytest.raises(ValueError, match="memory = '100MB': expected at least"):
        glt.tables.build(described(tmp_path), tmp_path / "out", memory="100MB")
    random = np.random.default_rng(0)
    table = {"a": random.integers(0, 1 << 40, 400_000), "b": random.integers(0, 1 << 40, 400_000)}
    pq.write_table(pa.table(table), tmp_path / "edges.parquet")
    (tmp_path / "graph.json").write_text(json.dumps(described(tmp_path, files="edges.parquet")))
    monkeypatch.setattr(directory, "_OWN_BYTES", 520_000_000)  # the engine has the rest, 5 MB
    words = "build", tmp_path / "graph.json", "--out", tmp_path / "out"
    status, _, said = command(*words, "--memory", "600MB", "--threads", "8")
    assert status == 1 and "expected more memory (--memory), or fewer threads (--threads)" in said
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    assert command(*words, "--resume")[0] == 0


@pytest.mark.parametrize("where", ["behind all steps", "in a file"])
def test_ctrl_c_says_how_to_go_on(tmp_path, command, monkeypatch, where):
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n")
    (tmp_path / "graph.json").write_text(json.dumps(described(tmp_path)))
    words = "build", tmp_path / "graph.json", "--out", tmp_path / "out"

    def interrupted(*_):
        raise KeyboardInterrupt

    if where == "in a file":  # by what DuckDB calls
        monkeypatch.setattr(Source, "read", interrupted)
    else:
        monkeypatch.setattr(directory, "check", interrupted)
    status, _, said = command(*words)
    assert status == 130 and said.splitlines() == [
        "glt build: --resume goes on behind the steps that are done",
        "glt build: stopped",
    ]
    monkeypatch.undo()
    assert command(*words, "--resume")[0] == 0


@pytest.mark.integration
def test_ctrl_c_while_duckdb_works(tmp_path, command):
    random = np.random.default_rng(0)
    table = {"a": random.integers(0, 1 << 40, 3_000_000), "b": random.integers(0, 1 << 40, 3_000_000)}
    pq.write_table(pa.table(table), tmp_path / "edges.parquet")
    (tmp_path / "graph.json").write_text(json.dumps(described(tmp_path, files="edges.parquet")))
    words = [sys.executable, "-m", "glt", "build", tmp_path / "graph.json", "--out", tmp_path / "out", "--resume"]
    for wait_s in (0.2, 0.7, 1.2, 2):
        started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
        while started.poll() is None and not (tmp_path / "out.partial/scratch").exists():
            time.sleep(0.02)
        time.sleep(wait_s)
        started.send_signal(signal.SIGINT)
        said = started.communicate(timeout=60)[1]
        if started.returncode == 0:  # it was done
            break
        assert started.returncode == 130 and "Traceback" not in said
    assert started.returncode == 0 or command(*words[3:])[0] == 0
    assert glt.partition.read_graph(tmp_path / "out/graph.json", tmp_path).num_edges == 3_000_000
