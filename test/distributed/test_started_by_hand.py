"""Trainers that only ``init_process_group`` connects."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import glt
from glt.testing.cluster import free_port

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
            env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]  # fmt: skip
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
