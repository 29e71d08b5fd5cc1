"""The long run: jobs of each mode go through their loaders for as long as there is time, their processes are killed at
random, and others go on from checkpoints. Batches are right, each seed comes once per epoch, and nothing grows."""

import contextlib
import itertools
import json
import math
import os
import signal
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from actors import keep_output
from dist_world import write_world
from replicas import Servers
from score import Clock, Score
from soaker import RPC_S, Job, held_by, known_batches, read_from_servers, train

from benchmarks._harness import Report
from glt.testing.cluster import Cluster, take_census

_LIFE_S = 20.0, 900.0  # of a job that a kill ends, even in the logarithm
_KILL_S = 3.0, 30.0  # between two kills, where they end no job
_STILL_S = 90.0  # without a batch
_WARM_S = 120.0  # of a process, in which it may grow
_MOST_PER_HOUR = {"memory": 48e6, "heap": 4e6, "blocks": 10_000.0, "descriptors": 2.0, "threads": 1.0}
"""What a process may hold more after an hour. Its memory grows for many minutes, since threads come and go and free
space between what they allocate; of its heap only what is in use counts, and Python's blocks are counted."""
_TOY = "collocated mode, two trainers", "worker mode, one trainer"
_LOST = "PeerLost", "WorkerDied", "RendezvousError"


def run(score: Score, clock: Clock, most: int, is_toy: bool) -> None:
    report, seconds = Report("soak", is_toy), clock.left_s
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        two, one = write_world(folder / "two", 2), write_world(folder / "one", 1)
        known = folder / "known.json"
        with Cluster(2, known_batches, two.path) as cluster:
            known.write_text(json.dumps(cluster.results()))
        told = Job("", "", "", str(known), str(two.path))
        alone = replace(told, mode="worker", partitions=str(one.path), num_workers=2, goes_on=True)
        runs = [
            Trainers("worker mode, two trainers", replace(told, mode="worker"), score, folder, is_toy),
            Trainers("collocated mode, two trainers", replace(told, mode="collocated"), score, folder, is_toy),
            Alone("worker mode, one trainer", alone, score, folder, is_toy),
            Service("server mode", replace(told, mode="server"), score, folder, is_toy),
        ]
        runs = [each for each in runs if score.wants(f"soak, {each.name}") and (each.name in _TOY or not is_toy)]
        began_s, clock = time.monotonic(), Clock(seconds)  # of the jobs
        threads = [threading.Thread(target=each.run, args=(clock,), daemon=True) for each in runs]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for each in runs:
            each.tell(report, (time.monotonic() - began_s) / 3600)
    report.finish()


class Run:
    """Of one job, over and over."""

    def __init__(self, name, job, score, folder, is_toy):
        self.name, self._score, self._is_toy = name, score, is_toy
        self._random = score.random("soak", name)
        self._folder = folder / name.replace(" ", "-").replace(",", "")
        self._folder.mkdir()
        self._job = replace(job, folder=str(self._folder))
        self._kills, self._looks = Counter(), []  # what this process has seen of others
        self._lives = itertools.count()

    def run(self, clock):
        while not clock.is_over:
            with self._score.trying(f"soak, {self.name}"):
                self._live(clock)

    def _wait(self, clusters, seconds, clock):
        """Lets a job go on for a while; raises AssertionError if a process of it ends, or has no batch for too long."""
        until_s = time.monotonic() + min(seconds, clock.left_s)
        while time.monotonic() < until_s:
            for cluster in clusters:
                if not all(each.is_alive() for each in cluster.processes):
                    raise AssertionError(f"it ended by itself: {cluster.outcomes()}")
            self._expect_progress(clusters)
            time.sleep(min(1.0, max(0.0, until_s - time.monotonic())))

    def _expect_progress(self, clusters):
        began_s = min(cluster.began_s for cluster in clusters)
        for kept in self._folder.glob("*.json"):
            still_s = min(time.time() - kept.stat().st_mtime, time.monotonic() - began_s)
            assert still_s < _STILL_S, f"trainer {kept.stem} has had no batch for {still_s:.0f} s"

    def _start(self, count, function, job):
        cluster = Cluster(count, function, job, deadline_s=24 * 3600.0)
        cluster.began_s = time.monotonic()
        return cluster

    def _end_well(self, *clusters):
        """Tells all of them which cycle is the last: trainers that share a job must agree, clients need not."""
        alive = {process.pid for cluster in clusters for process in cluster.processes}
        last = max((each["cycle"] for each in self._cycles() if each["pid"] in alive), default=0)
        (self._folder / "stop").write_text("0" if self._job.mode == "server" else str(last + 2))
        for cluster in clusters:
            cluster.results()
            cluster.expect_nothing_left()
        (self._folder / "stop").unlink()

    def _cycles(self):
        kept = self._folder / "cycles"
        lines = kept.read_text().splitlines() if kept.exists() else []
        return [json.loads(line) for line in lines]

    def _interval_s(self):
        low, high = (1.0, 2.0) if self._is_toy else _KILL_S
        return self._random.uniform(low, high)

    def tell(self, report, hours):
        """Adds rows: what was done, and what grew."""
        cycles, kept = self._cycles(), [json.loads(each.read_text()) for each in self._folder.glob("*.json")]
        row = {"hours": hours} | {name: sum(each[name] for each in kept) for name in ("num_batches", "num_epochs")}
        row |= {"cycles": len(cycles), "errors_met": sum(bool(each["lost"]) for each in cycles)}
        killed = ", ".join(f"{count} x {role}" for role, count in sorted(self._kills.items()))
        report.add(job=self.name, killed=killed, **row)
        by_process = defaultdict(list)
        for each in cycles:
            by_process["trainer" if self._job.mode != "server" else "client", each["pid"]].append(each)
        for role, look in self._looks:
            by_process[role, look["pid"]].append(look)
        for role in sorted({role for role, _ in by_process}):
            lives = [looks for (other, _), looks in by_process.items() if other == role]
            self._tell_slopes(report, role, lives)

    def _tell_slopes(self, report, role, lives):
        row, name = {}, f"soak, {self.name}: {role} does not grow"
        for what, most in _MOST_PER_HOUR.items():
            points = [[(each["at_s"] / 3600, each["held"].get(what)) for each in _warm(looks)] for looks in lives]
            found = slope([[point for point in life if point[1] is not None] for life in points])
            if found is None:  # too few, or none: of servers the heap is not known
                continue
            per_hour, error = found
            scale = 1e6 if what in ("memory", "heap") else 1.0
            row |= {f"{what}_per_hour": per_hour / scale, f"{what}_error": error / scale}
            text = f"{what}: {per_hour / scale:.3g} more per hour, standard error {error / scale:.2g}"
            self._score.note(name, per_hour - 3 * error < most, text)
        hours = sum(looks[-1]["at_s"] - looks[0]["at_s"] for looks in map(_warm, lives) if looks) / 3600
        report.add(job=self.name, role=role, processes=len(lives), process_hours=hours, **row)


def _warm(looks):
    return [each for each in looks if each["at_s"] > looks[0]["at_s"] + _WARM_S]


def slope(lives):
    """How much more per unit, over all lives, each of which may begin anywhere, and its standard error (ordinary least
    squares with an intercept for each life); None if there are too few."""
    num_free, pairs = -1, []
    for life in (each for each in lives if len(each) > 2):
        means = [sum(column) / len(life) for column in zip(*life, strict=True)]
        pairs += [(at - means[0], value - means[1]) for at, value in life]
        num_free += len(life) - 1
    squares = sum(at * at for at, _ in pairs)
    if num_free < 2 or squares == 0:
        return None
    per_unit = sum(at * value for at, value in pairs) / squares
    residue = sum((value - per_unit * at) ** 2 for at, value in pairs)
    return per_unit, math.sqrt(residue / num_free / squares)


class Trainers(Run):
    """Two trainers that ask each other. A process is killed, all end, and the next job goes on, as a launcher does."""

    def _live(self, clock):
        low, high = (3.0, 6.0) if self._is_toy else _LIFE_S
        length_s = math.exp(self._random.uniform(math.log(low), math.log(high)))
        job = replace(self._job, name=f"{self._score.seed}, {self.name}, life {next(self._lives)}")
        with self._start(2, train, job) as cluster, _output_kept(cluster):
            self._wait([cluster], length_s, clock)
            while not clock.is_over:
                if self._is_fatal(cluster, clock):
                    return
            self._end_well(cluster)

    def _is_fatal(self, cluster, clock):
        victim = self._random.randrange(2)
        samplers = _samplers(cluster.processes[victim].pid) if self._random.random() < 0.5 else []
        if samplers:
            _kill(self._random.choice(samplers))
            self._kills["sampling process"] += 1
            with contextlib.suppress(AssertionError):  # it may have been about to end anyway
                self._wait([cluster], 15.0, clock)
                return False
        else:
            cluster.kill(victim)
            self._kills["trainer"] += 1
        since_s = time.monotonic()
        while any(each.is_alive() for each in cluster.processes):
            assert time.monotonic() < since_s + 3 * RPC_S, "a trainer has not noticed that another is gone"
            time.sleep(0.1)
        for rank, outcome in enumerate(cluster.outcomes()):
            is_killed = not samplers and rank == victim
            assert outcome.error_type in (("Killed",) if is_killed else _LOST), (rank, outcome)
        cluster.expect_nothing_left()
        return True


class Alone(Run):
    """A trainer, which makes its loaders again whenever one of its sampling processes is killed."""

    def _live(self, clock):
        job = replace(self._job, name=f"{self._score.seed}, {self.name}, life {next(self._lives)}")
        with self._start(1, train, job) as cluster, _output_kept(cluster):
            num_batches = -1
            while not clock.is_over:
                self._wait([cluster], self._interval_s(), clock)
                samplers, now = _samplers(cluster.processes[0].pid), self._num_batches()
                if samplers and now > num_batches:  # on a busy machine it may still be making loaders
                    _kill(self._random.choice(samplers))
                    self._kills["sampling process"] += 1
                    num_batches = now
            self._end_well(cluster)

    def _num_batches(self):
        kept = Path(self._job.folder, "0.json")
        return json.loads(kept.read_text())["num_batches"] if kept.exists() else 0


class Service(Run):
    """Four servers, two of each partition, and two clients. Servers 2 and 3, sampling processes of all but server 1,
    and client 1 are killed; others take their places."""

    _NUM_SERVERS = 4

    def _live(self, clock):
        with contextlib.ExitStack() as made:
            servers = Servers(self._job.partitions, self._NUM_SERVERS, self._folder)
            made.callback(servers.close)
            servers.start(*range(self._NUM_SERVERS))
            self._job = replace(self._job, num_servers=self._NUM_SERVERS, port=servers.port)
            clients = [self._come(made, rank) for rank in range(2)]
            while not clock.is_over:
                self._wait(clients, self._interval_s(), clock)
                self._look(servers)
                if clock.is_over:
                    break
                what = self._random.choice(("server", "sampling process", "client"))
                if what == "server":
                    rank = self._random.choice((2, 3))
                    servers.kill(rank)
                    servers.start(rank)
                elif what == "sampling process":
                    for pid in servers.samplers(self._random.choice((0, 2, 3))):
                        _kill(pid)
                else:
                    clients[1].kill(0)
                    (outcome,) = clients[1].outcomes()
                    assert outcome.error_type == "Killed", outcome
                    clients[1].expect_nothing_left()
                    clients[1] = self._come(made, 1)
                self._kills[what] += 1
            self._end_well(*clients)

    def _come(self, made, rank):
        name = f"{self._score.seed}, {self.name}, client {next(self._lives)}"
        job = replace(self._job, name=name, rank=rank, servers=((0, 3), (2, 1))[rank])
        cluster = made.enter_context(self._start(1, read_from_servers, job))
        made.enter_context(_output_kept(cluster))
        return cluster

    def _look(self, servers):
        for rank, process in servers.processes.items():
            for role, pid in [("server", process.pid), *(("sampling process", pid) for pid in servers.samplers(rank))]:
                with contextlib.suppress(OSError, KeyError):  # it has just ended
                    self._looks.append((role, held_by(pid)))


@contextlib.contextmanager
def _output_kept(cluster):
    try:
        yield
    except Exception as error:
        keep_output(cluster, error)
        raise


def _samplers(pid):
    return sorted(child for child, line in take_census(pid).children.items() if "glt.distributed" in line)


def _kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
