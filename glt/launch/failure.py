"""A process of a job that failed, and what is said of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

_HINTS = {
    signal.SIGKILL: "out of memory, perhaps: dmesg on its host tells",
    signal.SIGSEGV: "run it with python -X faulthandler to see where",
    signal.SIGABRT: "its last lines tell why, as a rule",
    signal.SIGBUS: "a file that it maps was cut short, or /dev/shm is full",
}
_RANK = re.compile(r"\[rank\d+\]: ?")  # which torch puts before each line of a traceback
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")  # as the last line of a traceback begins
# The exceptions that say that another process, or the way to it, is gone: ours, torch's, and what sockets raise.
_LOSS = re.compile(
    r"glt\.errors\.(PeerLost|ConnectionLost|RendezvousError): |torch\.distributed\.Dist(Network|Store)Error: "
    r"|Broken ?Pipe|Connection ?(closed|reset|refused|aborted)|remote process exited|(Read|Write) error \["
    r"|Timed out waiting|Watchdog caught collective operation timeout|Socket Timeout|timed out after",
    re.IGNORECASE,
)
_ABORT = "  what():  "  # as C++ begins to tell of an exception that nobody caught


@dataclass(frozen=True)
class Failure:
    """A process that failed by itself.

    Attributes:
        who: ``trainer-1@host``.
        pid: Its process id; 0 if it has none.
        code: Its exit code; of a signal the negative.
        why: What it, or torchrun, said of it; may be empty.
        lines: The last that it printed.
    """

    who: str
    pid: int
    code: int
    why: str = ""
    lines: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """That of the launcher if this is why the job failed, as a shell counts: 128 and the signal."""
        return self.code if self.code > 0 else 128 - self.code

    @property
    def has_lost_a_peer(self) -> bool:
        """Whether the last exception that it printed says that another process is gone."""
        if self.code < 0 and self.code != -signal.SIGABRT:
            return False
        lines = [_RANK.sub("", line, count=1) for line in self.lines]
        begin = max((at for at, line in enumerate(lines) if line == _TRACEBACK), default=-1)
        raised = [line for line in lines[begin + 1 :] if _EXCEPTION.match(line)]
        told = raised[:1] if begin >= 0 else raised[-1:]  # after it, the text of an exception may have more lines
        told += [line for line in lines if line.startswith(_ABORT)]
        return any(_LOSS.search(line) for line in told)

    def text(self) -> str:
        """One line."""
        pid = f"pid {self.pid} " if self.pid else ""
        return f"{self.who}: {pid}{self._how()}" + (f": {self.why}" if self.why else "")

    def _how(self) -> str:
        if self.code >= 0:
            return f"exited with code {self.code}" if self.pid else f"failed (code {self.code})"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        hint = _HINTS.get(-self.code)  # type: ignore[call-overload]
        return f"was killed by {name}" + (f" ({hint})" if hint else "")


def first_of(failures: Sequence[Failure]) -> Failure:
    """The likely cause of failures that came at about the same time: the one that a signal killed, else the first that
    did not lose a peer.

    Whoever talks to a process that is killed, or that fails, fails an instant later, by an exception that says so; and
    news of it may come first.
    """
    by_itself = [each for each in failures if not each.has_lost_a_peer and each.code != -signal.SIGTERM]
    killed = [each for each in by_itself if each.code < 0]
    return [*killed, *by_itself, *failures][0]
