"""Features that are stored smaller: bytes, time to look them up, and what models learn, beside float32.

Claim: rows of fewer bytes are looked up in less time, though they become float32 on the way; with int8 a model learns
as much.

Method, of rows: 128 floats per row, 1 GiB of them, 106 thousand rows at random, one core, one buffer for results;
contestants take turns, each with the next four of forty sets of ids. ``remote_mb`` are an epoch's bytes between two
trainers, [10, 10], that ask each other for rows, none kept. Of accuracy: as ``bench_labor_learning``, with neighbours
drawn: the same initial weights and batches, ``x`` stored smaller, differences to float32 paired by initialisation, in
points. ``rms_error`` is over the numbers' root mean square.

    python -m benchmarks.bench_store_dtype [--rounds 9] [--toy]
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import torch

import glt
from benchmarks import graphs
from benchmarks._harness import Report, arguments, interleave, pinned, require
from benchmarks.bench_gather import SETS_PER_ROUND, WIDTH
from benchmarks.bench_labor_learning import GRAPHS, learn, mean_and_error
from benchmarks.graphs import DATA_ROOT
from benchmarks.learning import Course
from benchmarks.partitioned import NUM_PARTS, scratch_dir
from glt.data import Feature
from glt.data.packing import STORE_DTYPES, Packing, PackingError, RowPacker
from glt.data.synthetic import synthetic_graph
from glt.data.tasks import NodeTask
from glt.testing.cluster import Cluster, Trainer

KINDS = (None, *STORE_DTYPES)
NUM_INITIALISATIONS = 20


def measure_rows(report: Report, num_rounds: int, remote_mb: list[float]) -> None:
    num_rows, num_ids = (1 << 12, 1000) if report.toy else (1 << 21, 106_000)
    generator = torch.Generator().manual_seed(0)
    table = torch.empty(num_rows, WIDTH).normal_(generator=generator)
    sets = [torch.randint(num_rows, (num_ids,), generator=generator) for _ in range(40)]
    turns, out = itertools.cycle(sets), torch.zeros(num_ids, WIDTH)
    features: dict[str | None, Feature] = {}
    packing_s: dict[str | None, float] = {}
    errors: dict[str | None, float] = {}
    for kind in KINDS:
        began_s, packer = time.perf_counter(), None
        if kind is None:
            features[kind] = Feature(table)
        else:
            packer = RowPacker(Packing(kind, (WIDTH,)), "x")
            features[kind] = Feature(packer.pack(table), store_dtype=packer.packing)
        packing_s[kind] = time.perf_counter() - began_s
        errors[kind] = PackingError.of_sums(packer.sums).rms_ratio if packer else 0.0
        right = features[kind].dense()[sets[0]]
        require(torch.equal(features[kind].gather(sets[0], out), right), f"{kind} gathers wrong rows")

    def round_of(feature: Feature) -> Callable[[], float]:
        return lambda: float(sum(len(feature.gather(ids, out)) for ids in itertools.islice(turns, SETS_PER_ROUND)))

    with pinned():
        timings = interleave({str(kind): round_of(feature) for kind, feature in features.items()}, num_rounds)
    base = timings["None"].rate()
    for kind, mb in zip(KINDS, remote_mb, strict=True):
        timing = timings[str(kind)]
        report.add(
            store_dtype=kind or "float32",
            row_bytes=features[kind].tensor[:1].nbytes,
            rms_error=errors[kind],
            packing_gb_per_s=table.nbytes / packing_s[kind] / 1e9 if kind else None,
            gather_ms=timing.median(1e3 / SETS_PER_ROUND),
            quartiles=timing.quartiles(1e3 / SETS_PER_ROUND),
            rate_over_float32=timing.rate() / base,
            remote_mb=mb,
        )
    report.print_rows(report.rows)


def count(trainer: Trainer, paths: list[str], seeds: torch.Tensor) -> list[float]:
    """Bytes that a trainer gets from the other in an epoch, of each directory."""
    torch.set_num_threads(1)
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "bench")
    found = []
    for path in paths:
        dataset = glt.distributed.DistDataset().load(path, trainer.rank)
        options = glt.distributed.CollocatedDistSamplingWorkerOptions(
            master_addr="localhost", master_port=trainer.port, read_local=False, cache_memory_budget=0
        )
        mine = seeds.tensor_split(NUM_PARTS)[trainer.rank]
        with glt.distributed.DistNeighborLoader(
            dataset, [10, 10], mine, 256, collect_features=True, random_seed=1, worker_options=options
        ) as loader:
            require(all(batch.x.dtype == torch.float32 for batch in loader), "a batch has no float32")
            found.append(loader.stats()["remote_bytes"])
    return found


def remote_bytes(toy: bool) -> list[float]:
    """MB of both trainers, by kind."""
    graph = graphs.load("toy" if toy else "S")
    edge_index, num_nodes = torch.from_numpy(graph.edge_index()), graph.num_nodes
    x = torch.randn(num_nodes, WIDTH)
    seeds = torch.from_numpy(graph.connected_nodes())[:8192]
    with scratch_dir() as directory:
        paths = [str(directory / str(kind)) for kind in KINDS]
        for path, kind in zip(paths, KINDS, strict=True):
            glt.partition.RandomPartitioner(
                path, NUM_PARTS, num_nodes, edge_index, x, edge_assign_strategy="by_dst", store_dtype=kind
            ).partition()
        with Cluster(NUM_PARTS, count, paths, seeds, deadline_s=600) as cluster:
            return [sum(each) / 1e6 for each in zip(*cluster.results(), strict=True)]


def measure_accuracy(report: Report, task: NodeTask, course: Course, num_seeds: int) -> None:
    tasks = {
        kind: task if kind is None else replace(task, x=Feature(task.x, store_dtype=kind).dense()) for kind in KINDS
    }
    learned = {kind: [learn(each, course, seed)[0] for seed in range(num_seeds)] for kind, each in tasks.items()}
    first = len(report.rows)
    for kind, found in learned.items():
        accuracy, error = mean_and_error(found)
        difference = mean_and_error([a - b for a, b in zip(found, learned[None], strict=True)])
        report.add(
            graph=task.name,
            store_dtype=kind or "float32",
            initialisations=num_seeds,
            accuracy=accuracy,
            accuracy_error=error,
            difference=None if kind is None else difference[0],
            difference_error=None if kind is None else difference[1],
        )
    report.print_rows(report.rows[first:])


def main() -> None:
    options = arguments(__doc__, rounds=9)
    torch.set_num_threads(1)
    report = Report("store_dtype", options.toy)
    measure_rows(report, options.rounds, remote_bytes(options.toy))
    if options.toy:
        toy = replace(GRAPHS[0], name="toy", batch_size=64, epochs=2)
        measure_accuracy(report, synthetic_graph(800, num_classes=4), toy, 2)
    else:
        for course in GRAPHS[:3]:
            if (DATA_ROOT / f"{course.name}.npz").exists():
                measure_accuracy(report, course.read(DATA_ROOT), course, NUM_INITIALISATIONS)
            else:
                print(f"absent: {course.name} in {DATA_ROOT}")
    report.finish()


if __name__ == "__main__":
    main()
