"""Section 3 of the tutorial: the concurrent sampler and its event loop, used directly.

The tutorial shows no code there, but says what they do: the remote parts of a batch are asked for, the next batch is
taken up meanwhile, and what comes back is stitched and sent to the channel. Here two partitions live in this process,
and the transport between them answers when the test says so.
"""

import threading
from concurrent.futures import Future

import pytest
import torch
from dist_world import NUM_NODES

import glt
from glt.channel import ShmChannel
from glt.channel.message import MessageKind
from glt.data import HOMOGENEOUS
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.sampler import BatchStart
from glt.distributed.wire.transport import Peer, Transport
from glt.sampler.config import SamplingConfig
from glt.testing import reference_batch

FANOUT, SEED = (4, 3), 21


class HeldTransport(Transport):
    """Answers from a dataset in this process, once as many requests wait as it is told to hold."""

    def __init__(self, dataset, num_held):
        self.handlers = dataset.own.handlers()
        self.num_held = num_held
        self.waiting = []
        self.most_waiting = 0
        self.enough = threading.Event()

    def call_all(self, peer, calls):
        return [self.call(method, request) for method, request in calls]

    def call(self, method, request):
        future = Future()
        self.waiting.append((future, method, request))
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        if len(self.waiting) >= self.num_held:
            self.enough.set()
        if self.enough.is_set():
            while self.waiting:
                asked, what, about = self.waiting.pop()
                try:
                    asked.set_result(self.handlers[what](about))
                except IndexError as error:
                    asked.set_exception(error)
        return future

    def close(self, gracefully=False):
        self.waiting.clear()


def config(num_neighbors):
    return SamplingConfig.checked(num_neighbors, HOMOGENEOUS)


def start_of(nodes):
    return BatchStart([(0, nodes)])


def peer(part):
    return Peer(f"sampler-{part}", part, None, "here", 1, part)


@pytest.fixture
def parts(world):
    return [glt.distributed.DistDataset().load(world(2).path, part, "CPU") for part in range(2)]


@pytest.mark.parametrize("concurrency", [1, 6])
def test_batches_are_sampled_concurrently_and_sent_to_the_channel(world, parts, concurrency):
    loop = glt.distributed.ConcurrentEventLoop(concurrency)
    # Nothing is answered before all batches that may be in flight have asked for their first hop.
    transport = HeldTransport(parts[1], num_held=concurrency)
    router = PartitionRouter(transport, [peer(0), peer(1)], peer(0), num_partitions=2)
    sampler = glt.distributed.DistNeighborSampler(parts[0], config(FANOUT), router, loop)
    order = glt.sampler.order.SeedOrder(60, 10, False, False, SEED)
    seeds = torch.arange(0, NUM_NODES, 10)
    channel = ShmChannel("4MB")

    async def produce(batch):
        sampled = await sampler.sample(start_of(seeds[batch.input_id]), batch.key)
        layout = sampled.layout
        with channel.reserve(layout.nbytes, timeout_s=0) as slot:
            layout.write_header(slot.buffer, MessageKind.BATCH, 0, batch.epoch, batch.index)
            await sampler.fill(sampled, layout.tensors(slot.buffer))

    batches = list(order.batches(0))
    tasks = [loop.submit(lambda batch=batch: produce(batch)) for batch in batches]
    assert transport.enough.wait(60) and transport.most_waiting == concurrency
    for task in tasks:
        assert task is not None
        task.result(60)
    assert loop.wait_all(60)
    graph = world(2).graph
    found = {message.index: message.tensors for message in (channel.receive(10) for _ in batches)}
    assert sorted(found) == list(range(6))
    for batch in batches:
        tensors = found[batch.index]
        wanted = reference_batch(
            graph.edge_index, NUM_NODES, seeds[batch.input_id].tolist(), FANOUT, False, SEED, 0, batch.index, "in"
        )
        assert tensors["n_id/n0"].tolist() == list(wanted.node)
        assert torch.equal(tensors["x/n0"], graph.x[tensors["n_id/n0"]])
        assert torch.equal(graph.edge_index[:, tensors["e_id/e0"]], tensors["n_id/n0"][tensors["edge_index/e0"]])
    loop.shutdown()
    channel.close()


def test_what_fails_stays_with_its_batch(parts):
    loop = glt.distributed.ConcurrentEventLoop(4)
    transport = HeldTransport(parts[0], num_held=1)  # of the wrong partition: it refuses what it does not own
    router = PartitionRouter(transport, [peer(0), peer(1)], peer(0), num_partitions=2)
    sampler = glt.distributed.DistNeighborSampler(parts[0], config(FANOUT), router, loop)
    outside = loop.submit(lambda: sampler.sample(start_of(torch.tensor([NUM_NODES])), 5))
    assert outside is not None
    with pytest.raises(IndexError, match=str(NUM_NODES)):
        outside.result(60)
    remote = loop.submit(lambda: sampler.sample(start_of(torch.arange(300)), 5))
    assert remote is not None
    with pytest.raises(IndexError, match="partition"):
        remote.result(60)
    mine = torch.from_numpy((parts[0].node_books[0].owners() == 0).nonzero()[0])[:3]
    only_seeds = glt.distributed.DistNeighborSampler(parts[0], config([0]), router, loop)
    sampled = loop.submit(lambda: only_seeds.sample(start_of(mine), 5))
    assert sampled is not None and sampled.result(60).specs["n_id/n0"][1] == (3,)
    loop.shutdown()
    assert loop.submit(lambda: sampler.sample(start_of(mine), 5)) is None


def test_several_partitions_and_no_router_is_an_error(parts):
    loop = glt.distributed.ConcurrentEventLoop(1)
    with pytest.raises(ValueError, match=r"partitions \[1\] are not read here"):
        glt.distributed.DistNeighborSampler(parts[0], config([2]), None, loop)
    loop.shutdown()
