"""A collection under a lock, Ctrl-C, a constructor that fails half-way, a process group that ends."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from dist_world import join, options, run_cluster
from promptness import eventually, expect_prompt, wait_for_drains

import glt
from glt.distributed.loader import collocated
from glt.distributed.wire import hub
from glt.testing.cluster import Cluster, free_port, take_census


def make(trainer, data, mode, num_seeds=200, **given):
    return glt.distributed.DistNeighborLoader(
        data, [3, 2], torch.arange(num_seeds), batch_size=10, worker_options=options(trainer, mode), **given
    )


def collect_under_locks(trainer, path, mode):
    """The loader is garbage, and is collected on a thread that holds every lock its samplers may want."""
    data = join(trainer, path)
    loader = make(trainer, data, mode)
    loader.itself = loader
    next(iter(loader))
    backend = loader._backend
    locks = [hub._lock, collocated._lock]
    if mode == "collocated":
        locks += [backend._channel._changed, backend._producer.sampler.loop._lock]
    found = []

    def collect():
        for lock in locks:
            lock.acquire()
        start = time.monotonic()
        gc.collect()
        found.append(time.monotonic() - start)
        for lock in locks:
            lock.release()

    gc.disable()
    del loader, backend
    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(60)
    assert found, "the collection waits for a lock that its own thread holds"
    gc.enable()
    wait_for_drains()
    eventually(lambda: not take_census().children)
    return found[0], take_census().children


@pytest.mark.parametrize(("world_size", "mode"), [(1, "collocated"), (2, "collocated"), (2, "mp")])
def test_a_loader_may_be_collected_under_any_lock(world, world_size, mode):
    for seconds, children in run_cluster(world_size, collect_under_locks, world(world_size).path, mode):
        assert children == {}
        expect_prompt(seconds, "a collection")


def test_a_loader_may_be_collected_on_its_own_thread(world):
    with Cluster(1, collect_on_its_own_thread, world(1).path) as cluster:
        assert cluster.results() == [[]]
        assert "Traceback" not in cluster.output(0), cluster.output(0)


def collect_on_its_own_thread(trainer, path):
    loader = make(trainer, join(trainer, path), "collocated")
    loader.itself = loader
    next(iter(loader))
    loop = loader._backend._producer.sampler.loop
    gc.disable()
    del loader

    async def collect():
        gc.collect()

    # Not by `submit`: the places are taken by batches that wait for this thread to read.
    future = asyncio.run_coroutine_threadsafe(collect(), loop._loop)
    del loop
    future.result(60)
    gc.enable()
    wait_for_drains()
    eventually(lambda: not threads_of_glt())
    return threads_of_glt()


def threads_of_glt():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("glt-")]


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
sys.path.insert(0, {here!r})
import torch, glt
from dist_world import join, options
from glt.testing.cluster import Trainer

trainer = Trainer(int(sys.argv[1]), 2, {port}, None)
with glt.distributed.DistNeighborLoader(
    join(trainer, {path!r}), [3, 2], torch.arange(200), batch_size=2, worker_options=options(trainer, sys.argv[2])
) as loader:
    told = False
    while True:
        for batch in loader:
            if not told:
                told = True
                print("samples", flush=True)
"""


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_ctrl_c_ends_trainers_and_workers(world, mode):
    """It reaches every process of the terminal: the trainers raise, the workers leave it to them."""
    program = PROGRAM.format(here=str(Path(__file__).parent), port=free_port(), path=str(world(2).path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    running = []
    try:
        for rank in range(2):
            running.append(
                subprocess.Popen(
                    [sys.executable, "-c", program, str(rank), mode],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    process_group=running[0].pid if running else 0,
                )
            )
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == "samples\n"
        start = time.monotonic()
        os.killpg(running[0].pid, signal.SIGINT)
        for process in running:
            # It returns when the workers, too, have let go of the pipe: they have ended.
            _, errors = process.communicate(timeout=100)
            assert process.returncode == -signal.SIGINT, errors
            assert errors.count("KeyboardInterrupt") == 1, errors
            # One error; where it came while another was handled, Python shows that one first.
            assert errors.count("Traceback") == 1 + errors.count("another exception occurred"), errors
        expect_prompt(time.monotonic() - start, "to end after Ctrl-C")
    finally:
        for process in running:
            process.kill()
            process.communicate(timeout=30)


def fail_after_acquiring(trainer, path):
    """The sampler of a first loader cannot be made; nothing of it holds up the next one."""
    data = join(trainer, path)

    def refuse(*args, **given):
        # Both have opened their transport before one of them gives up, which the other would otherwise be told of.
        trainer.say("opened")
        trainer.hear()
        raise MemoryError("no room")

    for part in ("sampler_of", "ConcurrentEventLoop"):
        whole = getattr(collocated, part)
        setattr(collocated, part, refuse)
        with pytest.raises(MemoryError, match="no room"):
            make(trainer, data, "collocated")
        setattr(collocated, part, whole)
        assert collocated._shared.transport is None
    eventually(lambda: not [name for name in threads_of_glt() if name.startswith("glt-sampler")])
    threads = [name for name in threads_of_glt() if name.startswith("glt-sampler")]
    users = [collocated._shared.num_users]
    with make(trainer, data, "collocated") as loader:
        users.append(collocated._shared.num_users)
        assert len(list(loader)) == 20
    return [*threads, *users, collocated._shared.num_users]


def test_a_collocated_sampler_that_cannot_start_gives_the_transport_back(world):
    with Cluster(2, fail_after_acquiring, world(2).path) as cluster:
        for _ in range(2):
            assert [cluster.hear(rank) for rank in range(2)] == ["opened", "opened"]
            for rank in range(2):
                cluster.say(rank)
        assert cluster.results() == [[0, 1, 0], [0, 1, 0]]
        cluster.expect_nothing_left()


def one_long_epoch(trainer, path):
    """What is alive after one tenth of an epoch, and at its end."""
    data = join(trainer, path)
    seeds = torch.arange(600).repeat(10)
    alive = []
    with glt.distributed.DistNeighborLoader(
        data, [1], seeds, batch_size=1, worker_options=options(trainer, "collocated")
    ) as loader:
        for number, _ in enumerate(loader):
            if number in (600, 5990):
                gc.collect()
                alive.append(len(gc.get_objects()))
    return alive


def test_a_long_epoch_keeps_nothing_of_its_batches(world):
    ((early, late),) = run_cluster(1, one_long_epoch, world(1).path)
    assert late - early < 500, f"{early} objects after 600 batches, {late} after 6000"


def die_in_rpc(trainer, path):
    """Rank 1 is about to open its transport, and rank 0 waits for that in a call that nothing interrupts."""
    data = join(trainer, path)
    trainer.say("starts")
    if trainer.rank == 1:
        collocated.RpcTransport = lambda *args: trainer.say("opens") or time.sleep(1000)
    make(trainer, data, "collocated")


def test_a_trainer_killed_while_the_others_open_their_transport(world):
    with Cluster(2, die_in_rpc, world(2).path) as cluster:
        assert [cluster.hear(0), cluster.hear(1), cluster.hear(1)] == ["starts", "starts", "opens"]
        start = time.monotonic()
        cluster.kill(1)
        survivor = cluster.outcomes()[0]
        assert survivor.error_type == "PeerLost" and "trainer 1" in survivor.error, survivor
        expect_prompt(survivor.at_s - start, "to see that a trainer died")
        cluster.expect_nothing_left()


TRAINER = """
import multiprocessing, os, sys, time
import torch
import torch.distributed as dist
import glt

rank, path, master, what = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].split()
port = int(sys.argv[5]) if "given" in what else None

def load(partition):
    return glt.distributed.DistDataset().load(path, partition)

def connect():
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{master}", rank=rank, world_size=2)

def main():
    data = load(rank)
    glt.distributed.init_worker_group(2, rank)
    if f"forks{rank}" in what:
        child = multiprocessing.get_context("fork").Process(target=load, args=(9,))
        child.start()
        child.join()
        assert child.exitcode == 1
    if "leaves" in what and rank == 0:
        dist.destroy_process_group()
    if f"late{rank}" in what:
        time.sleep(4.0)
    if f"stops{rank}" in what:
        print("stop me", flush=True)
        time.sleep(100.0)
    options = glt.distributed.CollocatedDistSamplingWorkerOptions(
        master_addr="localhost", master_port=port, rpc_timeout=100.0 if "short" not in what else 5.0
    )
    with glt.distributed.DistNeighborLoader(
        data, [2], torch.arange(20), batch_size=5, worker_options=options
    ) as loader:
        print(len(list(loader)), flush=True)

connect()
try:
    main()
finally:
    if "tidy" in what and dist.is_initialized():
        dist.destroy_process_group()
"""


@contextmanager
def trainers(path, what):
    env = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    env["PYTHONPATH"] = str(Path(glt.__file__).parents[1])
    ports = str(free_port()), str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(rank), str(path), ports[0], what, ports[1]],
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate()


def test_the_process_group_may_end_meanwhile(world):
    with trainers(world(2).path, "leaves forks0 late0 given") as started:
        for each in started:
            said, told = each.communicate(timeout=90)
            assert (each.returncode, said.strip()) == (0, "4"), told
            assert "terminate" not in told and "PeerLost" not in told, told


def test_a_wait_ends_though_the_trainer_that_is_asked_is_stopped(world):
    with trainers(world(2).path, "stops0 short") as started:
        assert started[0].stdout is not None and started[0].stdout.readline() == "stop me\n"
        started[0].send_signal(signal.SIGSTOP)
        _, told = started[1].communicate(timeout=60)
        assert "lost the store of torch.distributed" in told and "gave no answer within 5 s" in told, told
