"""The model: counts times costs, against what hosts have.

Work of a batch is the sum of its stages. Hosts are alike, and each serves others as much as it asks them, so that the
work per batch of a host is that of both ends. Each resource allows so many batches per second; the scarcest is the
bottleneck. Below that the batches in flight queue for cores, network cards and disks: a closed network of queues, whose
rate Reiser and Lavenberg's mean value analysis (1980) gives, with stations of several servers as Seidmann et al. (1987)
have them. Not in it: the slowest of many answers, neighbours on the same network, and rows that samplers keep at run
time (``cache_memory_budget``), which save what a cache of their size saves at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from glt._checks import check_at_least, integer, real_number
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.data.disk import HotRows
from glt.forecast.costs import Costs
from glt.forecast.counts import Counts

# Read off the code, or measured as they say, or by `python -m benchmarks.bench_limits` (the last two).
MESSAGE_BYTES: Final = 1_200  # of a request and its answer on the wire without ids, edges and rows: heads, specs
CHANNEL_BYTES: Final = 256 << 20  # shared memory of a worker's channel
STAMP_BYTES: Final = 4  # per node of the graph and batch in flight: the table that numbers nodes
BASE_BYTES: Final = 300 << 20  # of a process that has imported torch
PAYLOAD: Final = 1448 / 1538  # of what a network card carries: the rest are heads of TCP, IP and Ethernet
UNEVEN: Final = 1.2  # below that a host seems to serve more than others by the chance of the few batches counted
DISK_ROW_US: Final = 2.8  # CPU of reading a row from disk (an Intel Xeon's virtual disk, 2026-11-29)
START_MS: Final = 3_000  # imports of trainer and worker, one after the other
_POOLED: Final = 4  # hosts that are looked at together; more change little, and take longer
MEET_US: Final = 3  # of rank 0, per pair of ranks that tell each other who they are when a loader is made


@short_traceback
@dataclass(frozen=True)
class Shape:
    """How large a graph is: what hosts hold of it.

    Attributes:
        num_nodes, num_edges: Of the whole graph, directed edges.
        bytes_of_row: Features of a node, labels and times too.
        mapped_bytes_of_row: Of these, labels and times, which never stay on disk. The others are taken for one table.

    Raises:
        TypeError, ValueError: If a number is out of range.

    Example:
        >>> glt.forecast.Shape(num_nodes=111_059_956, num_edges=3_231_371_744, bytes_of_row=256).num_bytes(8)
        9289455856
    """

    num_nodes: int
    num_edges: int
    bytes_of_row: int = 0
    mapped_bytes_of_row: int = 0

    def __post_init__(self) -> None:
        check_at_least("num_nodes", self.num_nodes, 1)
        check_at_least("num_edges", self.num_edges, 0)
        integer("bytes_of_row", self.bytes_of_row, 0, 1 << 40, "bytes of the features of a node")
        integer("mapped_bytes_of_row", self.mapped_bytes_of_row, 0, self.bytes_of_row, "bytes, of bytes_of_row")

    @property
    def disk_bytes_of_row(self) -> int:
        """Those that may stay on disk."""
        return self.bytes_of_row - self.mapped_bytes_of_row

    @property
    def book_bytes(self) -> int:
        """Owner and row of each node, which every host has."""
        return 6 * self.num_nodes

    def num_bytes(self, num_parts: int) -> int:
        """Edges, ids and rows of one of so many partitions, and the book."""
        id_bytes = 4 if self.num_nodes < 2**31 else 8
        edge_bytes = 4 if self.num_edges < 2**31 else 8
        nodes = self.num_nodes * (8 + 8 + self.bytes_of_row)
        return (nodes + self.num_edges * (id_bytes + edge_bytes)) // num_parts + self.book_bytes


@short_traceback
@dataclass(frozen=True)
class Cluster:
    """What a host has; all are alike.

    Attributes:
        num_hosts: Hosts, of one partition each.
        num_cores: Cores of a host that sample, its trainers' own left out; may be a fraction, as of a container.
        nic_gbit: Network card, Gbit/s in each direction.
        rtt_ms: Round trip between hosts, milliseconds.
        disk_mb_s: Reading partitions, MB/s, and rows that are not in memory.
        disk_reads_per_s: Rows that the disk reads at random per second, as ``fio`` with a queue of 128 reads tells.
        memory_gb: Memory of a host, GB.
        feature_memory_gb: Of it for rows of features, GB; the others stay on disk. None: all are in memory.
        num_trainers: Trainers of a host, one per GPU.
        step_ms: What a trainer takes for a batch, milliseconds; 0: it is never the slow one.
        num_workers: Sampling processes per host; 0: as many as there are cores.
        worker_concurrency: Batches in flight per sampling process.

    Raises:
        TypeError, ValueError: If a value is out of range; names it.

    Example:
        >>> glt.forecast.Cluster(num_hosts=8, nic_gbit=25).num_hosts
        8
    """

    num_hosts: int = 2
    num_cores: float = 16
    nic_gbit: float = 25.0
    rtt_ms: float = 0.2
    disk_mb_s: float = 1000.0
    disk_reads_per_s: float = 100_000.0
    memory_gb: float = 64.0
    feature_memory_gb: float | None = None
    num_trainers: int = 1
    step_ms: float = 0.0
    num_workers: int = 0
    worker_concurrency: int = 4

    def __post_init__(self) -> None:
        integer("num_hosts", self.num_hosts, 1, 1 << 16, "hosts of one partition each")
        integer("num_trainers", self.num_trainers, 1, 1 << 10, "trainers of a host")
        integer("num_workers", self.num_workers, 0, 1 << 12, "sampling processes of a host, 0 for one per core")
        integer("worker_concurrency", self.worker_concurrency, 1, 1024, "batches in flight per sampling process")
        for name in ("num_cores", "nic_gbit", "disk_mb_s", "disk_reads_per_s", "memory_gb"):
            real_number(name, getattr(self, name), above=True)
        if self.feature_memory_gb is not None:
            real_number("feature_memory_gb", self.feature_memory_gb)
        for name in ("rtt_ms", "step_ms"):
            real_number(name, getattr(self, name))

    @property
    def workers(self) -> int:
        return self.num_workers or max(1, int(self.num_cores))

    def memory_ratio(self, shape: Shape) -> float:
        """The share of its rows that a host keeps in memory."""
        rows = shape.num_nodes / self.num_hosts
        if self.feature_memory_gb is None or self.feature_memory_gb * 1e9 >= rows * shape.disk_bytes_of_row:
            return 1.0
        return self.feature_memory_gb * 1e9 / (rows * HotRows.bytes_of_row(shape.disk_bytes_of_row))


@dataclass(frozen=True)
class JobForecast:
    """What a job will do.

    Attributes:
        cpu_s: CPU seconds per batch by stage, both ends: ``sampling``, ``gathering``, ``messages``, ``transfer``,
            ``disk``, ``batch``.
        sent_bytes: That a host sends per batch, and receives.
        disk_s: For which a batch keeps the disk of a host busy.
        latency_s: Of one batch on idle hosts; ``waiting_s`` of it for other hosts, and ``disk_s`` for the disk.
        batches_per_s: Of all hosts together.
        limits: Batches per second of the whole job that each resource alone allows.
        memory_bytes: Of a host.
        start_s: Until the first batch is asked for.

    Example:
        >>> csr = glt.testing.ring_graph().to_dataset().get_graph().csr
        >>> tracer = glt.forecast.GraphTracer([csr], 40, [2, 2])
        >>> placement = glt.forecast.Placement(np.arange(40) % 2, 2)
        >>> counts = glt.forecast.count_batches([tracer.trace(np.array([5, 7]))], [0], placement)
        >>> glt.forecast.forecast_job(counts, glt.forecast.Shape(40, 80), glt.forecast.Cluster(2)).fits
        True
    """

    cluster: Cluster
    counts: Counts
    cpu_s: dict[str, float]
    sent_bytes: float
    disk_s: float
    latency_s: float
    waiting_s: float
    batches_per_s: float
    limits: dict[str, float]
    memory_bytes: int
    start_s: float

    @property
    def bottleneck(self) -> str:
        """The resource that allows the fewest batches, in words."""
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def fits(self) -> bool:
        """Whether the memory of a host suffices."""
        return self.memory_bytes <= self.cluster.memory_gb * 1e9

    @says
    def __repr__(self) -> str:
        rate = f"{self.batches_per_s:.4g} batches/s limited by {self.bottleneck}"
        return f"{self.cluster.num_hosts} hosts, {rate}, {self.memory_bytes / 1e9:.1f} GB per host"


def forecast_job(
    counts: Counts, shape: Shape, cluster: Cluster, costs: Costs | None = None, *, cache_ratio: float = 0.0
) -> JobForecast:
    """Forecasts a job from the counts of its batches.

    Args:
        counts: Of :func:`count_batches`, for as many partitions as the cluster has hosts, and with the
            ``memory_ratio`` of the cluster.
        shape: The graph.
        cluster: The hosts.
        costs: Default: ``Costs()``.
        cache_ratio: The cache that was counted with, whose rows take memory.

    Example:
        >>> tracer = glt.forecast.GraphTracer([glt.testing.ring_graph().to_dataset().get_graph().csr], 40, [2, 2])
        >>> placement = glt.forecast.Placement(np.arange(40) % 2, 2)
        >>> counts = glt.forecast.count_batches([tracer.trace(np.array([5, 7]))], [0], placement, bytes_of_row=16)
        >>> shape = glt.forecast.Shape(40, 80, bytes_of_row=16)
        >>> glt.forecast.forecast_job(counts, shape, glt.forecast.Cluster(2)).bottleneck
        'cores that sample'
    """
    costs = Costs() if costs is None else costs
    hosts, workers = cluster.num_hosts, cluster.workers
    row_bytes = counts.num_nodes * shape.bytes_of_row
    cpu_s = {
        "sampling": counts.num_edges * costs.edge_s,
        "gathering": row_bytes * costs.row_byte_s,
        "messages": counts.num_messages * costs.message_s,
        "transfer": counts.remote_edges * costs.remote_edge_s + counts.row_bytes * costs.wire_byte_s,
        "disk": counts.disk_rows * DISK_ROW_US / 1e6,
        "batch": costs.batch_s,
    }
    read_s = max(1 / cluster.disk_reads_per_s, shape.disk_bytes_of_row / (cluster.disk_mb_s * 1e6))
    disk_s = counts.disk_rows * read_s
    sent_bytes = counts.remote_bytes + counts.request_bytes + counts.num_messages * MESSAGE_BYTES
    nic = cluster.nic_gbit * 1e9 / 8 * PAYLOAD
    delay_s = counts.num_waits * (cluster.rtt_ms * 1e-3 + costs.round_trip_s)
    waiting_s = delay_s + sent_bytes / nic
    total_s = sum(cpu_s.values())
    latency_s = total_s + waiting_s + disk_s
    num_in_flight = hosts * workers * cluster.worker_concurrency
    limits = {
        "cores that sample": hosts * cluster.num_cores / total_s,
        "batches in flight": num_in_flight / latency_s,
    }
    if disk_s > 0:
        limits["disks"] = hosts / disk_s
    if cluster.step_ms > 0:
        limits["trainers"] = hosts * cluster.num_trainers / (cluster.step_ms * 1e-3)
    if counts.num_messages > 0:
        # A host serves others on one Python thread per process; one that owns more than others limits all.
        uneven_s = total_s + (counts.most_served - 1) * (cpu_s["messages"] + cpu_s["transfer"]) / 2
        limits["Python threads of the workers"] = hosts * workers / (cpu_s["messages"] + cpu_s["batch"])
        limits["network cards"] = hosts * nic / sent_bytes
        if counts.most_served > UNEVEN:
            limits["cores of the host that owns most"] = hosts * cluster.num_cores / uneven_s
            limits["network card of the host that owns most"] = hosts * nic / (sent_bytes * counts.most_served)
            if disk_s > 0:
                limits["disk of the host that owns most"] = hosts / (disk_s * counts.most_served)
    pooled = min(hosts, _POOLED)
    stations = [(total_s, pooled * cluster.num_cores), (sent_bytes / nic, float(pooled)), (disk_s, float(pooled))]
    queued = _rate_of_queues(stations, delay_s, num_in_flight * pooled // hosts) * hosts / pooled
    message_bytes = row_bytes + 8 * counts.num_nodes + 16 * counts.num_edges
    memory_ratio, loaded, hot_bytes, hot_s = cluster.memory_ratio(shape), shape.num_bytes(hosts), 0, 0.0
    if memory_ratio < 1:
        rows = shape.num_nodes / hosts
        table_bytes, hot_rows = int(rows * shape.disk_bytes_of_row), memory_ratio * rows
        loaded -= table_bytes
        hot_bytes = int(hot_rows * HotRows.bytes_of_row(shape.disk_bytes_of_row))
        hot_s = min(hot_rows * read_s, table_bytes / (cluster.disk_mb_s * 1e6))
    memory = loaded + hot_bytes + cache_ratio * shape.num_nodes * (shape.bytes_of_row + 8)
    memory += num_in_flight // hosts * (STAMP_BYTES * shape.num_nodes + message_bytes)
    memory += workers * (CHANNEL_BYTES + BASE_BYTES) + cluster.num_trainers * BASE_BYTES
    return JobForecast(
        cluster=cluster,
        counts=counts,
        cpu_s=cpu_s,
        sent_bytes=sent_bytes,
        disk_s=disk_s,
        latency_s=latency_s,
        waiting_s=waiting_s,
        batches_per_s=min(queued, *limits.values()),
        limits=limits,
        memory_bytes=int(memory),
        start_s=START_MS / 1e3
        + loaded / (cluster.disk_mb_s * 1e6)
        + hot_s
        + (hosts * cluster.num_trainers) ** 2 * MEET_US / 1e6,
    )


def _rate_of_queues(stations: Sequence[tuple[float, float]], delay_s: float, num_in_flight: int) -> float:
    """Batches per second.

    Args:
        stations: For each kind of resource the seconds that a batch needs of one, and how many there are.
        delay_s: What a batch waits for besides.
        num_in_flight: Batches of all hosts.
    """
    # Of less than one, as of half a core, there is one that takes longer.
    stations = [(seconds / min(count, 1.0), max(count, 1.0)) for seconds, count in stations]
    delay_s += sum(seconds * (count - 1) / count for seconds, count in stations)
    queues, rate = [0.0] * len(stations), 0.0
    for number in range(1, num_in_flight + 1):
        stays = [seconds / count * (1 + queue) for (seconds, count), queue in zip(stations, queues, strict=True)]
        rate = number / (delay_s + sum(stays))
        queues = [rate * stay for stay in stays]
    return rate
