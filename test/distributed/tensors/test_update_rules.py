"""Distributed embeddings learn what torch's learn, with any number of trainers and servers."""

import re
import threading

import pytest
import torch
from store_world import Servers, in_threads, run_trainers
from torch import nn

from glt.distributed.tensors.embedding import DistEmbedding
from glt.distributed.tensors.optimizer import SparseAdagrad, SparseAdam
from glt.errors import PeerLost

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of torch.optim.Adagrad

NUM_ROWS, DIM, BATCH, NUM_STEPS = 40, 5, 24, 200
KINDS = {
    "adagrad": (SparseAdagrad, torch.optim.Adagrad, {"lr": 0.2, "lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    "adam": (SparseAdam, torch.optim.SparseAdam, {"lr": 0.02, "betas": (0.8, 0.99)}),
}


def first_rows(at=0):
    return torch.randn(NUM_ROWS, DIM, generator=torch.Generator().manual_seed(at))


def batches(num_steps=NUM_STEPS):
    """Ids with many duplicates, and what to learn."""
    rng = torch.Generator().manual_seed(7)
    return [
        (torch.randint(NUM_ROWS, (BATCH,), generator=rng), torch.randn(BATCH, DIM, generator=rng))
        for _ in range(num_steps)
    ]


def loss_of(embedding, ids, target):
    # Two calls, so that a step has the gradients of several.
    return (embedding(ids) - target).pow(2).sum(1).mean() + embedding(ids.view(2, -1)).pow(3).sum(2).mean() / 10


def of_torch(kind, num_steps=NUM_STEPS, **more):
    _, make, options = KINDS[kind]
    embedding = nn.Embedding.from_pretrained(first_rows(), freeze=False, sparse=True)
    optimizer = make(embedding.parameters(), **options, **more)
    for ids, target in batches(num_steps):
        optimizer.zero_grad()
        loss_of(embedding, ids, target).backward()
        optimizer.step()
    return embedding.weight.detach(), optimizer.state[embedding.weight]


def train(world, kind, num_steps=NUM_STEPS, **more):
    make, _, options = KINDS[kind]
    embedding = DistEmbedding(NUM_ROWS, DIM, "rows", "zeros", world=world)
    optimizer = make(embedding, **options, **more)
    if world.rank == 0:
        embedding.weight[:] = first_rows()
    world.barrier()
    for ids, target in batches(num_steps):
        optimizer.zero_grad()
        mine = slice(world.rank * BATCH // world.num_trainers, (world.rank + 1) * BATCH // world.num_trainers)
        loss_of(embedding, ids[mine], target[mine]).backward()
        optimizer.step()
    state = {name: rows[:] for name, rows in optimizer.row_state(embedding).items()}
    return embedding.weight[:], state | {"step": optimizer.state_dict()["state"][0]["step"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_trainers", [1, 2, 4])
def test_200_steps_are_those_of_torch(kind, num_trainers):
    expected, state = of_torch(kind)
    for rows, found in run_trainers(num_trainers, 2, train, kind):
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)
        assert found.keys() == state.keys() and found["step"] == state["step"] == NUM_STEPS
        for name in found.keys() - {"step"}:
            torch.testing.assert_close(found[name], state[name], rtol=1e-4, atol=1e-5)


def test_the_number_of_servers_changes_no_bit():
    results = [run_trainers(2, num_servers, train, "adam", 20)[0] for num_servers in (1, 2, 3)]
    for rows, state in results[1:]:
        assert torch.equal(rows, results[0][0])
        assert state.keys() == results[0][1].keys()
        assert all(torch.equal(torch.as_tensor(state[name]), torch.as_tensor(of)) for name, of in results[0][1].items())


@pytest.mark.parametrize("kind", KINDS)
def test_ascending(kind):
    expected, _ = of_torch(kind, 5, maximize=True)
    ((rows, _),) = run_trainers(1, 1, train, kind, 5, maximize=True)
    torch.testing.assert_close(rows, expected)


def once(world, reduction, ids):
    embedding = DistEmbedding(4, 1, "rows", "zeros", world=world)
    optimizer = SparseAdagrad(embedding, lr=1.0, eps=0.0, reduction=reduction)
    if ids[world.rank]:
        embedding(torch.tensor(ids[world.rank])).sum().backward()
    optimizer.step()
    return optimizer.row_state(embedding)["sum"][torch.arange(4)].view(-1)


def test_mean_and_sum_over_trainers_and_duplicates_summed_once():
    ids = [[0, 1, 1], [1, 2], []]
    for sums in run_trainers(3, 6, once, "sum", ids):  # some servers have no rows
        assert sums.tolist() == [1.0, 9.0, 1.0, 0.0]
    for sums in run_trainers(3, 2, once, "mean", ids):
        torch.testing.assert_close(sums, torch.tensor([1.0, 9.0, 1.0, 0.0]) / 9)


def several(world):
    """Two embeddings of two widths, one of which only some trainers use in some steps, with options of their own."""
    wide = DistEmbedding(NUM_ROWS, DIM, "wide", "zeros", world=world)
    narrow = DistEmbedding(7, 2, "narrow", "zeros", world=world)
    optimizer = SparseAdam([{"params": wide}, {"params": [narrow], "lr": 0.5}], lr=0.1)
    for step in range(6):
        loss = (wide(torch.arange(10)) - 1).pow(2).mean()
        if step % 2 == 0 and world.rank == 1:
            loss = loss + (narrow(torch.tensor([6, 6])) - 1).pow(2).mean()
        if step < 4:
            loss.backward()
        optimizer.step()
    steps = [each["step"] for each in optimizer.state_dict()["state"].values()]
    return [wide.weight[torch.arange(NUM_ROWS)], narrow.weight[torch.arange(7)], torch.tensor(steps)]


def test_several_embeddings_and_steps_without_gradients():
    wide, narrow = torch.zeros(NUM_ROWS, DIM, requires_grad=True), torch.zeros(7, 2, requires_grad=True)
    optimizer = torch.optim.SparseAdam([{"params": wide}, {"params": narrow, "lr": 0.5}], lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        (nn.functional.embedding(torch.arange(10), wide, sparse=True) - 1).pow(2).mean().backward()
        if step % 2 == 0:
            ((nn.functional.embedding(torch.tensor([6, 6]), narrow, sparse=True) - 1).pow(2).mean() / 2).backward()
        optimizer.step()
    for found in run_trainers(2, 2, several):
        torch.testing.assert_close(found[0], wide.detach())
        torch.testing.assert_close(found[1], narrow.detach())
        assert found[2].tolist() == [4, 2]  # of each embedding, those steps in which any trainer had a gradient


def test_a_row_that_is_not_there_changes_nothing():
    with Servers(1) as servers:
        world = servers.trainer()
        embeddings = [DistEmbedding(4, 2, name, "zeros", world=world) for name in ("first", "second")]
        optimizer = SparseAdagrad(embeddings, lr=1.0)
        for embedding in embeddings:
            embedding(torch.tensor([1])).sum().backward()
        (parts,) = optimizer._parts()
        parts[1]["rows"] = torch.tensor([4])
        with pytest.raises(IndexError, match=r"row 4 at position 0 is outside \[0, 4\)"):
            world.call(0, "glt.rows.step", "by hand", 0, 1, 10.0, parts).result()
        assert not any(embedding.weight[:].any() for embedding in embeddings)


def test_schedulers_of_torch():
    def scheduled(world):
        embedding = DistEmbedding(2, 1, "rows", "zeros", world=world)
        optimizer = SparseAdagrad(embedding, lr=1.0, eps=0.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(3):
            embedding(torch.tensor([1])).sum().backward()
            optimizer.step()
            scheduler.step()
        return embedding.weight[torch.tensor([1])].item()

    assert run_trainers(2, 1, scheduled) == [pytest.approx(-(1 + 0.5 / 2**0.5 + 0.25 / 3**0.5))] * 2


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda e, rank: (SparseAdam, SparseAdagrad)[rank](e), "^sparse optimizer = .*'SparseAdagrad'.* on trainer 1"),
        (lambda e, rank: SparseAdam(e, lr=0.1 + rank), r"lr = 1.1 on trainer 1, 0.1 on trainer 0"),
        (lambda e, rank: SparseAdam(e, betas=(0.9, 0.99 + rank / 200)), r"betas\[1\] = 0.995 on trainer 1"),
        (lambda e, rank: SparseAdam(e, reduction=("mean", "sum")[rank]), "reduction = 'sum' on trainer 1"),
    ],
)
def test_different_options_are_refused(make, told):
    with pytest.raises(ValueError, match=told):
        run_trainers(2, 2, lambda world: make(DistEmbedding(4, 2, "rows", "zeros", world=world), world.rank))


def test_a_learning_rate_changed_on_one_trainer_is_refused_and_nothing_learnt():
    def change_lr(world):
        embedding = DistEmbedding(4, 2, "rows", "ones", world=world)
        optimizer = SparseAdam(embedding)
        optimizer.param_groups[0]["lr"] = 0.1 + world.rank
        embedding(torch.tensor([3])).sum().backward()
        with pytest.raises(ValueError, match=r"options.lr = 1.1 on trainer 1, 0.1 on trainer 0"):
            optimizer.step()
        assert (embedding.weight[:] == 1).all()

    run_trainers(2, 2, change_lr)


def test_a_trainer_that_takes_fewer_steps_is_named_at_the_deadline():
    def unequal(world):
        embedding = DistEmbedding(4, 2, "rows", "zeros", world=world)
        optimizer = SparseAdam(embedding)
        optimizer.step()
        if world.rank == 2:
            return ""
        optimizer._timeout_s = 1.0  # only now: on a busy machine the others may take their time to begin
        with pytest.raises(PeerLost) as raised:
            optimizer.step()
        return str(raised.value)

    for found in run_trainers(3, 2, unequal)[:2]:
        assert re.search(r"trainers of rank \[([01], )?2\] of 3 have not arrived at barrier 1", found)


def test_a_trainer_that_dies_is_named_at_once():
    with Servers(2) as servers:
        worlds = servers.trainers(2)
        optimizer, _ = in_threads(lambda world: SparseAdam(DistEmbedding(4, 2, "x", world=world)), worlds)
        killer = threading.Timer(0.1, worlds[1].leave, ["its process was killed"])
        killer.start()
        with pytest.raises(PeerLost, match=r"trainer 1, client 1 \(test\), is gone: its process was killed"):
            optimizer.step()
        killer.join()


def test_an_embedding_whose_tensor_was_deleted():
    def deleted(world):
        embedding = DistEmbedding(4, 2, "rows", "zeros", world=world)
        optimizer = SparseAdam(embedding)
        embedding(torch.tensor([3])).sum().backward()
        embedding.weight.delete()
        optimizer.step()

    with pytest.raises(LookupError, match="tensor 'rows' was deleted by trainer 0"):
        run_trainers(1, 1, deleted)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_go_on_after_a_state_dict_is_loaded(kind):
    make, _, options = KINDS[kind]
    with Servers(1) as servers:
        embedding = DistEmbedding(NUM_ROWS, DIM, world=servers.trainer())
        optimizer = make(embedding, **options)
        for step in range(2):
            embedding(torch.tensor([3])).sum().backward()
            optimizer.step()
            assert optimizer.state_dict()["state"] == {0: {"step": step + 1}}
            optimizer.load_state_dict(optimizer.state_dict())
