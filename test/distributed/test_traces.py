"""Traces of distributed loaders: a batch's life across processes, in each mode; the batches are the same."""

import os

import pytest
import service
import torch
import traced
from dist_world import assert_same, join, options, run_cluster, seeds_of, snapshot

import glt
from glt.distributed.server import remote

FLAGS = {"batch_size": 8, "collect_features": True, "random_seed": 1}


def two_epochs(loader, path):
    """Batches of an epoch that is traced, and of the same again; the trace, and whose it is."""
    with loader.trace(path) as trace:
        epochs = [[snapshot(batch) for batch in loader]]
    assert repr(trace) == f"Trace({path}, closed, {len(loader)} batches)"
    loader.set_epoch(0)
    epochs.append([snapshot(batch) for batch in loader])
    return epochs, traced.read(path), len(loader), os.getpid()


def as_trainer(trainer, path, mode, folder, given):
    data, where = join(trainer, path), options(trainer, mode, **given)
    loader = glt.distributed.DistNeighborLoader(
        data, [4, 3], seeds_of(trainer.rank), worker_options=where, transform=lambda batch: batch, **FLAGS
    )
    with loader:
        return two_epochs(loader, f"{folder}/{trainer.rank}.json")


def as_client(trainer, rank, folder, is_elsewhere):
    if is_elsewhere:
        remote.host_id = lambda: "elsewhere"
    where = service.options(num_workers=2, cache_memory_budget="100KB")
    with glt.distributed.DistNeighborLoader(None, [4, 3], seeds_of(rank), worker_options=where, **FLAGS) as loader:
        return two_epochs(loader, f"{folder}/{rank}.json")


def expect(result, stages):
    (with_trace, without), found, num_batches, pid = result
    assert len(with_trace) == len(without) == num_batches > 3
    assert_same(with_trace, without, "an epoch that is traced")
    pids = {event["pid"] for event in found["batch"]}
    traced.expect_lives(found, num_batches, stages, pids)
    return found, pids, pid


@pytest.mark.parametrize("mode", ["collocated", "mp"])
@pytest.mark.parametrize("given", [{}, {"gather_window": 4}, {"read_local": True}], ids=["asking", "windows", "local"])
def test_a_batch_is_followed_through_the_processes_of_trainers(world, tmp_path, mode, given):
    is_local = "read_local" in given
    stages = ["sample", "gather"] if is_local else ["sample", "gather", "wait for partitions"]
    for result in run_cluster(2, as_trainer, world(2).path, mode, str(tmp_path), given):
        found, pids, pid = expect(result, stages)
        assert (pids == {pid}) == (mode == "collocated")
        assert len(found["collate"]) == len(found["transform"]) == len(found["train"])
        name = "collocated" if mode == "collocated" else "worker 0 of trainer"
        assert len([each for each in found["process_name"] if name in each["args"]["name"]]) == (mode == "mp")
        hops = {event["args"].get("hop") for event in found["sample"]}
        assert hops == ({None} if is_local else {None, 0, 1})


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "far"])
def test_a_batch_is_followed_from_servers(world, tmp_path, is_elsewhere):
    given = world(2).path, 2, 1, as_client, {}, str(tmp_path), is_elsewhere
    *_, result = run_cluster(3, service.serve_or, *given)
    found, pids, pid = expect(result, ["sample", "gather", "wait for partitions", "send"])
    assert pid not in pids and len(pids) == 2
    names = [event["args"]["name"] for event in found["process_name"]]
    assert [sum(f"worker {number} of server 0 (host" in name for name in names) for number in (0, 1)] == [1, 1]


def test_a_trace_is_of_iterations_that_begin_in_it(world, tmp_path, alone):
    data = glt.distributed.DistDataset().load(world(1).path, 0)
    with glt.distributed.DistNeighborLoader(data, [4], torch.arange(64), **FLAGS) as loader:
        batches = iter(loader)
        next(batches)
        with loader.trace(tmp_path / "a.json"):
            assert len(list(batches)) == 7
        list(loader)
        found = traced.read(tmp_path / "a.json")
        assert sorted(found) == ["process_name", "thread_name"]
        with pytest.raises(FileNotFoundError):
            loader.trace(tmp_path / "no" / "a.json")
        with loader.trace(tmp_path / "b.json"):
            for _ in loader:
                break
            with pytest.raises(ValueError, match=r"path = .*: this loader is traced already, into .*b\.json"):
                loader.trace(tmp_path / "c.json")
            assert sum(1 for _ in loader) == 8
        assert len(traced.read(tmp_path / "b.json")["batch"]) == 9
