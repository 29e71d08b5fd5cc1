"""What a batch asks of other hosts, from 2 to 1,024 of them: rows, messages, owners, by placement, cache and seeds.

Claims: counts are exact. A cache earns more than where nodes are placed, unless trainers have the seeds that are local
and the graph has communities. A batch asks all other hosts, four times each, whatever the placement.

Method: graphs without isolated nodes, ids dealt anew. 64 batches (M and papers: 32) of 1,024 seeds, [15,
10, 5], are sampled once, and each is looked at from several hosts, since a batch does not depend on where nodes are;
:func:`glt.forecast.count_batches` counts. ``rows_C`` are rows that other hosts are asked for, with a cache of C percent
of all nodes (0: all nodes of a batch that others own), the hottest by ``sample_prob`` (M and papers: by 256 batches),
``rows_C_window`` the same with ``gather_window=8``. ``messages_C`` are requests, those of hops included, ``peers_C``
distinct owners that a batch asks, ``mb_C`` megabytes that a host sends, of rows of 512 bytes. ``served`` is what the
busiest host serves, over the mean; with few batches counted and many hosts, some of it is chance. Seeds are dealt at
random ("any"), or "local": each host trains on those that it owns, and where these are less than a batch nothing is
counted.

``slashdot`` is a real graph, soc_slashdot0902 made symmetric; S and M are R-MAT; ``papers`` is drawn like
ogbn-papers100M made symmetric, a sixteenth of it: 6.9 million nodes, 202 million edges, 29 per node as there, Chung-Lu
weights of exponent 2.5 with no expected degree above 26,000, and communities of 10,000 nodes, in which six of ten edges
stay. All nodes are seeds, of papers 1.2 million, as many as the original has, so that 1,024 hosts have a batch each.
METIS takes 9 GB of memory on M, and is run on slashdot and S. Frequency placement takes one ``sample_prob`` per host,
and is run up to 64 hosts on S, 16 on slashdot, 8 on others; its "local" seeds are those of the METIS or else the Fennel
partition. ``S, a tenth`` has a tenth of the nodes as seeds, as ``bench_cache`` and the reference's tutorial have it.
Rows of graphs and hosts that are not asked for stay as they were in the results. Five minutes of one
core; M and papers an hour and 5 GB.

    python -m benchmarks.bench_scale [--graphs slashdot S M papers] [--hosts 2 8 64] [--toy]
    python -m benchmarks.plot_scale         # the pictures of docs/scale.md
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import glt
from benchmarks import graphs
from benchmarks._harness import RESULTS, Report, arguments, find_peers
from benchmarks.partitioned import scratch_dir
from glt.forecast import Cluster, GraphTracer, Placement, Shape, forecast_job
from glt.forecast.grid import SeedBatches, count_grid, random_owners

FAN_OUT, BATCH_SIZE, ROW_BYTES = [15, 10, 5], 1024, 512
HOSTS, SOME_HOSTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), (8, 64, 1024)
CACHES, WINDOW, WINDOW_CACHES = (0.0, 0.01, 0.05, 0.1, 0.2), 8, (0.0, 0.1)
GRAPHS, REAL = ("slashdot", "S", "M", "papers"), "soc_slashdot0902"
PAPERS_NODES, PAPERS_DRAWS, PAPERS_DEGREE, COMMUNITY = 111_059_956 // 16, 1_615_685_872 // 16, 26_000, 10_000


@dataclass(frozen=True)
class World:
    """A graph whose nodes all have edges, and the seeds of all trainers."""

    name: str
    indptr: np.ndarray
    indices: np.ndarray
    seeds: np.ndarray
    hosts: tuple[int, ...]
    has_metis: bool = True
    is_computed: bool = True  # hotness by sample_prob
    most_frequency: int = 8  # hosts
    num_batches: int = 32

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    def edge_index(self) -> np.ndarray:
        """Each edge once, of the two directions that the graph has: what partitioners are to look at."""
        target = np.repeat(np.arange(self.num_nodes, dtype=np.int32), np.diff(self.indptr))
        once = self.indices < target
        return np.stack([self.indices[once], target[once]])


def connected(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the nodes that have edges, renumbered."""
    nodes = np.flatnonzero(np.diff(indptr))
    number = np.zeros(len(indptr) - 1, np.int32)
    number[nodes] = np.arange(len(nodes), dtype=np.int32)
    return np.append(indptr[nodes], len(indices)), number[indices]


def slashdot() -> tuple[np.ndarray, np.ndarray]:
    """The rows of the real graph, each edge in both directions."""
    with np.load(graphs.DATA_ROOT / f"{REAL}.npz", allow_pickle=False) as file:
        ends = file["edge_index"].astype(np.int64)
    keys = np.unique(np.concatenate([ends[0] << 32 | ends[1], ends[1] << 32 | ends[0]]))
    keys = keys[keys >> 32 != keys & (2**32 - 1)]
    return np.cumsum([0, *np.bincount(keys >> 32)]), keys.astype(np.int32)  # the low 32 bits


def papers(num_nodes: int = PAPERS_NODES, num_draws: int = PAPERS_DRAWS) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a symmetric graph, kept as those of :mod:`benchmarks.graphs` are."""
    paths = [graphs.cache_dir() / f"papers-{num_nodes}.{part}.npy" for part in ("indptr", "indices")]
    if not all(path.exists() for path in paths):
        graphs.cache_dir().mkdir(parents=True, exist_ok=True)
        for path, array in zip(paths, draw_papers(num_nodes, num_draws), strict=True):
            np.save(path, array)
    indptr, indices = (np.load(path, mmap_mode="r") for path in paths)
    return indptr, indices


def draw_papers(num_nodes: int, num_draws: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    weight = (rng.pareto(1.5, num_nodes) + 1) * 1.0  # exponent 2.5
    for _ in range(3):  # the mean moves as the largest are cut
        weight = np.minimum(weight, weight.mean() * PAPERS_DEGREE * num_nodes / (2 * num_draws))
    total = np.cumsum(weight)
    number = rng.permutation(num_nodes)
    keys = np.empty(2 * num_draws, np.int64)  # an edge u -> v as u << 32 | v: sorting them sorts by row
    for begin in range(0, num_draws, graphs.CHUNK):
        size = min(graphs.CHUNK, num_draws - begin)
        source = np.searchsorted(total, np.sort(rng.random(size)) * total[-1]).clip(max=num_nodes - 1)
        first = source // COMMUNITY * COMMUNITY
        last = np.minimum(first + COMMUNITY, num_nodes) - 1
        inside = rng.random(size) < 0.6
        low = np.where(inside & (first > 0), total[first - 1], 0.0)
        high = np.where(inside, total[last], total[-1])
        target = np.searchsorted(total, low + rng.random(size) * (high - low)).clip(max=num_nodes - 1)
        u, v = number[source], number[target]
        keys[2 * begin : 2 * begin + size] = u << 32 | v
        keys[2 * begin + size : 2 * (begin + size)] = v << 32 | u
    keys.sort()
    indptr, indices = np.zeros(num_nodes + 1, np.int64), np.empty(len(keys), np.int32)
    for begin in range(0, len(keys), graphs.CHUNK):
        chunk = slice(begin, begin + graphs.CHUNK)
        indptr[1:] += np.bincount(keys[chunk] >> 32, minlength=num_nodes)
        indices[chunk] = keys[chunk]  # the low 32 bits
    return np.cumsum(indptr, out=indptr), indices


def worlds(names: list[str], toy: bool) -> Iterator[World]:
    rng = np.random.default_rng(0)
    if toy:
        graph = graphs.load("toy")
        rows = connected(graph.indptr, graph.indices)
        yield World("toy", *rows, np.arange(len(rows[0]) - 1), (2, 16))
        indptr, indices = papers(5000, 70_000)
        yield World("papers", indptr, indices, np.arange(5000), (2,), has_metis=False, is_computed=False)
        return
    for name in names:
        if name == "papers":
            indptr, indices = papers()
            seeds = rng.choice(len(indptr) - 1, 1_207_179, replace=False)
            yield World("papers", indptr, indices, seeds, SOME_HOSTS, has_metis=False, is_computed=False)
            continue
        if name == "slashdot" and not (graphs.DATA_ROOT / f"{REAL}.npz").exists():
            print(f"absent: {REAL} in {graphs.DATA_ROOT}")
            continue
        graph = graphs.load(name) if name != "slashdot" else None
        rows = connected(*(slashdot() if graph is None else (graph.indptr, graph.indices)))
        seeds = rng.permutation(len(rows[0]) - 1)
        if name == "M":
            yield World(name, *rows, seeds, SOME_HOSTS, has_metis=False, is_computed=False)
        else:
            yield World(name, *rows, seeds, HOSTS, most_frequency=64 if name == "S" else 16, num_batches=64)
        if name == "S":
            yield World("S, a tenth", *rows, seeds[: len(seeds) // 10], (2, 4, 8), num_batches=64)


def hotness_of(world: World, tracer: GraphTracer, seeds: np.ndarray, sampler: Any) -> np.ndarray:
    if sampler is None:
        return tracer.hotness(seeds, BATCH_SIZE)
    return sampler.sample_prob(torch.from_numpy(seeds), world.num_nodes, batch_size=BATCH_SIZE).numpy()  # type: ignore[no-any-return]


def owners(name: str, world: World, num_hosts: int, edge_index: np.ndarray, probs: list[np.ndarray]) -> np.ndarray:
    if name == "random":
        return random_owners(world.num_nodes, num_hosts)
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "fennel": (glt.partition.FennelPartitioner, {"balance_edges": True}),
        "metis": (glt.partition.MetisPartitioner, {"balance_edges": True}),
        "frequency": (glt.partition.FrequencyPartitioner, {"probs": probs}),
    }
    kind, options = kinds[name]
    with scratch_dir() as directory:
        given = directory / "parts", num_hosts, world.num_nodes, edge_index
        return kind(*given, edge_assign_strategy="by_dst", **options).assign_nodes(0, world.num_nodes)  # type: ignore[no-any-return]


def measure(report: Report, world: World, hosts: tuple[int, ...]) -> None:
    tracer = GraphTracer.of_arrays(np.asarray(world.indptr), np.asarray(world.indices), FAN_OUT)
    edge_index = world.edge_index()
    num_edges = len(world.indices)
    sampler = None
    if world.is_computed:
        ends = torch.from_numpy(edge_index)
        topology = glt.data.Topology(torch.cat([ends, ends.flip(0)], 1), world.num_nodes, layout="CSC")
        sampler = glt.sampler.NeighborSampler(glt.data.Graph(topology), FAN_OUT)
    size = BATCH_SIZE if not report.toy else 64
    hotness = hotness_of(world, tracer, world.seeds, sampler)
    batches = SeedBatches(tracer, world.seeds, size, world.num_batches)
    shape = Shape(world.num_nodes, num_edges, ROW_BYTES)

    def count(name: str, seeds_name: str, seeds: SeedBatches, placement: Placement, took_s: float) -> None:
        if not seeds:
            return
        cluster = Cluster(placement.num_parts)
        grid = {"bytes_of_row": ROW_BYTES, "num_edges": num_edges}
        counted = count_grid(seeds, placement, cache_ratios=CACHES, windows=[1], **grid)
        counted |= count_grid(seeds, placement, cache_ratios=WINDOW_CACHES, windows=[WINDOW], **grid)
        bare = counted[0.0, 1]
        row: dict[str, Any] = {
            "graph": world.name, "placement": name, "seeds": seeds_name, "hosts": placement.num_parts,
            "nodes": bare.num_nodes, "edges": bare.num_edges,
            "remote_expanded": sum(bare.remote_frontier), "hop_messages": sum(bare.hop_requests),
            "served": bare.most_served,
        }  # fmt: skip
        for (ratio, window), counts in counted.items():
            percent = f"{round(100 * ratio)}"
            if window > 1:
                row[f"rows_{percent}_window"] = counts.remote_rows
                continue
            row[f"rows_{percent}"] = counts.remote_rows
            if ratio in (0.0, 0.2):
                row |= {f"messages_{percent}": counts.num_messages, f"peers_{percent}": counts.peers}
                row[f"mb_{percent}"] = forecast_job(counts, shape, cluster).sent_bytes / 1e6
        row["assign_s"] = took_s
        report.add(**{key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})

    for num_hosts in hosts:
        locals_of: dict[str, np.ndarray] = {}
        for name in ("random", "fennel", "metis"):
            if name == "metis" and not (world.has_metis and find_peers("pymetis")):
                continue
            began = time.perf_counter()
            owner = locals_of[name] = owners(name, world, num_hosts, edge_index, [])
            took = time.perf_counter() - began
            placement = Placement(owner, num_hosts, hotness)
            count(name, "any", batches, placement, took)
            mine = [world.seeds[owner[world.seeds] == host] for host in range(num_hosts)]
            count(name, "local", SeedBatches(tracer, mine, size, world.num_batches), placement, took)
        if num_hosts <= world.most_frequency:
            splits = {"any": np.array_split(world.seeds, num_hosts)}
            cut = locals_of.get("metis", locals_of["fennel"])
            splits["local"] = [world.seeds[cut[world.seeds] == host] for host in range(num_hosts)]
            for seeds_name, split in splits.items():
                probs = [hotness_of(world, tracer, each, sampler) for each in split]
                began = time.perf_counter()
                owner = owners("frequency", world, num_hosts, edge_index, probs)
                took = time.perf_counter() - began
                seeds = SeedBatches(tracer, split, size, world.num_batches)
                count("frequency", seeds_name, seeds, Placement(owner, num_hosts, np.stack(probs)), took)
        print(f"{world.name}: {num_hosts} hosts counted", flush=True)


def is_asked(row: dict[str, Any], names: list[str], hosts: list[int]) -> bool:
    return row["graph"].partition(",")[0] in names and row["hosts"] in hosts


def main() -> None:
    options = arguments(
        __doc__, rounds=1,
        graphs={"nargs": "*", "default": list(GRAPHS[:2]), "choices": GRAPHS},
        hosts={"nargs": "*", "type": int, "default": list(HOSTS)},
    )  # fmt: skip
    torch.set_num_threads(1)
    report = Report("scale", options.toy)
    print("glt.forecast")
    if not options.toy and (RESULTS / "scale.json").exists():
        kept = json.loads((RESULTS / "scale.json").read_text())["rows"]
        report.rows += [row for row in kept if not is_asked(row, options.graphs, options.hosts)]
    for world in worlds(options.graphs, options.toy):
        measure(report, world, tuple(n for n in world.hosts if n in options.hosts))
    report.rows.sort(key=lambda row: row["hosts"])
    report.rows.sort(key=lambda row: row["graph"])
    report.finish()


if __name__ == "__main__":
    main()
