"""A batch's life as events of Chrome's trace format, which Perfetto and ``chrome://tracing`` show."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import threading
import time
from contextlib import suppress
from typing import BinaryIO

from glt._checks import check_path
from glt._reprs import says
from glt._spans import STAGES, Made, clock_offset_ns, this_process
from glt._tracebacks import short_traceback

_BATCH = STAGES.index("batch")

# torch.profiler's times are since the last multiple of a quarter of a year, so that traces of several ranks agree.
_QUARTER_NS = 7_889_238 * 10**9
_NO_ID = 1 << 22  # Linux gives processes and threads ids below this


class Trace:
    """The file of :meth:`glt.loader.NeighborLoader.trace`, from its opening until ``close()`` or the end of ``with``.

    Each batch is written when it has been taken, so that memory is bounded. The file that a killed process leaves lacks
    only its last bracket, which Chrome and Perfetto do not miss.

    Attributes:
        path: Of the file.
        is_open: Whether events are still written.

    Example:
        >>> loader = glt.loader.NeighborLoader(glt.testing.ring_graph().to_dataset(), [2], batch_size=20)
        >>> with loader.trace("trace.json") as trace:
        ...     for batch in loader:
        ...         pass
        ...
        >>> trace
        Trace(trace.json, closed, 2 batches)
    """

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        check_path("path", path, "a file to write")
        self.path: str = os.fspath(path)
        self.is_open: bool = True
        self._file = _alone(self.path)
        self._base_ns = time.time_ns() // _QUARTER_NS * _QUARTER_NS
        self._offset_ns = clock_offset_ns()
        self._lock, self._pid, self._num_batches = threading.Lock(), os.getpid(), 0
        self._ahead: dict[int, int] = {}  # threads that make batches ahead
        self._flows = itertools.count(self._pid << 24)
        self._pids: dict[str, int] = {}
        self._lanes: dict[str, list[int]] = {}  # until when each is taken, by process
        self._here = this_process(name)
        (name_of_process,) = self._introduction(self._here)
        of_thread = _named("thread_name", self._pids[self._here], _NO_ID, "glt: trainer")
        self._put(f"[\n{name_of_process},\n{of_thread}")

    def close(self) -> None:
        """Ends the file. May be called again."""
        with self._lock:
            if self.is_open and os.getpid() == self._pid:
                self._put("\n]\n")
                self.is_open = False
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(self._file, fcntl.LOCK_UN)  # workers that were forked meanwhile have the file, too
                self._file.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type, tuple[()]]:  # a copy of a loader, in a worker perhaps, is not traced
        return type(None), ()

    @says
    def __repr__(self) -> str:
        return f"{self.path}, {'' if self.is_open else 'closed, '}{self._num_batches} batches"

    def span(self, name: str, began_s: float, ended_s: float, batch: int, is_ahead: bool = False) -> None:
        """Adds what this process did, in seconds of ``time.perf_counter()``. ``is_ahead``: this thread is not the one
        that takes the batches, and it is about a later one."""
        with self._lock:
            thread, pid, lane, events = threading.get_ident(), self._pids[self._here], 0, []
            if is_ahead:
                if thread not in self._ahead:
                    self._ahead[thread] = len(self._ahead) + 1
                    events = [_named("thread_name", pid, _NO_ID + self._ahead[thread], "glt: batches made ahead")]
                lane, batch = self._ahead[thread], -1
            at = pid, _NO_ID + lane, self.unix_ns(began_s), self.unix_ns(ended_s)
            self._write([*events, self._event(name, *at, batch)])

    def batch(self, index: int, made: Made | None, taken_s: float) -> None:
        """Adds a batch, which this process had taken by ``taken_s``; None: it made the batch itself."""
        with self._lock:
            self._num_batches += 1
            if made is None:
                return
            process, spans = made[0], [each for each in made[1] if each[0]]
            events = self._introduction(process)
            begin, end = min(each[2] for each in spans), max(each[3] for each in spans)
            lanes = self._lanes.setdefault(process, [])
            lane = next((i for i, until in enumerate(lanes) if until <= begin), len(lanes))
            tid = 2 * _NO_ID + lane
            if lane == len(lanes):
                lanes.append(end)
                events.append(_named("thread_name", self._pids[process], tid, "glt: batches being made"))
            lanes[lane] = end
            pid = self._pids[process]
            stages = [each for each in spans if each[0] != _BATCH]
            for stage, hop, began, ended in [(_BATCH, -1, begin, end), *stages]:
                events.append(self._event(STAGES[stage], pid, tid, began, ended, index, hop))
            # An arrow begins and ends inside of an event.
            flow = next(self._flows)
            sent, taken = max(begin, end - 1), self.unix_ns(taken_s) - 1
            arrow = f'"cat":"glt","name":"batch","id":{flow}'
            events.append(f'{{"ph":"s",{arrow},"pid":{pid},"tid":{tid},"ts":{self._us(sent)}}}')
            here = f'"pid":{self._pids[self._here]},"tid":{_NO_ID}'
            events.append(f'{{"ph":"f","bp":"e",{arrow},{here},"ts":{self._us(taken)}}}')
            self._write(events)

    def unix_ns(self, perf_s: float) -> int:
        """When that was, in ns since 1970."""
        return int(perf_s * 1e9) + self._offset_ns

    def _us(self, unix_ns: int) -> str:
        return _us(unix_ns - self._base_ns)

    def _event(self, name: str, pid: int, tid: int, begin: int, end: int, batch: int, hop: int = -1) -> str:
        at = f'"pid":{pid},"tid":{tid},"ts":{self._us(begin)},"dur":{_us(max(0, end - begin))}'
        of = ",".join(f'"{what}":{number}' for what, number in (("batch", batch), ("hop", hop)) if number >= 0)
        return f'{{"ph":"X","cat":"glt","name":"{name}",{at},"args":{{{of}}}}}'

    def _introduction(self, process: str) -> list[str]:
        """What names a process that was not met before. It keeps its id, as torch.profiler has it, unless one of
        another host has the same; a sampler may live in this process."""
        if process in self._pids:
            return []
        name, host, pid = json.loads(process)
        if [host, pid] == json.loads(self._here)[1:] and self._here in self._pids:
            self._pids[process] = pid
            return []
        self._pids[process] = _NO_ID + len(self._pids) if pid in self._pids.values() else pid
        return [_named("process_name", self._pids[process], 0, f"{name} (host {host}, pid {pid})")]

    def _write(self, events: list[str]) -> None:
        if self.is_open and os.getpid() == self._pid:
            self._put("".join(f",\n{each}" for each in events))

    def _put(self, text: str) -> None:
        try:
            self._file.write(text.encode())
        except OSError as error:  # the disk is full, perhaps: the trace has ended
            self.is_open, error.filename = False, self.path
            self._file.close()
            raise


class Traced:
    """A loader that :meth:`trace` writes about."""

    _trace: Trace | None = None

    @property
    def _open_trace(self) -> Trace | None:
        return self._trace if self._trace is not None and self._trace.is_open else None

    @short_traceback
    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Writes when each stage of a batch began and ended, in all processes, in Chrome's trace format.

        A batch is sampled, hop by hop where partitions are elsewhere, waits for them, for its rows and for room, is
        sent, waited for, made ``Data``, transformed and trained on. Times are those of ``torch.profiler``: put both
        into one file (:doc:`/guides/trace`). The clocks of hosts must agree. A batch takes 1 to 5 KB. It is the same
        batch as without.

        Call this before the iteration. ``with`` ends it, or ``close()``.

        Args:
            path: The file; one that is there is replaced.

        Raises:
            OSError: If it cannot be written; later, where the disk is full, from the iteration, once.
            ValueError: If this loader is being traced, another trace is being written to that file, or
                ``persistent_workers`` of this loader run already.

        Example:
            >>> loader = glt.loader.NeighborLoader(glt.testing.ring_graph().to_dataset(), [2], batch_size=20)
            >>> with loader.trace("trace.json"):
            ...     for batch in loader:
            ...         pass
            ...
            >>> sorted({event["name"] for event in json.load(open("trace.json")) if event["ph"] == "X"})
            ['gather', 'sample', 'train', 'wait for batch']
        """
        if (other := self._open_trace) is not None:
            raise ValueError(f"path = {path!r}: this loader is traced already, into {other.path!r}; close that first")
        self._require_traceable()
        self._trace = Trace(path, self._traced_as())
        return self._trace

    def _require_traceable(self) -> None:
        """Raises ValueError if what makes batches cannot tell of it."""

    def _traced_as(self) -> str:
        return "trainer"


def _alone(path: str) -> BinaryIO:
    """Opens a file that no other trace writes, and empties it."""
    file = open(path, "ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(
            f"path = {path!r}: another trace is being written there; close that, and give each loader and each trainer "
            "a file of its own"
        ) from None
    except OSError:
        pass  # a file system without locks
    if os.path.isfile(path):  # not /dev/null
        file.truncate(0)
    return file


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _named(what: str, pid: int, tid: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}})
