"""Partitioning: graph M with 128 float32 features into 2 parts, at random and by frequency; a billion edges in 4 GiB.

Claims: at random at most 12 s on two cores (GLT was recorded at 60) and a quarter of GLT's added memory; by frequency
at least 4 times as fast as GLT; the billion edges, which come from mapped files, within 4 GiB, page cache included.

By frequency both are given the same numbers, made before the clock starts: what one hop of 15 neighbours around the
partition's half of a tenth of the nodes is expected to read; and caches of a twentieth of the nodes.

Method: each run in a process of its own that has the graph in memory before the clock starts; all cores; contestants
take turns. "added" is the highest resident set of a run less that before it; "anonymous" leaves out pages of mapped
files. Directories are written to $TMPDIR. GLT's partitioner is Python that needs neither GLT's extension nor
torch-sparse, so an unpacked wheel in PYTHONPATH is enough, whatever it was built for (`pip download --no-deps
graphlearn-torch` and `python -m zipfile -e <wheel> <folder>`). Without it, its recorded figures stand in, which are of
another day.

With --billion: 2**30 edges among 2**26 nodes with skewed degrees, made in pieces as int32 .npy of 8 GiB, into 4 parts;
takes 32 GiB of disk, which is free again afterwards. Where a memory cgroup can be made (root), the run is confined to
4 GiB, page cache included.

    python -m benchmarks.bench_partition [--rounds 3] [--billion] [--toy]
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import graphs
from benchmarks._harness import Report, arguments, in_fresh_process, require
from glt.partition import FrequencyPartitioner, RandomPartitioner, load_partition

GLT_RECORDED = {"seconds": 60.0, "added_mb": 6206.0 - 2527.0}  # graph M on two quiet Zen 4 cores
LIMIT_BYTES = 4 << 30
CGROUPS = Path("/sys/fs/cgroup")
PIECE = 1 << 22  # edges made at a time
CACHE_RATIO = 0.05


class Memory:
    """Samples the resident set of this process, in MB, while it is open."""

    def __enter__(self) -> Memory:
        self.before = self.peak = self._read()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def added(self, field: str) -> float:
        return self.peak[field] - self.before[field]

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            now = self._read()
            self.peak = {field: max(value, now[field]) for field, value in self.peak.items()}

    @staticmethod
    def _read() -> dict[str, float]:
        lines = Path("/proc/self/status").read_text().splitlines()
        fields = (line.split() for line in lines if line.startswith(("VmRSS", "RssAnon", "RssFile")))
        return {name.rstrip(":"): int(kib) / 1024 for name, kib, _ in fields}


def measured(partition: Any) -> dict[str, float]:
    with Memory() as memory:
        start, cpu = time.perf_counter(), time.process_time()
        partition()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "added_mb": memory.added("VmRSS"),
        "anonymous_mb": memory.added("RssAnon"),
        "mapped_mb": memory.added("RssFile"),
    }


def glts_partitioners() -> Any:
    """GLT's module of partitioners, or None; without its package's own imports, which need what it was built for."""
    spec = importlib.util.find_spec("graphlearn_torch")
    if spec is None:
        return None
    package = types.ModuleType("graphlearn_torch")
    package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or [])
    sys.modules["graphlearn_torch"] = package
    for name in ("graphlearn_torch.py_graphlearn_torch", "torch_sparse"):
        sys.modules.setdefault(name, _Absent(name))
    return importlib.import_module("graphlearn_torch.partition")


class _Absent(types.ModuleType):
    """A module that offers any name, so that it can be imported from: nothing here calls what it offers."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def run(contestant: str, graph_name: str, width: int) -> dict[str, float]:
    """Partitions a graph with features of ``width`` floats once; in a process of its own."""
    graph = graphs.load(graph_name)
    edge_index, num_nodes = graph.edge_index(), graph.num_nodes
    feat = np.random.default_rng(0).random((num_nodes, width), np.float32)
    with tempfile.TemporaryDirectory(prefix="glt-bench-") as folder:
        root = Path(folder) / "parts"
        hot = hotness(graph, 2) if contestant.endswith("frequency") else None
        if contestant.startswith("GLT"):
            peers = glts_partitioners()
            tensors = torch.from_numpy(edge_index), torch.from_numpy(feat)
            if hot is None:
                return measured(lambda: peers.RandomPartitioner(str(root), 2, num_nodes, *tensors).partition())
            probs = [torch.from_numpy(each) for each in hot]
            chunk_size = min(10_000, num_nodes // 4)  # its default; with fewer nodes than that, partitions stay empty
            return measured(
                lambda: peers.FrequencyPartitioner(
                    str(root),
                    2,
                    num_nodes,
                    tensors[0],
                    probs,
                    tensors[1],
                    cache_ratio=CACHE_RATIO,
                    chunk_size=chunk_size,
                ).partition()
            )
        if hot is not None:
            return measured(
                lambda: FrequencyPartitioner(
                    root, 2, num_nodes, edge_index, hot, feat, cache_ratio=CACHE_RATIO
                ).partition()
            )
        options = {"glt, one thread": {"num_threads": 1}, "glt, relabel": {"relabel": True}}.get(contestant, {})
        return measured(lambda: RandomPartitioner(root, 2, num_nodes, edge_index, feat, **options).partition())


def hotness(graph: graphs.BenchGraph, num_parts: int) -> list[np.ndarray]:
    """For each partition the chance of each node to be read in one hop of 15 neighbours around its seeds, float32."""
    degree = np.diff(graph.indptr)
    seeds = np.random.default_rng(1).choice(graph.connected_nodes(), graph.num_nodes // 10, replace=False)
    found = []
    for mine in np.array_split(seeds, num_parts):
        chance = np.zeros(graph.num_nodes)
        chance[mine] = np.minimum(1, 15 / degree[mine])  # of each neighbour of a seed
        chance = np.bincount(graph.indices, np.repeat(chance, degree), graph.num_nodes)
        chance[mine] += 1
        found.append(np.minimum(1, chance).astype(np.float32))
    return found


def make_edges(path: Path, scale: int, num_edges: int) -> None:
    """Writes int32 [2, num_edges]: ends drawn with density ~ id**(-2/3), ids scattered by an odd factor."""
    edges = np.lib.format.open_memmap(path, "w+", np.int32, (2, num_edges))
    rng, num_nodes = np.random.default_rng(0), 1 << scale
    for begin in range(0, num_edges, PIECE):
        for end in edges:
            draw = rng.random(min(PIECE, num_edges - begin), np.float32)
            ids = (draw * draw * draw * num_nodes).astype(np.int64)
            end[begin : begin + PIECE] = ids * 0x9E3779B1 % num_nodes
    edges.flush()
    del edges, end
    with open(path, "rb") as file:  # the run shall read them from disk, at its own cost
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_billion(path: Path, scale: int) -> dict[str, float]:
    """Partitions mapped edges once; in a process of its own."""
    with confined() as is_confined:
        edge_index = np.load(path, mmap_mode="r")
        root = path.with_name("parts")
        partitioners = []

        def partition() -> None:
            partitioners.append(RandomPartitioner(root, 4, 1 << scale, edge_index))
            partitioners[0].partition()

        row = measured(partition)
        forecast = partitioners[0].forecast()
        part = load_partition(root, 3)
        require(part.manifest.num_edges == edge_index.shape[1], f"{part.manifest.num_edges} edges in {root}")
        return row | {
            "confined_to_gib": LIMIT_BYTES / 2**30 if is_confined else None,
            "forecast_s": forecast.seconds,
            "forecast_mb": forecast.peak_memory_bytes / 2**20,
        }


@contextmanager
def confined() -> Iterator[bool]:
    """Puts this process into a memory cgroup of ``LIMIT_BYTES`` where it may make one; yields whether it did."""
    version_2 = (CGROUPS / "cgroup.controllers").exists()
    parent = CGROUPS if version_2 else CGROUPS / "memory"
    group = parent / f"glt-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(LIMIT_BYTES))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        print(f"not confined to {LIMIT_BYTES / 2**30:.0f} GiB: {error}")
        yield False
        return
    try:
        yield True
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def main() -> None:
    options = arguments(__doc__, rounds=3, billion={"action": "store_true", "help": "partition a billion edges, too"})
    report = Report("partition", options.toy)
    graph_name, width = ("toy", 8) if options.toy else ("M", 128)
    graphs.load(graph_name)
    peer = importlib.util.find_spec("graphlearn_torch") is not None
    contestants = ["glt", "glt, relabel", "glt, one thread", "glt, frequency"]
    contestants += ["GLT", "GLT, frequency"] if peer else []
    in_process = (lambda function, *given: function(*given)) if options.toy else in_fresh_process
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for _ in range(options.rounds):
        for name in contestants:
            runs[name].append(in_process(run, name, graph_name, width))
    for name, rows in runs.items():
        report.add(
            partitioner=name, graph=graph_name, **{key: float(np.median([r[key] for r in rows])) for key in rows[0]}
        )
    if not peer:
        print("absent: graphlearn_torch; its recorded figures stand in")
        report.add(partitioner="GLT (recorded)", graph="M", **GLT_RECORDED)
    if options.billion or options.toy:
        scale, num_edges = (12, 1 << 16) if options.toy else (26, 1 << 30)
        folder = Path(tempfile.mkdtemp(prefix="glt-bench-"))
        try:
            make_edges(folder / "edges.npy", scale, num_edges)
            row = in_fresh_process(run_billion, folder / "edges.npy", scale)
        finally:
            shutil.rmtree(folder)
        report.add(partitioner="glt", graph=f"2^{scale} nodes, {num_edges} edges", **row)
    report.finish()


if __name__ == "__main__":
    main()
