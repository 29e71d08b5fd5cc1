"""GPUs that sample some partitions and ask for others make the batches of the CPU; the host plays the GPU."""

import asyncio
import threading

import numpy as np
import pytest
import torch
from dist_typed_world import RATES, SCHEMA, write_typed_world
from hypothesis import given, settings
from hypothesis import strategies as st

import glt
from glt import _core
from glt.data.device import require_accelerator
from glt.distributed.engine.device_sampler import DevicePartitionSampler, StitchedBatch, sampler_of
from glt.distributed.engine.local_partition import node_hotness
from glt.distributed.engine.row_lookup import RowWindow
from glt.distributed.engine.sampler import STATS, BatchStart, DistNeighborSampler
from glt.distributed.engine.sampling_job import SamplingJob, SeedTable
from glt.distributed.engine.seeds import NodeSeeds
from glt.partition import RandomPartitioner, load_partition
from glt.partition.format import layout
from glt.sampler.config import SamplingConfig
from glt.sampler.device import DeviceSampling
from glt.sampler.order import SeedOrder
from glt.testing import random_graph

HOST = require_accelerator("host", "device")

USER, ITEM = 0, 1


class Elsewhere:
    """Answers for partitions in this process as if they were in others."""

    def __init__(self, root, parts):
        loaded = {part: glt.distributed.DistDataset().load(root, part) for part in parts}
        self.handlers = {part: data.own.handlers() for part, data in loaded.items()}
        self.asked = set()

    def ask(self, part, requests):
        self.asked |= {request.method for request in requests}
        futures = [asyncio.get_running_loop().create_future() for _ in requests]
        for request, future in zip(requests, futures, strict=True):
            future.set_result(self.handlers[part][request.method](request.encode()))
        return futures


@pytest.fixture
def loop():
    loop = glt.distributed.ConcurrentEventLoop(2, "test")
    yield loop
    loop.shutdown(10)


def on_host(data, others, config, router, loop, staged=False):
    """A sampler for the GPU that the host plays."""
    table = SeedTable({"node": torch.arange(1)})
    job = SamplingJob(config, NodeSeeds(0), table, SeedOrder(1, 1), collect_features=True)
    return sampler_of(job, HOST, data, others, router, loop, staged=staged)


def made(sampler, start, key, window=None):
    async def produce():
        sampled = await sampler.sample(start, key, window)
        out = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in sampled.specs.items()}
        await sampler.fill(sampled, out)
        return out

    return sampler.loop.submit(produce).result(60)


def configs():
    options = [{}, {}, {"weighted": True}, {"replace": True}]
    fan_outs = ([4, 3], [-1, 2], [3, 3], [20, 2])
    return [SamplingConfig.checked(n, SCHEMA, with_edge=True, **o) for n, o in zip(fan_outs, options, strict=True)]


@pytest.mark.parametrize("split_ratio", [0.3, 0.0, None])
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(
    ("edge_dir", "relabel", "store_dtype"),
    [("in", False, None), ("out", True, None), ("in", False, {"user": "int8", "item": "float16", RATES: "int4"})],
)
def test_batches_are_those_of_the_cpu(tmp_path, loop, monkeypatch, edge_dir, relabel, store_dtype, staged, split_ratio):
    """Two partitions of three are here, and copies of some rows of the third: the cache."""
    monkeypatch.setattr("glt.distributed.engine.local_graph.free_memory", lambda _: 4000)  # of about 8000 bytes
    rng = np.random.default_rng(2)
    hotness = {"user": rng.random(90), "item": rng.random(60)}
    given = {"hotness": [hotness] * 3, "cache_ratio": 0.1, "relabel": relabel, "store_dtype": store_dtype}
    root = write_typed_world(tmp_path, 3, edge_dir, **given).path
    elsewhere = Elsewhere(root, [1])
    plain = glt.distributed.DistDataset().load(root, 0)
    placed = glt.distributed.DistDataset().load(root, 0, "CUDA", device="host", split_ratio=split_ratio)
    for config in configs():
        arguments = {"config": config, "router": elsewhere, "loop": loop}
        ours = on_host(placed, {2: placed.map_other(root, 2)}, staged=staged, **arguments)
        assert isinstance(ours, DevicePartitionSampler)
        theirs = DistNeighborSampler(plain, others={2: plain.map_other(root, 2)}, **arguments)
        for key, seeds in enumerate(([(ITEM, torch.arange(0, 60, 7))], [(USER, torch.tensor([3, 3, 80, 4]))])):
            got, wanted = made(ours, BatchStart(seeds), key), made(theirs, BatchStart(seeds), key)
            assert got.keys() == wanted.keys()
            stats = dict(zip(STATS, got["stats"].tolist(), strict=True))
            assert stats["num_cached_nodes"] > 0 and stats["num_remote_nodes"] > 0
            for name in got.keys() - {"stats"}:
                assert got[name].dtype == wanted[name].dtype and torch.equal(got[name], wanted[name]), name
    assert {"sample_one_hop", "gather_rows"} <= elsewhere.asked


@pytest.mark.parametrize("staged", [False, True])
def test_batches_of_a_window_are_those_of_the_cpu(tmp_path, loop, staged):
    root = write_typed_world(tmp_path, 3, "in").path
    data, placed = (glt.distributed.DistDataset().load(root, 0, *mode) for mode in ((), ("ZERO_COPY",)))
    arguments = {"config": configs()[0], "router": Elsewhere(root, [1]), "loop": loop}
    ours = on_host(placed, {2: placed.map_other(root, 2)}, staged=staged, **arguments)
    theirs = DistNeighborSampler(data, others={2: data.map_other(root, 2)}, **arguments)
    window, num_shared = RowWindow(), []
    for key in range(4):
        start = BatchStart([(USER, torch.arange(key, 90, 9))])
        got, wanted = made(ours, start, key, window), made(theirs, start, key)
        num_shared.append(got["stats"][STATS.index("num_window_nodes")].item())
        for name in got.keys() - {"stats"}:
            assert got[name].dtype == wanted[name].dtype and torch.equal(got[name], wanted[name]), name
    assert num_shared[0] == 0 and min(num_shared[1:]) > 0


WAITS = ["start", "frontier", "expand_from", "end_hop", "nodes", "edges", "induce_from", "copy_nodes", "copy_edges"]


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_what_waits_for_the_gpu_runs_off_the_loop_however_little_it_is(tmp_path, loop, monkeypatch, subgraph_type):
    """On the loop it would hold up all other batches and requests."""
    threads = {}

    def watch(kind, name):
        call = getattr(kind, name)

        def watched(*arguments, **named):
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return call(*arguments, **named)

        monkeypatch.setattr(kind, name, watched)

    for name in WAITS:
        watch(StitchedBatch, name)
    watch(DeviceSampling, "sample_rows")
    root = write_typed_world(tmp_path, 2).path
    data = glt.distributed.DistDataset().load(root, 0, "CUDA", device="host")
    config = SamplingConfig.checked([2, 2], SCHEMA, with_edge=True, subgraph_type=subgraph_type)
    sampler = on_host(data, {}, config, Elsewhere(root, [1]), loop)
    made(sampler, BatchStart([(USER, torch.tensor([3, 80, 4]))]), 0)
    assert threads.keys() >= {"start", "frontier", "nodes", "copy_nodes", "sample_rows"}
    assert ("induce_from" in threads) == (subgraph_type == "induced")
    names = {thread for several in threads.values() for thread in several}
    assert names and all(name.startswith("test-native") for name in names), threads


def test_a_gpu_that_reads_all_partitions_asks_nobody(tmp_path, loop):
    root = write_typed_world(tmp_path, 2).path
    data = glt.distributed.DistDataset().load(root, 0, "CUDA", device="host")
    config = configs()[0]
    sampler = on_host(data, {1: data.map_other(root, 1)}, config, None, loop)
    assert not isinstance(sampler, DevicePartitionSampler)
    with pytest.raises(ValueError, match=r"partitions \[1\] are not read here: a router to them is needed"):
        on_host(data, {}, config, None, loop)


ENDS = [(0, 0), (0, 1), (1, 0)]

NUM_NODES = [9, 5]


def stitched(num_nodes=NUM_NODES, ends=ENDS):
    return StitchedBatch(num_nodes, ends, require_accelerator("host", "device"), None)


def answers(rng, num_rows, num_found, device):
    """Rows of any neighbours from up to three partitions, as the CPU takes them, and as a device does."""
    owner = rng.integers(0, 3, num_rows)
    plain, placed = [], []
    for part in range(3):
        at = np.flatnonzero(owner == part).astype(np.uint32)
        if len(at) == 0:
            continue
        count = rng.integers(0, 4, len(at)).astype(np.uint32)
        neighbor, edge = rng.integers(0, num_found, count.sum()), rng.integers(0, 99, count.sum())
        plain.append((at, count, neighbor, edge))
        on_device = [torch.from_numpy(each.astype(np.int64)) for each in (count, neighbor, edge)]
        placed.append((at, *on_device) if device and part == 0 else plain[-1])
    return plain, placed


def contents(batch, with_edge, disjoint):
    found = []
    for t in range(2):
        node, tree = np.full((2, batch.num_nodes(t)), -7, np.int64)
        batch.copy_nodes(t, node, tree if disjoint else None)
        found += [node.tolist(), tree.tolist(), batch.num_sampled_nodes(t)]
    for r in range(3):
        row, col, edge = np.full((3, batch.num_edges(r)), -7, np.int64)
        batch.copy_edges(r, row, col, edge if with_edge else None)
        found += [row.tolist(), col.tolist(), edge.tolist()]
    return found


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans())
def test_hops_are_put_together_as_on_the_cpu(seed, with_edge, disjoint, induced):
    rng = np.random.default_rng(seed)
    ours, theirs = stitched(), _core.Batch(NUM_NODES, ENDS)
    seeds = [(int(t), rng.integers(0, NUM_NODES[t], rng.integers(0, 5))) for t in rng.integers(0, 2, 3)]
    for batch in (ours, theirs):
        batch.start(seeds, with_edge, disjoint, None)
    for _ in range(3):
        for r, (expanded, found) in enumerate(ENDS):
            frontier = theirs.frontier(expanded)
            assert frontier.tolist() == ours.frontier(expanded).tolist()
            if disjoint:
                assert theirs.frontier_trees(expanded).tolist() == ours.frontier_trees(expanded).tolist()
            if len(frontier) and rng.random() < 0.8:
                plain, placed = answers(rng, len(frontier), NUM_NODES[found], True)
                theirs.expand_from(r, plain)
                ours.expand_from(r, placed)
        for batch in (ours, theirs):
            batch.end_hop()
    assert [ours.num_sampled_edges(r) for r in range(3)] == [theirs.num_sampled_edges(r) for r in range(3)]
    assert contents(ours, with_edge, disjoint) == contents(theirs, with_edge, disjoint)
    if induced and not disjoint:
        for batch in (ours, theirs):
            batch.begin_induce()
        for r, (expanded, found) in enumerate(ENDS):
            members = theirs.nodes(found)
            if theirs.num_nodes(expanded) and len(members):
                plain, _ = answers(rng, theirs.num_nodes(expanded), len(members), False)
                plain = [(at, count, members[neighbor], edge) for at, count, neighbor, edge in plain]
                for batch in (ours, theirs):
                    batch.induce_from(r, plain)
        assert contents(ours, with_edge, False) == contents(theirs, with_edge, False)


def part(*position, neighbor=(), count=None):
    counts = np.ones(len(position), np.uint32) if count is None else np.array(count, np.uint32)
    return np.array(position, np.uint32), counts, np.array(neighbor, np.int64), None


def test_answers_that_do_not_fit_are_refused():
    batch = stitched()
    with pytest.raises(IndexError, match=r"seeds\[1\] = 9 is outside \[0, 9\)"):
        batch.start([(0, np.array([3, 9]))], False, False, None)
    batch.start([(0, np.array([3, 4]))], False, False, None)
    for parts, error, message in [
        ([part(0, neighbor=(1,))], ValueError, "1 rows were answered: expected each of the 2 asked for, once"),
        ([part(0, neighbor=(1,)), part(0, neighbor=(1,))], ValueError, "expected each of the 2 asked for, once"),
        ([part(0, 1, neighbor=(1,))], ValueError, "part 0 has 1 edges, its counts add up to 2"),
        ([part(0, 1, neighbor=(1, 9))], IndexError, r"neighbours of part 0\[1\] = 9 is outside \[0, 9\)"),
    ]:
        with pytest.raises(error, match=message):
            batch.expand_from(0, parts)
    batch.begin_induce()
    with pytest.raises(ValueError, match="edge type 0: a neighbour is not in the batch"):
        batch.induce_from(0, [part(0, 1, neighbor=(4, 5))])
    with pytest.raises(ValueError, match="a disjoint batch of 2 seeds, of 4611686018427387904 nodes"):
        stitched([2**62], [(0, 0)]).start([(0, np.array([3, 4]))], False, True, None)


GRAPH_NODES, NUM_EDGES = 50, 400

GRAPH = random_graph(GRAPH_NODES, NUM_EDGES, seed=4)


def hotness(num_parts):
    return [np.random.default_rng(p).integers(0, 9, GRAPH_NODES).astype(np.float32) for p in range(num_parts)]


def partitioned(root, num_parts, **given):
    given = {"node_feat": GRAPH.x, "edge_feat": GRAPH.edge_attr, "edge_assign_strategy": "by_dst", **given}
    RandomPartitioner(root / "parts", num_parts, GRAPH_NODES, GRAPH.edge_index, **given).partition()
    return root / "parts"


@pytest.mark.parametrize("relabel", [False, True])
def test_partitions_say_how_often_they_read_their_own_nodes(tmp_path, relabel):
    root = partitioned(tmp_path, 3, hotness=hotness(3), relabel=relabel)
    for p, hot in enumerate(hotness(3)):
        part = load_partition(root, p)
        (nodes,) = part.nodes
        original = nodes.ids if nodes.id_map is None else nodes.id_map.original[nodes.ids]
        assert node_hotness(part, 0).tolist() == hot[original].tolist()
        assert layout.in_part(p, "node_hotness", "node") in part.manifest.files


@pytest.mark.parametrize("step", [1 << 24, 7])
def test_without_hotness_the_edges_that_lead_to_a_node_count(tmp_path, step, monkeypatch):
    monkeypatch.setattr("glt.distributed.engine.local_partition._STEP", step)
    root = partitioned(tmp_path, 2)
    for p in range(2):
        part = load_partition(root, p)
        assert part.nodes[0].hotness is None
        owned = part.nodes[0].ids
        rows = torch.isin(GRAPH.edge_index[1], torch.from_numpy(owned))  # in-edges of the owned nodes
        found = torch.bincount(GRAPH.edge_index[0][rows], minlength=GRAPH_NODES)
        assert node_hotness(part, 0).tolist() == found[owned].tolist()


def here_of(root, parts, split_ratio):
    """A dataset for a GPU, and the partitions of it that are read here."""
    data = glt.distributed.DistDataset().load(root, parts[0], "CUDA", device="host", split_ratio=split_ratio)
    return data, {parts[0]: data.own} | {p: data.map_other(root, p) for p in parts[1:]}


def looked_up(tables, kind, name, ids, like, where=None):
    out = torch.empty(len(ids), *like.shape[1:], dtype=like.dtype)
    tables.gather(HOST, (kind, 0, name), ids, out, where)
    tables.check()
    return out


def hot_rows(tables):
    """What is kept in device memory, by partition."""
    (placed,) = tables._placed.values()
    return [hot.view(torch.float32).view(-1, GRAPH.x.size(1)) for hot in placed._hot]


@pytest.mark.parametrize("relabel", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("here", [(0,), (1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_a_gpu_keeps_the_hottest_rows_and_finds_all(tmp_path, here, known, relabel):
    root = partitioned(tmp_path, 3, relabel=relabel, **({"hotness": hotness(3)} if known else {}))
    data, local = here_of(root, here, 0.3)
    tables = data.local_graph(local).tables
    ids = torch.from_numpy(np.concatenate([local[p].nodes[0].ids for p in here]))
    where = torch.from_numpy(np.random.default_rng(1).permutation(len(ids)).astype(np.uint32))
    out = looked_up(tables, "node", "x", ids, GRAPH.x, where)
    assert torch.equal(out[where.long()], GRAPH.x[data.map_to_original(ids)])
    for p, hot in zip(here, hot_rows(tables), strict=True):
        hottest = torch.argsort(node_hotness(load_partition(root, p), 0), descending=True, stable=True)
        assert torch.equal(hot, local[p].node_tables[0]["x"].tensor[hottest[: round(0.3 * len(hottest))]])
    edges = torch.from_numpy(np.flatnonzero(np.isin(data.edge_books[0].owners(), here)))
    found = looked_up(tables, "edge", "edge_attr", edges, GRAPH.edge_attr)
    assert torch.equal(found, GRAPH.edge_attr[data.map_to_original(edges, ("node", "to", "node"))])
    elsewhere = torch.from_numpy(np.setdiff1d(np.arange(GRAPH_NODES), ids.numpy()))
    if len(elsewhere):
        with pytest.raises(IndexError, match="has no row"):
            looked_up(tables, "node", "x", elsewhere[:1], GRAPH.x)


def of_parts(root, here):
    """The bytes of the tables of these partitions, ``x`` and ``edge_attr``, and those of the copies that the first has
    of nodes of others, with the nodes."""
    parts = [load_partition(root, p) for p in here]
    rows = sum(part.nodes[0].feat.nbytes + part.edges[0].feat.nbytes for part in parts)
    return rows, parts[0].nodes[0].cache.feat.nbytes, torch.from_numpy(np.array(parts[0].nodes[0].cache.ids))


@pytest.mark.parametrize("here", [(1,), (0, 2)])
def test_copies_of_others_are_found_with_the_rows_of_a_partition(tmp_path, here):
    root = partitioned(tmp_path, 3, hotness=hotness(3), cache_ratio=0.2)
    data, local = here_of(root, here, 0.3)
    tables = data.local_graph(local).tables
    _, _, copied = of_parts(root, here)
    assert len(copied) and not np.isin(data.node_books[0].owners()[copied], here[:1]).any()
    ids = torch.cat([copied, *(torch.from_numpy(local[p].nodes[0].ids) for p in here)])
    assert torch.equal(looked_up(tables, "node", "x", ids, GRAPH.x), GRAPH.x[ids])
    assert torch.equal(hot_rows(tables)[-1], GRAPH.x[copied]), "all of them, in device memory"
    data, local = here_of(root, here, 0.0)
    tables = data.local_graph(local).tables
    assert tables.copies(HOST, "node", 0, "x") is None, "the CPU looks them up"
    foreign = copied[~np.isin(data.node_books[0].owners()[copied], here)]
    with pytest.raises(IndexError, match="has no row"):
        looked_up(tables, "node", "x", foreign[:1], GRAPH.x)


@pytest.mark.parametrize("num_sharers", [1, 3])
def test_without_a_split_ratio_a_gpu_keeps_what_fits(tmp_path, monkeypatch, num_sharers):
    root = partitioned(tmp_path, 3, hotness=hotness(3), cache_ratio=0.2)
    rows, copies, copied = of_parts(root, (1,))
    owned = torch.from_numpy(load_partition(root, 1).nodes[0].ids)
    indices = 4 * (GRAPH_NODES + GRAPH.edge_index.size(1))
    for room, share, has_copies in (
        (0, 0.0, False),
        (copies // 2, copies // 2 / rows, False),
        (copies, 0.0, True),
        (copies + rows // 4, 0.25, True),
        (copies + rows + 1, 1.0, True),
    ):
        monkeypatch.setattr(
            "glt.distributed.engine.local_graph.free_memory", lambda _, r=room: 2 * (r + indices) * num_sharers
        )
        data, local = here_of(root, (1,), None)
        data.num_sharers = num_sharers
        tables = data.local_graph(local).tables
        assert tables.share(HOST) == (pytest.approx(share, abs=2 / rows), has_copies)
        ids = torch.cat([owned, copied]) if has_copies else owned
        assert torch.equal(looked_up(tables, "node", "x", ids, GRAPH.x), GRAPH.x[ids])
        num_hot = round(tables.share(HOST)[0] * len(local[1].nodes[0].owned)) + len(copied) * has_copies
        assert sum(map(len, hot_rows(tables))) == num_hot


def test_edges_of_hot_nodes_are_kept(tmp_path):
    """Those of which a draw of ten takes the most."""
    root = partitioned(tmp_path, 2, hotness=hotness(2))
    data, local = here_of(root, (0,), 0.2)
    tables = data.local_graph(local).tables
    edges = np.flatnonzero(data.edge_books[0].owners() == 0)
    ids = torch.from_numpy(edges)
    assert torch.equal(looked_up(tables, "edge", "edge_attr", ids, GRAPH.edge_attr), GRAPH.edge_attr[edges])
    expanded = GRAPH.edge_index[1].numpy()
    hot = hotness(2)[0][expanded[edges]] * np.minimum(1, 10 / np.bincount(expanded)[expanded[edges]])
    hottest = edges[np.argsort(-hot.astype(np.float32), kind="stable")[: round(0.2 * len(edges))]]
    (placed,) = tables._placed.values()
    kept = placed._hot[0].view(GRAPH.edge_attr.dtype).view(-1, *GRAPH.edge_attr.shape[1:])
    assert torch.equal(kept, GRAPH.edge_attr[hottest])


ALL = torch.arange(GRAPH_NODES)


def test_where_all_rows_are_kept_none_are_told_apart(tmp_path):
    data, local = here_of(partitioned(tmp_path, 1), (0,), 1.0)
    tables = data.local_graph(local).tables
    assert torch.equal(looked_up(tables, "node", "x", ALL, GRAPH.x), GRAPH.x)
    assert torch.equal(torch.cat(hot_rows(tables)), GRAPH.x) and data.node_features.hotness is None


def test_more_partitions_than_a_kernel_has_tiers_for(tmp_path, monkeypatch):
    """Their rows are copied into one table, whose hottest are kept, whichever partition owns them."""
    monkeypatch.setattr("glt.distributed.engine.local_graph._MOST_TABLES", 2)
    data, local = here_of(partitioned(tmp_path, 3, hotness=hotness(3)), (0, 1, 2), 0.2)
    tables = data.local_graph(local).tables
    assert torch.equal(looked_up(tables, "node", "x", ALL, GRAPH.x), GRAPH.x)
    ids = np.concatenate([local[p].nodes[0].ids for p in range(3)])
    hot = np.concatenate([hotness(3)[p][local[p].nodes[0].ids] for p in range(3)])
    hottest = ids[np.argsort(-hot, kind="stable")[: round(0.2 * GRAPH_NODES)]]
    assert torch.equal(hot_rows(tables)[0], GRAPH.x[hottest])
