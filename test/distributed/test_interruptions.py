"""A collection under a lock, Ctrl-C, a constructor that fails half-way, a process group that ends."""

import gc
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from dist_world import expect_error, hear_all, join, options, programs, run_cluster, say_all
from promptness import eventually, expect_prompt, wait_for_drains

import glt
from glt.distributed.loader import deployment
from glt.distributed.wire import rpc
from glt.testing.cluster import Cluster, free_port, take_census


def make(trainer, data, mode, num_seeds=200, **given):
    where = options(trainer, mode, **given)
    return glt.distributed.DistNeighborLoader(
        data, [3, 2], torch.arange(num_seeds), batch_size=10, worker_options=where
    )


def collect_anywhere(trainer, path, mode):
    """Loaders in cycles are dropped while another one samples, and any allocation on any thread may collect them."""
    data, thresholds = join(trainer, path), gc.get_threshold()
    with make(trainer, data, mode) as other:
        gc.set_threshold(20)
        for _ in range(5 if mode == "collocated" else 2):
            loader = make(trainer, data, mode, 50)
            loader.itself = loader
            next(iter(loader))
            del loader
            assert len(list(other)) == len(other)
        gc.set_threshold(*thresholds)
        gc.collect()
    wait_for_drains()
    eventually(lambda: not take_census().children and not threads_of_glt())
    return take_census().children, threads_of_glt()


@pytest.mark.parametrize(("world_size", "mode"), [(1, "collocated"), (2, "collocated"), (2, "mp")])
def test_a_loader_may_be_collected_under_any_lock_and_on_any_thread(world, world_size, mode):
    with Cluster(world_size, collect_anywhere, world(world_size).path, mode) as cluster:
        for children, threads in cluster.results():
            assert children == {} and (world_size > 1 or threads == [])
        assert "Traceback" not in cluster.output(0), cluster.output(0)
        cluster.expect_nothing_left()


def threads_of_glt():
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("glt-") and name != "glt-loop"]  # the process keeps its loop


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
    with programs(program, (0, mode), (1, mode), one_group=True) as running:
        for process in running:
            assert process.stdout.readline() == "samples\n"
        start = time.monotonic()
        os.killpg(running[0].pid, signal.SIGINT)
        for process in running:
            # It returns when the workers, too, have let go of the pipe: they have ended.
            _, errors = process.communicate(timeout=100)
            # Python ends by the signal, or with 1 where what runs at exit compiles text, as importing tabulate does.
            assert process.returncode in (-signal.SIGINT, 1) and "KeyboardInterrupt" in errors, errors
            assert errors.count("KeyboardInterrupt") == 1, errors
            # One error; where it came while another was handled, Python shows that one first.
            assert errors.count("Traceback") == 1 + errors.count("another exception occurred"), errors
        expect_prompt(time.monotonic() - start, "to end after Ctrl-C")


def sampler_threads():
    return [name for name in threads_of_glt() if name.startswith("glt-sampler")]


def fail_after_acquiring(trainer, path):
    """The sampler of a first loader cannot be made; nothing of it holds up the next one."""
    data = join(trainer, path)

    def refuse(*args, **given):
        # Both have opened their transport before one of them gives up, which the other would otherwise be told of.
        trainer.say("opened")
        trainer.hear()
        raise MemoryError("no room")

    for part in ("sampler_of", "ConcurrentEventLoop"):
        whole = getattr(deployment, part)
        setattr(deployment, part, refuse)
        with pytest.raises(MemoryError, match="no room"):
            make(trainer, data, "collocated")
        setattr(deployment, part, whole)
    eventually(lambda: not sampler_threads())
    left = sampler_threads()
    with make(trainer, data, "collocated") as loader:
        assert len(list(loader)) == 20
    return left


def test_a_collocated_sampler_that_cannot_start_gives_the_transport_back(world):
    with Cluster(2, fail_after_acquiring, world(2).path) as cluster:
        for _ in range(2):
            assert hear_all(cluster) == ["opened", "opened"]
            say_all(cluster)
        assert cluster.results() == [[], []]
        cluster.expect_nothing_left()


SLOW_END = """
import os, threading, time
from glt.distributed.loader import deployment
from glt.distributed.wire import rpc

class SlowToGo:
    def drain(self): ...
    def close(self, all_finished=False):
        assert ending.wait(30)
    def __del__(self):
        time.sleep(0.5)
        print("let go", flush=True)

ending = threading.Event()
samplers = SlowToGo()
deployment.abandon(samplers, None, os.getpid())
del samplers  # the thread has the last of them
ending.set()
"""


def test_a_process_does_not_end_while_samplers_of_a_loader_are_let_go_of():
    """A daemon thread that frees a tensor while the interpreter ends dies in the middle of a destructor: an abort."""
    with programs(SLOW_END, ()) as (process,):
        said, errors = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "let go\n"), errors


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


def die_while_opening(trainer, path, transport):
    """Rank 1 is about to open its transport, and rank 0 waits for that; of rpc in a call that nothing interrupts."""
    data = join(trainer, path)
    trainer.say("starts")
    if trainer.rank == 1:
        place, name = (deployment, "SamplerTransport") if transport == "tcp" else (rpc, "RpcTransport")
        setattr(place, name, lambda *args: trainer.say("opens") or time.sleep(1000))
    make(trainer, data, "collocated", transport=transport)


@pytest.mark.parametrize("transport", ["tcp", "rpc"])
def test_a_trainer_killed_while_the_others_open_their_transport(world, transport):
    with Cluster(2, die_while_opening, world(2).path, transport) as cluster:
        assert [cluster.hear(0), cluster.hear(1), cluster.hear(1)] == ["starts", "starts", "opens"]
        start = time.monotonic()
        cluster.kill(1)
        survivor = cluster.outcomes()[0]
        expect_error(survivor, "PeerLost", "trainer 1")
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


def trainers(path, what):
    master, port = free_port(), free_port()
    return programs(TRAINER, *((rank, path, master, what, port) for rank in (0, 1)))


def test_the_process_group_may_end_meanwhile(world):
    with trainers(world(2).path, "leaves forks0 late0 given") as started:
        for each in started:
            said, told = each.communicate(timeout=90)
            assert (each.returncode, said.strip()) == (0, "4"), told
            assert "terminate" not in told and "PeerLost" not in told, told


def test_a_wait_ends_though_the_trainer_that_is_asked_is_stopped(world):
    with trainers(world(2).path, "stops0 short") as started:
        assert started[0].stdout.readline() == "stop me\n"
        started[0].send_signal(signal.SIGSTOP)
        _, told = started[1].communicate(timeout=60)
        assert "lost the store of torch.distributed" in told and "gave no answer within 5 s" in told, told
