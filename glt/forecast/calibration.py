"""Measures what units of work cost on this machine, by running a small job of two trainers."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from glt import _deadlines as deadlines
from glt.data.synthetic import synthetic_graph
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, DistNeighborLoader, init_worker_group
from glt.forecast.costs import Costs
from glt.partition import RandomPartitioner
from glt.testing.cluster import Cluster, Trainer

_NUM_FEATURES = 128


@dataclass(frozen=True)
class Probe:
    """What is run to measure costs: batches of so many seeds, read here or asked for."""

    num_neighbors: tuple[int, ...]
    batch_size: int
    collect_features: bool
    read_local: bool
    num_batches: int


@dataclass(frozen=True)
class Reading:
    """What batches of a probe took, and held, on average; ``cpu_s`` of both trainers."""

    cpu_s: float
    wall_s: float
    num_edges: float
    num_nodes: float
    remote_edges: float
    remote_rows: float


_TINY, _LARGE = ((2, 2, 2), 32), ((15, 10, 5), 1024)


def calibrate(num_nodes: int = 100_000, rounds: int = 3) -> Costs:
    """Measures costs with two trainers over loopback, one batch at a time: local and asked for, tiny and large, with
    and without features. Takes about 15 s of two cores and 500 MB; other work on the machine raises what it finds.

    Args:
        num_nodes: Of the synthetic graph that is sampled, with 16 edges and 512 bytes of features per node.
        rounds: Measured rounds of each; the quickest counts.

    Raises:
        OSError, RuntimeError: If the two trainers cannot run.

    Example:
        >>> glt.forecast.calibrate().write("costs.json")  # doctest: +SKIP
    """
    probes = {
        (size, features, local): Probe(*size, features, local, 100 if size is _TINY else 8)
        for size in (_TINY, _LARGE)
        for features in (False, True)
        for local in (True, False)
    }
    with tempfile.TemporaryDirectory(prefix="glt-calibrate-") as directory:
        task = synthetic_graph(num_nodes, num_features=_NUM_FEATURES)
        partitioner = RandomPartitioner(
            f"{directory}/parts", 2, num_nodes, task.edge_index, node_feat=task.x, edge_assign_strategy="by_dst"
        )
        partitioner.partition()
        given = f"{directory}/parts", list(probes.values()), num_nodes, rounds
        with Cluster(2, measure, *given, deadline_s=deadlines.CALIBRATE_S) as cluster:
            both = cluster.results()
    found = {}
    for key, first, second in zip(probes, *both, strict=True):
        found[key] = Reading(*(sum(pair) / 2 for pair in zip(first, second, strict=True)))
    return _solved(found)


def _solved(found: dict[Any, Reading]) -> Costs:
    """Costs from differences between probes that differ in one thing."""
    tiny, large = found[_TINY, False, True], found[_LARGE, False, True]
    rows = found[_LARGE, True, True]
    tiny_asked, large_asked, rows_asked = (
        found[s, f, False] for s, f in ((_TINY, False), (_LARGE, False), (_LARGE, True))
    )
    num_hops = len(_TINY[0])
    edge_s = (large.cpu_s - tiny.cpu_s) / (large.num_edges - tiny.num_edges)
    message_s = (tiny_asked.cpu_s - tiny.cpu_s) / num_hops
    per_row = 4 * _NUM_FEATURES
    remote_edges_s = large_asked.cpu_s - large.cpu_s - num_hops * message_s
    remote_rows_s = (rows_asked.cpu_s - large_asked.cpu_s) - (rows.cpu_s - large.cpu_s) - message_s
    measured = {
        "batch_s": tiny.cpu_s - tiny.num_edges * edge_s,
        "edge_s": edge_s,
        "row_byte_s": (rows.cpu_s - large.cpu_s) / (rows.num_nodes * per_row),
        "message_s": message_s,
        "remote_edge_s": remote_edges_s / large_asked.remote_edges,
        "wire_byte_s": remote_rows_s / (rows_asked.remote_rows * per_row),
        "round_trip_s": (tiny_asked.wall_s - tiny.wall_s) / num_hops - message_s,  # one after the other
    }
    return Costs(**{name: max(value, 0.0) for name, value in measured.items()})


def measure(trainer: Trainer, path: str, probes: list[Probe], num_nodes: int, rounds: int) -> list[tuple[float, ...]]:
    """What one of the two trainers measures: for each probe the fields of :class:`Reading`."""
    torch.set_num_threads(1)
    meeting = dist.FileStore(f"{path}/../meeting", trainer.world_size)
    dist.init_process_group("gloo", store=meeting, rank=trainer.rank, world_size=trainer.world_size)
    init_worker_group(trainer.world_size, trainer.rank, "calibrate")
    dataset = DistDataset().load(path, trainer.rank)
    found: list[tuple[float, ...]] = []
    for probe in probes:
        options = CollocatedDistSamplingWorkerOptions(
            master_addr="localhost",
            master_port=trainer.port,
            worker_concurrency=1,
            read_local=probe.read_local,
            cache_memory_budget=0,
        )
        seeds = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(trainer.rank))
        with DistNeighborLoader(
            dataset, list(probe.num_neighbors), seeds[: probe.batch_size * probe.num_batches], probe.batch_size,
            collect_features=probe.collect_features, random_seed=trainer.rank, worker_options=options,
        ) as loader:  # fmt: skip
            cpu_s, wall_s = [], []
            for _ in range(1 + rounds):
                dist.barrier()
                cpu, wall = time.process_time(), time.perf_counter()
                num_batches = sum(1 for _ in loader)
                wall_s.append((time.perf_counter() - wall) / num_batches)
                dist.barrier()  # until the other has what it asked this one for
                cpu_s.append((time.process_time() - cpu) / num_batches)
            stats, total = loader.stats(), (1 + rounds) * num_batches
            # Owners are random: half of all that is sampled is the other's.
            num_edges, num_rows = stats["num_edges"] / total, stats["num_remote_nodes"] / total
            found.append(
                (min(cpu_s[1:]), min(wall_s[1:]), num_edges, stats["num_nodes"] / total, num_edges / 2, num_rows)
            )
    dist.destroy_process_group()
    return found
