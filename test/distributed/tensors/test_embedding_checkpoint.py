"""What embeddings learnt is saved whole, with the optimizer's state, and goes on with any number of trainers."""

import json

import numpy as np
import pytest
import torch
from store_world import run_trainers

from glt.distributed.tensors.embedding import DistEmbedding
from glt.distributed.tensors.optimizer import SparseAdagrad, SparseAdam
from glt.errors import CheckpointError, GltError

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


def save_at(world, path):
    made = make(world)
    learn(world, *made, 0, 10)
    made[2].param_groups[0]["lr"] = 0.05
    made[2].save(path)


def resume(world, path):
    made = make(world)
    made[0](torch.tensor([1])).sum().backward()  # is forgotten
    made[2].load(path)
    loaded = everything(*made)
    learn(world, *made, 10, 20)
    return {f"loaded {name}": rows for name, rows in loaded.items()} | everything(*made)


def without_a_stop(world):
    made = make(world)
    learn(world, *made, 0, 10)
    made[2].param_groups[0]["lr"] = 0.05
    halfway = everything(*made)
    learn(world, *made, 10, 20)
    return {f"loaded {name}": rows for name, rows in halfway.items()} | everything(*made)


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

    def load_other_kind(made, world):
        SparseAdagrad(list(made[2].param_groups[0]["params"])).load(saved)

    def load_other_names(made, world):
        make(world, name="others")[2].load(saved)

    (found,) = run_trainers(1, 1, outcome, load_other_names)
    assert "ValueError" in found and "['others', '#1']" in found and "['rows', '#1']" in found
    with pytest.raises(ValueError, match=r"'optimizer': 'SparseAdam'.*expected.*'optimizer': 'SparseAdagrad'"):
        run_trainers(1, 1, lambda world: load_other_kind(make(world), world))
    damaged = next(saved.glob("*2.npy"))
    damaged.chmod(0o644)
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    for found in run_trainers(2, 1, outcome, lambda made, world: made[2].load(saved)):
        assert damaged.name in found and "CheckpointError" in found
