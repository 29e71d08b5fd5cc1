"""Batches on their way from sampling processes to clients: through shared memory on one host, and over the network."""

import gc
import os
import resource
import signal

import pytest
import torch
from dist_world import NUM_NODES, assert_same
from network import enter
from promptness import eventually
from service import Stage, options

import glt
from glt.channel.shm import ShmChannel
from glt.distributed.engine import client_rows
from glt.distributed.server import remote
from glt.distributed.server.stream import RingChannel, RingSlot, channel_to
from glt.distributed.wire.handshake import dial, introduce
from glt.errors import ChannelClosed, RendezvousError


def go_elsewhere(is_elsewhere=True):
    """This client takes itself for one on another host, from now on."""
    remote.host_id = lambda: "elsewhere" if is_elsewhere else glt.distributed.wire.addresses.host_id()


WAYS = pytest.mark.parametrize("is_elsewhere", [False, True], ids=["shared memory", "network"])


def counts(stage, actor, name):
    """Messages that came, those of them that lay in shared memory, and those that had no room there."""
    stats = stage.ask(actor, "loader_stats", name)
    return [stats[f"channel_{each}"] for each in ("num_received", "num_in_ring", "num_oversize")]


def test_batches_are_the_same_both_ways(world):
    here = world(2)
    with Stage(3) as stage:
        stage.start_servers(here.path, 2, 1)
        stage.start_clients(2, 1)
        for is_elsewhere, budget in ((False, "1MB"), (True, 0), (True, "30KB"), (True, "1MB")):
            stage.ask(2, "run_function", go_elsewhere, is_elsewhere)
            stage.ask(2, "law", "law", 0, server_rank=[0, 1], cache_memory_budget=budget, worker_concurrency=1)
            stage.expect_law(2, "law", here, 0)
            num_received, num_in_ring, num_oversize = counts(stage, 2, "law")
            assert num_received > 4 and num_oversize == 0
            assert num_in_ring == (0 if is_elsewhere else num_received)
            num_cached = stage.ask(2, "loader_stats", "law")["channel_num_cached_rows"]
            assert (num_cached > 0) == (is_elsewhere and budget != 0)
            stage.ask(2, "close", "law")
        stage.finish((2,), (0, 1))


def test_batches_that_have_no_room_in_shared_memory_come_over_the_socket_in_their_turn(world):
    """The last batch is short, and the others are longer than half of it."""
    with Stage(2) as stage:
        stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        taken = {}
        for name, size in (("small", "36KB"), ("large", "8MB")):
            stage.ask(1, "make", name, batch_size=290, buffer_size=size)
            taken[name] = stage.ask(1, "take", name)
        assert_same(taken["small"], taken["large"], "batches")
        assert counts(stage, 1, "small") == [3, 1, 2] and counts(stage, 1, "large") == [3, 3, 0]
        stage.finish((1,), (0,))


def keep_all():
    """Goes through a loader whose batches, all kept, are several times its shared memory; none of them changes."""
    flags = {"batch_size": 8, "collect_features": True, "random_seed": 1}

    def make():
        where = options(buffer_size="200KB", worker_concurrency=8)
        return glt.distributed.DistNeighborLoader(None, [4, 3], torch.arange(NUM_NODES), worker_options=where, **flags)

    with make() as loader:
        kept = list(loader)
        stats = loader.stats()
    with make() as loader:
        for mine, again in zip(kept, loader, strict=True):
            assert torch.equal(mine.x, again.x) and torch.equal(mine.edge_index, again.edge_index)
    return stats["channel_num_in_ring"], stats["channel_num_copied"]


def test_a_client_that_keeps_its_batches_holds_up_nothing(world):
    with Stage(2) as stage:
        stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        num_in_ring, num_copied = stage.ask(1, "run_function", keep_all)
        assert num_in_ring > 0 and num_copied > 0
        stage.finish((1,), (0,))


@pytest.mark.integration
def test_a_client_in_another_network_namespace_is_not_on_this_host(hosts, world):
    """It has the same name of the host, and no Unix socket of the sampler."""
    here = world(1)
    with Stage(2) as stage:
        for actor in range(2):
            stage.ask(actor, "run_function", enter, hosts[actor])
        stage.ask(0, "serve", here.path, 1, 1, 0, master_addr="10.199.0.1")
        stage.ask(1, "join", 1, 1, 0, master_addr="10.199.0.1")
        stage.ask(1, "law", "law", 0)
        stage.expect_law(1, "law", here, 0)
        num_received, num_in_ring, _ = counts(stage, 1, "law")
        assert num_received > 0 and num_in_ring == 0
        stage.finish((1,), (0,))


def come_and_go(num_times):
    """Loaders that are read whole, half, not at all, closed and forgotten."""
    for number in range(num_times):
        given = {"batch_size": 64, "collect_features": True, "worker_options": options()}
        loader = glt.distributed.DistNeighborLoader(None, [4, 3], torch.arange(NUM_NODES), **given)
        batches = iter(loader)
        for _ in range((0, 3, len(loader))[number % 3]):
            next(batches)
        if number % 4:
            del batches
            loader.shutdown()
        del loader
    gc.collect()


def num_mapped(pid):
    """Rings and tables of seeds that a process has mapped."""
    with open(f"/proc/{pid}/maps") as maps:
        return sum("/memfd:glt-" in line for line in maps)


@WAYS
@pytest.mark.timeout(240)
def test_two_hundred_loaders_leave_nothing(world, is_elsewhere):
    with Stage(2) as stage:
        ((sampler,),) = stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        stage.ask(1, "run_function", go_elsewhere, is_elsewhere)

        def holdings():
            assert eventually(lambda: stage.ask(0, "stats")["num_loaders"] == 0)
            return [stage.ask(1, "census"), stage.ask(0, "census"), stage.ask(0, "census", sampler)]

        stage.ask(1, "run_function", come_and_go, 20)
        before = holdings()
        stage.ask(1, "run_function", come_and_go, 200)

        def has_grown():
            return any(
                now[i] > then[i] + (3, 3, 0, 32 << 20)[i]
                for now, then in zip(holdings(), before, strict=True)
                for i in range(4)
            )

        assert eventually(lambda: not has_grown()), (before, holdings())
        # As loaders end, not at Python's next collection.
        assert eventually(lambda: num_mapped(sampler) == 0), num_mapped(sampler)
        assert stage.ask(0, "samplers") == [sampler]
        stage.finish((1,), (0,))


def test_a_killed_sampler_and_a_killed_client_far_away(world):
    """As tests of other files have it with clients on the server's host."""
    here = world(1)
    with Stage(3) as stage:
        ((sampler,),) = stage.start_servers(here.path, 1, 2)
        stage.start_clients(1, 2)
        for actor in (1, 2):
            stage.ask(actor, "run_function", go_elsewhere)
            stage.set_going(actor, "endless")
        stage.kill(1)
        assert eventually(lambda: stage.ask(0, "stats")["num_loaders"] == 1)
        stage.goes_on(2, "endless")
        os.kill(sampler, signal.SIGKILL)
        stage.goes_on(2, "endless")
        assert stage.ask(0, "samplers") != [sampler]
        assert stage.ask(2, "stop", "endless") > 0
        stage.ask(2, "law", "law", 0)
        stage.expect_law(2, "law", here, 0)
        stage.kill(0)


def test_a_client_far_away_that_stops_reading(world):
    here = world(1)
    with Stage(3) as stage:
        stage.start_servers(here.path, 1, 2, max_concurrency=2)
        stage.start_clients(1, 2)
        stage.ask(1, "run_function", go_elsewhere)
        stage.ask(1, "make", "idle", batch_size=64, worker_concurrency=16, prefetch_size=2, buffer_size="200KB")
        stage.ask(1, "take", "idle", 1)
        stage.set_going(2, "busy")
        stage.goes_on(2, "busy", 100)

        def idle():
            loaders = stage.ask(0, "stats")["loaders"].values()
            (found,) = [each for each in loaders if each["client"].startswith("client 0")]
            return found

        assert eventually(lambda: idle()["num_unread"] == 2 and idle()["num_queued"] > 0 and idle()["blocked_s"] > 0)
        assert idle()["num_running"] == 0 and idle()["queued_bytes"] <= 600 << 10, idle()
        assert len(stage.ask(1, "take", "idle")) == 9
        stage.ask(2, "stop", "busy")
        stage.finish((1, 2), (0,))


def run_out_of_memory(num_times):
    """This client, which is elsewhere, has no memory for rows, so many times."""
    go_elsewhere()
    empty_rows, left = client_rows.empty_rows, [num_times]

    def fail(*args):
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError("no room")
        return empty_rows(*args)

    client_rows.empty_rows = fail
    given = {"batch_size": 8, "collect_features": True, "worker_options": options()}
    try:
        with glt.distributed.DistNeighborLoader(None, [4], torch.arange(64), **given) as loader:
            return len(list(loader)), loader.stats()["channel_num_moved"]
    finally:
        client_rows.empty_rows = empty_rows


def test_a_client_far_away_without_memory_for_rows_tries_again_or_fails(world):
    with Stage(2) as stage:
        stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        assert stage.ask(1, "run_function", run_out_of_memory, 1) == (8, 1)
        stage.begin(1, "run_function", run_out_of_memory, 100)
        stage.failure(1).expect("PeerLost", "worker 0 of server 0", "MemoryError: no room")
        stage.finish((1,), (0,))


def keep_a_closed_loader():
    go_elsewhere()
    given = {"batch_size": 8, "collect_features": True, "worker_options": options()}
    with glt.distributed.DistNeighborLoader(None, [4], torch.arange(64), **given) as loader:
        list(loader)
        (stream,) = loader._backend._streams
        assert stream.kept._tables
    return eventually(lambda: not stream.kept._tables)


def test_a_closed_loader_keeps_no_rows(world):
    with Stage(2) as stage:
        stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        assert stage.ask(1, "run_function", keep_a_closed_loader)
        stage.finish((1,), (0,))


def kill_while_opening(sampler):
    """The sampler dies between the answer to where it is and the connection; the loader opens all the same."""
    open_at = remote._open_at
    killed = []

    async def kill_first(where, *args):
        if not killed:
            os.kill(sampler, signal.SIGKILL)
            killed.append(1)
        return await open_at(where, *args)

    remote._open_at = kill_first
    try:
        where = options()
        loader = glt.distributed.DistNeighborLoader(None, [4], torch.arange(64), batch_size=8, worker_options=where)
    finally:
        remote._open_at = open_at
    with loader:
        return len(list(loader))


def test_a_sampler_that_dies_while_a_stream_is_opened(world):
    with Stage(2) as stage:
        ((sampler,),) = stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        assert stage.ask(1, "run_function", kill_while_opening, sampler) == 8
        assert stage.ask(0, "samplers") != [sampler]
        stage.finish((1,), (0,))


def try_as_a_stranger():
    """Opens the stream of another's loader."""
    where = options()
    with glt.distributed.DistNeighborLoader(None, [4], torch.arange(64), batch_size=8, worker_options=where) as loader:
        (stream,) = loader._backend._streams
        at = stream.session.call("glt.stream_at", stream.loader.id, 0).result()
        told = []
        for secret, kind in (("0" * 64, "stream"), ("\u00e9", "stream"), ("0", "client")):
            hello = introduce(kind, loader=stream.loader.id, secret=secret, first=0, step=1)
            for address in (at["local"], ("127.0.0.1", at["port"])):
                with pytest.raises(RendezvousError) as refused:
                    dial(address, "a sampler", hello, 20.0, retry=False)
                told.append(str(refused.value))
        return told, len(list(loader))


def open_more_than_was_granted():
    """Returns whether the first stream has ended, and what was said to those that wanted too much."""
    where = options(cache_memory_budget="1MB")
    with glt.distributed.DistNeighborLoader(None, [4], torch.arange(64), batch_size=8, worker_options=where) as loader:
        (stream,) = loader._backend._streams
        at = stream.session.call("glt.stream_at", stream.loader.id, 0).result()
        told = []

        def dial_more(kind="stream", first=0, step=1, cache_bytes=0):
            granted = {"loader": stream.loader.id, "secret": stream.loader.secret, "cache_bytes": cache_bytes}
            hello = introduce(kind, **granted, first=first, step=step)
            return dial(at["local"], "a sampler", hello, 20.0, retry=False)[0]

        for wanted in ({"step": 2}, {"step": 2, "first": 1}, {"cache_bytes": (1 << 20) + 1}, {"kind": "questions"}):
            with pytest.raises(RendezvousError) as refused:
                dial_more(**wanted)
            told.append(str(refused.value))
        goes_on = stream.error is None and len(list(loader)) == 8
        again = dial_more(cache_bytes=1 << 20)
        is_over = eventually(lambda: stream.error is not None)
        again.close()
        return goes_on, is_over, told


def test_a_client_opens_as_many_streams_as_it_was_granted(world):
    """A stream that is opened again ends the one before."""
    with Stage(2) as stage:
        stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        goes_on, is_over, told = stage.ask(1, "run_function", open_more_than_was_granted)
        assert goes_on and is_over
        wanted = ("it was granted 1", "it was granted 1", "cache_bytes = 1048577", "kind = 'questions': the loader was")
        assert all(words in text for words, text in zip(wanted, told, strict=True)), told
        stage.finish((1,), (0,))


def test_a_stream_is_opened_with_the_secret_of_its_loader_only(world):
    with Stage(2) as stage:
        stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        told, num_batches = stage.ask(1, "run_function", try_as_a_stranger)
        assert all("is not known here" in each for each in told[:2]), told
        assert all("this is no handshake" in each for each in told[2:4]), told
        assert all("expected stream, questions or partition" in each for each in told[4:]), told
        assert num_batches == 8
        stage.finish((1,), (0,))


# -- the channel of a stream -------------------------------------------------------------------------------------------


def test_messages_in_a_ring_are_seen_when_they_are_shown():
    channel = channel_to(True, 1 << 20, False)
    assert isinstance(channel, RingChannel) and channel.ring.channel_bytes == 2 << 20
    consumer = ShmChannel.from_descriptor(channel.ring.descriptor() | {"fd": os.dup(channel.ring.descriptor()["fd"])})
    ready = []
    channel.notify(lambda: ready.append(1))
    tensors = {"x": torch.arange(1000)}
    channel.send(tensors, index=0)
    with pytest.raises(ValueError), channel.reserve(100):
        raise ValueError
    channel.send({"x": torch.zeros(200_000)}, index=1)  # of 800 kB: there is room for two more of these
    channel.send({"x": torch.zeros(2 << 20)}, index=2)
    channel.send(tensors, index=3)
    assert len(ready) == 5 and channel.stats()["num_queued"] == 4 and consumer.stats()["num_sent"] == 0
    slots = [channel.take(0.0) for _ in range(4)]
    assert [isinstance(each, RingSlot) for each in slots] == [True, True, False, True]
    for slot, index in zip(slots, range(4), strict=True):
        assert slot.message().index == index
        if isinstance(slot, RingSlot):
            slot.show()
            message = consumer.receive(0.0)
            assert message.index == index and torch.equal(message.tensors["x"], slot.message().tensors["x"])
    channel.close()
    with pytest.raises(ChannelClosed):
        consumer.receive(10.0)
    with pytest.raises(ChannelClosed):
        channel.reserve(10)


def test_a_stream_has_no_ring_where_it_is_of_no_use():
    for given in ((False, 1 << 20, False), (True, 1, False), (True, 1 << 20, True), (True, 1 << 60, True)):
        assert not isinstance(channel_to(*given), RingChannel), given
    large = channel_to(True, 1 << 60, False)
    assert not isinstance(large, RingChannel) or large.ring.channel_bytes == 4 << 30
    large.close()


def test_a_sampler_without_descriptors_says_so(world):
    """It has no room for the memory of the seeds; and has it again, when its limit is raised."""
    with Stage(2) as stage:
        ((sampler,),) = stage.start_servers(world(1).path, 1, 1)
        stage.start_clients(1, 1)
        used = {int(each) for each in os.listdir(f"/proc/{sampler}/fd")}
        first_free = next(each for each in range(len(used) + 1) if each not in used)
        before = resource.prlimit(sampler, resource.RLIMIT_NOFILE)
        resource.prlimit(sampler, resource.RLIMIT_NOFILE, (first_free, before[1]))
        # The connection waits in the kernel until there is a descriptor for it; the memory of the seeds was lost.
        stage.begin(1, "make", "loader")
        assert eventually(lambda: "out of file descriptors" in stage.output(0))
        resource.prlimit(sampler, resource.RLIMIT_NOFILE, before)
        stage.failure(1).expect("RendezvousError", "worker 0 cannot sample for it", "out of file descriptors", "ulimit")
        assert stage.ask(1, "make", "again") > 0
        stage.finish((1,), (0,))
