"""Producers make the batches that they are asked for: from any batch on, for any random seed, each its own share."""

from dataclasses import asdict

import pytest
import torch
from dist_world import NUM_NODES

import glt
from glt.channel import LocalChannel
from glt.data import HOMOGENEOUS
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.seeds import NodeSeeds, SamplingJob, SeedTable
from glt.sampler.config import SamplingConfig
from glt.sampler.order import SeedOrder

NUM_BATCHES, OLD_SEED, SEED = 8, 5, 2**63 - 1


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
    whole = messages(make(0, 1, SEED), EpochStart(1, 4, 0, SEED))
    assert list(whole) == list(range(NUM_BATCHES))
    for residue in range(step):
        producer = make(residue, step, OLD_SEED)
        for iteration, first in enumerate(range(NUM_BATCHES + 1), start=2):
            found = messages(producer, EpochStart(iteration, 4, first, SEED))
            assert list(found) == [i for i in range(first, NUM_BATCHES) if i % step == residue]
            for index, message in found.items():
                wanted = whole[index].tensors
                assert message.tensors.keys() == wanted.keys()
                for name in wanted.keys() - {"stats"}:
                    assert torch.equal(message.tensors[name], wanted[name]), (index, name)


def test_the_command_survives_json_and_has_no_fields_but_its_own():
    start = EpochStart(3, 2**31 - 1, 17, SEED)
    assert start.to_json() == asdict(start) and EpochStart.from_json(start.to_json()) == start
    with pytest.raises(TypeError, match="last"):
        EpochStart.from_json(start.to_json() | {"last": 4})
