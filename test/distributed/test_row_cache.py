"""Rows that are kept since they were asked for: batches are the same, less is asked, and memory is bounded."""

import asyncio
import gc
import random

import numpy as np
import pytest
import torch
from dist_typed_world import write_typed_world
from dist_world import CASES, NUM_NODES, expect_law, join, options, run_cluster, seeds_of, write_world
from late_answers import FAN_OUT, Stage

import glt
from glt.channel.message import MessageKind, encode_message
from glt.distributed.engine.client_rows import client_rows
from glt.distributed.engine.row_lookup import RowCache, RowLookup, row_caches
from glt.distributed.engine.sampler import DistNeighborSampler
from glt.partition import FrequencyPartitioner


@pytest.fixture(scope="module", params=["one type", "types", "with a cache", "halves", "packed"])
def stage(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("row_cache")
    if request.param == "types":
        path = write_typed_world(root, 3, "in", None).path
    elif request.param == "with a cache":
        probs = [torch.rand(NUM_NODES, generator=torch.Generator().manual_seed(p)) for p in range(3)]
        path = write_world(root, 3, partitioner=FrequencyPartitioner, probs=probs, cache_ratio=0.2).path
    elif request.param == "packed":
        path = write_world(root, 3, store_dtype={"x": "int8", "edge_attr": "float16"}).path
    else:
        path = write_world(root, 3, tables="bye" if request.param == "halves" else "xye").path
    made = Stage(path)
    yield made
    made.loop.shutdown()


@pytest.mark.parametrize("seed", range(4))
def test_any_budget_and_concurrency_gives_the_same_batches(stage, seed):
    rng = random.Random(seed)
    budget = [0, rng.randrange(1, 5000), rng.randrange(5000, 100_000), 1 << 20][seed]
    _, sampler = stage.asking(rng, budget)
    keys = [rng.randrange(40) for _ in range(120)]

    async def several(width):
        found = []
        for first in range(0, len(keys), width):
            found += await asyncio.gather(*(stage.make(sampler, key) for key in keys[first : first + width]))
        return found

    batches = stage.run(several(rng.randrange(1, 9)))
    cached = remote = 0
    for key, batch in zip(keys, batches, strict=True):
        wanted = stage.run(stage.make(stage.here, key))
        assert batch.keys() == wanted.keys()
        assert all(torch.equal(batch[name], wanted[name]) for name in batch if name != "stats"), key
        counts = dict(zip(glt.distributed.engine.sampler.STATS, batch["stats"].tolist(), strict=True))
        cached, remote = cached + counts["num_cached_nodes"], remote + counts["num_remote_nodes"]
    assert remote > 0 and (budget < 1 << 20 or cached > 3 * remote)
    for cache in sampler.caches:
        if cache is not None:  # nothing is pinned any more: all can be found
            assert cache.slots.num_used <= cache.slots.num_slots


def test_lost_answers_leave_the_cache_as_it_was(stage):
    rng = random.Random(1)
    router, sampler = stage.asking(rng, 1 << 20)
    router.loss = 0.3

    async def one(key):
        try:
            return await stage.make(sampler, key)
        except glt.errors.PeerLost:
            return None

    async def several():
        return await asyncio.gather(*(one(key) for key in range(40)))

    first = stage.run(several())
    assert None in first
    router.loss = 0.0
    second = stage.run(several())
    for key, batch in enumerate(second):
        wanted = stage.run(stage.make(stage.here, key))
        assert all(torch.equal(batch[name], wanted[name]) for name in batch if name != "stats")


def test_a_budget_bounds_memory(stage):
    own = {0: stage.data.own}
    assert row_caches(stage.data, own, 0) == [None] * len(stage.data.schema.node_types)
    assert row_caches(stage.data, own | stage.others, 1 << 30) == [None] * len(stage.data.schema.node_types)
    for budget in (1000, 10_000, 100_000, 1 << 40):
        caches = [cache for cache in row_caches(stage.data, own, budget) if cache is not None]
        taken = sum(16 * c.slots.num_slots + sum(t.nbytes for t in c.tables.values()) for c in caches)
        assert taken <= budget and (budget < 100_000 or taken > 0)
        assert sum(c.slots.num_slots for c in caches) <= 1.5 * sum(stage.data.num_nodes_of) + 16 * len(caches)


def test_rows_are_kept_as_they_came():
    cache = RowCache({"x": (torch.bfloat16, torch.Size([3])), "y": (torch.int64, torch.Size([]))}, 32)
    ids, x = np.arange(10), torch.rand(10, 3).bfloat16()
    cache.keep(ids, {"x": x, "y": torch.arange(10)})
    _, slots, at, rest, _ = cache.slots.look_up(ids, np.arange(10, dtype=np.uint32))
    assert len(rest) == 0 and torch.equal(cache.tables["x"][slots], x[torch.from_numpy(at.astype(np.int64))])
    assert cache.tables["y"][slots].tolist() == at.tolist()


def test_an_answer_of_too_few_rows_is_an_error_and_not_kept(stage):
    router, sampler = stage.asking(random.Random(0), 1 << 20)

    def cut(request):
        tables = [name for name in ("x", "y") if name in stage.data.own.node_tables[0]]
        found = {name: stage.data.own.node_tables[0][name].tensor[:1] for name in tables}
        return encode_message(found, MessageKind.REPLY)

    for handlers in router.handlers.values():
        handlers["gather_rows"] = cut
    with pytest.raises((ValueError, KeyError)):
        stage.run(stage.make(sampler, 3))
    assert all(cache is None or cache.slots.num_used == 0 for cache in sampler.caches)


def count_reads(trainer, path, budget):
    data, flags = join(trainer, path), {"batch_size": 16, "collect_features": True, "random_seed": 1}
    where = options(trainer, "collocated", cache_memory_budget=budget)
    make, seeds, found = glt.distributed.DistNeighborLoader, seeds_of(trainer.rank), []
    with make(data, list(FAN_OUT), seeds, worker_options=where, **flags) as loader:
        for _ in range(3):
            sum(1 for _ in loader)
            found.append(loader.stats())
    return found


def test_stats_tell_what_a_cache_spares(world):
    for none, some in zip(
        run_cluster(2, count_reads, world(2).path, 0), run_cluster(2, count_reads, world(2).path, "1MB"), strict=True
    ):
        assert none[-1]["num_cached_nodes"] == 0
        assert some[-1]["num_cached_nodes"] + some[-1]["num_remote_nodes"] == none[-1]["num_remote_nodes"]
        # The second epoch had them all but for a few, which found no room among those that hash alike.
        assert some[2]["num_remote_nodes"] - some[1]["num_remote_nodes"] < 0.1 * some[0]["num_remote_nodes"]
        assert some[-1]["cache_hit_ratio"] > 0.6 and some[-1]["remote_bytes"] < 0.7 * none[-1]["remote_bytes"]


@pytest.mark.parametrize(("mode", "budget"), [("collocated", "4KB"), ("mp", "30KB")])
def test_batches_of_a_small_cache_are_the_same(world, mode, budget):
    expect_law(
        world(2), mode, {"cache_memory_budget": budget, "worker_concurrency": 8}, CASES[: 3 if mode != "mp" else 1]
    )


def test_a_client_is_not_counted_on_to_have_rows_of_a_batch_that_failed(stage, monkeypatch):
    """Rows of nodes are in its message already when those of edges fail."""
    clients = client_rows(stage.data, 1 << 20)
    sampler = DistNeighborSampler(stage.data, stage.config, None, stage.loop, others=stage.others, clients=clients)
    gather = RowLookup.gather

    def fail(rows, out, stats):
        if rows.kind == "edge":
            raise IndexError("a table is damaged")
        gather(rows, out, stats)

    monkeypatch.setattr(RowLookup, "gather", fail)
    with pytest.raises(IndexError, match="damaged"):
        stage.run(stage.make(sampler, 1))
    monkeypatch.undo()
    gc.collect()  # the error keeps the batch that failed, and with it the slots that were to take its rows
    for num_known in (0, 1):
        batch = stage.run(stage.make(sampler, 1))
        assert len(batch["n0/rows_at"]) > 0 or num_known
        assert (len(batch["n0/slots"]) > 0) == num_known


def test_budgets_are_checked():
    kind = glt.distributed.CollocatedDistSamplingWorkerOptions
    assert kind(cache_memory_budget="1KB").cache_bytes == 1024
    assert all(kind(cache_memory_budget=none).cache_bytes == 0 for none in (0, "0", "0MB"))
    with pytest.raises(ValueError, match="cache_memory_budget = -1: expected 0 or more bytes"):
        kind(cache_memory_budget=-1)
    for wrong, error in (
        (-1, ValueError),
        ("much", ValueError),
        (1.5, TypeError),
        (None, TypeError),
        (True, TypeError),
    ):
        with pytest.raises(error, match="cache_memory_budget"):
            kind(cache_memory_budget=wrong)
        with pytest.raises(error, match="cache_memory_budget"):
            glt.distributed.ServerOptions(cache_memory_budget=wrong)
