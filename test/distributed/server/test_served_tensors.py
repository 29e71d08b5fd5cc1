"""Graphs, tensors and embeddings on servers are those of a process alone; an owner that is killed is named."""

import functools
import os
import random
import signal
import time
from contextlib import ExitStack, contextmanager

import pytest
import torch
from dist_typed_world import NUM_NODES as TYPED
from dist_typed_world import write_typed_world
from dist_world import NUM_NODES, run_cluster, write_world
from promptness import eventually, expect_prompt
from service import Stage, become_client, serve
from torch import nn

import glt
from glt.distributed import DistEmbedding, SparseAdam
from glt.distributed.context import DistContext, DistRole
from glt.distributed.graph.graph import DistGraph
from glt.distributed.graph.loaders import NodeDataLoader
from glt.distributed.job.hosts import JobEnvironment, JobRole
from glt.distributed.job.worlds import HostServer, ServedWorld, StandaloneWorld
from glt.distributed.server.api import require_client
from glt.distributed.server.client import DistClient
from glt.distributed.tensors import exchange
from glt.distributed.tensors.tensor import DistTensor, flush_all
from glt.errors import PeerLost
from glt.testing.cluster import Cluster, free_port


@contextmanager
def served(path, num_servers):
    """A graph on servers, all of them threads of this process."""
    master = "127.0.0.1", free_port()
    with ExitStack() as open_:
        for rank in range(num_servers):
            place = JobEnvironment(JobRole.PEER, 0, 1, num_servers, master, host_index=rank)
            server = HostServer(place, glt.distributed.DistDataset().load(path, rank), master, 0, 60.0)
            open_.callback(server.finish, 0.0)
        context = DistContext(DistRole.CLIENT, 1, 0, "test", num_servers + 1, num_servers)
        world = ServedWorld(DistClient(context, num_servers, 1, master, 60.0))
        open_.callback(world.close)
        yield DistGraph("small", world=world)


def alone(path):
    return DistGraph("small", world=StandaloneWorld(glt.distributed.DistDataset().load(path, 0)))


def require_same(graph, other):
    for edge_type in graph.etypes:
        for name in ("in_degrees", "out_degrees"):
            assert torch.equal(getattr(graph, name)(None, edge_type), getattr(other, name)(None, edge_type))
        ids = torch.arange(graph.num_edges(edge_type))
        assert torch.equal(graph.find_edges(ids, edge_type), other.find_edges(ids, edge_type))
        mine, theirs = graph.get_partition_book(), other.get_partition_book()
        assert torch.equal(mine.edge_owners(ids, edge_type), theirs.edge_owners(ids, edge_type))
        source, target = graph.find_edges(ids[::9], edge_type)
        assert graph.has_edges_between(source, target, edge_type).all()
    for node_type in graph.ntypes:
        data, expected = (g.ndata[node_type] if g.is_hetero else g.ndata for g in (graph, other))
        assert list(data) == list(expected)
        for name in data:
            every = torch.arange(graph.num_nodes(node_type))
            assert torch.equal(data[name][every], expected[name][every])


def test_a_typed_graph(tmp_path):
    made = write_typed_world(tmp_path, 3, "out")
    with served(made.path, 2) as graph:  # partition 2 is loaded by nobody, and read by one of them
        other = alone(made.path)
        require_same(graph, other)
        seeds = {t: torch.arange(n) for t, n in TYPED.items()}
        for edge_dir in ("in", "out"):
            found, expected = (g.sample_neighbors(seeds, 2, edge_dir, random_seed=4) for g in (graph, other))
            for edge_type in graph.etypes:
                assert torch.equal(found[edge_type].e_id, expected[edge_type].e_id)
        with pytest.raises(IndexError, match=r"edge_ids\[0\] = 900 is outside \[0, 700\)"):
            graph.find_edges([900], ("user", "rates", "item"))


def test_a_relabelled_graph_needs_no_books(tmp_path):
    made = write_world(tmp_path, 2, "in", "xye", relabel=True)
    with served(made.path, 1) as graph:
        assert graph.get_partition_book().is_relabelled
        require_same(graph, alone(made.path))


def by_row(shape, dtype, ids):
    return ids.view(-1, 1).expand(shape).to(dtype)


def serve_two(trainer, path, num_clients):
    glt.distributed.register_server_function(by_row, "by_row")
    serve(trainer, path, 2, num_clients)
    glt.distributed.wait_and_shutdown_server(200.0)


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
    assert run_cluster(4, both, world(2).path, tmp_path)[2:] == [True, True]


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
        serve_two(trainer, path, 2)
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


DIM, BATCH, NUM_STEPS = 6, 32, 12


@functools.cache
def trainers_world():
    return ServedWorld(require_client())


@functools.cache
def made():
    embedding = DistEmbedding(NUM_NODES, DIM, "nodes", part="node", world=trainers_world())
    return embedding, SparseAdam(embedding, lr=0.05, timeout_s=100.0)


def dense_part():
    linear = nn.Linear(DIM, 1)
    nn.init.constant_(linear.weight, 0.5)
    nn.init.zeros_(linear.bias)
    return linear


def learn(model, optimizers, rank, num_trainers):
    rng = torch.Generator().manual_seed(3)
    for _ in range(NUM_STEPS):
        ids, target = torch.randint(NUM_NODES, (BATCH,), generator=rng), torch.randn(BATCH, 1, generator=rng)
        mine = slice(rank * BATCH // num_trainers, (rank + 1) * BATCH // num_trainers)
        for optimizer in optimizers:
            optimizer.zero_grad()
        (model(ids[mine]) - target[mine]).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def train(folder):
    """What a trainer does: DistributedDataParallel for the dense part. Returns rows before and after, and weights."""
    world = trainers_world()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/met", rank=world.rank, world_size=world.num_trainers
    )
    embedding, sparse = made()
    before = embedding.weight[:]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(embedding, dense_part()))
    learn(model, [sparse, torch.optim.SGD(model.parameters(), lr=0.1)], world.rank, world.num_trainers)
    sparse.save(f"{folder}/saved")
    torch.distributed.destroy_process_group()
    return before, embedding.weight[:], model.module[1].weight.detach()


def step():
    embedding, sparse = made()
    embedding(torch.arange(NUM_NODES)).sum().backward()
    sparse.step()


def leave():
    trainers_world().close()


def test_a_data_parallel_model_learns_what_one_process_learns(world, tmp_path):
    with Stage(4) as stage:
        stage.start_servers(world(2).path, 2, 2)
        stage.start_clients(2, 2)
        for trainer in (2, 3):
            stage.begin(trainer, "run_function", train, str(tmp_path))
        found = [stage.result(trainer) for trainer in (2, 3)]
        before = found[0][0]
        reference = nn.Sequential(nn.Embedding.from_pretrained(before, freeze=False, sparse=True), dense_part())
        sparse = torch.optim.SparseAdam(reference[0].parameters(), lr=0.05)
        learn(reference, [sparse, torch.optim.SGD(reference[1].parameters(), lr=0.1)], 0, 1)
        for _, rows, weights in found:
            torch.testing.assert_close(rows, reference[0].weight.detach(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(weights, reference[1].weight.detach(), rtol=1e-4, atol=1e-5)

        alone = StandaloneWorld()
        embedding = DistEmbedding(NUM_NODES, DIM, "nodes", world=alone)
        SparseAdam(embedding).load(tmp_path / "saved")
        assert torch.equal(embedding.weight[:], found[0][1])
        alone.close()

        stage.begin(2, "run_function", step)  # the other one never takes it
        stage.kill(3)
        began = time.monotonic()
        failed = stage.failure(2)
        expect_prompt(time.monotonic() - began, "the other trainer to notice")
        assert failed.kind == "PeerLost" and "trainer 1, client 1 of" in failed.text, failed
        stage.ask(2, "run_function", leave)
