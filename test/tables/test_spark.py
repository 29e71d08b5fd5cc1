"""Spark builds the bytes that the embedded engine builds, and tells what is wrong with a table as that does."""

import json
import os
import sys

import numpy as np
import pyarrow as pa
import pytest
from test_building import description, tables, write  # noqa: F401  # tables is a fixture
from test_updates import DESCRIPTION, FIRST, SECOND

import glt
from glt.errors import TableError
from glt.tables.engines import output

pyspark = pytest.importorskip("pyspark", reason="no Spark here: pip install pyspark, and a JRE")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore"),  # of pyspark and what it needs
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def session():
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = pyspark.sql.SparkSession.builder.master("local[2]").appName("glt")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }.items():
        builder = builder.config(name, value)
    try:
        found = builder.getOrCreate()
    except (pyspark.errors.PySparkException, RuntimeError, FileNotFoundError) as error:
        pytest.skip(f"Spark does not start here, is there a JRE? {error}")
    yield found
    found.stop()


def require_same(ours, theirs):
    files = {p.relative_to(ours) for p in ours.rglob("*") if p.is_file()}
    assert files and files == {p.relative_to(theirs) for p in theirs.rglob("*") if p.is_file()}
    for path in files:
        assert (ours / path).read_bytes() == (theirs / path).read_bytes(), path


def test_the_same_bytes(session, tables, tmp_path):  # noqa: F811
    told = description(write(tmp_path / "in", tables), split={"time": ["2021-01-01", "2022-01-01"]})
    glt.tables.build(told, tmp_path / "duckdb")
    glt.tables.build(told, tmp_path / "spark", engine=session)
    require_same(tmp_path / "duckdb", tmp_path / "spark")


def test_keys_are_not_copied_to_each_worker(session, tmp_path):
    """Millions of them are few bytes in a file, by which Spark judges."""
    from glt.tables.engines.spark import Spark

    (tmp_path / "edges.csv").write_text("src,dst\na,b\nb,a\n")
    edges = {"type": ["n", "to", "n"], "files": str(tmp_path / "edges.csv"), "src": "src", "dst": "dst"}
    glt.tables.build({"node_types": {"n": {}}, "edge_types": [edges]}, tmp_path / "out")
    engine = Spark(session, tmp_path / "scratch")
    for name in ("one", "other"):
        engine.view(name, tmp_path / "out/keys/n")
    for join in ("JOIN other ON one.id = other.id", "WHERE NOT EXISTS (SELECT 1 FROM other WHERE one.id = other.id)"):
        plan = session.sql(f"SELECT one.id FROM one {join}")._jdf.queryExecution().toString()
        assert "SortMergeJoin" in plan and "Broadcast" not in plan
    engine.close()


@pytest.mark.parametrize(
    "options",
    [
        {"missing": "add", "duplicates": "last"},
        {"missing": "drop", "duplicates": "sum", "features": {}},
        {"missing": "drop", "split": {"ratio": [0.5, 0.25, 0.25]}},
    ],
)
def test_updates_missing_ends_and_duplicates(session, tmp_path, options):
    nodes = {"user": DESCRIPTION["node_types"]["user"], "item": {"files": "items.csv", "key": "item"}}
    node_types = nodes | {"user": {"files": "users*.csv", "key": "id"}}
    edges = [DESCRIPTION["edge_types"][0] | options]
    (tmp_path / "graph.json").write_text(json.dumps({"node_types": node_types, "edge_types": edges}))
    (tmp_path / "items.csv").write_text("item\nq\na\n")
    for number, texts in enumerate((FIRST, (SECOND[0].replace("b,", "y,"), SECOND[1]))):
        for name, text in zip((f"users-{number}.csv", f"buys-{number}.csv"), texts, strict=True):
            (tmp_path / name).write_text(text)
        if options["missing"] == "drop":  # edges with a null end are dropped too
            with open(tmp_path / f"buys-{number}.csv", "a") as file:
                file.write("m,,6,1\n,q,7,1\n")
        for engine in ("duckdb", session):
            name = "duckdb" if engine == "duckdb" else "spark"
            update = tmp_path / name if number else None
            glt.tables.build(tmp_path / "graph.json", tmp_path / f"{name}{number or ''}", engine=engine, update=update)
    require_same(tmp_path / "duckdb1", tmp_path / "spark1")


def test_what_is_wrong_with_a_table_is_told_as_ever(session, tmp_path):
    (tmp_path / "edges.csv").write_text("src,dst,w\na,b,1\nb,a,x1\n")
    edges = {"type": ["n", "to", "n"], "files": str(tmp_path / "edges.csv"), "src": "src", "dst": "dst", "weight": "w"}
    with pytest.raises(TableError) as raised:
        glt.tables.build({"node_types": {"n": {}}, "edge_types": [edges]}, tmp_path / "out", engine=session)
    assert str(raised.value).endswith("edges.csv, column 'w', row 1: 'x1': expected a number")
    assert not (tmp_path / "out.partial").exists()
    with pytest.raises(ValueError, match="memory = '4GB' is of engine 'duckdb'"):
        glt.tables.build(
            {"node_types": {"n": {}}, "edge_types": [edges]}, tmp_path / "out", engine=session, memory="4GB"
        )


def test_files_are_cut_where_they_are_to_be(tmp_path, monkeypatch):
    """Whatever the sizes of the pieces that workers sorted."""
    from glt.tables.engines import spark

    for module, name, value in (
        (output, "ROWS_PER_FILE", 40),
        (spark, "ROWS_PER_FILE", 40),
        (output, "_ROWS_PER_GROUP", 20),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(spark, "_attempt", lambda: 0)
    fields = [pa.field("a", pa.int64())]
    sizes, paths, begin = (7, 0, 41, 1, 60, 13), [], 0
    whole = output.Shards(tmp_path / "whole", fields)
    for number, size in enumerate(sizes):
        values = pa.array(np.arange(begin, begin + size))
        path = tmp_path / f"{number}.parquet"
        pa.parquet.write_table(pa.table({"a": values}), path, row_group_size=9)
        whole.add({"a": values})
        paths.append(path)
        begin += size
    whole.close()
    numbers = [pa.RecordBatch.from_arrays([pa.array(range(4))], ["id"])]
    assert len(list(spark._Joining(paths, sizes, tmp_path / "joined", tuple(fields), False)(numbers))) == 4
    require_same(tmp_path / "whole", tmp_path / "joined")
