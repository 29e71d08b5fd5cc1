"""Loaders come and go, are left half-way and forgotten, and leave nothing behind."""

import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from dist_world import expect_error, hear_all, join, options, programs, run_cluster, snapshot, told_to_a_second_thread
from promptness import eventually, expect_prompt

import glt
from glt import _deadlines
from glt.testing.cluster import Cluster, free_port, take_census

STATS = set(
    """num_batches num_seeds num_nodes num_edges wait_s collate_s sampling_s remote_s gathering_s blocked_s
remote_bytes remote_node_ratio channel_num_sent channel_num_received""".split()
)


def make(trainer, data, mode, num_seeds=200, **given):
    loader = {"batch_size": 10, "random_seed": 9, "collect_features": True, "shuffle": True}
    flags = {name: given.pop(name) for name in list(given) if name in (*loader, "with_edge")}
    return glt.distributed.DistNeighborLoader(
        data, [3, 2], torch.arange(num_seeds), worker_options=options(trainer, mode, **given), **loader | flags
    )


def raises(kind, text, call):
    with pytest.raises(kind, match=text):
        call()


def live(trainer, path, mode):
    """One trainer's life: everything that a user may do with two loaders."""
    data = join(trainer, path)
    train, val = make(trainer, data, mode), make(trainer, data, mode, 50, random_seed=4, shuffle=False)
    assert len(train) == 20 and len(val) == 5

    # Leaving an epoch and starting the next, with another loader in between.
    wanted = {}
    for epoch in range(20):
        for number, batch in enumerate(train):
            if number == epoch % 4:
                wanted[epoch] = snapshot(batch)
                break
        assert len(list(val)) == 5
    # The same epochs again, whole: the same batches, whatever happened before.
    for epoch in (0, 7, 19):
        train.set_epoch(epoch)
        batches = list(train)
        assert torch.equal(batches[epoch % 4].n_id, wanted[epoch]["n_id"])
        assert torch.equal(torch.cat([b.input_id for b in batches]).sort().values, torch.arange(200))
    raises(ValueError, "epoch", lambda: train.set_epoch(-1))

    older = iter(train)
    next(older)
    newer = iter(train)
    next(newer)
    raises(RuntimeError, "a newer one", lambda: next(older))
    next(newer)

    stats = train.stats()
    assert STATS <= stats.keys(), STATS - stats.keys()
    assert stats["num_batches"] >= 60 and stats["remote_node_ratio"] > 0
    train.shutdown()
    train.shutdown()
    raises(RuntimeError, "shut down", lambda: next(newer))
    raises(RuntimeError, "shut down", lambda: iter(train))
    assert train.stats()["num_batches"] == stats["num_batches"]
    assert len(list(val)) == 5  # the other one does not mind
    with val:
        assert len(list(val)) == 5
    raises(RuntimeError, "shut down", lambda: iter(val))
    # And again, after the last one has let go of the transport.
    with make(trainer, data, mode, 30) as again:
        assert len(list(again)) == 3
    return {"children": take_census().children}


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_two_loaders_of_a_trainer_live_and_end(world, mode):
    with Cluster(2, live, world(2).path, mode) as cluster:
        assert cluster.results() == [{"children": {}}] * 2
        cluster.expect_nothing_left()
        for rank in range(2):
            assert "Traceback" not in cluster.output(rank) and "destroyed" not in cluster.output(rank)


def find_ports(trainer, path):
    """No master_port: torch.distributed makes the port known. No random_seed: drawn, and fixed by manual_seed."""
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(trainer.port)}
    dist.init_process_group("gloo", rank=trainer.rank, world_size=trainer.world_size)
    data = join(trainer, path)
    seeds = []
    for _ in range(2):
        torch.manual_seed(5)
        with make(trainer, data, "collocated", master_port=None, random_seed=None) as loader:
            seeds.append(loader.random_seed)
            assert len(list(loader)) == 20
    with make(trainer, data, "collocated", master_port=None, random_seed=None) as loader:
        seeds.append(loader.random_seed)
    dist.destroy_process_group()
    return seeds


def test_ports_and_seeds_are_found(world):
    first, second = run_cluster(2, find_ports, world(2).path)
    assert first[0] == first[1] != first[2] and second[0] == second[1] != second[2]
    assert first[0] != second[0]


def without_ports(trainer, path):
    make(trainer, join(trainer, path), "collocated", master_port=None)


def test_no_port_and_no_torch_distributed_says_what_to_do(world):
    with Cluster(2, without_ports, world(2).path) as cluster:
        for outcome in cluster.outcomes():
            expect_error(outcome, "RendezvousError", "init_process_group")


# How many more files and threads the last of several loaders may leave than the first: the store of rank 0 closes its
# ends of two connections late, some time or other. Loaders that each leave something behind would leave more.
STRAYS = 2


def many_epochs(trainer, path, mode):
    """Census after every tenth of 50 epochs, then after each of a few loaders."""
    data = join(trainer, path)
    counts = []

    def count():
        gc.collect()
        found = take_census()
        counts.append((len(found.fds), found.num_threads, len(found.ports), found.rss_bytes))

    with make(trainer, data, mode, 100) as loader:
        for epoch in range(50):
            for _ in loader:
                pass
            if epoch % 10 == 9:
                count()
    for _ in range(6 if mode == "collocated" else 4):
        with make(trainer, data, mode, 30) as loader:
            assert len(list(loader)) == 3
        del loader
        count()

    def back_to_the_first():
        counts.pop()
        count()
        return all(now - first <= STRAYS for now, first in zip(counts[-1][:3], counts[5][:3], strict=True))

    # The other trainer ends its side of connections in its own time; what stays open after the last loader is a leak.
    eventually(back_to_the_first)
    return counts


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_epochs_and_loaders_leave_nothing_behind(world, mode):
    for counts in run_cluster(2, many_epochs, world(2).path, mode):
        running, after = counts[:5], counts[5:]
        # A pool starts a thread when all that it has are busy, up to its fixed size: one may still come late.
        for what, column, late in (("fds", 0, 0), ("threads", 1, 2), ("ports", 2, 0)):
            used = [c[column] for c in running]
            assert max(used) - min(used) <= late, (what, counts)
            assert after[-1][column] - after[0][column] <= STRAYS, (what, counts)
        assert running[-1][3] - running[1][3] < 8 << 20, [c[3] for c in counts]


def keep_all(trainer, path):
    """A channel smaller than a batch, then one that is smaller than what is kept."""
    data = join(trainer, path)
    total = 0
    for size, batch_size in (("16KB", 200), ("256KB", 20)):
        with make(trainer, data, "mp", channel_size=size, batch_size=batch_size) as loader:
            kept = [batch for _ in range(4) for batch in loader]
            assert len(kept) == 4 * 200 // batch_size
            if batch_size == 200:
                assert sum(kept[0][name].nbytes for name in ("x", "y", "n_id", "edge_index")) > 16 << 10
            for batch in kept:
                assert torch.equal(batch.x[:, 0], batch.n_id.float()) and torch.equal(batch.y, batch.n_id)
            stats = loader.stats()
            total += stats["channel_num_oversize"] + stats["channel_num_copied"]
    for batch in kept:  # still there after the loader is gone
        assert torch.equal(batch.x[:, 0], batch.n_id.float())
    return total


def test_batches_kept_for_ever_and_batches_larger_than_the_channel(world):
    with Cluster(1, keep_all, world(1).path) as cluster:
        assert cluster.results()[0] > 0
        cluster.expect_nothing_left()
        assert cluster.output(0).count("channel_size=") == 1, cluster.output(0)


def end_in_another_order(trainer, path):
    data = join(trainer, path)
    loaders = [make(trainer, data, "collocated"), make(trainer, data, "collocated")]
    for loader in loaders:
        assert len(list(loader)) == len(loader)
    start = time.monotonic()
    for loader in loaders if trainer.rank == 0 else reversed(loaders):
        loader.shutdown()
    return time.monotonic() - start


def test_loaders_may_end_in_another_order_on_each_rank(world):
    expect_prompt(max(run_cluster(2, end_in_another_order, world(2).path)), "to shut two loaders down", within_s=20)


def leave_while_another_needs_it(trainer, path, mode):
    """The first trainer is done long before the second, which reads a partition through it."""
    _deadlines.DRAIN_S = 0.1
    data = join(trainer, path)
    num_batches = 0
    with make(trainer, data, mode, num_seeds=10 if trainer.rank == 0 else 600) as loader:
        for _ in loader:
            num_batches += 1
            if trainer.rank == 1 and num_batches == 1:
                trainer.say("begun")
                trainer.hear()
    trainer.say("done")
    return num_batches


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_a_forked_trainer_serves_on_when_its_function_has_returned(world, mode):
    """Children of multiprocessing that were not spawned end without the callbacks of atexit."""
    with Cluster(2, leave_while_another_needs_it, world(2).path, mode) as cluster:
        assert cluster.hear(1) == "begun" and cluster.hear(0) == "done"
        cluster.processes[0].join(1.0)
        assert cluster.processes[0].is_alive()
        cluster.say(1)
        assert cluster.results() == [1, 60]
        cluster.expect_nothing_left()


def fail_when_others_are_served(trainer, path):
    """The second trainer fails once the first has all its batches. How long the first takes to go on without it."""
    data = join(trainer, path)
    try:
        with make(trainer, data, "collocated") as loader:
            assert len(list(loader)) == len(loader)
            trainer.say("served")
            trainer.hear()
            if trainer.rank == 1:
                raise ZeroDivisionError
    except ZeroDivisionError:
        trainer.say("failed")
    start = time.monotonic()
    loader.shutdown()
    with make(trainer, data, "collocated") as loader:
        assert len(list(loader)) == len(loader)
    return time.monotonic() - start


def test_a_trainer_that_failed_is_not_waited_for_to_take_leave(world):
    with Cluster(2, fail_when_others_are_served, world(2).path) as cluster:
        assert hear_all(cluster) == ["served"] * 2
        cluster.say(1)
        assert cluster.hear(1) == "failed"
        start = time.monotonic()
        cluster.say(0)
        cluster.results()
        expect_prompt(time.monotonic() - start, "to go on without a trainer that failed", within_s=15)
        cluster.expect_nothing_left()


def is_told_of_the_fork(batches):
    try:
        next(batches)
    except RuntimeError as error:
        return "is a fork of the trainer" in str(error)
    return False


def fork_and_stop(trainer, path):
    """A forked child that goes on iterating is told that it cannot, and one that ends takes nothing
    along; a stopped worker is not waited for for ever."""
    data = join(trainer, path)
    with make(trainer, data, "mp", channel_size="32KB") as loader:
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if child == 0:
            told = is_told_of_the_fork(batches)
            del loader, batches
            gc.collect()
            os._exit(not told)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(batches)) == len(loader) - 1
        batches = iter(loader)
        next(batches)
        loader._backend.timeout_s = 5.0  # of calls; as an option it would be the deadline of start-up too
        os.kill(next(iter(take_census().children)), signal.SIGSTOP)
        try:
            list(batches)
        except glt.errors.WorkerDied as error:
            return str(error)
    return ""


def fork_collocated(trainer, path):
    """The child is told that it cannot go on, and runs its exit handlers, those of loaders among them, while this
    process goes on asking its peer."""
    data = join(trainer, path)
    with make(trainer, data, "collocated") as loader:
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if child == 0:
            told = is_told_of_the_fork(batches)
            atexit._run_exitfuncs()
            os._exit(not told)
        assert os.waitpid(child, 0)[1] == 0
        return 1 + len(list(batches))


def test_a_fork_of_a_collocated_trainer_ends_nothing(world):
    assert run_cluster(2, fork_collocated, world(2).path) == [20, 20]


def test_a_fork_ends_nothing_and_a_stopped_worker_is_named(world):
    (text,) = run_cluster(1, fork_and_stop, world(1).path)
    assert "no sign of it" in text and "pid" in text


PROGRAM = """
import sys
sys.path.insert(0, {here!r})
import time, torch, glt
from dist_world import join, options
from glt.testing.cluster import Trainer

trainer = Trainer(int(sys.argv[1]), {world_size}, {port}, None)
loader = glt.distributed.DistNeighborLoader(
    join(trainer, {path!r}), [3, 2], torch.arange(200), batch_size=2, worker_options=options(trainer, sys.argv[2])
)
it = iter(loader)
next(it)
while loader.stats()["channel_num_queued"] < 3:  # collocated: the next batch then waits for room
    time.sleep(0.01)
print("has a batch")
"""


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_a_program_that_ends_without_shutdown(world, mode):
    program = PROGRAM.format(here=str(Path(__file__).parent), world_size=2, port=free_port(), path=str(world(2).path))
    with programs(program, (0, mode), (1, mode), stderr=subprocess.STDOUT) as running:
        for process in running:
            output, _ = process.communicate(timeout=200)  # the workers, too, have let go of the pipe: they have ended
            assert process.returncode == 0 and "has a batch" in output, output
            assert "Traceback" not in output and "destroyed" not in output, output


def test_a_full_dev_shm_does_not_matter(world):
    """In a mount namespace of its own, with nothing left in its /dev/shm."""
    fill = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a mount namespace (unshare -m)")
    program = PROGRAM.format(here=str(Path(__file__).parent), world_size=1, port=free_port(), path=str(world(1).path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    command = ["unshare", "-m", "sh", "-c", f'{fill} && exec "$@"', "sh", sys.executable, "-c", program, "0", "mp"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    if "mount:" in done.stderr:
        pytest.skip(f"needs the right to mount a tmpfs: {done.stderr.strip()}")
    assert done.returncode == 0 and "has a batch" in done.stdout, done.stdout + done.stderr


def start_and_wait(trainer, path):
    """The worker of rank 1 is stopped as soon as it runs: it cannot join before its trainer is killed."""

    class Told(subprocess.Popen):
        def __init__(self, *args, **given):
            super().__init__(*args, **given)
            if trainer.rank == 1:
                os.kill(self.pid, signal.SIGSTOP)
            trainer.say(self.pid)

    subprocess.Popen = Told
    make(trainer, join(trainer, path), "mp")


def test_workers_whose_trainer_dies_while_they_start_end_too(world):
    """Rank 1 has its options agreed on and is killed before its worker can join."""
    with Cluster(2, start_and_wait, world(2).path) as cluster:
        cluster.hear(0)
        worker = cluster.hear(1)
        cluster.kill(1)
        start = time.monotonic()
        os.kill(worker, signal.SIGCONT)
        survivor = cluster.outcomes()[0]
        expect_error(survivor, "PeerLost", "trainer 1")
        expect_prompt(survivor.at_s - start, "to see that a trainer died while the loader started")
        cluster.expect_nothing_left()


def ask_from_two_threads(trainer, path, mode):
    with make(trainer, join(trainer, path), mode, 50) as loader:
        return told_to_a_second_thread(loader)


@pytest.mark.parametrize("mode", ["mp", "collocated"])
def test_a_second_thread_is_refused_while_the_first_waits_for_a_batch(world, mode):
    """Messages would go to one that the other waits for, for ever."""
    ((num_batches, told),) = run_cluster(1, ask_from_two_threads, world(1).path, mode)
    assert num_batches == 5 and len(told) == 10
    for each in told:
        assert "thread 'second' asks this loader for a batch while thread 'MainThread' does" in each
        assert "create one for each" in each
