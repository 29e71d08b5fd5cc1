"""Embeddings over the service: trainers in processes of their own learn what one process learns, and say who died."""

import functools
import time

import torch
from dist_world import NUM_NODES
from promptness import expect_prompt
from service_actors import Stage
from torch import nn

from glt.distributed import DistEmbedding, SparseAdam
from glt.distributed.job.worlds import ServedWorld, StandaloneWorld
from glt.distributed.server.api import require_client

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


def begin_job(stage, path):
    stage.start_servers(path, 2, 2)
    stage.start_clients(2, 2)


def test_a_data_parallel_model_learns_what_one_process_learns(world, tmp_path):
    with Stage(4) as stage:
        begin_job(stage, world(2).path)
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


def test_a_killed_owner_is_named(world):
    with Stage(4) as stage:
        begin_job(stage, world(2).path)
        for times in range(2):
            for trainer in (2, 3):
                stage.begin(trainer, "run_function", step)
            if times == 0:
                for trainer in (2, 3):
                    stage.result(trainer)
                stage.kill(1)
        began = time.monotonic()
        for trainer in (2, 3):
            failed = stage.failure(trainer)
            assert failed.kind == "PeerLost" and "server 1 (partition 1" in failed.text, failed
        expect_prompt(time.monotonic() - began, "the trainers to notice")
        for trainer in (2, 3):
            stage.ask(trainer, "run_function", leave)
