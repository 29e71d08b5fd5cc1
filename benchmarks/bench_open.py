"""Seconds to open a partition of 10 GB: cold, warm, compared before, and not compared.

Claims: comparing cold files with their checksums takes less than three times as long as reading them from the disk;
what a process of the host has compared costs the next ones nothing; a file of more than 1 GiB holds nothing up. Files
come in pages of 2 MiB, so that what is "warm" in small ones is read again the first time.

Method: one partition with nine tables of 1 GB, which are compared before they are used, and one with a table of 9 GB,
which is compared behind. Each opening is a fresh process, timed from the call of ``load_partition``, imports not
counted; ``known_s`` is when all files were compared. "cold": the kernel was told to drop the files' pages. "first":
nothing is remembered of the files; "again": it is. "not compared" is ``verify=False``. "read" reads all bytes on four
threads and does nothing with them: what disk and memory give.

    python -m benchmarks.bench_open [--rounds 3] [--toy]
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import glt
from benchmarks._harness import Report, arguments, in_fresh_process, require
from benchmarks.partitioned import scratch_dir
from glt.partition.format import verify

NUM_NODES = 1_000_000
TABLE_BYTES = 1_000_000_000
NUM_TABLES = 9
WAYS = ("not compared, warm", "again, warm", "first, warm", "read, warm", "first, cold", "again, cold", "read, cold")


def write(root: Path, num_tables: int, table_bytes: int, num_nodes: int) -> Path:
    """A partition with so many tables of float32, beside two edges per node."""
    edges = np.random.default_rng(0).integers(0, num_nodes, (2, 2 * num_nodes))
    width = table_bytes // (4 * num_nodes)
    tables = {}
    for number in range(num_tables):
        table = np.lib.format.open_memmap(root / f"{number}.npy", "w+", np.float32, (num_nodes, width))
        table[:] = np.arange(width) + number
        tables[f"t{number}"] = table
    glt.partition.RandomPartitioner(root / "parts", 1, num_nodes, edges, node_attrs=tables).partition()
    for number in range(num_tables):
        (root / f"{number}.npy").unlink()
    return root / "parts"


def files_of(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def drop_pages(root: Path) -> None:
    for path in files_of(root):
        opened = os.open(path, os.O_RDONLY)
        os.fsync(opened)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(opened)


def read_all(root: Path) -> None:
    def read(part: tuple[Path, int]) -> None:
        path, begin = part
        buffer = bytearray(1 << 20)
        with open(path, "rb", buffering=0) as file:
            for at in range(begin, begin + (64 << 20), len(buffer)):
                if not os.preadv(file.fileno(), [buffer], at):
                    return

    parts = [(path, begin) for path in files_of(root) for begin in range(0, path.stat().st_size, 64 << 20)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, parts))


def opened(root: Path, records: str, compares: bool) -> tuple[float, float]:
    """Seconds until the partition may be used, and until all of it is compared; in a process of its own."""
    tempfile.tempdir = records
    start = time.perf_counter()
    part = glt.partition.load_partition(root, 0, verify=compares)
    usable_s = time.perf_counter() - start
    require(part.wait_until_verified(600.0), "the files are compared")
    return usable_s, time.perf_counter() - start


def one(root: Path, way: str, records: Path) -> tuple[float, float]:
    kind, _, state = way.partition(", ")
    if kind == "first":
        for record in (records / f"glt-verified-{os.getuid()}").glob("*"):
            record.unlink()
    elif kind == "again":
        in_fresh_process(opened, root, str(records), True)
    if state == "cold":
        drop_pages(root)
    else:
        read_all(root)
    if kind == "read":
        start = time.perf_counter()
        read_all(root)
        return (seconds := time.perf_counter() - start), seconds
    return in_fresh_process(opened, root, str(records), kind != "not compared")  # type: ignore[no-any-return]


def main() -> None:
    options = arguments(__doc__, rounds=3)
    report = Report("open", options.toy)
    num_nodes, table_bytes = (1000, 100_000) if options.toy else (NUM_NODES, TABLE_BYTES)
    for what, num_tables, size in (
        (f"{NUM_TABLES} files of 1 GB", NUM_TABLES, table_bytes),
        ("one file of 9 GB", 1, NUM_TABLES * table_bytes),
    ):
        with scratch_dir() as scratch:
            root, records = write(Path(scratch), num_tables, size, num_nodes), Path(scratch, "records")
            records.mkdir()
            num_bytes = sum(path.stat().st_size for path in files_of(root))
            require(
                options.toy or (size > verify.BEFORE_USE_BYTES) == (num_tables == 1), "one is large, the others not"
            )
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way in WAYS:
                    found[way].append(one(root, way, records))
            for way, times in found.items():
                usable_s, known_s = (float(np.median(each)) for each in zip(*times, strict=True))
                report.add(
                    partition=what, way=way, usable_s=usable_s, known_s=known_s, gb_per_s=num_bytes / 1e9 / known_s
                )
            shutil.rmtree(root)
    report.finish()


if __name__ == "__main__":
    main()
