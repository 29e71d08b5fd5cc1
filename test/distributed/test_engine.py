"""From rows of the input to a message: requests, link seeds, the concurrent sampler and producers."""

import asyncio
import os
import random
import signal
import threading
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from dist_world import NUM_NODES
from torch import Tensor

import glt
from glt.channel.message import MessageKind, encode_message, read_message
from glt.data import HOMOGENEOUS
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.requests import (
    DegreesRequest,
    EarliestRequest,
    HasEdgesRequest,
    InducedRequest,
    OneHopRequest,
    RowsRequest,
)
from glt.distributed.engine.sampler import BatchStart
from glt.distributed.engine.seeds import LinkSeeds, Negatives
from glt.distributed.wire.transport import Peer, Transport
from glt.errors import MessageError, PeerLost
from glt.sampler.config import SamplingConfig
from glt.testing import reference_batch

IDS = torch.tensor([2**40, 0, 7])

NONE = torch.empty(0, dtype=torch.int64)


def assert_equal(a, b):
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, tuple):
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other)
    else:
        assert a == b and type(a) is type(b)


REQUESTS = [
    OneHopRequest(3, IDS, -1, False, 2**64 - 1, 254, True),
    OneHopRequest(0, IDS, 2**31 - 1, True, 0, 0, False, True, False, IDS.to(torch.uint32), None, (IDS, -IDS)),
    OneHopRequest(1, NONE, 4, False, 2**63, 1, True, False, True, NONE.to(torch.uint32), NONE - 5, (NONE, NONE)),
    RowsRequest("edge", 11, IDS, ("edge_attr",)),
    RowsRequest("node", 0, NONE, ("x", "größe y", "time")),
    InducedRequest(2, IDS, NONE, True),
    DegreesRequest(4, IDS),
    HasEdgesRequest(5, IDS, -IDS),
    EarliestRequest(9),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_arrive_as_they_were_asked(request_):
    arrived = type(request_).decode(request_.encode())
    for field in fields(request_):
        assert_equal(getattr(request_, field.name), getattr(arrived, field.name))


def damaged(request, rng):
    """The request as a peer with an error in it, or of other intentions, might send it."""
    tensors = dict(read_message(request.encode()).tensors)
    name = rng.choice(sorted(tensors))
    tensor, kind = tensors.pop(name), rng.choice(["missing", "changed", "kind", "cut", "bytes", "text"])
    if kind == "changed":
        changed = [tensor.to(dtype) for dtype in (torch.float32, torch.int32, torch.int64, torch.uint8, torch.bool)]
        changed += [
            torch.tensor(rng.randrange(-5, 5)),
            tensor.view(1, -1),
            tensor.repeat(2),
            tensor[len(tensor) // 2 :],
        ]
        changed += [torch.full_like(tensor, 2**63 - 1 if tensor.dtype == torch.int64 else 1)]
        tensors[name] = rng.choice(changed)
    elif kind != "missing":
        tensors[name] = tensor
    if kind == "text" and "names" in tensors:
        tensors["names"] = torch.tensor([0xFF, 0xFE, 10], dtype=torch.uint8)
    message = encode_message(tensors, MessageKind.REPLY if kind == "kind" else MessageKind.REQUEST)
    if kind == "cut":
        return message[: rng.randrange(len(message))].clone()
    for _ in range(3 if kind == "bytes" else 0):
        message[rng.randrange(len(message))] = rng.randrange(256)
    return message


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_what_is_no_request_is_a_message_error(request_):
    rng = random.Random(5)
    num_refused = 0
    for _ in range(400):
        bytes_ = damaged(request_, rng)
        try:
            arrived = type(request_).decode(bytes_)
        except MessageError as error:
            num_refused += 1
            assert len(str(error)) > 20
            continue
        # What passes is a request, if another one.
        assert type(request_).decode(arrived.encode()) is not None
    assert num_refused > 100


def test_errors_of_requests_say_what_is_wrong():
    hop = OneHopRequest(3, IDS, -1, False, 1, 0, True, excluded=(IDS, NONE[:0]))
    rows = RowsRequest("node", 0, IDS, ("x",))
    without = {"spec": torch.tensor([0])}
    for bytes_, kind, text in (
        (encode_message({}, MessageKind.REQUEST), OneHopRequest, "hop: tensor 'nodes' is missing"),
        (rows.encode(), OneHopRequest, "'nodes' is missing; there are .'ids', 'names', 'spec'"),
        (hop.encode(), OneHopRequest, r"'neighbor' is torch.int64 \[0\], expected torch.int64 \[3\]"),
        (OneHopRequest(3, IDS, -2, False, 1, 0, True).encode(), OneHopRequest, "num_neighbors = -2, expected -1 to"),
        (OneHopRequest(3, IDS, 2, False, 1, 300, True).encode(), OneHopRequest, "hop = 300, expected 0 to 254"),
        (encode_message(without, MessageKind.REPLY), EarliestRequest, "of kind REPLY, expected REQUEST"),
        (encode_message({"spec": torch.zeros(2)}, MessageKind.REQUEST), EarliestRequest, r"float32 \[2\], .*\[1\]"),
    ):
        with pytest.raises(MessageError, match=text):
            kind.decode(bytes_)


def test_a_failed_look_up_is_not_kept_for_later_epochs():
    asked = []

    async def earliest_node(node_type):
        asked.append(node_type)
        if len(asked) == 1:
            raise PeerLost("the owner was slow once")
        return 3, 10

    drawn = Negatives("binary", 1.0, None, None)
    seeds = LinkSeeds(0, (0, 0), drawn)
    sampler = SimpleNamespace(
        partitions=SimpleNamespace(earliest_node=earliest_node),
        config=SimpleNamespace(time_level="node"),
        dataset=SimpleNamespace(num_nodes_of=(20,)),
    )

    async def epochs():
        with pytest.raises(PeerLost, match="slow once"):
            await seeds._ends_of(sampler, drawn)
        first = await seeds._ends_of(sampler, drawn)
        assert await seeds._ends_of(sampler, drawn) is first  # found out once

    asyncio.run(epochs())
    assert asked == [0, 0, 0]  # the failure, then source and destination


FANOUT, SEED = (4, 3), 21


class HeldTransport(Transport):
    """Answers from a dataset in this process, once as many requests wait as it is told to hold."""

    def __init__(self, dataset, num_held):
        self.handlers, self.num_held = dataset.own.handlers(), num_held
        self.waiting, self.most_waiting = [], 0
        self.enough = threading.Event()

    def call_all(self, peer, calls):
        futures = [asyncio.get_running_loop().create_future() for _ in calls]
        self.waiting += [(*call, future) for call, future in zip(calls, futures, strict=True)]
        if not self.enough.is_set():
            self.most_waiting = len(self.waiting)
        if len(self.waiting) >= self.num_held:
            self.enough.set()
        while self.enough.is_set() and self.waiting:
            method, request, future = self.waiting.pop()
            try:
                future.set_result(self.handlers[method](request))
            except IndexError as error:
                future.set_exception(error)
        return futures

    def close(self, gracefully=False):
        self.waiting.clear()


def start_of(nodes):
    return BatchStart([(0, nodes)])


@pytest.fixture
def parts(world):
    return [glt.distributed.DistDataset().load(world(2).path, part, "CPU") for part in range(2)]


@pytest.fixture
def sampler_on(parts):
    """Makes a sampler of partition 0 that asks a transport for partition 1."""
    loops = []

    def make(transport, concurrency, num_neighbors=FANOUT):
        loops.append(glt.distributed.ConcurrentEventLoop(concurrency))
        peers = [Peer(f"sampler-{part}", part, None, "here", 1, part) for part in range(2)]
        router = PartitionRouter(transport, peers, peers[0], num_partitions=2)
        config = SamplingConfig.checked(num_neighbors, HOMOGENEOUS)
        return glt.distributed.DistNeighborSampler(parts[0], config, router, loops[-1])

    yield make
    for loop in loops:
        loop.shutdown()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loop_of_the_parent_takes_nothing_in_a_fork():
    loop = glt.distributed.ConcurrentEventLoop(1)
    child = os.fork()
    if child == 0:
        refused = 0
        signal.alarm(30)
        try:
            for call in (lambda: loop.submit(lambda: asyncio.sleep(0)).result(), lambda: loop.run_native(int)):
                try:
                    call()
                except RuntimeError as error:
                    refused += "is a fork of the process" in str(error)
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    loop.shutdown()


@pytest.mark.parametrize("concurrency", [1, 6])
def test_batches_are_sampled_concurrently(world, parts, sampler_on, concurrency):
    # Nothing is answered before all batches that may be in flight have asked for their first hop.
    transport = HeldTransport(parts[1], num_held=concurrency)
    sampler = sampler_on(transport, concurrency)
    order = glt.sampler.order.SeedOrder(60, 10, False, False, SEED)
    seeds, graph = torch.arange(0, NUM_NODES, 10), world(2).graph

    async def produce(batch):
        sampled = await sampler.sample(start_of(seeds[batch.input_id]), batch.key)
        out = sampled.layout.tensors(torch.empty(sampled.layout.nbytes, dtype=torch.uint8))
        await sampler.fill(sampled, out)
        return out

    batches = list(order.batches(0))
    tasks = [sampler.loop.submit(lambda batch=batch: produce(batch)) for batch in batches]
    assert transport.enough.wait(60) and transport.most_waiting == concurrency
    for batch, task in zip(batches, tasks, strict=True):
        tensors = task.result(60)
        wanted = reference_batch(
            graph.edge_index, NUM_NODES, seeds[batch.input_id].tolist(), FANOUT, False, SEED, 0, batch.index, "in"
        )
        assert tensors["n_id/n0"].tolist() == list(wanted.node)
        assert torch.equal(tensors["x/n0"], graph.x[tensors["n_id/n0"]])
        assert torch.equal(graph.edge_index[:, tensors["e_id/e0"]], tensors["n_id/n0"][tensors["edge_index/e0"]])
    assert sampler.loop.wait_all(60)


def test_what_fails_stays_with_its_batch(parts, sampler_on):
    transport = HeldTransport(parts[0], num_held=1)  # of the wrong partition: it refuses what it does not own
    sampler, only_seeds = sampler_on(transport, 4), sampler_on(transport, 4, [0])
    outside = sampler.loop.submit(lambda: sampler.sample(start_of(torch.tensor([NUM_NODES])), 5))
    with pytest.raises(IndexError, match=str(NUM_NODES)):
        outside.result(60)
    remote = sampler.loop.submit(lambda: sampler.sample(start_of(torch.arange(300)), 5))
    with pytest.raises(IndexError, match="partition"):
        remote.result(60)
    mine = torch.from_numpy((parts[0].node_books[0].owners() == 0).nonzero()[0])[:3]
    sampled = only_seeds.loop.submit(lambda: only_seeds.sample(start_of(mine), 5))
    assert sampled is not None and sampled.result(60).specs["n_id/n0"][1] == (3,)
    sampler.loop.shutdown()
    assert sampler.loop.submit(lambda: sampler.sample(start_of(mine), 5)) is None
