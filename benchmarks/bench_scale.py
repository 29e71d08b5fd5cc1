"""What a batch asks of other hosts, from 2 to 1,024 of them: rows, messages, bytes, by placement, cache and seeds.

Claims: counts are exact. A cache earns more than where nodes are placed, unless trainers have the seeds that are local.
From some dozens of hosts on, messages cost more than all else.

Method: graphs without their isolated nodes, whose ids are dealt anew. 64 batches of 1,024 seeds, [15, 10, 5], are
sampled once, and each is looked at from several hosts: a batch does not depend on where nodes are. ``rows_C`` are rows
that are asked for with a cache of C percent of the nodes, the hottest by ``sample_prob`` (papers: by 256 batches);
``messages_C`` are requests, those of hops included, ``mb_C`` megabytes that a host sends. ``window`` is
``gather_window``. ``served`` is what the busiest host serves, over the mean; with few batches counted and many hosts,
some of it is chance. Seeds are dealt at random, or ``local``: each host trains on those that it owns; where these are
less than a batch nothing is counted. ``batches_per_s`` is the model's (:mod:`glt.forecast.model`), without a cache, for
hosts of 16 cores, 25 Gbit/s and 0.2 ms, with ``Costs()``.

``papers`` is drawn like ogbn-papers100M made symmetric, a sixteenth of it: 6.9 million nodes, 202 million edges, 29 per
node as there, Chung-Lu weights of exponent 2.5 with no expected degree above 26,000, and communities of 10,000 nodes,
in which six of ten edges stay. Its seeds are 1.2 million, as many as the original's. METIS takes 9 GB of memory on M,
and is run on S. Frequency placement takes 4 bytes per node and host, and is run up to 8. ``S, a tenth`` has a tenth of
the nodes as seeds, as ``bench_cache`` and the reference's tutorial have it. Rows of graphs that are not asked for stay
as they were in the results.

    python -m benchmarks.bench_scale [--graphs S M papers] [--hosts 2 8 64] [--toy]
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
from glt.forecast import Cluster, Costs, GraphTracer, Placement, Shape, forecast_job
from glt.forecast.grid import SeedBatches, count_grid, random_owners

FAN_OUT, BATCH_SIZE, NUM_BATCHES, ROW_BYTES = [15, 10, 5], 1024, 64, 512
HOSTS = (2, 4, 8, 16, 64, 256, 1024)
CACHES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
MOST_FREQUENCY = 8  # hosts
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

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    def edge_index(self) -> np.ndarray:
        """Each edge once, of the two directions that the graph has: what partitioners are to look at."""
        target = np.repeat(np.arange(self.num_nodes, dtype=np.int32), np.diff(self.indptr))
        once = self.indices < target
        return np.stack([self.indices[once], target[once]])


def connected(graph: graphs.BenchGraph) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the nodes that have edges, renumbered."""
    nodes = graph.connected_nodes()
    number = np.zeros(graph.num_nodes, np.int32)
    number[nodes] = np.arange(len(nodes), dtype=np.int32)
    return np.append(graph.indptr[nodes], graph.num_edges), number[graph.indices]


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
        rows = connected(graphs.load("toy"))
        yield World("toy", *rows, np.arange(len(rows[0]) - 1), (2, 16))
        indptr, indices = papers(5000, 70_000)
        yield World("papers", indptr, indices, np.arange(5000), (2,), has_metis=False, is_computed=False)
        return
    for name in names:
        if name == "papers":
            indptr, indices = papers()
            seeds = rng.choice(len(indptr) - 1, 1_207_179, replace=False)
            yield World("papers", indptr, indices, seeds, HOSTS, has_metis=False, is_computed=False)
            continue
        rows = connected(graphs.load(name))
        num_nodes = len(rows[0]) - 1
        yield World(name, *rows, rng.permutation(num_nodes), HOSTS, has_metis=name == "S")
        if name == "S":
            yield World("S, a tenth", *rows, rng.permutation(num_nodes)[: num_nodes // 10], (2, 4, 8))


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


def measure(report: Report, world: World, hosts: tuple[int, ...], costs: Costs) -> None:
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
    batches = SeedBatches(tracer, world.seeds, size, NUM_BATCHES)
    shape = Shape(world.num_nodes, num_edges, ROW_BYTES)

    def count(name: str, seeds_name: str, seeds: SeedBatches, placement: Placement, took_s: float) -> None:
        head: dict[str, Any] = {
            "graph": world.name,
            "placement": name,
            "seeds": seeds_name,
            "hosts": placement.num_parts,
        }
        if not seeds:
            return
        for window, ratios in ((1, CACHES), (8, (0.0, 0.1))):
            counted = count_grid(
                seeds, placement, bytes_of_row=ROW_BYTES, cache_ratios=ratios, windows=[window], num_edges=num_edges
            )
            bare = counted[0.0, window]
            job = forecast_job(bare, shape, Cluster(placement.num_parts), costs)
            row = head | {"window": window, "nodes": bare.num_nodes, "edges": bare.num_edges, "peers": bare.peers}
            row |= {f"hop{hop}": nodes for hop, nodes in enumerate(bare.remote_frontier)}
            row |= {"hop_messages": sum(bare.hop_requests), "served": bare.most_served}
            for (ratio, _), counts in counted.items():
                percent = round(100 * ratio)
                sent = forecast_job(counts, shape, Cluster(placement.num_parts), costs).sent_bytes
                row |= {f"rows_{percent}": counts.remote_rows, f"messages_{percent}": counts.num_messages}
                row |= {f"mb_{percent}": sent / 1e6}
            row |= {"batches_per_s": job.batches_per_s, "bottleneck": job.bottleneck, "assign_s": took_s}
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
            count(name, "local", SeedBatches(tracer, mine, size, NUM_BATCHES), placement, took)
        if num_hosts <= MOST_FREQUENCY:
            splits = {"any": np.array_split(world.seeds, num_hosts)}
            cut = locals_of.get("metis", locals_of["fennel"])
            splits["local"] = [world.seeds[cut[world.seeds] == host] for host in range(num_hosts)]
            for seeds_name, split in splits.items():
                probs = [hotness_of(world, tracer, each, sampler) for each in split]
                began = time.perf_counter()
                owner = owners("frequency", world, num_hosts, edge_index, probs)
                took = time.perf_counter() - began
                seeds = SeedBatches(tracer, split, size, NUM_BATCHES)
                count("frequency", seeds_name, seeds, Placement(owner, num_hosts, np.stack(probs)), took)
        print(f"{world.name}: {num_hosts} hosts counted", flush=True)


def main() -> None:
    options = arguments(
        __doc__, rounds=1,
        graphs={"nargs": "*", "default": ["S", "M", "papers"], "choices": ["S", "M", "papers"]},
        hosts={"nargs": "*", "type": int, "default": list(HOSTS)},
    )  # fmt: skip
    torch.set_num_threads(1)
    report = Report("scale", options.toy)
    print("glt.forecast")
    if not options.toy and (RESULTS / "scale.json").exists():
        kept = json.loads((RESULTS / "scale.json").read_text())["rows"]
        report.rows += [row for row in kept if row["graph"].partition(",")[0] not in options.graphs]
    for world in worlds(options.graphs, options.toy):
        measure(report, world, tuple(n for n in world.hosts if n in options.hosts), Costs())
    report.finish()


if __name__ == "__main__":
    main()
