"""Features larger than memory: rows per second from disk, and training on a graph shaped like ogbn-papers100M.

Claims: rows are read at 80% of the disk's limit of random reads or more, at five times the speed of a mapped file or
more; a job under a memory limit trains on batches that are the same, bit for bit.

Method: ``rows``: random rows of 256 bytes of a file of 8 GB, 50,000 a call, in a process under a memory limit of
512 MiB. "mapped" copies them out of a mapped file, as :class:`glt.data.Feature` does; "mapped, at random" told the
kernel so (``MADV_RANDOM``), and nothing is read ahead; "fio" is its random read at the same depth, of blocks of 512 and
4,096 bytes. Contestants take turns; of the mapped ones there are fewer rows, as many as come in some seconds.

``--papers DIR``: :mod:`benchmarks.papers` is drawn there, partitioned under a limit of 2 GiB, and trained under 8 GiB:
GraphSAGE, three layers of 64, [15, 10, 5], batches of 1,024 seeds, collocated, ``feature_memory="2 GiB"``. "mapped" is
the same without it. Batches are compared by checksums of their features, and losses bit for bit. ``waited`` is the
trainer's share of time. It takes 40 GB of disk; the partition stays in DIR for the next run. ``--share`` makes a part
of nodes, edges and limits.

Limits are those of a cgroup (v1 or v2), page cache included, for what is taken once torch is imported; where none can
be made, the table says so. A toy run has none, and no processes of its own.

    python -m benchmarks.bench_disk [--rounds 3] [--toy]
    python -m benchmarks.bench_disk --papers DIR [--share 1] [--batches 200] [--mapped 3]
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import papers
from benchmarks._harness import Report, arguments, in_fresh_process, require
from benchmarks.partitioned import scratch_dir
from glt.data import DiskFeature, Feature
from glt.data.arrays import map_npy
from glt.testing.cluster import free_port

ROW_BYTES, ROWS_A_CALL, DEPTH = 256, 50_000, 128
LIMIT_OF_ROWS, LIMIT_OF_PARTITIONER, LIMIT_OF_TRAINER, FEATURE_MEMORY = 512 << 20, 2 << 30, 8 << 30, 2 << 30

# -- processes under a memory limit ---------------------------------------------------------------------------------


@contextmanager
def limited(num_bytes: int | None) -> Iterator[Path | None]:
    """Makes a cgroup that may have so much memory, for :func:`in_group`; None where none can be made, or wanted."""
    if num_bytes is None:
        yield None
        return
    root = Path("/sys/fs/cgroup")
    v1 = (root / "memory/memory.limit_in_bytes").exists()
    group = root / ("memory" if v1 else "") / f"glt-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        print(f"no memory limit is held: {error}")
        yield None
        return
    try:
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(num_bytes))
    except OSError as error:
        group.rmdir()
        print(f"no memory limit is held: {error}")
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def in_group(group: Path | None, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` in a process of its own under the limit; here without one."""
    return function(*args) if group is None else in_fresh_process(_join_and_call, group, function, *args)


def _join_and_call(group: Path, function: Callable[..., Any], *args: Any) -> Any:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return function(*args)


def most_gib(group: Path | None) -> float | None:
    """The most memory that the processes of a cgroup had, page cache included."""
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        if group is not None and (group / name).exists():
            return int((group / name).read_text()) / 2**30
    return None


# -- rows -----------------------------------------------------------------------------------------------------------


def rows_per_s(path: Path, way: str, num_rows: int, seed: int) -> float:
    mapped: Any = map_npy(path)
    feature = DiskFeature(path) if way == "glt" else Feature(torch.from_numpy(mapped))
    if way == "mapped, at random":
        mapped._mmap.madvise(mmap.MADV_RANDOM)
    some = num_rows if way == "glt" else min(num_rows, 20_000 if "random" in way else 400)
    ids = np.random.default_rng(seed).integers(0, len(feature), some)
    began_s = time.perf_counter()
    for begin in range(0, some, ROWS_A_CALL):
        found = feature.gather(torch.from_numpy(ids[begin : begin + ROWS_A_CALL]))
    rate = some / (time.perf_counter() - began_s)
    wanted = ids[-len(found) :]
    require(np.array_equal(found[:, 0].numpy(), wanted), f"{way}: these are the rows")
    return rate


def fio_per_s(path: Path, block_bytes: int, seconds: int) -> float:
    command = f"fio --name=rows --filename={path} --readonly --direct=1 --rw=randread --bs={block_bytes} "
    command += f"--ioengine=libaio --iodepth={DEPTH} --runtime={seconds} --time_based --output-format=json"
    done = subprocess.run(command.split(), capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])


def write_rows(path: Path, num_rows: int) -> None:
    rows = np.lib.format.open_memmap(path, "w+", np.int64, (num_rows, ROW_BYTES // 8))
    for begin in range(0, num_rows, 1 << 18):
        rows[begin : begin + (1 << 18)] = np.arange(begin, min(num_rows, begin + (1 << 18)))[:, None]
    rows.flush()
    del rows
    with open(path, "rb") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_ahead_kb(path: Path) -> int | None:
    """What the kernel reads ahead of the file's disk."""
    number = os.stat(path).st_dev
    queue = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/queue/read_ahead_kb")
    return int(queue.read_text()) if queue.exists() else None


def measure_rows(report: Report, rounds: int) -> None:
    toy = report.toy
    with scratch_dir() as scratch, limited(None if toy else LIMIT_OF_ROWS) as group:
        path, num_rows = scratch / "rows.npy", 20_000 if toy else 1 << 25
        write_rows(path, num_rows)
        wanted = 2000 if toy else 10 * ROWS_A_CALL
        ways: dict[str, Callable[[int], float]] = {}
        for way in ("glt", "mapped", "mapped, at random"):
            ways[way] = lambda seed, way=way: in_group(group, rows_per_s, path, way, wanted, seed)  # type: ignore[misc]
        if shutil.which("fio"):
            for size in (512, 4096):
                ways[f"fio, {size} bytes"] = lambda _, size=size: fio_per_s(path, size, 1 if toy else 5)  # type: ignore[misc]
        else:
            print("absent: fio")
        found: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            for way, measure in ways.items():
                found[way].append(measure(number))
        for way, rates in found.items():
            report.add(
                way=way,
                rows_per_s=float(np.median(rates)),
                lowest=min(rates),
                highest=max(rates),
                glt_is=float(np.median(np.divide(found["glt"], rates))),
                limit=None if group is None else "512 MiB",
                read_ahead_kb=read_ahead_kb(path),
            )


# -- papers100M -----------------------------------------------------------------------------------------------------


def partition(directory: Path, num_nodes: int) -> float:
    edges, features = np.load(directory / "edges.npy", mmap_mode="r"), papers.features(directory / "tile", num_nodes)
    began_s = time.perf_counter()
    given = directory / "parts", 1, num_nodes, edges, features
    labels = papers.labels(num_nodes)
    glt.partition.RandomPartitioner(
        *given, edge_assign_strategy="by_dst", node_label=labels, relabel=True, sort_memory_bytes=64 << 20
    ).partition()
    return time.perf_counter() - began_s


def train(directory: Path, feature_memory: int | None, num_batches: int, batch_size: int) -> dict[str, Any]:
    from torch_geometric.nn import GraphSAGE

    began_s = time.perf_counter()
    data = glt.distributed.DistDataset().load(directory / "parts", 0, feature_memory=feature_memory, verify=False)
    load_s = time.perf_counter() - began_s
    torch.manual_seed(0)
    model = GraphSAGE(papers.NUM_FEATURES, 64, 3, papers.NUM_CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    glt.distributed.init_worker_group(1, 0, "papers")
    where = glt.distributed.CollocatedDistSamplingWorkerOptions(
        master_addr="localhost", master_port=free_port(), worker_concurrency=3
    )
    loader = glt.distributed.DistNeighborLoader(
        data, [15, 10, 5], papers.seeds(data.num_nodes), batch_size=batch_size, shuffle=True, random_seed=1,
        collect_features=True, worker_options=where,
    )  # fmt: skip
    losses, checks, ends_s = [], [], []
    began_s = time.perf_counter()
    with loader:
        for batch in loader:
            checks.append(zlib.crc32(batch.x.view(torch.uint8).numpy()))
            out = model(batch.x.float(), batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            ends_s.append(time.perf_counter() - began_s)
            if len(losses) == num_batches:
                break
        stats = dict(loader.stats())
    return {"losses": losses, "checks": checks, "ends_s": ends_s, "load_s": load_s, "stats": stats}


def measure_papers(report: Report, directory: Path, share: float, num_batches: int, num_mapped: int) -> None:
    num_nodes, num_edges = int(papers.NUM_NODES * share), 2 * int(papers.NUM_EDGES * share / 2)
    directory.mkdir(parents=True, exist_ok=True)
    partitioned = directory / "partitioned.json"  # how it went, for further runs
    if not partitioned.exists():
        papers.draw_edges(directory / "edges.npy", num_nodes, num_edges)
        with limited(None if report.toy else int(LIMIT_OF_PARTITIONER * share)) as group:
            took_s = in_group(group, partition, directory, num_nodes)
            partitioned.write_text(json.dumps({"took_s": took_s, "most_gib": most_gib(group)}))
        (directory / "edges.npy").unlink()
    report.add(way="partitioning", **json.loads(partitioned.read_text()))
    batch_size = 1024 if share == 1 else max(32, int(1024 * share))
    runs: dict[str, dict[str, Any]] = {}
    for way, memory, count in (("glt", int(FEATURE_MEMORY * share), num_batches), ("mapped", None, num_mapped)):
        with limited(None if report.toy else int(LIMIT_OF_TRAINER * share)) as group:
            runs[way] = run = in_group(group, train, directory, memory, count, batch_size)
            ends_s, stats = run["ends_s"], run["stats"]
            report.add(
                way=way,
                batches=len(ends_s),
                batches_per_s=len(ends_s) / ends_s[-1],
                load_s=run["load_s"],
                waited=stats["wait_s"] / stats["epoch_s"],
                nodes=stats["num_nodes"] // stats["num_batches"],
                disk_rows=stats["num_disk_rows"] // stats["num_batches"],
                hot_row_ratio=stats["hot_row_ratio"],
                most_gib=most_gib(group),
                read_ahead_kb=read_ahead_kb(directory),
                loss=run["losses"][-1],
            )
    same = [runs["glt"][name][:num_mapped] == runs["mapped"][name][:num_mapped] for name in ("checks", "losses")]
    require(all(same), "features and losses are the same, bit for bit")
    print(f"features and losses of the first {num_mapped} batches are the same, bit for bit")


def main() -> None:
    options = arguments(
        __doc__, rounds=3,
        papers={"type": Path, "metavar": "DIR"},
        share={"type": float, "default": 1.0},
        batches={"type": int, "default": 200},
        mapped={"type": int, "default": 3},
    )  # fmt: skip
    print("glt")
    if options.papers is not None:
        report = Report("disk_papers", options.toy)
        measure_papers(report, options.papers, options.share, options.batches, options.mapped)
        report.finish()
        return
    report = Report("disk", options.toy)
    measure_rows(report, 1 if options.toy else options.rounds)
    report.finish()
    if options.toy:
        with scratch_dir() as scratch:
            report = Report("disk_papers", True)
            measure_papers(report, scratch, 0.0002, 5, 3)
            report.finish()


if __name__ == "__main__":
    main()
