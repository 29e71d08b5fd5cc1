"""Measures what units of work cost on this machine, by running a small job of two trainers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from glt import _deadlines as deadlines
from glt.data.synthetic import synthetic_graph
from glt.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions, init_worker_group
from glt.forecast.costs import Costs
from glt.partition import RandomPartitioner
from glt.testing.cluster import Cluster, Trainer, take_census

_NUM_NODES, _NUM_FEATURES = 100_000, 128


@dataclass(frozen=True)
class Probe:
    """What is run to measure costs: batches of so many seeds, read here or asked for."""

    num_neighbors: tuple[int, ...]
    batch_size: int
    collect_features: bool
    read_local: bool
    num_batches: int
    alone: bool = False  # only the first trainer has batches, and one at a time

    @property
    def num_messages(self) -> int:
        return 0 if self.read_local else len(self.num_neighbors) + self.collect_features


@dataclass(frozen=True)
class Reading:
    """What batches of a probe took, and held, on average; ``cpu_s`` of both trainers."""

    cpu_s: float
    wall_s: float
    num_edges: float
    num_nodes: float
    remote_edges: float
    remote_rows: float


# Requests of the smallest are answered on the loop of a sampler, those of others by its threads.
_SIZES = (((2, 2, 2), 32, 128), ((10, 5), 128, 64), ((15, 10, 5), 1024, 12))


def calibrate(
    rounds: int = 3,
    *,
    edge_index: torch.Tensor | None = None,
    node_feat: torch.Tensor | None = None,
    place: Callable[[int], str] | None = None,
) -> Costs:
    """Measures costs with two trainers over loopback, each with a sampling process of four batches at a time: local
    and asked for, tiny to large, with and without features. Takes about a minute of two cores and 1 GB; other work
    on the machine raises what it finds.

    Args:
        rounds: Measured rounds of each; the median counts.
        edge_index: The graph that is sampled, ``[2, num_edges]``. Costs per edge and byte depend on the graph, by a
            third or so. Default: a synthetic one of 100 thousand nodes with 16 edges and 512 bytes of features each.
        node_feat: Its features ``[num_nodes, *]``; given with ``edge_index``.
        place: Called in each trainer's process with its rank, before all else: may move it to a network namespace;
            returns rank 0's address. A function that can be pickled. Default: both are on localhost.

    Raises:
        OSError, RuntimeError: If the two trainers cannot run.
        ValueError: If one of ``edge_index`` and ``node_feat`` is missing.

    Example:
        >>> glt.forecast.calibrate().write("costs.json")  # doctest: +SKIP
    """
    if (edge_index is None) != (node_feat is None):
        missing = "edge_index" if edge_index is None else "node_feat"
        raise ValueError(f"{missing} = None: expected edge_index and node_feat, or neither for a synthetic graph")
    probes = [
        Probe(num_neighbors, batch_size, features, local, num_batches)
        for num_neighbors, batch_size, num_batches in _SIZES
        for features in (False, True)
        for local in (True, False)
    ]
    probes += [Probe(*_SIZES[0][:2], True, local, _SIZES[0][2], alone=True) for local in (True, False)]
    with tempfile.TemporaryDirectory(prefix="glt-calibrate-") as directory:
        if edge_index is None or node_feat is None:
            task = synthetic_graph(_NUM_NODES, num_features=_NUM_FEATURES)
            edge_index, node_feat = task.edge_index, task.x
        num_nodes = len(node_feat)
        partitioner = RandomPartitioner(
            f"{directory}/parts", 2, num_nodes, edge_index, node_feat=node_feat, edge_assign_strategy="by_dst"
        )
        partitioner.partition()
        given = f"{directory}/parts", probes, num_nodes, rounds, place
        with Cluster(2, measure, *given, deadline_s=deadlines.CALIBRATE_S) as cluster:
            both = cluster.results()
    readings = [Reading(*(sum(pair) / 2 for pair in zip(*each, strict=True))) for each in zip(*both, strict=True)]
    return _solved(probes, readings, node_feat.element_size() * node_feat[0].numel())


def _solved(probes: Sequence[Probe], readings: Sequence[Reading], per_row: int) -> Costs:
    """The costs of at least 0 that explain what batches took, by least squares of relative errors."""
    local, asked = readings[-2:]
    # Of one trainer alone all work and waiting is one after the other; a pair's mean is half of what the one took.
    waited_s = 2 * (asked.wall_s - local.wall_s - asked.cpu_s + local.cpu_s)
    units, took = [], []
    for probe, reading in zip(probes[:-2], readings, strict=False):
        row_bytes = reading.num_nodes * per_row if probe.collect_features else 0.0
        away = 0.0 if probe.read_local else 1.0
        units.append(
            (1.0, reading.num_edges, row_bytes, probe.num_messages, away * reading.remote_edges,
             away * reading.remote_rows * per_row)
        )  # fmt: skip
        took.append(reading.cpu_s)
    names = ["batch_s", "edge_s", "row_byte_s", "message_s", "remote_edge_s", "wire_byte_s"]
    used = list(range(len(names)))
    while True:
        system = np.array(units)[:, used] / np.array(took)[:, None]
        scale = system.max(axis=0)
        solved = np.linalg.lstsq(system / scale, np.ones(len(took)), rcond=None)[0] / scale
        if solved.min() >= 0:
            break
        used.pop(int(solved.argmin()))  # it explains nothing
    costs = dict.fromkeys(names, 0.0) | {names[at]: float(cost) for at, cost in zip(used, solved, strict=True)}
    return Costs(**costs, round_trip_s=max(waited_s / probes[-1].num_messages, 0.0))


def cpu_seconds() -> float:
    """CPU time so far of this process and its children."""
    clocks = (~pid << 3 | 2 for pid in take_census().children)  # as clock_getcpuclockid has it
    return time.process_time() + sum(map(time.clock_gettime, clocks))


def measure(
    trainer: Trainer,
    path: str,
    probes: list[Probe],
    num_nodes: int,
    rounds: int,
    place: Callable[[int], str] | None,
) -> list[tuple[float, ...]]:
    """What one of the two trainers measures: for each probe the fields of :class:`Reading`."""
    torch.set_num_threads(1)
    address = "localhost" if place is None else place(trainer.rank)
    meeting = dist.FileStore(f"{path}/../meeting", trainer.world_size)
    dist.init_process_group("gloo", store=meeting, rank=trainer.rank, world_size=trainer.world_size)
    init_worker_group(trainer.world_size, trainer.rank, "calibrate")
    dataset = DistDataset().load(path, trainer.rank)
    found: list[tuple[float, ...]] = []
    for probe in probes:
        options = MpDistSamplingWorkerOptions(
            master_addr=address,
            master_port=trainer.port,
            num_workers=1,
            worker_concurrency=1 if probe.alone else 4,
            read_local=probe.read_local,
            cache_memory_budget=0,
        )
        seeds = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(trainer.rank))
        with DistNeighborLoader(
            dataset, list(probe.num_neighbors), seeds[: probe.batch_size * probe.num_batches], probe.batch_size,
            collect_features=probe.collect_features, random_seed=trainer.rank, worker_options=options,
        ) as loader:  # fmt: skip
            cpu_s, wall_s = [], []
            is_idle = probe.alone and trainer.rank > 0
            for _ in range(1 + rounds):
                dist.barrier()
                cpu, wall = cpu_seconds(), time.perf_counter()
                num_batches = probe.num_batches if is_idle else sum(1 for _ in loader)
                wall_s.append((time.perf_counter() - wall) / num_batches)
                dist.barrier()  # until the other has what it asked this one for
                cpu_s.append((cpu_seconds() - cpu) / num_batches)
            stats, total = loader.stats(), (1 + rounds) * num_batches
            # Owners are random: half of all that is sampled is the other's.
            num_edges, num_rows = stats["num_edges"] / total, stats["num_remote_nodes"] / total
            found.append(
                (median(cpu_s[1:]), median(wall_s[1:]), num_edges, stats["num_nodes"] / total, num_edges / 2, num_rows)
            )
    dist.destroy_process_group()
    return found
