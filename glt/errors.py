"""What goes wrong in the service, as opposed to in its use (that is ``ValueError``, ``TypeError``, ``IndexError``)."""

from functools import partial

__all__ = [
    "ChannelClosed",
    "ChannelError",
    "ChannelTimeout",
    "CheckpointError",
    "ConnectionLost",
    "GltError",
    "MessageError",
    "PartitionError",
    "PeerLost",
    "RemoteError",
    "RendezvousError",
    "TableError",
    "TooManyRequests",
    "WorkerDied",
]


class GltError(RuntimeError):
    """Root of what glt raises when processes, partitions or connections fail.

    Example:
        >>> try:
        ...     glt.partition.load_partition("nowhere", 0)
        ... except glt.errors.GltError as error:
        ...     print(type(error).__name__)
        ...
        PartitionError
    """


class ChannelError(GltError):
    """A channel or a message in it."""


class ChannelClosed(ChannelError):
    """The channel was closed: nothing more comes, nothing more is taken."""


class ChannelTimeout(ChannelError, TimeoutError):
    """Nothing happened before the deadline."""


class MessageError(ChannelError):
    """The bytes are no message of this version of glt, or a damaged one."""


class CheckpointError(GltError, ValueError):
    """Saved tensors are missing, incomplete, damaged or of another save, or in the way of new ones."""


class ConnectionLost(GltError):
    """A connection between processes of the service ended; who gets it says what that means."""


class PartitionError(GltError, ValueError):
    """A partition directory is missing, incomplete, damaged, of another run, or in the way of a new one."""


class PeerLost(GltError):
    """A process of another trainer, a server or a client died, gave up, hangs or is not reached; the text names it."""


class RendezvousError(GltError):
    """Trainers, clients and servers do not find each other, were given options that differ, or a port is taken."""


class TableError(GltError, ValueError):
    """A description of tables, a table or a row of it does not fit; the text names it, and says what was expected."""


class TooManyRequests(GltError):
    """So many requests of a :class:`glt.distributed.SamplingClient` wait that it takes no further one."""


class WorkerDied(GltError):
    """A sampling process of this trainer, or of a server, died or did not come up; the text says which, and how."""


class RemoteError(GltError):
    """An exception raised in another process: its class with its module (``type_name``, such as
    ``"builtins.ValueError"``), text (``remote_message``) and printed traceback (``remote_traceback``), and who raised
    it (``role, rank, pid, host``).

    Example:
        >>> error = glt.errors.RemoteError("builtins.ValueError", "bad", "...", role="server", rank=1, pid=7, host="a")
        >>> error.role, error.rank, error.type_name
        ('server', 1, 'builtins.ValueError')
    """

    type_name: str
    remote_message: str
    remote_traceback: str
    role: str
    rank: int
    pid: int
    host: str

    def __init__(
        self, type_name: str, message: str, traceback: str, *, role: str, rank: int, pid: int, host: str
    ) -> None:
        self.type_name, self.remote_message, self.remote_traceback = type_name, message, traceback
        self.role, self.rank, self.pid, self.host = role, rank, pid, host
        super().__init__(f"{type_name}: {message}\n  in {role} {rank} (pid {pid} on {host}):\n{traceback.rstrip()}")

    def __reduce__(self) -> tuple[object, ...]:
        texts = self.type_name, self.remote_message, self.remote_traceback
        return partial(RemoteError, role=self.role, rank=self.rank, pid=self.pid, host=self.host), texts
