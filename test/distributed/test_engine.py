"""From rows of the input to a message: requests, link seeds, the concurrent sampler and producers."""

import asyncio
import random
import threading
from concurrent.futures import Future
from dataclasses import asdict, fields
from types import SimpleNamespace

import pytest
import torch
from dist_world import NUM_NODES
from torch import Tensor

import glt
from glt.channel import LocalChannel, ShmChannel
from glt.channel.message import MessageKind, encode_message, read_message
from glt.data import HOMOGENEOUS
from glt.distributed.engine.partitions import PartitionRouter
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.requests import EarliestRequest, HasEdgesRequest, InducedRequest, OneHopRequest, RowsRequest
from glt.distributed.engine.sampler import BatchStart
from glt.distributed.engine.seeds import LinkSeeds, Negatives, NodeSeeds, SamplingJob, SeedTable, seeds_from_json
from glt.distributed.wire.transport import Peer, Transport
from glt.errors import MessageError, PeerLost
from glt.sampler.config import SamplingConfig
from glt.sampler.order import SeedOrder
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
    tensor = tensors[name]
    kind = rng.choice(["missing", "dtype", "scalar", "matrix", "longer", "shorter", "kind", "cut", "bytes", "text"])
    if kind == "missing":
        del tensors[name]
    elif kind == "dtype":
        tensors[name] = tensor.to(rng.choice([torch.float32, torch.int32, torch.int64, torch.uint8, torch.bool]))
    elif kind == "scalar":
        tensors[name] = torch.tensor(rng.randrange(-5, 5))
    elif kind == "matrix":
        tensors[name] = tensor.view(1, -1)
    elif kind in ("longer", "shorter"):
        tensors[name] = torch.cat([tensor, tensor, tensor[:0]]) if kind == "longer" else tensor[: len(tensor) // 2]
    elif kind == "text" and "names" in tensors:
        tensors["names"] = torch.tensor([0xFF, 0xFE, 10], dtype=torch.uint8)
    elif kind == "text":
        tensors[name] = torch.full_like(tensor, 2**63 - 1 if tensor.dtype == torch.int64 else 1)
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


def test_tables_of_seeds_are_read_in_place():
    table = SeedTable({"row": IDS, "label": torch.rand(3, 2)}, {"src_weight": torch.rand(5)})
    with table.share() as memory:
        read = SeedTable.read(memory)
    assert len(read) == 3
    for name, rows in table.rows(torch.tensor([2, 0])).items():
        assert_equal(read.rows(torch.tensor([2, 0]))[name], rows)
    assert_equal(read.extras["src_weight"], table.extras["src_weight"])


def test_seeds_are_told_to_other_processes():
    weight = torch.rand(4)
    seeds = LinkSeeds(2, (0, 1), Negatives("triplet", 3, dst_weight=weight))
    told = seeds_from_json(seeds.to_json(), seeds.extras())
    assert isinstance(told, LinkSeeds) and told.negatives is not None
    assert (told.edge_type, told.ends, told.negatives.amount, told.negatives.is_triplet()) == (2, (0, 1), 3, True)
    assert told.negatives.dst_weight is weight and told.negatives.src_weight is None


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
    with pytest.raises(IndexError, match=str(NUM_NODES)):
        outside.result(60)
    remote = loop.submit(lambda: sampler.sample(start_of(torch.arange(300)), 5))
    with pytest.raises(IndexError, match="partition"):
        remote.result(60)
    mine = torch.from_numpy((parts[0].node_books[0].owners() == 0).nonzero()[0])[:3]
    only_seeds = glt.distributed.DistNeighborSampler(parts[0], config([0]), router, loop)
    sampled = loop.submit(lambda: only_seeds.sample(start_of(mine), 5))
    assert sampled is not None and sampled.result(60).specs["n_id/n0"][1] == (3,)
    loop.shutdown()
    assert loop.submit(lambda: sampler.sample(start_of(mine), 5)) is None


NUM_BATCHES, OLD_SEED, NEW_SEED = 8, 5, 2**63 - 1


@pytest.fixture
def make(world):
    """Returns a producer ``first`` of ``step`` with room for all batches, given the seed of its order."""
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    loop = glt.distributed.ConcurrentEventLoop(3)
    config = SamplingConfig.checked([4, 3], HOMOGENEOUS)
    sampler = glt.distributed.DistNeighborSampler(data, config, None, loop)
    table = SeedTable({"node": torch.arange(0, NUM_NODES, 10)})
    channels = []

    def made(first, step, random_seed):
        order = SeedOrder(len(table), 8, shuffle=True, random_seed=random_seed)
        assert len(order) == NUM_BATCHES
        channels.append(LocalChannel(NUM_BATCHES))
        job = SamplingJob(config, NodeSeeds(0), table, order, collect_features=True)
        return Producer(sampler, channels[-1], job, (first, step), "test", rank=0)

    yield made
    for channel in channels:
        channel.close()
    loop.shutdown()


def messages(producer, start):
    """Those of an iteration by index, in the order they came."""
    producer.want(start.iteration)
    producer.run(start)
    num_sent = int(producer.channel.stats()["num_sent"] - producer.channel.stats()["num_received"])
    found = [producer.channel.receive(0) for _ in range(num_sent)]
    assert all((each.loader, each.epoch) == (start.iteration, start.epoch) for each in found)
    return {each.index: each for each in found}


@pytest.mark.parametrize("step", [1, 3])
def test_the_rest_of_an_epoch_is_that_of_the_whole_one(make, step):
    """Also by a producer that was made with another random seed; each batch comes from the same one as ever."""
    whole = messages(make(0, 1, NEW_SEED), EpochStart(1, 4, 0, NEW_SEED))
    assert list(whole) == list(range(NUM_BATCHES))
    for residue in range(step):
        producer = make(residue, step, OLD_SEED)
        for iteration, first in enumerate(range(NUM_BATCHES + 1), start=2):
            found = messages(producer, EpochStart(iteration, 4, first, NEW_SEED))
            assert list(found) == [i for i in range(first, NUM_BATCHES) if i % step == residue]
            for index, message in found.items():
                wanted = whole[index].tensors
                assert message.tensors.keys() == wanted.keys()
                for name in wanted.keys() - {"stats"}:
                    assert torch.equal(message.tensors[name], wanted[name]), (index, name)


def test_the_command_survives_json_and_has_no_fields_but_its_own():
    start = EpochStart(3, 2**31 - 1, 17, NEW_SEED)
    assert start.to_json() == asdict(start) and EpochStart.from_json(start.to_json()) == start
    with pytest.raises(TypeError, match="last"):
        EpochStart.from_json(start.to_json() | {"last": 4})
