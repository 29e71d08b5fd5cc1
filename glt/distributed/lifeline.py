"""A port that tells whether a process lives, whatever its threads are doing."""

from __future__ import annotations

import os
import socket
import weakref

_BACKLOG = 1024  # connections since the last beat; the kernel may allow fewer
_CONNECT_S = 1.0


class Lifeline:
    """A listening socket of this process.

    The kernel completes connections to it without any thread of the process, and refuses them once the process is dead:
    so it answers for a trainer whose heartbeat cannot run, because another thread holds the GIL or the host is
    overloaded. Nothing is read from it or written to it.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0), backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        _open.add(self)

    def hang_up(self) -> None:
        """Ends the connections that were made so far, so that there is room for others."""
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return

    def close(self) -> None:
        """Ends it. May be called again."""
        self._socket.close()


def answers(address: str, port: int) -> bool | None:
    """Whether the process whose lifeline is at ``address:port`` lives; None if its host cannot be reached."""
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return None


_open: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _cut() -> None:
    """A fork would keep the port open after its parent died."""
    for line in list(_open):
        line.close()


os.register_at_fork(after_in_child=_cut)
