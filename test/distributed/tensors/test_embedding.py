"""A distributed embedding is a module like any other, is saved whole, and is never a silent copy of nothing."""

import copy
import gc
import json
import pickle

import numpy as np
import pytest
import torch
from store_world import run_trainers
from torch import nn

import glt
from glt.distributed.context import enter, leave
from glt.distributed.job.worlds import StandaloneWorld
from glt.distributed.tensors.embedding import DistEmbedding, DistParameter
from glt.distributed.tensors.optimizer import SparseAdagrad, SparseAdam
from glt.errors import CheckpointError, GltError


@pytest.fixture(autouse=True)
def world():
    world = StandaloneWorld()
    enter(world)
    yield world
    leave()
    world.close()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = DistEmbedding(10, 4, "rows")
        self.linear = nn.Linear(4, 1)

    def forward(self, ids):
        return self.linear(self.embedding(ids))


def rows_of(embedding):
    return embedding.weight[torch.arange(embedding.num_embeddings)]


def test_rows_in_the_shape_of_the_ids():
    embedding = DistEmbedding(10, 4, "rows", "normal")
    rows = rows_of(embedding)
    assert 0.3 < rows.std() < 3 and len(rows.unique()) == 40
    one, several, none = torch.tensor(3), torch.tensor([[1, 2], [0, 9]]), torch.empty(0, 2, dtype=torch.int64)
    for ids in (one, torch.tensor([3, 3]), several.int(), none):
        found = embedding(ids)
        assert found.shape == (*ids.shape, 4) and found.requires_grad
        assert torch.equal(found, rows[ids.long()])
    assert (embedding.num_embeddings, embedding.embedding_dim, embedding.name) == (10, 4, "rows")
    assert repr(embedding) == "DistEmbedding(10, 4, name='rows')"


def test_without_a_name_it_is_freed_with_the_module(world):
    first, second = DistEmbedding(2, 2), DistEmbedding(2, 2)
    assert first.name != second.name and len(world.store.names()) == 2
    del first
    gc.collect()
    DistEmbedding(2, 2, "named")
    assert world.store.names() == [second.name, "named"]


def test_a_module_with_parameters():
    model = Model()
    assert [name for name, _ in model.named_parameters()] == ["embedding.rows", "linear.weight", "linear.bias"]
    parameter = model.embedding.rows
    assert isinstance(parameter, DistParameter) and parameter.shape == (0, 4)
    assert repr(parameter) == "DistParameter('rows', [10, 4])"
    for optimizer in (SparseAdam(model), SparseAdam([model.embedding]), SparseAdam([parameter])):
        assert optimizer.param_groups[0]["params"] == [parameter]


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_dense_optimizers_leave_it_alone(make):
    model = Model()
    before = rows_of(model.embedding)
    sparse, dense = SparseAdam(model, lr=0.1), make(model.parameters(), lr=0.1)
    weight = model.linear.weight.detach().clone()
    model(torch.tensor([1, 2])).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    dense.step()
    assert torch.equal(rows_of(model.embedding), before) and not torch.equal(model.linear.weight, weight)
    sparse.step()
    changed = (rows_of(model.embedding) != before).any(1)
    assert changed.nonzero().view(-1).tolist() == [1, 2]


FORGET = {
    "by the model": lambda model, sparse: model.zero_grad(),
    "by the optimizer": lambda model, sparse: sparse.zero_grad(),
    "to zeros": lambda model, sparse: sparse.zero_grad(set_to_none=False),
}


@pytest.mark.parametrize("forget", FORGET.values(), ids=FORGET)
def test_forgetting_gradients(forget):
    model = Model()
    before, sparse = rows_of(model.embedding), SparseAdam(model)
    model(torch.tensor([1, 2])).sum().backward()
    forget(model, sparse)
    model(torch.tensor([5])).sum().backward()
    sparse.step()
    assert (rows_of(model.embedding) != before).any(1).nonzero().view(-1).tolist() == [5]
    after = rows_of(model.embedding)
    sparse.step()  # its gradients were used up
    assert torch.equal(rows_of(model.embedding), after)


def test_what_is_recorded_without_an_optimizer_without_grad_or_when_frozen():
    model = Model()
    with pytest.raises(RuntimeError, match="'rows' has a gradient, and no optimizer: give its module to SparseAdagrad"):
        model(torch.tensor([1])).sum().backward()
    SparseAdam(model)
    with torch.no_grad():
        assert not model.embedding(torch.tensor([1])).requires_grad
    model.eval()(torch.tensor([1]))  # no backward pass
    model.embedding.requires_grad_(False)
    model(torch.tensor([1])).sum().backward()
    assert model.embedding.rows.gradients == []


def test_the_newest_optimizer_has_it(world):
    model = Model()
    first = SparseAdagrad(model)
    model(torch.tensor([1])).sum().backward()
    first.step()
    second = SparseAdam(model)
    assert len(world.store.names()) == 3  # the state of the first is freed
    with pytest.raises(RuntimeError, match="was given to SparseAdam 1 of 'rows' after SparseAdagrad 0 of 'rows'"):
        first.step()
    second.step()


def test_more_embeddings_later_and_options_by_state_dict():
    first, second = DistEmbedding(4, 2, "first", "ones"), DistEmbedding(4, 2, "second", "ones")
    optimizer = SparseAdagrad(first, lr=0.5)
    first(torch.tensor([0])).sum().backward()
    optimizer.step()
    optimizer.add_param_group({"params": second, "lr": 0.25})
    (first(torch.tensor([1])).sum() + second(torch.tensor([1])).sum()).backward()
    optimizer.step()
    assert rows_of(first)[:, 0].tolist() == [0.5, 0.5, 1.0, 1.0] and rows_of(second)[:, 0].tolist() == [1, 0.75, 1, 1]
    state = optimizer.state_dict()
    assert [each["step"] for each in state["state"].values()] == [2, 1]
    later = SparseAdagrad([{"params": first}, {"params": second}])
    later.load_state_dict(state)
    assert [group["lr"] for group in later.param_groups] == [0.5, 0.25]
    assert [each["step"] for each in later.state_dict()["state"].values()] == [2, 1]


def test_rows_and_state_beside_the_nodes_of_a_type(typed_world):
    alone = StandaloneWorld(glt.distributed.DistDataset().load(typed_world(2).path, 0))
    schema, data = alone.data.schema, alone.data
    kept = zip(schema.edge_types, data.edge_books, strict=True)
    for part, book in ((schema.node_types[1], data.node_books[1]), next(each for each in kept if each[1] is not None)):
        embedding = DistEmbedding(book.num_ids, 2, None, "zeros", part, world=alone)
        optimizer = SparseAdagrad(embedding, lr=1.0, eps=0.0)
        last = torch.tensor([book.num_ids - 1])
        embedding(last).sum().backward()
        optimizer.step()
        state = optimizer.row_state(embedding)["sum"]
        assert state.placement.spec() == embedding.weight.placement.spec() and state.placement.kind != "even"
        assert embedding.weight[last].tolist() == [[-1.0, -1.0]] and rows_of(embedding).sum() == -2.0
    alone.close()


def test_a_grad_scaler_is_refused():
    model = Model()
    sparse, scaler = SparseAdam(model), torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.tensor([1])).sum()).backward()
    with pytest.raises(RuntimeError, match=r"SparseAdam is stepped by a GradScaler.* use bfloat16"):
        scaler.step(sparse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_of_servers_and_of_the_module(dtype):
    embedding = DistEmbedding(10, 4, "rows", "ones", dtype=dtype)
    assert embedding(torch.tensor([1])).dtype == embedding.weight.dtype == dtype
    embedding.float()
    optimizer = SparseAdagrad(embedding, lr=0.5)
    rows = embedding(torch.tensor([1, 1]))
    assert rows.dtype == torch.float32
    rows.sum().backward()
    optimizer.step()
    assert rows_of(embedding)[1].tolist() == [0.5] * 4
    assert optimizer.row_state(embedding)["sum"].dtype == torch.float32


def test_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
        train_data_parallel()
        # Before its process group: torch's reducer would else end the group's threads while it holds the GIL, which
        # they may be waiting for.
        gc.collect()
    finally:
        torch.distributed.destroy_process_group()


def train_data_parallel():
    model = nn.parallel.DistributedDataParallel(Model())
    sparse, dense = SparseAdam(model, lr=0.1), torch.optim.Adam(model.parameters())
    before = rows_of(model.module.embedding)
    for _ in range(3):
        for optimizer in (sparse, dense):
            optimizer.zero_grad()
        model(torch.tensor([1, 2, 2])).sum().backward()
        assert len(model.module.embedding.rows.gradients) == 1
        for optimizer in (sparse, dense):
            optimizer.step()
    assert (rows_of(model.module.embedding) != before).any(1).nonzero().view(-1).tolist() == [1, 2]


def test_state_dict_says_what_it_is_and_refuses_another(tmp_path):
    model = Model()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert sorted(state) == ["embedding._extra_state", "linear.bias", "linear.weight"]
    model.load_state_dict(state)
    other = nn.ModuleDict({"embedding": DistEmbedding(11, 4, "other"), "linear": nn.Linear(4, 1)})
    with pytest.raises(ValueError, match=r"'num_embeddings': 10.*expected .*'num_embeddings': 11.* for 'other'"):
        other.load_state_dict(state)


def test_no_copies():
    model = Model()
    for what in (model, model.embedding, model.embedding.rows):
        with pytest.raises(TypeError, match="cannot be copied: its rows are on servers"):
            copy.deepcopy(what)
        with pytest.raises(pickle.PicklingError, match="cannot be pickled: its rows are on servers"):
            pickle.dumps(what)


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: DistEmbedding(0, 2), ValueError, "num_embeddings = 0: expected an integer of at least 1"),
        (lambda: DistEmbedding(4, 2.5), ValueError, "embedding_dim = 2.5: expected an integer of at least 1"),
        (lambda: DistEmbedding(4, 2, dtype=torch.float64), ValueError, "dtype = torch.float64: expected one of"),
        (lambda: DistEmbedding(4, 2, init_func="xavier"), LookupError, "xavier"),
        (lambda: DistEmbedding(4, 2, part="paper"), ValueError, "part = 'paper'"),
        (lambda: SparseAdam(DistEmbedding(4, 2), lr=0.0), ValueError, "lr = 0.0"),
        (lambda: SparseAdagrad(DistEmbedding(4, 2), lr_decay=-1.0), ValueError, "lr_decay = -1.0"),
        (lambda: SparseAdagrad(DistEmbedding(4, 2), timeout_s=0), ValueError, "timeout_s = 0"),
        (lambda: SparseAdagrad(nn.Linear(2, 2)), ValueError, "there is no DistEmbedding"),
        (lambda: SparseAdagrad([]), ValueError, "there is no DistEmbedding"),
        (lambda: SparseAdagrad([torch.zeros(2)]), TypeError, "expected embeddings, got Tensor"),
        (lambda: SparseAdagrad({"params": DistEmbedding(4, 2)}), TypeError, "expected embeddings"),
    ],
)
def test_wrong_arguments(make, error, told):
    with pytest.raises(error, match=told):
        make()


def test_ids_in_lists_and_arrays_and_wrong_ones():
    embedding = DistEmbedding(4, 2, "rows")
    rows = embedding.weight[:]
    assert torch.equal(embedding([3, 0]), rows[[3, 0]]) and torch.equal(embedding([[1], [2]])[:, 0], rows[1:3])
    for ids in (np.arange(4), np.arange(4, dtype=np.int32), np.arange(8)[::2] // 2):
        assert torch.equal(embedding(ids), rows)
    assert embedding([]).shape == (0, 2)
    with pytest.raises(TypeError, match=r"ids: expected .* int32, got torch\.float32"):
        embedding(torch.tensor([1.0]))
    for bad in ([1.0], [[1], [2, 3]], ["a"], (1,), 1):
        with pytest.raises(TypeError, match="ids"):
            embedding(bad)
    for bad in (4, -1):
        with pytest.raises(IndexError, match=f"{bad}"):
            embedding(torch.tensor([0, bad]))


NUM_ROWS, DIM, BATCH = 30, 3, 16


def batches(first, last):
    rng = torch.Generator().manual_seed(11)
    return [torch.randint(NUM_ROWS, (BATCH,), generator=rng) for _ in range(last)][first:]


def make(world, kind=SparseAdam, name="rows"):
    embedding = DistEmbedding(NUM_ROWS, DIM, name, ("uniform", -1.0, 1.0), world=world)
    other = DistEmbedding(5, 2, None, "ones", world=world)
    return embedding, other, kind([embedding, other], lr=0.1)


def learn(world, embedding, other, optimizer, first, last):
    for step, ids in enumerate(batches(first, last), start=first):
        mine = ids[world.rank * BATCH // world.num_trainers : (world.rank + 1) * BATCH // world.num_trainers]
        loss = (embedding(mine) - 0.3).pow(2).sum(1).mean()
        if step % 2:  # so that the numbers of steps differ
            loss = loss + other(mine % 5).pow(2).sum(1).mean()
        loss.backward()
        optimizer.step()


def everything(embedding, other, optimizer):
    found = {}
    for name, each in (("embedding", embedding), ("other", other)):
        found[name] = each.weight[:]
        found |= {f"{name}.{key}": rows[:] for key, rows in optimizer.row_state(each).items()}
    steps = [each["step"] for each in optimizer.state_dict()["state"].values()]
    return found | {"steps": torch.tensor(steps), "lr": torch.tensor(optimizer.param_groups[0]["lr"])}


def halfway(world):
    made = make(world)
    learn(world, *made, 0, 10)
    made[2].param_groups[0]["lr"] = 0.05
    return made


def to_the_end(world, made):
    before = everything(*made)
    learn(world, *made, 10, 20)
    return {f"loaded {name}": rows for name, rows in before.items()} | everything(*made)


def save_at(world, path):
    halfway(world)[2].save(path)


def resume(world, path):
    made = make(world)
    made[0](torch.tensor([1])).sum().backward()  # is forgotten
    made[2].load(path)
    return to_the_end(world, made)


def without_a_stop(world):
    return to_the_end(world, halfway(world))


def test_saved_by_4_trainers_and_2_servers_goes_on_anywhere(tmp_path):
    run_trainers(4, 2, save_at, tmp_path / "saved")
    (expected, *_) = run_trainers(4, 2, without_a_stop)
    assert expected["steps"].tolist() == [20, 10] and expected["loaded steps"].tolist() == [10, 5]
    for num_trainers, num_servers in ((4, 2), (1, 1), (2, 3)):
        for found in run_trainers(num_trainers, num_servers, resume, tmp_path / "saved"):
            assert found.keys() == expected.keys()
            for name, rows in found.items():
                if name.startswith("loaded") or (num_trainers, num_servers) == (4, 2):
                    assert torch.equal(rows, expected[name]), name  # to the bit
                torch.testing.assert_close(rows, expected[name], rtol=1e-4, atol=1e-5)


def test_open_files(tmp_path):
    run_trainers(1, 2, save_at, tmp_path / "saved")
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    parts = ("exp_avg", "exp_avg_sq", "weight")
    assert sorted(manifest["tensors"]) == [f"{name}/{part}" for name in ("#1", "rows") for part in parts]
    weights = np.load(tmp_path / "saved" / manifest["tensors"]["rows/weight"])
    (expected, *_) = run_trainers(1, 1, without_a_stop)
    assert np.array_equal(weights, expected["loaded embedding"].numpy())


def outcome(world, call):
    made = make(world)
    before = everything(*made)
    try:
        call(made, world)
    except Exception as error:
        after = everything(*made)
        assert all(torch.equal(after[name], rows) for name, rows in before.items())
        return f"{type(error).__name__}: {error}"
    return "done"


def test_a_save_that_fails_fails_for_all_and_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    first, second = run_trainers(2, 1, outcome, lambda made, world: made[2].save(tmp_path / "taken"))
    assert first.startswith(CheckpointError.__name__) and "taken" in first
    assert second.startswith(
        f"{GltError.__name__}: trainer 0 failed, for which the others have waited: CheckpointError"
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["taken", "file"]


def test_what_does_not_fit_or_is_damaged_is_not_loaded(tmp_path):
    saved = tmp_path / "saved"
    run_trainers(1, 1, save_at, saved)

    (found,) = run_trainers(1, 1, outcome, lambda made, world: make(world, name="others")[2].load(saved))
    assert "ValueError" in found and "['others', '#1']" in found and "['rows', '#1']" in found
    with pytest.raises(ValueError, match=r"'optimizer': 'SparseAdam'.*expected.*'optimizer': 'SparseAdagrad'"):
        run_trainers(1, 1, lambda world: make(world, SparseAdagrad)[2].load(saved))
    damaged = next(saved.glob("*2.npy"))
    damaged.chmod(0o644)
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    for found in run_trainers(2, 1, outcome, lambda made, world: made[2].load(saved)):
        assert damaged.name in found and "CheckpointError" in found
