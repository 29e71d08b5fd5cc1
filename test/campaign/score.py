"""What was tried, what held and what failed; the time that is left; and what the attacked processes hold meanwhile."""

import contextlib
import os
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

_MOST_SHOWN = 5  # failures of one line


@dataclass
class Line:
    """Of the table: one kind of attack on one kind of process."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)


class Score:
    """Counts, by the name of what is tried; any thread may. ``seed`` makes all random choices; ``only``: words of the
    names of what is tried, if not all is."""

    def __init__(self, seed: int, only: tuple[str, ...] = ()) -> None:
        self.seed, self._only = seed, only
        self.lines: dict[str, Line] = {}
        self._lock = threading.Lock()

    def wants(self, name: str) -> bool:
        """Whether what has this name is to be tried."""
        return all(each in name for each in self._only)

    def random(self, *what) -> random.Random:
        """Numbers that depend on the seed and on ``what`` alone, so that one part may be run again by itself."""
        return random.Random(":".join(map(str, (self.seed, *what))))

    def note(self, name: str, is_held: bool, why: str = "") -> None:
        with self._lock:
            line = self.lines.setdefault(name, Line())
            line.tried += 1
            if is_held:
                return
            line.failures.append(why)
        if len(line.failures) <= _MOST_SHOWN:
            print(f"FAILED {name}: {why}", flush=True)

    @contextlib.contextmanager
    def trying(self, name: str):
        """What is raised inside is a failure, and is not raised further."""
        try:
            yield
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.note(name, False, f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})")
        else:
            self.note(name, True)

    @property
    def num_failed(self) -> int:
        return sum(len(line.failures) for line in self.lines.values())

    def print(self) -> None:
        width = max(map(len, self.lines), default=10)
        print(f"{'':{width}}   tried    held  failed")
        for name, line in sorted(self.lines.items()):
            num_failed = len(line.failures)
            print(f"{name:{width}} {line.tried:7} {line.tried - num_failed:7} {num_failed:7}")
        for name, line in self.lines.items():
            for why in line.failures[:_MOST_SHOWN]:
                print(f"failed: {name}: {why}")
            if len(line.failures) > _MOST_SHOWN:
                print(f"failed: {name}: and {len(line.failures) - _MOST_SHOWN} more")


class Clock:
    """The time that a part may take: ``share`` of what is left of the whole."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._end_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        return self.left_s == 0

    def share(self, of: float) -> "Clock":
        return Clock(self.left_s * of)


def side_by_side(num_lanes: int, clock: Clock, works: Iterable[Callable[[Clock], None]]) -> None:
    """Does several things at a time; each is given its share of the time."""
    left = deque(works)

    def lane() -> None:
        while left:
            work, num_rounds = left.popleft(), 1 + len(left) / num_lanes
            work(clock.share(1 / num_rounds))

    lanes = [threading.Thread(target=lane, daemon=True) for _ in range(min(num_lanes, len(left)))]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join()


@dataclass(frozen=True)
class Held:
    """Of a process, at most while it was watched, or now."""

    rss_bytes: int
    num_fds: int
    num_threads: int


class Watch:
    """What some processes hold, looked at ten times a second from its start to its end."""

    def __init__(self, pids) -> None:
        self.before = {pid: held_by(pid) for pid in pids}
        self.most = dict(self.before)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            for pid, most in self.most.items():
                with contextlib.suppress(OSError, IndexError):  # it has ended: whoever asks is told
                    now = held_by(pid)
                    self.most[pid] = Held(*map(max, vars(most).values(), vars(now).values()))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def held_by(pid: int) -> Held:
    proc = Path("/proc") / str(pid)
    pages = int((proc / "statm").read_text().split()[1])
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(proc / "fd")), len(os.listdir(proc / "task")))
