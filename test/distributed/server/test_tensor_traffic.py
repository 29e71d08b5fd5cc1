"""Random traffic of two trainers on two servers equals a serial replay; one that is killed while it writes tears
nothing, and holds nothing up."""

import random

import pytest
import torch
from dist_world import NUM_NODES
from promptness import eventually
from service_world import become_client, serve

import glt
from glt.distributed.graph.graph import DistGraph
from glt.distributed.graph.loaders import NodeDataLoader
from glt.distributed.job.worlds import ServedWorld
from glt.distributed.server.api import require_client
from glt.distributed.tensors import exchange
from glt.distributed.tensors.tensor import DistTensor
from glt.errors import PeerLost
from glt.testing.cluster import Cluster

NUM_ROUNDS = 6


def anonymous(world):
    return [name for each in world.stats() for name in each["tensors"] if name.startswith("glt/anonymous")]


class Replay:
    """A tensor, and what it holds if all that was done with it was done one after the other."""

    def __init__(self, tensor):
        self.tensor, self.expected = tensor, tensor[:].clone()

    def change(self, rng, rank, here):
        """Writes rows of a trainer, or adds to them; the other trainer only takes note of it."""
        rows = torch.arange(rank, len(self.tensor), 2)
        ids = rows[torch.tensor([rng.randrange(len(rows)) for _ in range(rng.randrange(1, 40))])]
        values = torch.tensor([rng.randrange(50) for _ in range(self.expected[ids].numel())]).to(self.tensor.dtype)
        values, kind = (
            values.view(self.expected[ids].shape),
            rng.choice(["write", "write_async", "add", "mask", "read"]),
        )
        if kind == "read":
            if here:
                assert torch.equal(self.tensor[ids], self.expected[ids])
            return
        if kind == "mask":
            mask = torch.zeros(len(self.tensor), dtype=torch.uint8)
            mask[ids] = 1
            ids = mask.nonzero().view(-1)
            values = values[:1].expand(self.expected[ids].shape).contiguous()
            if here:
                self.tensor[mask] = values
            self.expected[ids] = values
            return
        if here and kind == "add":
            self.tensor.add_async(ids, values)
        elif here and kind == "write":
            self.tensor[ids] = values
        elif here:
            self.tensor.write_async(ids, values)
        for id_, value in zip(ids.tolist(), values, strict=True):  # of equal ids the last value stays
            self.expected[id_] = self.expected[id_] + value if kind == "add" else value

    def check(self):
        assert torch.equal(self.tensor[:], self.expected)
        ids = torch.randperm(len(self.tensor))
        assert torch.equal(self.tensor[ids], self.expected[ids])


def traffic(trainer, path, seed, folder):
    if trainer.rank < 2:
        serve(trainer, path, 2, 2)
        glt.distributed.wait_and_shutdown_server(200.0)
        return
    become_client(trainer, 2, 2)
    exchange.PIECE_BYTES = 2000  # many pieces
    world = ServedWorld(require_client())
    graph = DistGraph("small", world=world)
    made = [
        DistTensor((NUM_NODES, 5), torch.float32, "nodes", part="node", world=world),
        DistTensor((83,), torch.int64, "even", world=world),
        DistTensor((40, 2, 3), torch.bfloat16, None, "ones", world=world),
    ]
    replays = [Replay(tensor) for tensor in (graph.ndata["x"], graph.ndata["y"], *made)]
    del made  # the last one is freed with its replay
    sums, added = DistTensor((31, 2), torch.int64, "sums", world=world), torch.zeros(31, 2, dtype=torch.int64)
    graph.barrier(60.0)
    with NodeDataLoader(graph, torch.arange(world.rank, 200, 2), [4, 3], 50) as loader:
        for at in range(NUM_ROUNDS):
            for rank in range(2):
                rng = random.Random(f"{seed} {at} {rank}")
                for _ in range(rng.randrange(1, 15)):
                    rng.choice(replays).change(rng, rank, rank == world.rank)
                    id_, more = rng.randrange(31), rng.randrange(100)  # both add to the same rows
                    added[id_] += more
                    if rank == world.rank:
                        sums.add_async([id_], torch.full((1, 2), more))
            passing = DistTensor((7,), torch.int64, world=world)
            passing[:] = at
            graph.barrier(60.0)
            for replay in replays:
                replay.check()
            assert torch.equal(sums[:], added)
            if at % 3 == 0:
                for batch in loader:
                    assert torch.equal(batch.x, replays[0].expected[batch.n_id])
                    assert torch.equal(batch.y, replays[1].expected[batch.n_id])
            if at == NUM_ROUNDS // 2:
                if world.rank == 0:
                    replays[2].tensor.save(folder / "nodes")
                graph.barrier(60.0)
                if world.rank == 1:
                    replays[2].tensor[:] = -1.0
                    replays[2].tensor.load(folder / "nodes")
            graph.barrier(60.0)
    del passing
    graph.barrier(60.0)
    assert eventually(lambda: len(anonymous(world)) == 2), anonymous(world)  # the one in the replays
    del replays, replay
    graph.barrier(60.0)
    assert eventually(lambda: not anonymous(world)), anonymous(world)
    graph.barrier(120.0)  # what comes next makes one more, which the other must not see while it looks
    die_or_watch(trainer, world)


def require_whole(rows):
    assert torch.equal(rows, rows[:, :1].expand_as(rows))


def die_or_watch(trainer, world):
    tensor = DistTensor((NUM_NODES, 500), torch.int32, "x", part="node", world=world)
    shared = DistTensor((10,), torch.int64, world=world)
    world.barrier(60.0)
    if world.rank == 1:
        trainer.say("writing")
        for at in range(1_000_000):
            tensor.write_async(torch.randperm(NUM_NODES), torch.full((NUM_NODES, 500), at, dtype=torch.int32))
    for at in range(30):
        require_whole(tensor[torch.randint(0, NUM_NODES, (100,))])
        if at == 10:
            trainer.say("reading")
    with pytest.raises(PeerLost, match=r"trainer 1, client 1 of .*, is gone"):
        world.barrier(60.0)
    everything = tensor[:]
    require_whole(everything)
    assert torch.equal(tensor[:], everything), "somebody still writes"
    tensor[:] = 7
    assert (tensor[:] == 7).all()
    assert len(anonymous(world)) == 2
    del shared
    assert eventually(lambda: not anonymous(world)), anonymous(world)
    trainer.say("done")


def test_random_traffic_equals_a_serial_replay_and_a_death_tears_nothing(world, tmp_path):
    with Cluster(4, traffic, world(2).path, 0, tmp_path) as cluster:
        assert cluster.hear(3) == "writing" and cluster.hear(2) == "reading"
        cluster.kill(3)
        assert cluster.hear(2) == "done"  # servers would wait for the other one to come back
