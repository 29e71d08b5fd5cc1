"""Windows of batches: of what partitions elsewhere have each row is asked for once, and batches are the same."""

import asyncio
import random
import threading

import pytest
import torch
from dist_typed_world import CASES as TYPED_CASES
from dist_typed_world import LINKS, OPTIONS, write_typed_world
from dist_world import CASES, NUM_NODES, expect_law, join, options, run_cluster, seeds_of, write_world
from late_answers import FAN_OUT, Stage
from server.test_service_batch_law import expect_law as expect_law_of_servers

import glt
from glt.channel.channel import LocalChannel
from glt.channel.message import MessageKind, encode_message
from glt.distributed.engine import producer
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.row_lookup import RowWindow
from glt.distributed.engine.sampler import STATS, DistNeighborSampler
from glt.distributed.engine.sampling_job import SamplingJob, SeedTable
from glt.distributed.engine.seeds import NodeSeeds
from glt.partition import FrequencyPartitioner
from glt.sampler.config import SamplingConfig
from glt.sampler.order import SeedOrder


@pytest.fixture(scope="module", params=["one type", "types", "with a cache", "trees"])
def stage(request, tmp_path_factory):
    """Trees have the same node, and edge, more than once in a batch."""
    root = tmp_path_factory.mktemp("windows")
    if request.param == "types":
        path = write_typed_world(root, 3, "in", None).path
    elif request.param == "with a cache":
        given = {"probs": [torch.rand(NUM_NODES) for _ in range(3)], "cache_ratio": 0.3}
        path = write_world(root, 3, partitioner=FrequencyPartitioner, **given).path
    else:
        path = write_world(root, 3).path
    made = Stage(path)
    if request.param == "trees":
        made.config = SamplingConfig(num_neighbors=(FAN_OUT,), with_edge=True, disjoint=True)
        made.here = DistNeighborSampler(made.data, made.config, None, made.loop, others=made.others)
    yield made
    made.loop.shutdown()


def stats_of(batch):
    return dict(zip(STATS, batch["stats"].tolist(), strict=True))


def total(stats, name):
    return sum(each[name] for each in stats)


def expect_same(stage, key, batch):
    wanted = stage.run(stage.make(stage.here, key))
    assert batch.keys() == wanted.keys()
    assert all(torch.equal(batch[name], wanted[name]) for name in batch if name != "stats"), key


@pytest.mark.parametrize("budget", [0, 20_000])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_each_row_is_asked_for_once_in_a_window_and_batches_are_the_same(stage, budget, width):
    """``width`` batches at a time, of windows of eight."""
    rng = random.Random(width)
    router, sampler = stage.asking(rng, budget)
    plain_router, plain = stage.asking(rng, budget)

    async def several(sampler, keys, window):
        made = []
        for first in range(0, len(keys), width):
            made += await asyncio.gather(*(stage.make(sampler, key, window) for key in keys[first : first + width]))
        return made

    for _ in range(4):
        keys = [rng.randrange(40) for _ in range(8)]
        router.asked.clear(), plain_router.asked.clear()
        batches = stage.run(several(sampler, keys, RowWindow()))
        for key, batch in zip(keys, batches, strict=True):
            expect_same(stage, key, batch)
        asked, ours = router.asked, [stats_of(batch) for batch in batches]
        assert len(set(asked)) == len(asked) > 0
        theirs = [stats_of(batch) for batch in stage.run(several(plain, keys, None))]
        assert all(each["num_window_nodes"] == each["window_bytes"] == 0 for each in theirs)
        if budget:
            continue
        assert set(asked) == set(plain_router.asked)
        for name, saved, least in (
            ("num_remote_nodes", "num_window_nodes", 0.2),
            ("remote_bytes", "window_bytes", 0.1),  # of edges, too
        ):
            before, after = total(theirs, name), total(ours, name)
            assert before == after + total(ours, saved) and after < (1 - least) * before
        assert total(ours, "cached_bytes") == total(theirs, "cached_bytes")


def test_a_batch_waits_for_answers_and_not_for_batches(stage):
    """One that never gets its room has asked, and others have its rows."""
    router, sampler = stage.asking(random.Random(0), 0)
    window = RowWindow()

    async def behind_one_that_is_stuck():
        await sampler.sample(stage.start(5), 5, window)
        router.asked.clear()
        return await stage.make(sampler, 5, window)

    expect_same(stage, 5, stage.run(behind_one_that_is_stuck()))
    assert router.asked == []


def test_those_that_share_a_lost_answer_fail_alike_and_later_windows_go_on(stage):
    router, sampler = stage.asking(random.Random(0), 0)

    async def outcome(key, window):
        try:
            return await stage.make(sampler, key, window)
        except glt.errors.PeerLost as error:
            return error

    async def window_of(*keys):
        window = RowWindow()
        return await asyncio.gather(*(outcome(key, window) for key in keys))

    router.loss = 1.0
    assert [str(each) for each in stage.run(window_of(3, 3, 3))] == ["lost"] * 3
    router.loss = 0.0
    for key, batch in zip((3, 4, 3), stage.run(window_of(3, 4, 3)), strict=True):
        expect_same(stage, key, batch)
    for first in range(0, 48, 4):
        router.loss = (0.0, 0.05, 0.2, 1.0)[first // 4 % 4]
        keys = range(first, first + 4)
        made = {
            key: each for key, each in zip(keys, stage.run(window_of(*keys)), strict=True) if isinstance(each, dict)
        }
        assert router.loss not in (0.0, 1.0) or len(made) == 4 * (1 - router.loss)
        for key, batch in made.items():
            expect_same(stage, key, batch)


def test_a_batch_that_fails_before_it_asks_fails_those_that_count_on_it(stage, monkeypatch):
    _, sampler = stage.asking(random.Random(0), 0)
    ask, is_first = sampler.partitions.ask_for_rows, threading.Event()

    def fail(rows):
        if not is_first.is_set():
            is_first.set()
            raise MemoryError("no room for the request")
        ask(rows)

    async def both():
        window = RowWindow()
        return await asyncio.gather(*(stage.make(sampler, 3, window) for _ in range(2)), return_exceptions=True)

    monkeypatch.setattr(sampler.partitions, "ask_for_rows", fail)
    assert [str(each) for each in stage.run(both())] == ["no room for the request"] * 2
    expect_same(stage, 3, stage.run(stage.make(sampler, 3, RowWindow())))


def test_an_answer_of_too_few_rows_is_an_error_for_all_that_read_it(stage):
    router, sampler = stage.asking(random.Random(0), 0)
    tables = stage.data.own.node_tables[0]

    def cut(request):
        found = {name: torch.zeros(1, *each.row_shape, dtype=each.dtype) for name, each in tables.items()}
        return encode_message(found, MessageKind.REPLY)

    for handlers in router.handlers.values():
        handlers["gather_rows"] = cut

    async def both():
        window = RowWindow()
        return await asyncio.gather(*(stage.make(sampler, 3, window) for _ in range(2)), return_exceptions=True)

    for error in stage.run(both()):
        assert isinstance(error, ValueError | KeyError | IndexError), error


# Windows of a producer.


class Windows:
    """Notes the windows of producers, and how many batches came into each."""

    def __init__(self, monkeypatch):
        self.made, windows = [], self

        class Noted(RowWindow):
            def __init__(self):
                super().__init__()
                self.num_batches = 0
                windows.made.append(self)

            def join(self):
                super().join()
                self.num_batches += 1

        monkeypatch.setattr(producer, "RowWindow", Noted)

    def expect_dropped(self):
        assert all(each._num_users == 0 and not each._asked for each in self.made)

    @property
    def sizes(self):
        return [each.num_batches for each in self.made]


def produce(stage, sampler, window, share=(0, 1), num_seeds=100, capacity=64):
    """Batches of eight seeds of the first type."""
    order, table = SeedOrder(num_seeds, 8), SeedTable({"node": torch.arange(num_seeds) % stage.data.num_nodes_of[0]})
    job = SamplingJob(stage.config, NodeSeeds(0), table, order, True, window)
    channel = LocalChannel(capacity)
    return channel, Producer(sampler, channel, job, share, "test", 0)


@pytest.mark.parametrize(
    ("window", "share", "first", "sizes"),
    [(4, (0, 1), 0, [4, 4, 4, 1]), (4, (0, 1), 3, [1, 4, 4, 1]), (2, (1, 3), 0, [2, 2]), (3, (0, 2), 5, [3, 1]),
     (1, (0, 1), 0, []), (100, (0, 1), 0, [13])],
)  # fmt: skip
def test_windows_are_aligned_by_index_and_dropped(stage, monkeypatch, window, share, first, sizes):
    windows = Windows(monkeypatch)
    router, sampler = stage.asking(random.Random(0), 0)
    channel, made = produce(stage, sampler, window, share)
    made.want(1)
    made.run(EpochStart(1, 0, first, 7))
    assert windows.sizes == sizes
    windows.expect_dropped()
    router_of_one, sampler_of_one = stage.asking(random.Random(0), 0)
    alone, made_alone = produce(stage, sampler_of_one, 1, share)
    made_alone.want(1)
    made_alone.run(EpochStart(1, 0, first, 7))
    for _ in range(channel.stats()["num_queued"]):
        ours, theirs = channel.receive(1.0), alone.receive(1.0)
        assert ours.index == theirs.index
        assert all(torch.equal(ours.tensors[n], theirs.tensors[n]) for n in theirs.tensors if n != "stats")
    assert set(router.asked) == set(router_of_one.asked) and len(router.asked) <= len(router_of_one.asked)


def test_a_window_of_what_is_read_here_and_without_features_is_none(stage, monkeypatch):
    windows = Windows(monkeypatch)
    _, made = produce(stage, stage.here, 4)
    made.want(1)
    made.run(EpochStart(1, 0, 0, 7))
    assert windows.made == []


def test_an_epoch_that_is_left_or_fails_drops_its_windows(stage, monkeypatch):
    windows = Windows(monkeypatch)
    router, sampler = stage.asking(random.Random(0), 0)
    channel, made = produce(stage, sampler, 8, num_seeds=800, capacity=3)
    made.open()
    made.start_epoch(EpochStart(1, 0, 0, 7))
    channel.receive(30.0)
    made.start_epoch(EpochStart(2, 0, 0, 7))  # the first waits for room, and is given up
    while (message := channel.receive(30.0)).loader == 1:
        pass
    router.loss = 1.0
    while message.kind is not MessageKind.ERROR:
        message = channel.receive(30.0)
    router.loss = 0.0
    made.start_epoch(EpochStart(3, 0, 0, 7))
    for index in range(100):
        while (message := channel.receive(30.0)).loader != 3:
            pass
        assert message.index == index and message.kind is MessageKind.BATCH
    made.close(30.0)
    assert len(windows.made) > 14
    windows.expect_dropped()


# Loaders.


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("budget", [0, "64MB"])
def test_batches_of_collocated_loaders_are_the_same(world, parts, budget):
    given = {"gather_window": 4, "cache_memory_budget": budget, "worker_concurrency": 8}
    expect_law(world(parts), "collocated", given, CASES[:3])


@pytest.mark.parametrize("budget", [0, "64MB"])
def test_typed_batches_and_links_are_the_same(typed_world, budget):
    cases = [*TYPED_CASES, *OPTIONS, *LINKS]
    expect_law(typed_world(2), "collocated", {"gather_window": 3, "cache_memory_budget": budget}, cases)


def test_batches_of_workers_are_the_same(world):
    expect_law(world(2), "mp", {"gather_window": 4, "num_workers": 2, "cache_memory_budget": 0}, CASES[:1])


def test_batches_of_servers_are_the_same(world):
    given = {"gather_window": 4, "is_elsewhere": True, "cache_memory_budget": "100KB"}
    expect_law_of_servers(world(2), 2, 1, given, CASES[:1], {"cache_memory_budget": 0})


def count_rows(trainer, path, windows):
    data, found = join(trainer, path), []
    flags = {"batch_size": 16, "collect_features": True, "random_seed": 1}
    for window in windows:
        where = options(trainer, "collocated", cache_memory_budget=0, gather_window=window)
        make, seeds = glt.distributed.DistNeighborLoader, seeds_of(trainer.rank)
        with make(data, list(FAN_OUT), seeds, worker_options=where, **flags) as loader:
            sum(1 for _ in loader)
            found.append(loader.stats())
    return found


def test_stats_tell_what_a_window_spares(world):
    for one, four, all_ in run_cluster(2, count_rows, world(2).path, (1, 4, 1024)):
        assert one["num_window_nodes"] == one["window_bytes"] == one["cached_bytes"] == 0
        for each in (four, all_):
            assert each["num_remote_nodes"] + each["num_window_nodes"] == one["num_remote_nodes"]
            assert each["remote_bytes"] + each["window_bytes"] == one["remote_bytes"]
        assert all_["remote_bytes"] < four["remote_bytes"] < one["remote_bytes"]
        assert all_["num_remote_nodes"] <= NUM_NODES / 2 * 1.2


def test_windows_are_checked():
    kinds = "CollocatedDistSamplingWorkerOptions MpDistSamplingWorkerOptions RemoteDistSamplingWorkerOptions".split()
    for kind in (getattr(glt.distributed, name) for name in kinds):
        assert kind().gather_window == 1 and kind(gather_window=8).gather_window == 8
        for wrong in (0, -1, 1025):
            with pytest.raises(ValueError, match=f"gather_window = {wrong}: expected 1 to 1024"):
                kind(gather_window=wrong)
        for wrong in (True, 2.0, "4", None):
            with pytest.raises(TypeError, match=f"gather_window = {wrong!r}: expected an integer"):
                kind(gather_window=wrong)
