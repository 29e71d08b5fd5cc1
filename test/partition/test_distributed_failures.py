"""A rank that fails or dies ends the run of all, with its name, and nothing that loads stays behind."""

import signal
import time

import numpy as np
import pytest
import torch.distributed as dist
from distributed_run import join, random_graph, slice_of

from glt.partition import RandomPartitioner, load_partition, partition_distributed
from glt.partition.format.files import NpyWriter
from glt.partition.sharded.exchange import Exchange
from glt.testing.cluster import Cluster

PRELOAD = ("glt.partition",)


def graph_with(**changed):
    return random_graph(20, 90) | {"num_parts": 3} | changed


def out_of_range():
    edge_index = random_graph(20, 90)["edge_index"].copy()
    edge_index[1, 85] = 20  # in the slice of the last rank
    return edge_index


def full_disk(*_):
    raise OSError(28, "No space left on device")


# What rank 2 is given instead, or a whole slice; what it raises, and what the others do.
CASES = {
    "a bad id": (
        graph_with(edge_index=out_of_range()),
        ("IndexError", "edge_index[1]"),
        ("RemoteError", "builtins.IndexError: in the slice of rank 2: edge_index[1]"),
    ),
    "a bad argument": (
        graph_with(num_threads=0),
        ("ValueError", "num_threads = 0"),
        ("RemoteError", "in partitioning rank 2 (pid "),
    ),
    "another seed": (
        graph_with(random_seed=1),
        *[("ValueError", "random_seed differs between ranks: rank 0 has 0")] * 2,
    ),
    "a full disk": (
        graph_with(put=full_disk),
        ("OSError", "No space left on device"),
        ("RemoteError", "builtins.OSError: [Errno 28] No space left on device"),
    ),
}


def fail_in_turn(trainer, root):
    join(trainer)
    raised = []
    for case, _, _ in CASES.values():
        arguments = slice_of(case if trainer.rank == 2 else graph_with(), trainer.rank, 3)
        original = NpyWriter.put
        NpyWriter.put = arguments.pop("put", original)
        try:
            partition_distributed(RandomPartitioner, root / "parts", **arguments)
        except Exception as error:
            raised.append((type(error).__name__, str(error)))
        NpyWriter.put = original
    partition_distributed(RandomPartitioner, root / "parts", **slice_of(graph_with(), trainer.rank, 3))
    if trainer.rank != 2:  # who comes too late is not waited for
        for group in (None, dist.group.WORLD):
            try:
                partition_distributed(RandomPartitioner, root / "more", **graph_with(), timeout_s=1, group=group)
            except Exception as error:
                raised.append((type(error).__name__, str(error)))
        trainer.say("ended")
    trainer.hear()  # whoever ended now would be missed
    return raised


def test_what_one_rank_raises_all_raise(tmp_path):
    with Cluster(3, fail_in_turn, tmp_path, preload=PRELOAD) as cluster:
        for rank in (0, 1):
            cluster.hear(rank)
        for rank in range(3):
            cluster.say(rank)
        raised = cluster.results()
    for at, (name, (_, first, others)) in enumerate(CASES.items()):
        for rank, wanted in ((2, first), (0, others), (1, others)):
            kind, text = raised[rank][at]
            assert kind == wanted[0] and wanted[1] in text, (name, rank, raised[rank][at])
    for rank in (0, 1):
        (first, text), (second, late) = raised[rank][len(CASES) :]
        assert first == second == "PeerLost"
        assert "did not find all others within timeout_s = 1 s" in text
        assert "at the beginning: not all of them came within timeout_s = 1 s; see" in late
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]
    assert load_partition(tmp_path / "parts", 0).manifest.num_edges == 90


def test_torch_distributed_must_be_there_and_deadlines_positive(tmp_path):
    with pytest.raises(ValueError, match=r"torch.distributed is not initialized: call .*init_process_group\('gloo'\)"):
        partition_distributed(RandomPartitioner, tmp_path / "parts", **graph_with())
    with pytest.raises(ValueError, match="timeout_s = 0: expected seconds above 0"):
        partition_distributed(RandomPartitioner, tmp_path / "parts", **graph_with(), timeout_s=0)


def wait_to_be_killed(trainer, root, victim, where):
    join(trainer)

    def stop():
        trainer.say("stopped")
        signal.pause()

    if trainer.rank == victim and where == "writing":
        NpyWriter.put = lambda *_: stop()
    elif trainer.rank == victim:
        all_to_all = Exchange.all_to_all

        def exchange(self, pieces):
            if self.stage.startswith(where):
                stop()
            return all_to_all(self, pieces)

        Exchange.all_to_all = exchange
    partition_distributed(RandomPartitioner, root / "parts", **slice_of(KILLED, trainer.rank, 3))


KILLED = graph_with(hotness=[np.ones(20)] * 3, cache_ratio=0.5, relabel=True)


@pytest.mark.parametrize(("victim", "where"), [(1, "writing"), (0, "writing"), (2, "the caches of nodes")])
def test_a_killed_rank_is_missed_at_once(tmp_path, victim, where):
    with Cluster(3, wait_to_be_killed, tmp_path, victim, where, preload=PRELOAD) as cluster:
        cluster.hear(victim)
        pid = cluster.processes[victim].pid
        begin = time.monotonic()
        cluster.kill(victim)
        outcomes = cluster.outcomes()
    for rank in {0, 1, 2} - {victim}:
        assert outcomes[rank].error_type == "PeerLost", outcomes[rank]
        assert f"rank {rank} of 3 lost other ranks at the " in outcomes[rank].error
        stages = ("the nodes of", "the caches of", "the edges of") if where == "writing" else (where,)
        assert any(f"at {stage}" in outcomes[rank].error for stage in stages)
        assert f"rank {victim} (pid {pid})" in outcomes[rank].error
        assert outcomes[rank].at_s - begin < 30  # the deadline is half an hour
    if victim != 0:  # the leader has cleared up
        assert list(tmp_path.iterdir()) == []
    assert not list(tmp_path.rglob("manifest.json"))
    RandomPartitioner(tmp_path / "parts", **KILLED).partition()
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]
