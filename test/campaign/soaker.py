"""A trainer or client of the soak: it goes through three loaders at a time, in cycles that end in errors, and goes on
where it, or the process before it, was stopped. Each batch is compared, each seed counted, what it holds written down.
"""

import contextlib
import ctypes
import gc
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from multiprocessing import parent_process
from pathlib import Path

from dist_world import join, options
from promptness import wait_for_drains
from replicas import digest
from resume_world import KINDS, SEED, make
from service import become_client
from service import options as served

import glt
from glt.errors import PeerLost, WorkerDied
from glt.testing.cluster import take_census

NUM_EPOCHS = 12  # whose batches are known; then they begin again
RPC_S = 40.0
_BATCH_SIZE = 2
_STEPS = 20, 150  # of a cycle
_SAVE_STEPS = 5  # between two checkpoints
_PAUSE_S = 0.2  # at most, after a batch: others need the processor too
_ENDS = "in the loop", "in a transform", "by closing"


@dataclass(frozen=True)
class Job:
    """What a process of the soak is told. ``folder`` keeps what it needs to go on; ``name`` chooses its random numbers,
    the same for all trainers of a job; ``goes_on``: it makes loaders again when a sampling process dies."""

    mode: str
    name: str
    folder: str
    known: str
    partitions: str = ""
    num_workers: int = 1
    goes_on: bool = False
    servers: tuple[int, ...] = ()
    num_servers: int = 0
    port: int = 0
    rank: int = 0  # of a client


@dataclass
class Place:
    """Where a loader is: as it is kept in a checkpoint."""

    num_seeds: int
    state: dict | None = None
    epoch: int = 0
    index: int = 0  # of the next batch in it
    counts: list[int] = field(default_factory=list)  # how often each seed came in this epoch

    def __post_init__(self):
        self.counts = self.counts or [0] * self.num_seeds


class Failure(Exception):
    """Of the user's code."""


def known_batches(trainer, path):
    """Digests of all batches of this rank, by kind and epoch, and how many seeds each loader has."""
    data, known = join(trainer, path), {}
    for kind in KINDS:
        given = {"worker_options": options(trainer, "collocated"), "batch_size": _BATCH_SIZE}
        with make(trainer.rank, data, kind, random_seed=SEED + trainer.rank, **given) as loader:
            epochs, num_seeds = [], 0
            for _ in range(NUM_EPOCHS):
                batches = list(loader)
                num_seeds = sum(len(batch.input_id) for batch in batches)
                epochs.append([digest(batch).hex() for batch in batches])
        known[kind] = num_seeds, epochs
    return known


def train(trainer, job):
    """What a trainer of a cluster does."""
    data, mode = join(trainer, job.partitions), "mp" if job.mode == "worker" else "collocated"
    more = {"num_workers": job.num_workers, "channel_size": "4MB"} if mode == "mp" else {}
    Soaker(trainer.rank, job, data, lambda: options(trainer, mode, rpc_timeout=RPC_S, **more)).go()


def read_from_servers(trainer, job):
    """What a client does."""
    trainer.port = job.port
    become_client(trainer, job.num_servers, 2, job.rank, master_addr="127.0.0.1", rpc_timeout=RPC_S)
    Soaker(job.rank, job, None, lambda: served(server_rank=list(job.servers), buffer_size="4MB")).go()
    glt.distributed.shutdown_client()


class Soaker:
    def __init__(self, rank, job, data, make_options):
        self._rank, self._job, self._data, self._make_options = rank, job, data, make_options
        self._folder = Path(job.folder)
        self._is_alone = job.goes_on or job.mode == "server"
        self._known = json.loads(Path(job.known).read_text())[rank]
        self._running = {}
        self.saved = self._folder / f"{rank}.json"
        kept = json.loads(self.saved.read_text()) if self.saved.exists() else {}
        new = {kind: {"num_seeds": self._known[kind][0]} for kind in KINDS}
        self._places = {kind: Place(**place) for kind, place in kept.get("places", new).items()}
        self._num_batches, self._num_epochs = kept.get("num_batches", 0), kept.get("num_epochs", 0)

    def go(self):
        """Cycles until the file ``stop`` says which is the last. Others that share the job do the same."""
        number, stop, campaign = 0, self._folder / "stop", parent_process()
        while campaign.is_alive() and not (stop.exists() and number >= int(stop.read_text())):
            lost = ""
            try:
                with contextlib.suppress(Failure):
                    self._cycle(random.Random(f"{self._job.name}, cycle {number}"))
            except (PeerLost, WorkerDied) as error:
                lost = f"{type(error).__name__}: {error}"
                if not self._job.goes_on:
                    raise
            finally:
                self._running.clear()
                number += 1
                self._write_down(number, lost)

    def _cycle(self, chance):
        num_steps, how = chance.randrange(*_STEPS), chance.choice(_ENDS)
        # An error that leaves a loader's block ends the loaders of the other trainers too.
        caught = contextlib.suppress(*(() if self._is_alone else (Failure,)))
        with contextlib.ExitStack() as made, caught:
            loaders = {kind: made.enter_context(self._make(kind)) for kind in KINDS}
            self._expect_refusal()
            for kind, loader in loaders.items():
                if self._places[kind].state is not None:
                    loader.load_state_dict(self._places[kind].state)
            for step in range(num_steps):
                kind = KINDS[step % len(KINDS)]
                self._step(kind, loaders[kind])
                if step % _SAVE_STEPS == 0:
                    self._save()
                time.sleep(random.uniform(0, _PAUSE_S))
            if how == "in the loop":
                raise Failure
            if how == "in a transform":
                loaders[KINDS[0]].transform = _fail
                self._step(KINDS[0], loaders[KINDS[0]])
                raise AssertionError("a transform that raises was not called")

    def _make(self, kind, batch_size=_BATCH_SIZE):
        where = self._make_options()
        return make(self._rank, self._data, kind, where, SEED + self._rank, batch_size=batch_size)

    def _expect_refusal(self):
        try:
            self._make(KINDS[0], batch_size=0)
        except ValueError:
            return
        raise AssertionError("batch_size=0 was taken")

    def _step(self, kind, loader):
        place, (num_seeds, known) = self._places[kind], self._known[kind]
        if kind not in self._running:
            if place.index == 0:
                loader.set_epoch(place.epoch)
            self._running[kind] = iter(loader)
        batch = next(self._running[kind])
        where = f"{kind}, epoch {place.epoch}, batch {place.index}"
        assert digest(batch).hex() == known[place.epoch][place.index], f"{where}: it is another one"
        for seed in batch.input_id.tolist():
            place.counts[seed] += 1
        place.index += 1
        self._num_batches += 1
        if place.index == len(known[place.epoch]):
            assert next(self._running.pop(kind), None) is None, f"{where}: it is not the last"
            assert place.counts == [1] * num_seeds, f"{where}: seeds came so often: {place.counts}"
            place.epoch, place.index, place.counts = (place.epoch + 1) % NUM_EPOCHS, 0, [0] * num_seeds
            self._num_epochs += 1
        place.state = loader.state_dict()

    def _save(self):
        """As a training script keeps checkpoints: what came after the last one comes again after a death."""
        places = {kind: asdict(place) for kind, place in self._places.items()}
        text = json.dumps({"places": places, "num_batches": self._num_batches, "num_epochs": self._num_epochs})
        written = self.saved.with_suffix(".new")
        written.write_text(text)
        os.replace(written, self.saved)

    def _write_down(self, number, lost):
        """What the cycle did, and what this process holds now that its loaders are closed."""
        wait_for_drains()
        gc.collect()
        said = {"cycle": number, "lost": lost, **held_by("self")}
        heap = _mallinfo2()
        said["held"] |= {"heap": heap.uordblks + heap.hblkhd, "blocks": sys.getallocatedblocks()}
        with open(self._folder / "cycles", "a") as file:
            file.write(json.dumps(said) + "\n")


def held_by(pid):
    """What a process holds, and when; memory without that of files."""
    census = take_census(pid)
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    num_bytes = sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem")) << 10
    held = {"memory": num_bytes, "descriptors": len(census.fds), "threads": census.num_threads}
    return {"pid": int(lines["Pid"]), "at_s": time.monotonic(), "held": held}


class _MallInfo(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


_mallinfo2 = ctypes.CDLL(None).mallinfo2  # bytes that are in use, of glibc's heap: what is free in between is not
_mallinfo2.restype = _MallInfo


def _fail(batch):
    raise Failure
