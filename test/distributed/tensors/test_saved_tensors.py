"""First values of tensors; saved tensors: open files, loaded at any size, refused where damaged, never half there."""

import errno
import json
import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from store_world import Servers, graph

from glt.distributed.tensors import checkpoint
from glt.distributed.tensors.checkpoint import Checkpoint, load_tensors, save_tensors
from glt.distributed.tensors.tensor import DistTensor
from glt.distributed.wire.calls import register_server_function
from glt.errors import CheckpointError, PeerLost
from glt.partition.format.manifest import digest_of, text_of


@contextmanager
def tensors(num_servers, place="even", prefix="", **like):
    """Distributed ones of these shapes and dtypes."""
    part = None if place == "even" else "node"
    with Servers(num_servers, graph(101, 3, place == "ranges")) as servers:
        world = servers.trainer()
        named = {name: (each.shape, each.dtype, prefix + name) for name, each in like.items()}
        yield {name: DistTensor(*given, part=part, world=world) for name, given in named.items()}


def values():
    generator = torch.Generator().manual_seed(0)
    return {
        "weight": torch.randn(101, 7, generator=generator),
        "half": torch.randn(101, 2, 3, generator=generator).to(torch.bfloat16),
        "mask": torch.rand(101, generator=generator) < 0.5,
        "step": torch.arange(101, dtype=torch.uint8),
        "wide": torch.randn(101, 1, generator=generator).to(torch.complex64),
    }


def saved(path, about=None):
    given = values()
    with tensors(2, "arrays", **given) as made:
        for name, tensor in made.items():
            tensor[:] = given[name]
        save_tensors(made, path, about)
    return given


@pytest.mark.parametrize("num_servers, place", [(1, "even"), (3, "ranges"), (4, "arrays")])
def test_what_is_saved_at_one_size_loads_at_another(tmp_path, num_servers, place, monkeypatch):
    monkeypatch.setattr(checkpoint, "_BLOCK_BYTES", 100)
    given = saved(tmp_path / "x", {"step": 12, "kind": "test"})
    with tensors(num_servers, place, prefix="other ", **given) as made:
        assert load_tensors(made, tmp_path / "x") == {"step": 12, "kind": "test"}
        for name, tensor in made.items():
            assert torch.equal(tensor[:].view(torch.uint8), given[name].view(torch.uint8)), name
        some = {"mask": made["mask"]}
        made["mask"][:] = False
        load_tensors(some, tmp_path / "x")
        assert torch.equal(made["mask"][:], given["mask"])


def test_the_files_are_open_and_in_the_order_of_the_rows(tmp_path):
    given = saved(tmp_path / "x")
    document = json.loads((tmp_path / "x" / "manifest.json").read_text())
    assert (document["format"], document["version"], document["about"]) == ("glt-tensors", 1, {})
    np.testing.assert_array_equal(np.load(tmp_path / "x" / document["tensors"]["weight"]), given["weight"].numpy())
    half = np.load(tmp_path / "x" / document["tensors"]["half"])
    np.testing.assert_array_equal(half, given["half"].view(torch.uint16).numpy())


def test_one_tensor_saves_and_loads_itself(tmp_path):
    with tensors(2, x=torch.zeros(101, 3)) as made:
        made["x"][:] = torch.arange(303.0).view(101, 3)
        made["x"].save(tmp_path / "deep" / "x")
        made["x"][:] = 0.0
        made["x"].load(tmp_path / "deep" / "x")
        assert torch.equal(made["x"][:], torch.arange(303.0).view(101, 3))
        empty = DistTensor((0, 4), torch.int64, world=made["x"].world)
        empty.save(tmp_path / "empty")
        empty.load(tmp_path / "empty")


@pytest.mark.parametrize("at", range(5))
def test_every_altered_byte_is_found_before_anything_is_written(tmp_path, at):
    given = saved(tmp_path / "x")
    files = sorted(os.listdir(tmp_path / "x"))
    rng = np.random.default_rng(at)
    with tensors(1, **given) as made:
        for file in files:
            path = tmp_path / "x" / file
            whole = path.read_bytes()
            place = int(rng.integers(len(whole)))
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << rng.integers(8))]) + whole[place + 1 :])
            with pytest.raises(CheckpointError, match=file):
                load_tensors(made, tmp_path / "x")
            path.write_bytes(whole[: int(rng.integers(len(whole)))])
            with pytest.raises(CheckpointError, match=file):
                load_tensors(made, tmp_path / "x")
            path.unlink()
            with pytest.raises(CheckpointError, match=f"{file} is missing"):
                load_tensors(made, tmp_path / "x")
            path.write_bytes(whole)
        assert not any(tensor[:].any() for tensor in made.values())
        load_tensors(made, tmp_path / "x")


@pytest.mark.parametrize("text", ['{"format": "glt-partition", "version": 6}', "[1]", '{"format": "glt-tensors"}'])
def test_what_is_no_save_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest.json has format .*: this glt"):
        Checkpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match=r"manifest.json is missing: .* holds no saved tensors"):
        Checkpoint.open(tmp_path / "nothing")


def test_shapes_dtypes_and_names_are_compared_before_anything_is_written(tmp_path):
    given = saved(tmp_path / "x")
    with tensors(1, weight=given["weight"], half=given["half"].float(), more=torch.zeros(101)) as made:
        with pytest.raises(ValueError, match=r"'half' was saved in .* dtype bfloat16: expected .* dtype float32"):
            load_tensors({"weight": made["weight"], "half": made["half"]}, tmp_path / "x")
        with pytest.raises(ValueError, match=r"'weight' was saved in .* shape \[101, 7\].*expected shape \[101\]"):
            load_tensors({"weight": made["more"]}, tmp_path / "x")
        with pytest.raises(LookupError, match=r"has no tensor 'more': it has \['half', 'mask'"):
            load_tensors({"weight": made["weight"], "more": made["more"]}, tmp_path / "x")
        assert not made["weight"][:].any()


def test_what_is_there_is_not_overwritten_and_files_of_another_save_are_refused(tmp_path):
    given = saved(tmp_path / "x")
    with tensors(1, **given) as made:
        save_tensors(made, tmp_path / "zeros")
        with pytest.raises(CheckpointError, match=r"path .*x is not empty"):
            save_tensors(made, tmp_path / "x")
        load_tensors(made, tmp_path / "x")
        assert torch.equal(made["weight"][:], given["weight"])
        shutil.copy(tmp_path / "zeros" / "tensor0.npy", tmp_path / "x" / "tensor0.npy")
        with pytest.raises(CheckpointError, match=r"tensor0.npy was altered or comes from another run"):
            load_tensors(made, tmp_path / "x")


WRONG = [{"files": {"../weight.npy": {}}}, {"files": None}, {"tensors": {"weight": "other.npy"}}, {"about": 3}]


@pytest.mark.parametrize("changed", WRONG)
def test_a_manifest_that_does_not_follow_the_format_is_refused(tmp_path, changed):
    saved(tmp_path / "x")
    manifest = tmp_path / "x" / "manifest.json"
    document = {**json.loads(manifest.read_text()), **changed}
    manifest.write_bytes(text_of({**document, "run_id": digest_of(document)}))  # whoever wrote it meant it
    with pytest.raises(CheckpointError, match=r"manifest.json does not follow version 1"):
        Checkpoint.open(tmp_path / "x")


@contextmanager
def files_of_at_most(num_bytes):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("num_bytes", [100, 2000, 4096])
def test_a_disk_that_fills_up_leaves_nothing(tmp_path, num_bytes):
    with tensors(2, small=torch.zeros(10), x=torch.zeros(101, 30)) as made:
        with files_of_at_most(num_bytes), pytest.raises(OSError):
            save_tensors(made, tmp_path / "x")
        assert os.listdir(tmp_path) == []
        save_tensors(made, tmp_path / "x")  # and later it works


def test_a_disk_without_room_is_found_out_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1000))
    with tensors(2, x=torch.zeros(101, 30)) as made:
        before = made["x"].world.num_calls
        with pytest.raises(CheckpointError, match=r"path .*x needs 1.2.e-05 GB.* has 1e-06 GB free"):
            save_tensors(made, tmp_path / "x")
        assert made["x"].world.num_calls == before
    assert os.listdir(tmp_path) == []


def test_a_server_that_is_lost_meanwhile_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_BLOCK_BYTES", 100)
    with tensors(2, x=torch.zeros(101, 30)) as made:
        made["x"].world.lost[1] = PeerLost("lost server 1 in a test")
        with pytest.raises(PeerLost, match="server 1 in a test"):
            save_tensors(made, tmp_path / "x")
    assert os.listdir(tmp_path) == []


@contextmanager
def recorded(monkeypatch, fails=None):
    """Lists what was synced and renamed, in order; syncing something whose name ends in ``fails`` goes wrong."""
    done, rename, fsync = [], Path.rename, os.fsync

    def sync(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if fails is not None and path.endswith(fails):
            raise OSError(errno.EIO, "the disk is broken")
        fsync(descriptor)
        done.append(path)

    def move(self, target):
        done.append(("rename", str(target)))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        patch.setattr(Path, "rename", move)
        yield done


def test_a_save_that_is_reported_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "new" / "deep" / "x"
    with tensors(2, a=torch.zeros(10), b=torch.zeros(7, 3)) as made, recorded(monkeypatch) as done:
        save_tensors(made, path)
    at = done.index(("rename", str(path)))
    assert {Path(each).name for each in done[:at]} >= {"tensor0.npy", "tensor1.npy", "manifest.json"}
    assert [Path(each).parent for each in done[:at]].count(path.parent) == 1  # the directory itself, by its first name
    assert done[at + 1 :] == [str(path.parent), str(path.parent.parent), str(tmp_path)]


@pytest.mark.parametrize("fails", ["tensor0.npy", "manifest.json", "deep"])
def test_a_disk_that_does_not_take_it_leaves_nothing_that_loads(tmp_path, monkeypatch, fails):
    path = tmp_path / "deep" / "x"
    with tensors(1, a=torch.zeros(10)) as made:
        with recorded(monkeypatch, fails), pytest.raises(OSError, match=f"the disk is broken.*{fails}"):
            save_tensors(made, path)
        assert os.listdir(tmp_path / "deep") == []
        save_tensors(made, path)


@register_server_function
def one_per_server(shape, dtype):
    return torch.full(shape, shape[0], dtype=dtype)


@register_server_function
def by_row(shape, dtype, ids):
    assert shape[0] == len(ids)
    return ids.view(-1, 1).expand(shape).to(dtype)


@register_server_function
def wrong(shape, dtype):
    return torch.zeros(shape[0] + 1, *shape[1:], dtype=dtype)


@register_server_function
def failing(shape, dtype):
    raise ArithmeticError("the initialisation broke")


def made(num_servers, place, init_func, dtype=torch.float32, shape=(97, 3), name="x", **options):
    part = None if place == "even" else "node"
    with Servers(num_servers, graph(shape[0], 5, place == "ranges")) as servers:
        return DistTensor(shape, dtype, name, init_func, part, world=servers.trainer(), **options)[:]


@pytest.mark.parametrize("init_func", ["uniform", ("uniform", -2, 3.5), "normal", ("normal", 1, 0.5), by_row])
def test_values_do_not_depend_on_who_keeps_the_rows(init_func):
    whole = made(1, "even", init_func)
    for num_servers, place in ((3, "even"), (2, "ranges"), (4, "arrays"), (1, "arrays")):
        assert torch.equal(made(num_servers, place, init_func), whole)
    if init_func is not by_row:
        assert not torch.equal(made(1, "even", init_func, name="y"), whole)  # tensors are not alike
        assert not torch.equal(made(1, "even", init_func, rng_seed=1), whole)
        half = made(2, "arrays", init_func, torch.bfloat16)
        assert torch.equal(half, whole.to(torch.bfloat16))
        double = made(2, "even", init_func, torch.float64)
        assert torch.equal(double.float(), whole) and not torch.equal(double, whole.double())


def test_values_do_not_depend_on_the_pieces_they_are_made_in(monkeypatch):
    whole = made(2, "arrays", ("uniform", 0, 1), torch.float16), made(2, "arrays", by_row)
    monkeypatch.setattr("glt.distributed.tensors.spec._PIECE_BYTES", 50)
    assert torch.equal(made(2, "arrays", ("uniform", 0, 1), torch.float16), whole[0])
    assert torch.equal(made(2, "arrays", by_row), whole[1])


def test_constants_and_the_upper_bound_of_uniform_values():
    assert made(2, "even", "ones", torch.bool).all()
    assert made(2, "even", ("constant", 7), torch.uint8).eq(7).all()
    assert made(2, "even", ("constant", 0.5), torch.bfloat16).eq(0.5).all()
    values = made(1, "even", ("uniform", 0, 1e-3), torch.float32, (5000, 8))
    assert values.min() >= 0 and values.max() < 1e-3 and values.unique().numel() > 30_000


def test_a_function_of_the_servers_is_given_their_rows():
    assert made(2, "even", one_per_server)[:, 0].tolist() == [48] * 48 + [49] * 49
    assert made(3, "arrays", f"{__name__}.by_row")[:, 2].tolist() == list(range(97))
    with pytest.raises(ValueError, match=r"wrong' returned torch.float32 \[49, 3\]: expected torch.float32 \[48, 3\]"):
        made(2, "even", wrong)
    with pytest.raises(ArithmeticError, match="the initialisation broke"):
        made(2, "even", failing)


def test_memory_for_what_a_function_returns_is_forecast(monkeypatch):
    limit = 97 * 3 * 4 * 3 // 2  # enough for the tensor, not for two of it
    monkeypatch.setattr("glt.distributed.tensors.store.available_memory", lambda: (limit, "a test's limit"))
    made(1, "even", by_row)
    with pytest.raises(MemoryError, match="a test's limit"):
        made(1, "even", one_per_server)
