"""LABOR beside drawing neighbours: distinct nodes and remote rows of a batch, what stays in a cache, and time.

Claims: LABOR takes as many edges per node and fewer distinct nodes; a window of batches that share their numbers leaves
most of a batch's rows in the cache; a batch takes at most a quarter of the time that GraphBolt's LABOR takes.

Method: 1024 distinct seeds with edges per batch, shuffled as a loader does, one thread. ``remote_rows`` are the nodes
that another partition owns, of four at random. ``hits`` are the rows that a cache of a tenth of the nodes holds, the
least recently used goes first, over ``--batches`` batches from a cold start. Each node is checked to have as many edges
as its degree and the fan-out say. Time is of sampling alone, nodes, ends and edge ids handed over, contestants take
turns; LABOR looks at all edges of a node, which drawing does not. GraphBolt's operations are called hop by hop on int32
columns, as in ``peer_samplers.py``, and its batches have to have as many nodes as ours, but for a fiftieth.

    python -m benchmarks.bench_labor [--rounds 5] [--toy] [--batches 64]
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from benchmarks import graphs
from benchmarks._harness import Report, arguments, find_peers, interleave, pinned, require
from benchmarks.peer_samplers import graphbolt_labor
from glt import _core

FAN_OUTS = ([10, 10, 10], [15, 10, 5])
PEER = "dgl.graphbolt"


class Sampler:
    """Neighbours by draws (``dependency`` 0), or by numbers that so many batches share."""

    def __init__(self, graph: graphs.BenchGraph, num_neighbors: list[int], dependency: int) -> None:
        self.num_neighbors, self.dependency = num_neighbors, dependency
        self.degree = np.diff(np.array(graph.indptr))
        self.csr = _core.Csr(np.array(graph.indptr), np.array(graph.indices))
        self.batch = _core.Batch([graph.num_nodes], [(0, 0)])

    def sample(self, seeds: np.ndarray, index: int) -> None:
        self.batch.start([(0, seeds)])
        options = {"shared_key": _core.shared_key(0, 0, index // self.dependency)} if self.dependency else {}
        key = _core.batch_key(0, 0, index)
        self.batch.sample([self.csr], [self.num_neighbors], replace=False, batch_key=key, **options)

    def __call__(self, seeds: np.ndarray, index: int) -> np.ndarray:
        self.sample(seeds, index)
        ((nodes, _),), _ = self.batch.hand_over()
        return nodes  # type: ignore[no-any-return]

    def check(self, seeds: np.ndarray) -> None:
        self.sample(seeds, 0)
        nodes = self.batch.nodes(0)
        row, col = (np.empty(self.batch.num_edges(0), np.int64) for _ in range(2))
        self.batch.copy_edges(0, row, col)
        first = np.cumsum([0, *self.batch.num_sampled_nodes(0)])
        count = np.bincount(col, minlength=len(nodes))
        for hop, k in enumerate(self.num_neighbors):
            expanded = slice(first[hop], first[hop + 1])
            wanted = np.minimum(self.degree[nodes[expanded]], k)
            require(np.array_equal(count[expanded], wanted), f"nodes of hop {hop} have as many edges as they should")


def hit_rate(batches: list[np.ndarray], capacity: int) -> float:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for nodes in batches:
        for node in nodes.tolist():
            if node in cache:
                hits += 1
                cache.move_to_end(node)
            else:
                cache[node] = None
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return hits / sum(map(len, batches))


def bench(report: Report, graph: graphs.BenchGraph, num_neighbors: list[int], num_batches: int, rounds: int) -> None:
    contestants = {"neighbor": 0, "labor": 1, "labor, 8 batches": 8, "labor, 32 batches": 32}
    samplers = {name: Sampler(graph, num_neighbors, each) for name, each in contestants.items()}
    random = np.random.default_rng(0)
    with_edges = np.flatnonzero(samplers["labor"].degree > 0)
    seeds = np.concatenate([random.permutation(with_edges) for _ in range(1 + num_batches * 1024 // len(with_edges))])
    seeds = seeds[: num_batches * min(1024, len(with_edges))].reshape(num_batches, -1).astype(np.int64)
    owner = random.integers(0, 4, graph.num_nodes)

    def timed(sampler: Callable[[np.ndarray, int], np.ndarray]) -> Callable[[], float]:
        return lambda: float(sum(len(sampler(seeds[i], i)) for i in range(min(8, num_batches))))

    for sampler in samplers.values():
        sampler.check(seeds[0])
    everybody: dict[str, Callable[[np.ndarray, int], np.ndarray]] = dict(samplers)
    if find_peers("dgl.graphbolt"):
        peer = graphbolt_labor(graph, num_neighbors)
        everybody[PEER] = lambda seeds, _: peer(seeds)[0]
    with pinned():
        at_once = [name for name in ("neighbor", "labor", PEER) if name in everybody]
        timings = interleave({name: timed(everybody[name]) for name in at_once}, rounds)
    num_nodes = {}
    for name, sampler in everybody.items():
        batches = [sampler(seeds[i], i) for i in range(num_batches)]
        num_nodes[name] = float(np.mean([len(nodes) for nodes in batches]))
        if name == PEER:
            ratio = num_nodes[PEER] / num_nodes["labor"]
            require(abs(ratio - 1) < 0.02, f"GraphBolt's batches have {ratio} times as many nodes as ours")
        timing = timings.get(name)
        report.add(
            graph=graph.name,
            num_neighbors=str(num_neighbors),
            sampler=name,
            nodes=num_nodes[name],
            remote_rows=float(np.mean([np.count_nonzero(owner[nodes]) for nodes in batches])),
            hits=hit_rate(batches, graph.num_nodes // 10),
            batch_ms=None if timing is None else timing.median(1e3 / min(8, num_batches)),
            faster_by=timings["labor"].over(timings[PEER]) if name == "labor" and PEER in timings else None,
        )


def main() -> None:
    options = arguments(__doc__, rounds=5, batches={"type": int, "default": 64, "help": "for nodes and hits"})
    report = Report("labor", options.toy)
    for name in ("toy",) if options.toy else ("S", "M"):
        for num_neighbors in FAN_OUTS:
            bench(report, graphs.load(name), num_neighbors, 4 if options.toy else options.batches, options.rounds)
    report.finish()


if __name__ == "__main__":
    main()
