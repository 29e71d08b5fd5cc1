"""Counts of a forecast: against a count in plain Python, and against what the loaders of a job count."""

import numpy as np
import pytest
import torch

import glt
from glt import forecast
from glt.forecast import GraphTracer, Placement, Shape, count_batches
from glt.forecast.batches import batches_of
from glt.partition import FrequencyPartitioner, RandomPartitioner
from glt.testing.cluster import Cluster

NUM_NODES, NUM_EDGES, FAN_OUT = 700, 6000, [4, 3, 2]


def random_rows(seed=0):
    rng = np.random.default_rng(seed)
    target = np.sort(rng.integers(0, NUM_NODES, NUM_EDGES))
    indptr = np.searchsorted(target, np.arange(NUM_NODES + 1))
    return indptr, (rng.pareto(1.0, NUM_EDGES) * 40).astype(np.int64) % NUM_NODES


@pytest.fixture(scope="module")
def tracer():
    return GraphTracer.of_arrays(*random_rows(), FAN_OUT)


@pytest.fixture(scope="module")
def traces(tracer):
    return tracer.traces(batches_of(np.arange(NUM_NODES), 24, 20))


def cache_of(placement, part, cache_ratio):
    """The hottest nodes of others, the smaller ids first."""
    most = int(cache_ratio * NUM_NODES)
    hotness = placement.hotness if placement.hotness.ndim == 1 else placement.hotness[part]
    others = [v for v in range(NUM_NODES) if placement.owner[v] != part and hotness[v] > 0]
    return set(sorted(others, key=lambda v: (-hotness[v], v))[:most])


def kept_by_owners(placement, memory_ratio):
    """The hottest nodes of each owner, the smaller ids first."""
    kept = set()
    for part in range(placement.num_parts):
        hotness = placement.hotness if placement.hotness.ndim == 1 else placement.hotness[part]
        own = sorted((v for v in range(NUM_NODES) if placement.owner[v] == part), key=lambda v: (-hotness[v], v))
        kept.update(own[: int(memory_ratio * len(own))])
    return kept


def counted_plainly(traces, homes, placement, bytes_of_row, cache_ratio, gather_window, memory_ratio):
    totals = dict.fromkeys("rows cached window row_requests edge_bytes row_bytes request_bytes peers disk".split(), 0)
    kept = kept_by_owners(placement, memory_ratio)
    hops = [[0, 0] for _ in FAN_OUT]
    claimed, seen = {}, {}
    for trace, home in zip(traces, homes, strict=True):
        number = seen[home] = seen.get(home, -1) + 1
        claims = claimed.setdefault((home, number // gather_window), set())
        cache = cache_of(placement, home, cache_ratio)
        nodes, peers = trace.nodes.tolist(), set()
        for hop in range(len(FAN_OUT)):
            owners = set()
            for at in range(trace.begin[hop], trace.begin[hop + 1]):
                owner = int(placement.owner[nodes[at]])
                if owner != home:
                    owners.add(owner)
                    hops[hop][0] += 1
                    totals["edge_bytes"] += 4 + 4 * int(trace.num_edges_of[at])
                    totals["request_bytes"] += 8
            hops[hop][1] += len(owners)
            peers |= owners
        owners = set()
        for node in nodes:
            owner = int(placement.owner[node])
            if owner == home:
                totals["disk"] += node not in kept
                continue
            if node in cache:
                totals["cached"] += 1
            elif node in claims:
                totals["window"] += 1
            else:
                totals["rows"] += 1
                totals["disk"] += node not in kept
                totals["row_bytes"] += bytes_of_row
                totals["request_bytes"] += 8
                owners.add(owner)
                if gather_window > 1:
                    claims.add(node)
        totals["row_requests"] += len(owners)
        totals["peers"] += len(peers | owners)
    mean = {name: total / len(traces) for name, total in totals.items()}
    return mean, [[value / len(traces) for value in hop] for hop in hops]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 16, 300])
@pytest.mark.parametrize("gather_window", [1, 3, 8])
@pytest.mark.parametrize("cache_ratio", [0.0, 0.03, 0.3, 1.0])
def test_counts_are_those_of_plain_python(tracer, traces, num_parts, gather_window, cache_ratio):
    rng = np.random.default_rng(num_parts)
    hotness = tracer.hotness(np.arange(NUM_NODES), 24, 30)
    if num_parts == 3:  # of its own for each partition
        hotness = rng.random((3, NUM_NODES)).round(1)
    placement = Placement(rng.integers(0, num_parts, NUM_NODES).astype(np.uint16), num_parts, hotness)
    homes = rng.integers(0, num_parts, len(traces)).tolist()
    options = {"bytes_of_row": 40, "cache_ratio": cache_ratio, "gather_window": gather_window}
    options["memory_ratio"] = {1: 0.6, 2: 0.0, 3: 0.4, 16: 1.0}.get(num_parts, 0.5)
    counts = count_batches(traces, homes, placement, **options)
    mean, hops = counted_plainly(traces, homes, placement, **options)
    found = {
        "rows": counts.remote_rows,
        "cached": counts.cached_rows,
        "window": counts.window_rows,
        "row_requests": counts.row_requests,
        "edge_bytes": counts.edge_bytes,
        "row_bytes": counts.row_bytes,
        "request_bytes": counts.request_bytes,
        "peers": counts.peers,
        "disk": counts.disk_rows,
    }
    assert found == pytest.approx(mean)
    assert counts.remote_frontier == pytest.approx([nodes for nodes, _ in hops])
    assert counts.hop_requests == pytest.approx([owners for _, owners in hops])
    assert counts.num_nodes == pytest.approx(np.mean([len(each.nodes) for each in traces]))
    if num_parts == 1:
        assert counts.num_messages == counts.remote_bytes == counts.num_waits == 0


def test_a_trace_is_the_batch_of_a_sampler(tracer):
    indptr, indices = random_rows()
    topology = glt.data.Topology(
        torch.from_numpy(np.stack([indices, np.repeat(np.arange(NUM_NODES), np.diff(indptr))])), NUM_NODES, layout="CSC"
    )
    sampler = glt.sampler.NeighborSampler(glt.data.Graph(topology), FAN_OUT)
    seeds = np.random.default_rng(1).choice(NUM_NODES, 30, replace=False)
    trace = tracer.trace(seeds, batch_key=5)
    from torch_geometric.sampler import NodeSamplerInput

    wanted = sampler.sample_from_nodes(NodeSamplerInput(None, torch.from_numpy(seeds)), batch_key=5)
    assert trace.nodes.tolist() == wanted.node.tolist()
    assert np.diff(trace.begin).tolist() == list(wanted.num_sampled_nodes)
    assert trace.num_edges_of.tolist() == torch.bincount(wanted.col, minlength=int(trace.begin[-2])).tolist()


def test_hotness_may_be_unsigned_and_memory_has_one_of_its_own(traces):
    owner, homes = np.arange(NUM_NODES) % 3, [0] * len(traces)
    counts = np.random.default_rng(0).integers(0, 50, NUM_NODES)
    given = {"bytes_of_row": 4, "memory_ratio": 0.3, "cache_ratio": 0.1}
    signed, unsigned, of_memory, other = (
        count_batches(traces, homes, placement, **given)
        for placement in (
            Placement(owner, 3, counts),
            Placement(owner, 3, counts.astype(np.uint32)),
            Placement(owner, 3, counts, memory_hotness=counts),
            Placement(owner, 3, counts, memory_hotness=50 - counts),
        )
    )
    assert signed == unsigned == of_memory and signed.cached_rows == other.cached_rows
    assert signed.disk_rows != other.disk_rows


def test_the_busiest_host_is_found(traces):
    """Of four hosts, the last owns nearly all."""
    owner = np.full(NUM_NODES, 3)
    owner[:30] = np.arange(30) % 3
    uneven = count_batches(traces, [0] * len(traces), Placement(owner, 4), bytes_of_row=4)
    even = count_batches(traces, [0] * len(traces), Placement(np.arange(NUM_NODES) % 4, 4), bytes_of_row=4)
    assert 2 < uneven.most_served <= 3 and 1 <= even.most_served < 1.4


def run_loaders(trainer, path, cases, seeds):
    torch.set_num_threads(1)
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "forecast")
    dataset = glt.distributed.DistDataset().load(path, trainer.rank)
    found = []
    for window, with_edge, collect in cases:
        options = glt.distributed.CollocatedDistSamplingWorkerOptions(
            "localhost", trainer.port, read_local=False, cache_memory_budget=0, gather_window=window
        )
        with glt.distributed.DistNeighborLoader(
            dataset, FAN_OUT, seeds, 24, with_edge=with_edge, collect_features=collect, random_seed=0,
            worker_options=options,
        ) as loader:  # fmt: skip
            assert sum(1 for _ in loader) == len(seeds) // 24
            found.append(loader.stats())
    return found


@pytest.mark.parametrize("partitioner", ["random", "frequency"])
def test_counts_are_those_of_a_running_job(tmp_path, partitioner):
    """Two trainers ask each other for what they do not own; the bytes are exact."""
    indptr, indices = random_rows()
    edge_index = torch.from_numpy(np.stack([indices, np.repeat(np.arange(NUM_NODES), np.diff(indptr))]))
    hotness = [torch.rand(NUM_NODES, generator=torch.Generator().manual_seed(part)) for part in range(2)]
    common = {"node_feat": torch.rand(NUM_NODES, 5), "node_label": torch.arange(NUM_NODES)}
    made = tmp_path / "parts", 2, NUM_NODES, edge_index
    if partitioner == "random":
        RandomPartitioner(*made, edge_assign_strategy="by_dst", **common).partition()
    else:
        FrequencyPartitioner(*made, hotness, edge_assign_strategy="by_dst", cache_ratio=0.1, **common).partition()
    tracer, dataset = GraphTracer.of_directory(tmp_path / "parts", FAN_OUT)
    owner = dataset.node_books[0].owners()
    cached = None
    if partitioner == "frequency":
        parts = [glt.partition.load_partition(tmp_path / "parts", part).nodes[0] for part in range(2)]
        cached = [part.cache.ids for part in parts]
    placement = Placement(owner, 2, cached=cached)
    seeds = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(0))[: 24 * 16]
    traces = tracer.traces(list(seeds.numpy().reshape(-1, 24)))
    cases = [(1, False, True), (8, False, True), (1, True, True), (1, False, False)]
    with Cluster(2, run_loaders, str(tmp_path / "parts"), cases, seeds, deadline_s=120) as cluster:
        of_ranks = cluster.results()
    for rank, of_cases in enumerate(of_ranks):
        for (window, with_edge, collect), stats in zip(cases, of_cases, strict=True):
            counts = count_batches(
                traces, [rank] * 16, placement, bytes_of_row=28 if collect else 0, gather_window=window,
                with_edge=with_edge, num_edges=NUM_EDGES,
            )  # fmt: skip
            told = {name: stats[name] / 16 for name in ("num_nodes", "num_edges", "remote_bytes", "num_remote_nodes")}
            told |= {name: stats[name] / 16 for name in ("num_cached_nodes", "num_window_nodes")}
            assert told == {
                "num_nodes": counts.num_nodes,
                "num_edges": counts.num_edges,
                "remote_bytes": counts.remote_bytes,
                "num_remote_nodes": counts.remote_rows,
                "num_cached_nodes": counts.cached_rows,
                "num_window_nodes": counts.window_rows,
            }, (rank, window, with_edge, collect)


def test_rows_from_disk_are_those_of_a_loader(tmp_path):
    indptr, indices = random_rows()
    edge_index = torch.from_numpy(np.stack([indices, np.repeat(np.arange(NUM_NODES), np.diff(indptr))]))
    hotness = torch.rand(NUM_NODES, generator=torch.Generator().manual_seed(0))
    RandomPartitioner(
        tmp_path / "parts", 1, NUM_NODES, edge_index, node_feat=torch.rand(NUM_NODES, 5), edge_assign_strategy="by_dst",
        hotness=hotness,
    ).partition()  # fmt: skip
    tracer, _ = GraphTracer.of_directory(tmp_path / "parts", FAN_OUT)
    seeds = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(0))[: 24 * 16]
    traces = tracer.traces(list(seeds.numpy().reshape(-1, 24)))
    placement, shape = Placement(np.zeros(NUM_NODES, np.uint8), 1, hotness.numpy()), Shape(NUM_NODES, NUM_EDGES, 20)
    for memory in (0, 5_000, 10_000, 50_000):
        ratio = forecast.Cluster(1, feature_memory_gb=memory / 1e9).memory_ratio(shape)
        counts = count_batches(traces, [0] * 16, placement, bytes_of_row=20, memory_ratio=ratio)
        aligned = memory + 128 if memory else 0  # two arrays at multiples of 64
        with Cluster(1, run_on_disk, str(tmp_path / "parts"), aligned, seeds, deadline_s=120) as cluster:
            (stats,) = cluster.results()
        assert stats["num_nodes"] == 16 * counts.num_nodes
        assert stats["num_disk_rows"] == pytest.approx(16 * counts.disk_rows)


def run_on_disk(trainer, path, memory, seeds):
    glt.distributed.init_worker_group(1, 0)
    dataset = glt.distributed.DistDataset().load(path, 0, feature_memory=memory)
    with glt.distributed.DistNeighborLoader(
        dataset, FAN_OUT, seeds, 24, collect_features=True, random_seed=0,
        worker_options=glt.distributed.CollocatedDistSamplingWorkerOptions("localhost", trainer.port),
    ) as loader:  # fmt: skip
        assert sum(1 for _ in loader) == 16
        return loader.stats()


def test_wrong_arguments_are_named(tracer, traces):
    placement = Placement(np.zeros(NUM_NODES, np.uint8), 2)
    for words, call in (
        ("homes has 1 elements", lambda: count_batches(traces, [0], placement)),
        ("gather_window = 0", lambda: count_batches(traces, [0] * 20, placement, gather_window=0)),
        ("bytes_of_row = -1", lambda: count_batches(traces, [0] * 20, placement, bytes_of_row=-1)),
        ("cache_ratio = -0.1", lambda: count_batches(traces, [0] * 20, placement, cache_ratio=-0.1)),
        ("memory_ratio = 1.5", lambda: count_batches(traces, [0] * 20, placement, memory_ratio=1.5)),
        (
            "memory_ratio = 0.5 and hotness = None",
            lambda: count_batches(traces, [0] * 20, placement, bytes_of_row=4, memory_ratio=0.5),
        ),
        ("num_neighbors", lambda: GraphTracer.of_arrays(*random_rows(), [-2])),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(IndexError, match=str(NUM_NODES)):
        tracer.trace(np.array([NUM_NODES]))


def test_graphs_with_types_are_refused(tmp_path):
    edges = {("a", "to", "b"): torch.tensor([[0, 1], [1, 0]])}
    RandomPartitioner(tmp_path / "parts", 2, {"a": 2, "b": 2}, edges).partition()
    with pytest.raises(ValueError, match="2 types of nodes and 1 of edges"):
        GraphTracer.of_directory(tmp_path / "parts", [2])
