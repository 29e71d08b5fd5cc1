"""From tables with text keys to a graph: ``glt build`` beside a polars script for the same result, and beside Spark;
and lookups of keys beside a Python dict.

Claims: 20 million edges over 2 million text keys take no more CPU than a script that somebody wrote for these tables
with polars, and at most 1 GB; 300 million edges are built within ``--memory 4GB``; Spark makes the same bytes.
Millions of keys a second become ids, and ids keys.

Method: users (text key, a number, one of 20 cities) and payments (two keys, time, amount; skewed) in Parquet. The
result is the same for all: ids in the order of keys, the number standardised, the 8 most frequent cities and another
as zeros and ones, edges with ids, the logarithm of the amount standardised, time and weight, sorted by destination,
source, time and weight, in Parquet with zstd. Each is a process of its own, imports and all: seconds, CPU seconds and
peak memory are those that the kernel counted of it. They take turns. The results are compared with each other before
times count.

Lookups are of a million keys of these users, drawn at random, and of as many integers; on one core, in turns, checked
against the dict.

    python -m benchmarks.bench_tables [--rounds 3] [--toy] [--edges 20000000] [--memory 1GB]
        [--engines glt,polars,spark]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks._harness import Report, arguments, find_peers, interleave, pinned, require
from benchmarks.partitioned import scratch_dir
from glt.data.keys import KeyMap

ROWS_PER_FILE = 2_000_000
NUM_CITIES, NUM_KEPT = 20, 8


def write(folder: Path, num_users: int, num_edges: int) -> None:
    """Keys are in no order; half of the payments go to a tenth of the users."""
    random = np.random.default_rng(0)
    folder.mkdir()
    keys = pa.array([f"user-{i:09d}" for i in random.permutation(num_users)])
    cities = pa.array([f"city {i}" for i in range(NUM_CITIES)])
    chosen = (NUM_CITIES * random.random(num_users) ** 2).astype(np.int64)
    users = {"id": keys, "score": random.normal(5, 3, num_users), "city": cities.take(pa.array(chosen))}
    pq.write_table(pa.table(users), folder / "users.parquet")
    for number, begin in enumerate(range(0, num_edges, ROWS_PER_FILE)):
        count = min(ROWS_PER_FILE, num_edges - begin)
        ends = [keys.take(pa.array((num_users * random.random(count) ** p).astype(np.int64))) for p in (1.5, 3)]
        payments = {"from": ends[0], "to": ends[1], "at": random.integers(1_600_000_000, 1_700_000_000, count)}
        payments["amount"] = random.lognormal(2, 1, count).round(2)
        pq.write_table(pa.table(payments), folder / f"payments-{number:03d}.parquet")


def description() -> dict[str, Any]:
    features = {"score": "standardize", "city": {"kind": "category", "max": NUM_KEPT}}
    pays = {"type": ["user", "pays", "user"], "files": "payments-*.parquet", "src": "from", "dst": "to", "time": "at"}
    pays |= {"weight": "amount", "features": {"amount": "log"}}
    return {"node_types": {"user": {"files": "users.parquet", "key": "id", "features": features}}, "edge_types": [pays]}


POLARS = """
import sys
import polars as pl
folder, out = sys.argv[1:]
users = pl.scan_parquet(f"{folder}/users.parquet").sort("id").with_row_index("n").collect()
score = (pl.col("score") - pl.col("score").mean()) / pl.col("score").std(ddof=0)
counts = users.group_by("city").len().sort(["len", "city"], descending=[True, False])
top = counts["city"].to_list()[:KEPT]
columns = [score] + [pl.col("city") == city for city in top] + [~pl.col("city").is_in(top)]
x = pl.concat_list([each.cast(pl.Float32) for each in columns]).list.to_array(KEPT + 2)
users.select(x.alias("x")).write_parquet(f"{out}/nodes.parquet", compression="zstd")
users.select(pl.col("n").cast(pl.Int64).alias("id"), pl.col("id").alias("key0")).write_parquet(
    f"{out}/keys.parquet", compression="zstd")
ids = users.select("id", pl.col("n").cast(pl.Int64))
edges = pl.scan_parquet(f"{folder}/payments-*.parquet")
edges = edges.join(ids.lazy().rename({"id": "from", "n": "src"}), on="from")
edges = edges.join(ids.lazy().rename({"id": "to", "n": "dst"}), on="to")
log = pl.col("amount").log1p()
edges = edges.select("src", "dst", ((log - log.mean()) / log.std(ddof=0)).cast(pl.Float32).alias("x"),
    pl.col("at").alias("time"), pl.col("amount").cast(pl.Float32).alias("weight"))
edges = edges.sort("dst", "src", "time", "weight")
edges.sink_parquet(f"{out}/edges.parquet", compression="zstd")
""".replace("KEPT", str(NUM_KEPT))

SPARK = """
import sys, glt
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
session = builder.config("spark.driver.memory", "4g").getOrCreate()
glt.tables.build(f"{sys.argv[1]}/graph.json", sys.argv[2], engine=session, overwrite=True)
java = session.sparkContext._gateway.proc
session.stop()
java.stdin.close()
java.wait(60)
"""


def command_of(engine: str, folder: Path, out: Path, memory: str) -> list[str]:
    if engine == "glt":
        return [sys.executable, "-m", "glt", "build", str(folder / "graph.json"), "--out", str(out), "--memory", memory]
    return [sys.executable, "-c", POLARS if engine == "polars" else SPARK, str(folder), str(out)]


# A process begins with the peak of the one that started it: a small one must start those that are measured.
LAUNCHER = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9]))
"""


def measured(command: list[str]) -> dict[str, float]:
    """Seconds, CPU seconds and peak memory of a process and of those it waited for."""
    began_s = time.perf_counter()
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    launcher = [sys.executable, "-S", "-c", LAUNCHER, *command]
    done = subprocess.run(launcher, capture_output=True, text=True, env=environment, check=True)
    seconds = time.perf_counter() - began_s
    status, cpu_s, peak_gb = json.loads(done.stdout)
    require(status == 0, f"it ended with {status}: {done.stderr[-2000:]}")
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_gb": peak_gb}


def rows_of(engine: str, out: Path) -> tuple[pa.Table, pa.Table]:
    """The nodes and edges that an engine wrote, with the columns of both in one order."""
    names = ("nodes.parquet", "edges.parquet") if engine == "polars" else ("nodes/user", "edges/user__pays__user")
    nodes, edges = (pq.read_table(out / name) for name in names)
    return nodes.select(["x"]), edges.select(["src", "dst", "x", "time", "weight"])


def require_same(results: dict[str, Path]) -> None:
    (first, *others) = ((name, rows_of(name, out)) for name, out in results.items())
    for name, tables in others:
        for ours, theirs in zip(first[1], tables, strict=True):
            require(len(ours) == len(theirs), f"{first[0]} and {name} have as many rows")
            for column in ours.column_names:
                pairs = [np.concatenate([_flat(c) for c in table[column].chunks]) for table in (ours, theirs)]
                require(np.allclose(*pairs, rtol=1e-4, atol=1e-5), f"{first[0]} and {name} have the same {column}")


def _flat(chunk: pa.Array) -> np.ndarray:
    return np.asarray(chunk.flatten() if hasattr(chunk, "flatten") and pa.types.is_nested(chunk.type) else chunk)


def look_up(folder: Path, scratch: Path, rounds: int, report: Report) -> None:
    """Keys to ids and back, by the mapped files that ``glt build`` wrote, and by a dict that has all keys."""
    keys = KeyMap(folder)
    numbers = np.random.default_rng(1).permutation(len(keys)).astype(np.int64) << 20
    integers = KeyMap.write(scratch / "integers", {"key": "int"}, lambda: iter([[numbers]]))
    ids = np.random.default_rng(0).integers(0, len(keys), 1_000_000)
    texts, wanted = keys.raw(ids), numbers[ids]
    as_arrow, by_key = pa.array(texts), {key: i for i, key in enumerate(keys.raw(np.arange(len(keys))))}
    contestants: dict[str, Callable[[], Any]] = {
        "lookup of texts, list of str": lambda: keys.lookup(texts),
        "lookup of texts, pyarrow array": lambda: keys.lookup(as_arrow),
        "lookup of texts, a Python dict": lambda: torch.tensor([by_key[key] for key in texts]),
        "lookup of integers": lambda: integers.lookup(wanted),
        "raw of texts, list of str": lambda: keys.raw(ids),
        "raw of integers": lambda: integers.raw(ids),
    }
    for name, contestant in contestants.items():
        found = contestant()
        same = (
            np.array_equal(found, ids) if "lookup" in name else list(found) == list(wanted if "int" in name else texts)
        )
        require(same, f"{name} finds what it is to find")

    def counting(contestant: Callable[[], Any]) -> Callable[[], float]:
        return lambda: contestant() is not None and float(len(ids))

    with pinned():
        timings = interleave({name: counting(each) for name, each in contestants.items()}, rounds)
    for name, timing in timings.items():
        report.add(keys=len(keys), engine=name, lookups_per_s=timing.rate())


def main() -> None:
    options = arguments(
        __doc__,
        rounds=3,
        edges={"type": int, "default": 20_000_000, "help": "ten for each user"},
        engines={"default": "glt,polars,spark", "help": "of glt, polars and spark"},
        memory={"default": "1GB", "help": "what glt build is given"},
    )
    num_edges = 20_000 if options.toy else options.edges
    peers = {"glt", *(name for name, module in (("polars", "polars"), ("spark", "pyspark")) if find_peers(module))}
    engines = [each for each in options.engines.split(",") if each in peers and not (options.toy and each == "spark")]
    report, found = Report("tables", options.toy), defaultdict(list)
    with scratch_dir() as scratch:
        folder = Path(scratch, "in")
        write(folder, num_edges // 10, num_edges)
        (folder / "graph.json").write_text(json.dumps(description()))
        for number in range(options.rounds):
            results = {}
            for engine in engines:
                out = results[engine] = Path(scratch, engine)
                shutil.rmtree(out, ignore_errors=True)
                if engine == "polars":
                    out.mkdir()
                found[engine].append(measured(command_of(engine, folder, out, options.memory)))
            if not number and num_edges <= 20_000_000:
                require_same(results)
        if "glt" in results:
            look_up(results["glt"] / "ids/user", Path(scratch), options.rounds, report)
    for engine, runs in found.items():
        median = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
        report.add(edges=num_edges, engine=engine, **median, edges_per_cpu_s=num_edges / median["cpu_s"])
    report.finish()


if __name__ == "__main__":
    main()
