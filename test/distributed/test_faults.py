"""What dies, or differs between trainers, is named by each process that depended on it, and nothing is left behind."""

import itertools
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from dist_typed_world import RATES
from dist_world import (
    NUM_NODES,
    expect_error,
    hear_all,
    join,
    options,
    run_cluster,
    sample_for_ever,
    say_all,
    write_world,
)
from network import device_of, enter, switch
from promptness import WITHIN_S, expect_prompt
from service import Stage

import glt
from glt import _deadlines
from glt._deadlines import HANDSHAKE_S
from glt.errors import PartitionError
from glt.partition.format import verify
from glt.testing.cluster import Cluster, free_port

SILENCE_S = 3.0


def endless(trainer, path, mode, given=None):
    """Samples for as long as it can; says who its workers are once batches flow."""
    data = join(trainer, path)
    given = {"collect_features": True, "worker_options": options(trainer, mode, **(given or {}))}
    sample_for_ever(trainer, data, **given)


def after(outcomes, start):
    for rank, outcome in enumerate(outcomes):
        expect_prompt(outcome.at_s - start, f"trainer {rank} to notice")


def test_a_killed_worker_is_named_everywhere(world):
    with Cluster(2, endless, world(2).path, "mp", {"num_workers": 2}) as cluster:
        pids = hear_all(cluster)
        victim = max(pids[1])
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        other, own = cluster.outcomes()
        after([other, own], start)
        expect_error(own, "WorkerDied", f"pid {victim}", "exit code -9", "of trainer 1")
        expect_error(other, "PeerLost", f"pid {victim}")
        cluster.expect_nothing_left()
        for rank in range(2):
            assert "Task was destroyed" not in cluster.output(rank)


@pytest.mark.parametrize("victims_trainer", [0, 1])
def test_a_killed_worker_is_named_by_those_who_hear_of_its_consequences_first(world, victims_trainer):
    """Of three trainers, the first to notice ends, and the third may miss that one's worker before the dead one."""
    with Cluster(3, endless, world(3).path, "mp") as cluster:
        pids = hear_all(cluster)
        (victim,) = pids[victims_trainer]
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        outcomes = cluster.outcomes()
        after(outcomes, start)
        for rank, outcome in enumerate(outcomes):
            assert outcome.error_type == ("WorkerDied" if rank == victims_trainer else "PeerLost"), outcome
            assert f"pid {victim}" in outcome.error, outcome
        cluster.expect_nothing_left()


@pytest.mark.parametrize(("mode", "victim"), [("mp", 1), ("mp", 0), ("collocated", 1), ("collocated", 0)])
def test_a_killed_trainer_is_named_and_its_workers_end(world, mode, victim):
    with Cluster(2, endless, world(2).path, mode) as cluster:
        hear_all(cluster)
        start = time.monotonic()
        cluster.kill(victim)
        outcomes = cluster.outcomes()
        after(outcomes, start)
        survivor = outcomes[1 - victim]
        expect_error(survivor, "PeerLost", f"trainer {victim}")
        cluster.expect_nothing_left()


def endless_until_lost(trainer, path, mode, hosts, transport="tcp"):
    """Says that it has lost the other trainer when its loader has ended. With shorter deadlines than users have."""
    _deadlines.STUCK_S, _deadlines.CUT_S = SILENCE_S, SILENCE_S
    given = {"transport": transport}
    if hosts is not None:
        enter(hosts[trainer.rank])
        os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = device_of(hosts[trainer.rank])
        given["master_addr"] = "10.199.0.1"
    try:
        endless(trainer, path, mode, given)
    finally:
        trainer.say("ended")


@pytest.mark.parametrize(
    ("mode", "transport"), [("collocated", "tcp"), ("collocated", "rpc"), ("mp", "tcp"), ("mp", "rpc")]
)
def test_a_stopped_trainer_is_named(world, mode, transport):
    """Its connections stay open, and rows that were asked of it would be waited for until rpc_timeout. Its sampling
    processes, if it has any, are stopped with it, as by a debugger or a frozen container."""
    with Cluster(2, endless_until_lost, world(2).path, mode, None, transport) as cluster:
        _, workers = hear_all(cluster)  # none, where the trainer samples
        start = time.monotonic()
        cluster.kill(1, signal.SIGSTOP)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        assert cluster.hear(0) == "ended"
        expect_prompt(time.monotonic() - start, "to notice, and to end", SILENCE_S + 10)
        cluster.processes[0].join(60)
        assert not cluster.processes[0].is_alive()
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        cluster.kill(1)
        survivor = cluster.outcomes()[0]
        silence = f"pid {cluster.processes[1].pid}) has given no sign of life for 3 s"
        expect_error(survivor, "PeerLost", "trainer 1 (host", silence)
        cluster.expect_nothing_left()


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_a_cut_between_trainers(hosts, world, mode):
    with Cluster(2, endless_until_lost, world(2).path, mode, hosts) as cluster:
        hear_all(cluster)
        start = time.monotonic()
        switch(hosts, "down")
        for rank in range(2):
            assert cluster.hear(rank) == "ended"
        expect_prompt(time.monotonic() - start, "to notice, and to end", SILENCE_S + 10)
        for rank, outcome in enumerate(cluster.outcomes()):
            expect_error(outcome, "PeerLost", f"trainer {1 - rank} (host", f"pid {cluster.processes[1 - rank].pid})")
        cluster.expect_nothing_left()


def test_a_feature_file_cut_short_under_the_workers(private_world):
    with Cluster(2, endless, private_world.path, "mp") as cluster:
        hear_all(cluster)
        file = private_world.path / "part1" / "node_feat" / "node.npy"
        start = time.monotonic()
        os.truncate(file, 0)
        other, own = cluster.outcomes()
        after([other, own], start)
        expect_error(own, "WorkerDied", "exit code -7", "bus error")
        expect_error(other, "PeerLost", "of trainer 1")
        cluster.expect_nothing_left()


def test_a_feature_file_cut_short_under_a_collocated_trainer(private_world):
    """It samples in the process of the trainer, which dies with it."""
    with Cluster(2, endless, private_world.path, "collocated") as cluster:
        hear_all(cluster)
        start = time.monotonic()
        os.truncate(private_world.path / "part1" / "node_feat" / "node.npy", 0)
        other, _ = cluster.outcomes()
        after([other], start)
        expect_error(other, "PeerLost", "trainer 1")
        cluster.expect_nothing_left()


def load_then_partition_anew(trainer, path):
    data = join(trainer, path)
    sent = pickle.dumps(data)
    shutil.rmtree(path)
    write_world(path.parent, 1, tables="x")  # the same input would make the same run
    with pytest.raises(PartitionError, match="load the dataset again"):
        pickle.loads(sent)
    glt.distributed.DistNeighborLoader(data, [4], torch.arange(50), worker_options=options(trainer, "mp"))
    return "workers that sample from another graph than the one that was loaded"


def test_a_directory_that_was_replaced_since_it_was_loaded(tmp_path):
    """What the trainer knows, seeds and counts among it, is of the graph that was there before."""
    with Cluster(1, load_then_partition_anew, write_world(tmp_path, 1).path) as cluster:
        (outcome,) = cluster.outcomes()
        expect_error(outcome, "PartitionError", "load the dataset again")
        cluster.expect_nothing_left()


def start_with_damage(trainer, path, num_workers):
    """The file is damaged after the trainers have verified it, before the workers map it."""
    data = join(trainer, path, trainer.rank % 2)
    trainer.say("loaded")
    trainer.hear()
    given = options(trainer, "mp", num_workers=num_workers)
    glt.distributed.DistNeighborLoader(data, [4], torch.arange(50), collect_features=True, worker_options=given)


@pytest.mark.parametrize(("world_size", "num_workers"), [(2, 2), (3, 1)])
def test_workers_that_cannot_start_are_named_everywhere(private_world, world_size, num_workers):
    """Also by a third trainer, which the first one, with the store in it, must not leave behind without a word."""
    with Cluster(world_size, start_with_damage, private_world.path, num_workers) as cluster:
        hear_all(cluster)
        file = private_world.path / "part1" / "node_feat" / "node.npy"
        os.truncate(file, file.stat().st_size // 2)
        start = time.monotonic()
        say_all(cluster)
        outcomes = cluster.outcomes()
        after(outcomes, start)
        own, *others = sorted(outcomes, key=lambda outcome: outcome.error_type != "PartitionError")
        expect_error(own, "PartitionError", "node_feat", "of trainer 1")
        for other in others:
            expect_error(other, "PeerLost", "trainer 1 (host", "node_feat")
        cluster.expect_nothing_left()


def create(trainer, path, per_rank):
    """Creates a loader as ``per_rank`` says, or none (``skip``), and keeps it until it is told to go on (``stays``).
    Returns its number of batches."""
    place = trainer.world_size, trainer.rank, "test-trainer"
    given = {"path": path, "place": place, "num_neighbors": [2, 2], "batch_size": 4, "mode": "collocated"}
    given |= {"options": {}, "random_seed": 5} | per_rank[trainer.rank]
    glt.distributed.init_worker_group(*given["place"])
    data = glt.distributed.DistDataset().load(given["path"], given.get("partition_idx", given["place"][1] % 2))
    if given.get("skip"):
        return None
    trainer.say(time.monotonic())
    flags = {name: given[name] for name in ("num_neighbors", "batch_size", "random_seed")}
    where = options(trainer, given["mode"], **given["options"])
    with glt.distributed.DistNeighborLoader(
        data, input_nodes=torch.arange(20), worker_options=where, **flags
    ) as loader:
        if given.get("stays"):
            trainer.say("created")
            trainer.hear()
        return sum(1 for _ in loader)


def expect_errors(cluster, *words, within_s=WITHIN_S):
    """All trainers raise RendezvousError with these words, soon after they have come; returns what they say."""
    outcomes = cluster.outcomes()
    start = max(cluster.hear(rank) for rank in range(cluster.world_size))
    for outcome in outcomes:
        expect_error(outcome, "RendezvousError", *words)
        expect_prompt(outcome.at_s - start, "a process to hear of what does not fit", within_s)
    cluster.expect_nothing_left()
    return [outcome.error for outcome in outcomes]


@pytest.mark.parametrize(
    ("per_rank", "words"),
    [
        ([{}, {"num_neighbors": [2, 3]}], ["num_neighbors", "[2, 3]", "rank 1"]),
        ([{}, {"batch_size": 5}], ["batch_size", "5"]),
        ([{}, {"mode": "mp"}], ["mode", "Collocated"]),
        ([{"mode": "mp"}, {"mode": "mp", "options": {"num_workers": 2}}], ["num_workers", "2"]),
        ([{}, {"random_seed": None}], ["random_seed", "given"]),
        ([{}, {"partition_idx": 0}], ["partition_idx", "[1]", "{0: 0, 1: 0}"]),
        (
            [{"place": (2, 0, "red")}, {"place": (2, 1, "blue")}],
            ["group_name differs", "'red' on rank 0", "'blue' on rank 1"],
        ),
    ],
    ids=["num_neighbors", "batch_size", "mode", "num_workers", "random_seed", "both load partition 0", "group names"],
)
def test_options_that_differ_between_ranks(world, per_rank, words):
    with Cluster(2, create, world(2).path, per_rank) as cluster:
        expect_errors(cluster, *words)


def test_partitions_of_different_runs(world, private_world):
    with Cluster(2, create, world(2).path, [{}, {"path": private_world.path}]) as cluster:
        expect_errors(cluster, "partitioning run")


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_never_creates_its_loader(world, missing):
    per_rank = [{"options": {"rpc_timeout": 2.0}}, {"options": {"rpc_timeout": 2.0}}]
    per_rank[missing]["skip"] = True
    with Cluster(2, create, world(2).path, per_rank) as cluster:
        outcome = cluster.outcomes()[1 - missing]
        expect_error(outcome, "RendezvousError", "rank", str(missing))
        cluster.expect_nothing_left()


def test_a_port_in_use_is_named_on_every_rank(world):
    with socket.create_server(("", 0)) as other_program:
        port = other_program.getsockname()[1]
        with Cluster(2, create, world(2).path, [{"options": {"master_port": port}}] * 2) as cluster:
            expect_errors(cluster, str(port), within_s=HANDSHAKE_S + 10)


def test_two_processes_of_one_rank_are_named_everywhere(world):
    with Cluster(3, create, world(2).path, [{"place": (3, rank, "job")} for rank in (0, 1, 1)]) as cluster:
        pids = [str(process.pid) for process in cluster.processes]
        for error in expect_errors(cluster, "two processes came as rank 1"):
            assert all(f"pid {pid}" in error for pid in pids[1:]), error


def test_a_second_job_on_the_port_of_a_first_does_not_join_it(world):
    port = free_port()
    per_rank = [{"options": {"master_port": port}, "stays": True}] * 2
    with Cluster(2, create, world(2).path, per_rank) as first:
        for rank in range(2):
            first.hear(rank)
            assert first.hear(rank) == "created"
        with Cluster(2, create, world(2).path, per_rank) as second:
            host, other = second.outcomes()
            expect_error(host, "RendezvousError", f"master_port = {port}")
            words = "two processes came as rank 1", "master_port of its own", f"pid {first.processes[1].pid},"
            expect_error(other, "RendezvousError", *words)
        say_all(first)
        assert first.results() == [5, 5]  # undisturbed


def raise_in_the_loop(trainer, path, mode, long_step):
    """Rank 0 fails in the middle of an epoch, for reasons of its own; rank 1 goes on, perhaps after a step of the model
    that takes until the process of rank 0 is gone, and the store of the loader with it."""
    data = join(trainer, path)
    with glt.distributed.DistNeighborLoader(
        data, [4, 3], torch.arange(NUM_NODES), batch_size=8, random_seed=1, worker_options=options(trainer, mode)
    ) as loader:
        for epoch in itertools.count():
            for number, _ in enumerate(loader):
                if epoch == 0 and number == 5:
                    trainer.say(time.monotonic())
                    if trainer.rank == 0:
                        trainer.hear()
                        raise ZeroDivisionError("the model's own mistake")
                    if long_step:
                        trainer.hear()


@pytest.mark.parametrize(("mode", "long_step"), [("collocated", False), ("mp", False), ("collocated", True)])
def test_an_exception_of_the_trainer_is_not_held_back(world, mode, long_step):
    with Cluster(2, raise_in_the_loop, world(2).path, mode, long_step) as cluster:
        hear_all(cluster)
        start = time.monotonic()
        cluster.say(0)
        if long_step:
            cluster.processes[0].join(100)
            cluster.say(1)
        first, second = cluster.outcomes()
        after([first] if long_step else [first, second], start)
        expect_error(first, "ZeroDivisionError")
        expect_error(second, "PeerLost", "trainer 0", "has reported ZeroDivisionError: the model's own mistake")


LABELS = {0: [0, 1, 2], 1: [1, 2, 1], 2: []}


def label_links(trainer, path):
    data = join(trainer, path, trainer.rank % 2)
    label = torch.tensor(LABELS[trainer.rank], dtype=torch.int64)
    edges = torch.zeros(2, len(label), dtype=torch.int64)
    given = {"batch_size": 3, "edge_label": label, "neg_sampling": "binary"}
    where = options(trainer, "collocated")
    with glt.distributed.DistLinkNeighborLoader(data, [2], (RATES, edges), worker_options=where, **given) as loader:
        return [each for batch in loader for each in batch[RATES].edge_label.tolist()]


def test_a_label_means_the_same_on_all_ranks(typed_world):
    assert run_cluster(3, label_links, typed_world(2).path) == [[1, 2, 3, 0, 0, 0], [2, 3, 2, 0, 0, 0], []]


def differ(trainer, path, label_file, drawn):
    first = trainer.rank == 0
    data = join(trainer, path, whole_node_label_file={"user": label_file} if first and label_file else None)
    edges = torch.zeros(2, 3, dtype=torch.int64)
    given = {"neg_sampling": drawn if first else "binary", "worker_options": options(trainer, "collocated")}
    glt.distributed.DistLinkNeighborLoader(data, [2], (RATES, edges), **given)


@pytest.mark.parametrize("option", ["whole_node_label_file", "tensors beside the seeds"])
def test_options_of_one_rank_are_refused(typed_world, tmp_path, option):
    torch.save(torch.arange(90), tmp_path / "y.pt")
    labelled = option == "whole_node_label_file"
    drawn = "binary" if labelled else {"mode": "binary", "src_weight": torch.ones(90)}
    with Cluster(2, differ, typed_world(2).path, str(tmp_path / "y.pt") if labelled else "", drawn) as cluster:
        for outcome in cluster.outcomes():
            expect_error(outcome, "RendezvousError", f"{option} differs between trainers")


# -- damage that is found while batches are made -------------------------------------------------------------------


def compare_behind(folder):
    """Takes all files but the smallest for so large that they are compared behind, here and in sampling processes."""
    os.environ["TMPDIR"], tempfile.tempdir = folder, folder
    text = "from glt.partition.format import verify\nverify.BEFORE_USE_BYTES = 1 << 12\n"
    (Path(folder) / "sitecustomize.py").write_text(text)
    sys.path.insert(0, folder)
    verify.BEFORE_USE_BYTES = 1 << 12


def damage_features(path, part):
    with open(path / f"part{part}/node_feat/node.npy", "r+b") as file:
        file.seek(1000)
        file.write(bytes(64))


def hear_of_damage(trainer, path, mode, folder, read_local):
    compare_behind(folder)
    data = join(trainer, path)
    given = {"collect_features": True, "worker_options": options(trainer, mode, read_local=read_local)}
    with glt.distributed.DistNeighborLoader(data, [4], torch.arange(NUM_NODES), batch_size=8, **given) as loader:
        until_s = time.monotonic() + 60.0
        try:
            while time.monotonic() < until_s:
                for _ in loader:
                    pass
        except PartitionError as error:
            trainer.say("heard")
            trainer.hear()  # the other has heard, too
            return str(error)


@pytest.mark.parametrize(("mode", "read_local"), [("mp", False), ("mp", True), ("collocated", False)])
def test_damage_that_is_found_behind_is_a_partition_error_at_the_next_batch(world, tmp_path, mode, read_local):
    """Also where another process reads the file and answers."""
    path = shutil.copytree(world(2).path, tmp_path / "parts")
    damage_features(path, 1)
    with Cluster(2, hear_of_damage, path, mode, str(tmp_path), read_local) as cluster:
        assert hear_all(cluster) == ["heard"] * 2
        say_all(cluster)
        for text in cluster.results():
            assert "part1/node_feat/node.npy was altered" in text and "(block 0)" in text
        cluster.expect_nothing_left()


def test_clients_hear_of_damage_that_their_server_finds_behind(world, tmp_path):
    path = shutil.copytree(world(1).path, tmp_path / "parts")
    damage_features(path, 0)
    with Stage(2) as stage:
        stage.ask(0, "run_function", compare_behind, str(tmp_path))
        stage.start_servers(path, 1, 1)
        stage.start_clients(1, 1)
        stage.ask(1, "make", "l")
        stage.fails(1, "take", "l").expect("PartitionError", "part0/node_feat/node.npy was altered")
        stage.ask(1, "close", "l")
        stage.finish((1,), (0,))
