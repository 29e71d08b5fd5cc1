"""Sampling and gathering from a mapped partition: files in pages of 2 MiB, of 4 KiB, and arrays in memory.

Claim: over files in pages of 4 KiB at least 1.2x edges, and 1.2x rows; no less than a tenth below what memory gives.

Method: one partition with features of 512 bytes, twice on disk, opened by `load_partition` and, beside it, as where
a kernel has no transparent huge pages. "memory" is a copy of the arrays, moved to pages of 2 MiB as loaders do. One
core; 1024 seeds with edges, [15, 10, 5]; 106 thousand rows at random; contestants take turns. What they make is
compared before anything is timed. ``huge`` is the part of the mapped bytes that the kernel says are in pages of 2 MiB.
``open_s`` is until all files are compared with their checksums, for which what was just written is read from the disk
again.

    python -m benchmarks.bench_pages [--rounds 9] [--toy]
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmarks import graphs
from benchmarks._harness import Report, arguments, interleave, pinned, require
from benchmarks.bench_sampler import GltSampler, round_of
from benchmarks.partitioned import scratch_dir, write_partitions
from glt import _core
from glt.data import Feature
from glt.data.arrays import move_to_huge_pages
from glt.partition.format import load

NUM_ROWS = 106_000


def huge_share(arrays: list[np.ndarray]) -> float:
    """The part of the mapped arrays, all of which have been read, that is in pages of 2 MiB."""
    bounds = {array.ctypes.data for array in arrays}
    huge, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first:
            begin, end = (int(each, 16) for each in first.split("-"))
            inside = any(begin <= address < end for address in bounds)
        elif inside and first == "FilePmdMapped:":
            huge += int(rest.split()[0]) << 10
    return huge / sum(array.nbytes for array in arrays)


def main() -> None:
    options = arguments(__doc__, rounds=9)
    report = Report("pages", options.toy)
    graph = graphs.load("toy" if options.toy else "M")
    num_neighbors, batches = [15, 10, 5], graph.seed_batches(4)
    rng = np.random.default_rng(0)
    ids = [torch.from_numpy(rng.integers(0, graph.num_nodes, NUM_ROWS)) for _ in range(4)]
    with scratch_dir() as scratch:
        tempfile.tempdir = scratch  # nothing is remembered of the files
        first = write_partitions(graph, Path(scratch), 1)
        second = shutil.copytree(first, Path(scratch, "second"))
        contestants, opened = {}, {}
        for name, root in (("2 MiB", first), ("4 KiB", second), ("memory", first)):
            start = time.perf_counter()
            with mock.patch.object(load, "has_huge_pages", lambda name=name: name != "4 KiB"):
                part = load.load_partition(root, 0)
            require(part.wait_until_verified(600.0), "the files are compared")
            open_s = time.perf_counter() - start
            edges, feat = part.edges[0], part.nodes[0].feat
            columns = [edges.indptr, edges.indices, feat]
            if name == "memory":
                columns = [np.array(each) for each in columns]
                move_to_huge_pages(map(torch.from_numpy, columns))
            for each in columns:
                each.sum()
            opened[name] = (open_s, huge_share(columns)) if name != "memory" else (None, None)
            indptr, indices, feat = columns
            sampler = GltSampler(_core.Csr(np.asarray(indptr), np.asarray(indices)), num_neighbors)
            contestants[name] = sampler, Feature(torch.from_numpy(np.asarray(feat)))
        made = [(sampler(batches[0]), feature.gather(ids[0])) for sampler, feature in contestants.values()]
        for sample, rows in made[1:]:
            require(all(map(np.array_equal, sample, made[0][0])), "all sample the same")
            require(torch.equal(rows, made[0][1]), "all gather the same")

        def rows_of(feature: Feature) -> float:
            return float(sum(len(feature.gather(each)) for each in ids))

        works = {
            "edges": {name: round_of(sampler, batches) for name, (sampler, _) in contestants.items()},
            "rows": {name: lambda f=feature: rows_of(f) for name, (_, feature) in contestants.items()},
        }
        for what, rounds in works.items():
            with pinned():
                timings = interleave(rounds, options.rounds)
            for name, timing in timings.items():
                open_s, huge = opened[name]
                row = {"what": what, "pages": name, "million_per_s": timing.rate() / 1e6}
                report.add(**row, over_4_kib=timing.over(timings["4 KiB"]), huge=huge, open_s=open_s)
    report.finish()


if __name__ == "__main__":
    main()
