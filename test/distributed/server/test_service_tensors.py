"""Distributed tensors over servers: what one trainer writes others read; an owner that is killed is named."""

import os
import signal
import time

import pytest
import torch
from dist_world import NUM_NODES
from promptness import expect_prompt
from service_world import become_client, serve

import glt
from glt.distributed.job.worlds import ServedWorld
from glt.distributed.server.api import require_client
from glt.distributed.tensors.tensor import DistTensor, flush_all
from glt.errors import PeerLost
from glt.testing.cluster import Cluster


def by_row(shape, dtype, ids):
    return ids.view(-1, 1).expand(shape).to(dtype)


def serve_two(trainer, path, num_clients):
    glt.distributed.register_server_function(by_row, "by_row")
    serve(trainer, path, 2, num_clients)
    glt.distributed.wait_and_shutdown_server(100.0)


def both(trainer, path, folder):
    if trainer.rank < 2:
        return serve_two(trainer, path, 2)
    become_client(trainer, 2, 2)
    world = ServedWorld(require_client())
    mine = world.rank

    def meet():
        flush_all(world)
        world.barrier(60.0)

    tensor = DistTensor((NUM_NODES, 3), torch.bfloat16, "x", "by_row", "node", world=world)
    ids = torch.arange(mine, NUM_NODES, 2)
    torch.testing.assert_close(tensor[ids], ids.view(-1, 1).expand(-1, 3).to(torch.bfloat16))
    meet()
    tensor.write_async(ids, torch.full((len(ids), 3), 1.0 + mine, dtype=torch.bfloat16))
    meet()
    assert tensor[:][:, 0].tolist() == [1.0 + i % 2 for i in range(NUM_NODES)]
    meet()
    tensor.add_async(slice(None), torch.ones(NUM_NODES, 3, dtype=torch.bfloat16))
    meet()
    assert tensor[[0, 1, NUM_NODES - 1]][:, 2].tolist() == [3.0, 4.0, 3.0 + (NUM_NODES - 1) % 2]

    with pytest.raises(ValueError, match="'x' cannot be created with shape"):
        DistTensor((NUM_NODES, 4), torch.bfloat16, "x", world=world)
    with pytest.raises(MemoryError, match=r"needs 8e\+03 GB for .* rows on server 0"):
        DistTensor((10**12, 4), torch.float32, world=world)
    with pytest.raises(LookupError, match="name = 'y'"):
        DistTensor.find("y", world=world)
    if mine == 0:
        tensor.save(folder / "x")
        told = world.stats()
        assert [each["tensors"]["x"]["num_holders"] for each in told] == [2, 2]
        assert sum(each["tensors"]["x"]["num_rows"] for each in told) == NUM_NODES
    meet()
    if mine == 1:
        tensor[:] = 0.0
        tensor.load(folder / "x")
        assert tensor[1].tolist() == [4.0] * 3
        tensor.delete()
    world.barrier(60.0)
    try:
        with pytest.raises(LookupError, match=r"'x' was deleted by trainer 1, client 1 of .*pid"):
            tensor[[0]]
    finally:
        glt.distributed.shutdown_client()
    return True


def test_two_trainers_of_two_servers(world, tmp_path):
    with Cluster(4, both, world(2).path, tmp_path) as cluster:
        assert cluster.results()[2:] == [True, True]
        cluster.expect_nothing_left()


def while_one_is_killed(trainer, path):
    if trainer.rank < 2:
        return serve_two(trainer, path, 1)
    become_client(trainer, 2, 1)
    world = ServedWorld(require_client())
    tensor = DistTensor((1000, 64), name="x", init_func="ones", world=world)
    (pid,) = [entry.pid for rank, entry in require_client().entries().items() if rank == 1]
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(PeerLost, match=rf"server 1 .*pid {pid}"):
        while True:
            tensor.write_async(slice(400, 600), torch.ones(200, 64))
            tensor.flush()
            tensor[torch.randint(0, 1000, (300,))]
    took_s = time.monotonic() - began
    assert tensor[:500].eq(1).all()  # the other owner goes on
    with pytest.raises(PeerLost, match="server 1"):
        tensor[999] = 2.0
    glt.distributed.shutdown_client()
    return took_s


def test_an_owner_that_is_killed_is_named(world):
    with Cluster(3, while_one_is_killed, world(2).path) as cluster:
        trainer = cluster.outcomes()[2]
        assert trainer.error_type is None, trainer.traceback
        expect_prompt(trainer.value, "the trainer to notice")
