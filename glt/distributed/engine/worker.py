"""The program of a sampling process: ``python -m glt.distributed.engine.worker FD``.

It is started by :class:`glt.distributed.engine.worker_group.WorkerGroup` as a program of its own, not through
``multiprocessing``: the trainer's script is not imported again, nothing is pickled, and torch_geometric is not loaded.
It inherits a socket to its trainer, the memory of its channel and the memory of the seeds; over the socket go JSON
objects, one per message::

    trainer -> worker   {"spec": ...}  {"epoch": 3, ...}  {"drain": true}  {"exit": true}
    worker -> trainer   {"ready": peer}, then {"beat": true} every second
                        or  {"error": type, "text": ..., "traceback": ...}

An epoch is asked for with the fields of :class:`~glt.distributed.engine.producer.EpochStart`.

When the trainer dies the socket closes, or this process is given another parent, and it ends.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from glt.channel.shm import SharedMemory, ShmChannel
from glt.data.device import accelerator_of
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.device_sampler import sampler_on
from glt.distributed.engine.event_loop import ConcurrentEventLoop
from glt.distributed.engine.partitions import PartitionRouter, PartitionService
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.sampler import DistNeighborSampler
from glt.distributed.engine.seeds import SeedTable, seeds_from_json
from glt.distributed.wire.connection import BEAT_S
from glt.distributed.wire.rpc_transport import RpcTransport
from glt.distributed.wire.store import TimedStore, connect, wait_for_all
from glt.distributed.wire.transport import Peer
from glt.sampler.config import SamplingConfig
from glt.sampler.order import SeedOrder

_LOST_TRAINER = 3  # exit codes
_FAILED = 4
_LOOK_S = 1.0


@dataclass
class WorkerSpec:
    """All that a worker needs to know, as JSON.

    Attributes:
        rank, num_trainers, worker, num_workers: Whose worker it is, which one, of how many each.
        group_name: Of the trainers; part of the name of RPC peers.
        dataset: How to map the partition: :meth:`DistDataset.to_json`.
        other_dirs: Where to map further partitions that are read directly, by index (as text, as JSON has it).
        config: Fields of :class:`SamplingConfig`.
        seeds: What the rows of the input are; see :func:`seeds_from_json`.
        order: Fields of :class:`SeedOrder`.
        collect_features: Look up features and labels.
        concurrency: Batches in flight.
        seeds_fd, seeds_bytes: Inherited memory with the :class:`SeedTable`.
        channel: Descriptor of the inherited channel.
        store: ``[address, port, prefix]`` of the rendezvous; None where there are no peers.
        num_rpc_threads, timeout_s: As in the options.
        device: Where to sample: ``'cpu'``, a GPU, or ``'host'``.
    """

    rank: int
    num_trainers: int
    worker: int
    num_workers: int
    group_name: str
    dataset: dict[str, Any]
    other_dirs: dict[str, str]
    config: dict[str, Any]
    seeds: dict[str, Any]
    order: dict[str, Any]
    collect_features: bool
    concurrency: int
    seeds_fd: int
    seeds_bytes: int
    channel: dict[str, int]
    store: list[Any] | None
    num_rpc_threads: int
    timeout_s: float
    device: str = "cpu"


class Worker:
    """A sampling process."""

    def __init__(self, connection: Connection, spec: WorkerSpec) -> None:
        self.connection, self.spec = connection, spec
        self._epochs: queue.SimpleQueue[EpochStart] = queue.SimpleQueue()
        # From now on, so that this process also ends if the trainer dies while it waits for its peers. Epochs are asked
        # for only when it has said that it is ready.
        threading.Thread(target=self._listen, name="glt-commands", daemon=True).start()
        self.dataset = DistDataset.from_json(spec.dataset)
        self.me = Peer(
            f"{spec.group_name}-{spec.rank}-w{spec.worker}", spec.rank, spec.worker, socket.gethostname(), os.getpid(),
            self.dataset.partition_idx,
        )  # fmt: skip
        self.channel = ShmChannel.from_descriptor(spec.channel)
        self.loop = ConcurrentEventLoop(spec.concurrency)
        sampler = self._sampler(
            self.dataset,
            SamplingConfig.from_json(spec.config),
            self._join_peers(),
            self.loop,
            collect_features=spec.collect_features,
            others={int(i): self.dataset.map_other(path, int(i)) for i, path in spec.other_dirs.items()},
        )
        table = SeedTable.read(SharedMemory.from_fd(spec.seeds_fd, spec.seeds_bytes))
        order = SeedOrder(**spec.order)
        self.producer = Producer(
            sampler, self.channel, seeds_from_json(spec.seeds, table.extras), table, order, spec.worker,
            spec.num_workers, f"worker {spec.worker} of trainer", spec.rank,
        )  # fmt: skip

    def _sampler(
        self, dataset: DistDataset, config: SamplingConfig, router: PartitionRouter | None, loop: ConcurrentEventLoop,
        **options: Any,
    ) -> DistNeighborSampler:  # fmt: skip
        place = accelerator_of(self.spec.device, f"worker_devices[{self.spec.worker}]")
        if place is None:
            return DistNeighborSampler(dataset, config, router, loop, **options)
        if not place.is_host:
            torch.cuda.set_device(place.device)
            self.channel.pin(place.device)  # batches are copied straight into it
        return sampler_on(place, dataset, config=config, router=router, loop=loop, staged=True, **options)

    def _join_peers(self) -> PartitionRouter | None:
        """Opens the transport to the workers of all trainers and starts to answer their requests."""
        spec = self.spec
        if spec.store is None or self.dataset.num_partitions == 1:
            return None
        address, port, prefix = spec.store
        store = connect(address, port, prefix, spec.timeout_s)
        store.set(f"peer/{self.me.name}", json.dumps(self.me.to_json()))
        keys = [
            f"peer/{spec.group_name}-{rank}-w{worker}"
            for rank in range(spec.num_trainers)
            for worker in range(spec.num_workers)
        ]
        # Before the transport is opened, which waits for all of them and cannot say who is missing.
        found = wait_for_all(TimedStore(store), keys, spec.timeout_s)
        index = spec.rank * spec.num_workers + spec.worker
        transport = RpcTransport(
            self.me, PartitionService(self.dataset).handlers(), index, spec.num_trainers * spec.num_workers, store,
            spec.num_rpc_threads, spec.timeout_s,
        )  # fmt: skip
        peers = [Peer(**json.loads(each)) for each in found]
        peers += [replace(self.me, partition_idx=int(part)) for part in spec.other_dirs]  # some may have no trainer
        return PartitionRouter(transport, peers, self.me, self.dataset.num_partitions)

    def run(self) -> None:
        """Works through the epochs that the trainer asks for, until it says exit or is gone."""
        threading.Thread(target=self._beat, name="glt-beat", daemon=True).start()
        while True:
            # No deadline: the trainer may train for hours, and if it dies the listener ends this process.
            self.producer.run(self._epochs.get())

    def _listen(self) -> None:
        parent = os.getppid()
        try:
            while True:
                while not self.connection.poll(_LOOK_S):
                    # A fork of the trainer may hold the other end of the socket open after the trainer died.
                    if os.getppid() != parent:
                        leave(_LOST_TRAINER)
                command = json.loads(self.connection.recv_bytes())
                if "epoch" in command:
                    start = EpochStart.from_json(command)
                    self.producer.want(start.iteration)
                    self._epochs.put(start)
                elif "drain" in command:
                    self.producer.want(-1)
                elif "exit" in command:
                    leave(0)
        except (EOFError, OSError):
            leave(_LOST_TRAINER)
        except BaseException:
            traceback.print_exc()
            leave(_FAILED)

    def _beat(self) -> None:
        """Tells the trainer that this process is not stopped or stuck."""
        try:
            while True:
                self.connection.send_bytes(b'{"beat": true}')
                time.sleep(BEAT_S)
        except OSError:
            leave(_LOST_TRAINER)


def leave(code: int) -> None:
    """Ends this process at once. Everything it holds is the kernel's to free, and a graceful end of RPC would wait for
    peers that may be dead."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def keep_freed_memory() -> None:
    """Makes malloc reuse what was freed instead of returning it to the kernel.

    Replies are received into fresh tensors of megabytes; with the default, each is mapped, faulted in page by page and
    unmapped, which costs more than copying it. Only for sampling processes, whose memory use is steady; and not for
    those that may sample on a GPU, which get few replies and need large tensors to have their pages for themselves: see
    :data:`glt.data.pinned.SMALL_BYTES`.
    """
    libc = ctypes.CDLL(None)
    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8
    for option, value in ((m_mmap_max, 0), (m_trim_threshold, 2**31 - 1), (m_arena_max, 1)):
        if hasattr(libc, "mallopt"):
            libc.mallopt(option, value)


def main(fd: int) -> None:
    connection = Connection(fd)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which decides what follows
        spec = WorkerSpec(**json.loads(connection.recv_bytes())["spec"])
        if not spec.device.startswith("cuda"):
            keep_freed_memory()
        torch.set_num_threads(1)
        worker = Worker(connection, spec)
        gc.freeze()  # what start-up made stays; the collector need not look at it again
        connection.send_bytes(json.dumps({"ready": worker.me.to_json()}).encode())
    except (EOFError, BrokenPipeError):
        leave(_LOST_TRAINER)
    except BaseException as error:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        text = {"error": kind, "text": str(error), "traceback": traceback.format_exc()}
        try:
            connection.send_bytes(json.dumps(text).encode())
        except OSError:
            traceback.print_exc()  # nobody listens; at least the log has it
        leave(_FAILED)
    try:
        worker.run()
    except BaseException:
        traceback.print_exc()
    leave(_FAILED)


if __name__ == "__main__":
    main(int(sys.argv[1]))
