"""The other trainers of a training process, and the servers that keep partitions and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from glt.distributed.engine.dataset import DistDataset
    from glt.distributed.options import WorkerOptions
    from glt.distributed.server.client import RemoteDataset, Reply


class World(Protocol):
    """Trainers and servers, as one trainer sees them.

    Attributes:
        rank: Of this trainer.
        num_trainers, num_servers: How many there are.
        data: What is known of the graph: its schema, counts and books; None where there is none.
    """

    rank: int
    num_trainers: int
    num_servers: int
    data: DistDataset | RemoteDataset | None

    def owner_of(self, partition: int) -> int:
        """The server that keeps the rows of a partition's nodes and edges."""

    def call(self, server: int, name: str, *args: Any, **kwargs: Any) -> Reply:
        """Asks a server for something; the reply raises what the server raised, or says who is lost."""

    def call_into(self, out: Tensor, server: int, name: str, *args: Any) -> Reply:
        """The same where the answer is a tensor like ``out``, contiguous and on the CPU, to which it goes."""

    def call_within(self, timeout_s: float, server: int, name: str, *args: Any) -> Reply:
        """The same where the answer waits for other trainers, for up to ``timeout_s`` seconds."""

    def barrier(self, timeout_s: float | None = None, *, tag: str = "barrier", agreed: str = "") -> None:
        """Waits until all trainers have come here; what they wrote and flushed before is then seen by all.

        Args:
            timeout_s: Deadline in seconds, from the first one. Default: half an hour.
            tag: Barriers of a tag follow each other, whatever those of other tags do.
            agreed: What all trainers must give alike.

        Raises:
            TypeError, ValueError: If ``timeout_s`` is no deadline, or ``agreed`` differs.
            glt.errors.PeerLost: If a trainer does not come before the deadline, or is gone, or server 0 is; names it.
        """

    def abort(self, tag: str, why: str) -> None:
        """Fails the next barrier of a tag for all trainers, which are told by whom and why."""

    def failure(self, tag: str) -> str | None:
        """Why the next barrier of a tag has failed; None if it has not. One that has is then behind this trainer."""

    def worker_options(self, num_workers: int) -> WorkerOptions:
        """How loaders of this world sample."""

    def stats(self) -> list[dict[str, Any]]:
        """Numbers of each server; ``tensors``: of each tensor there, by name."""

    def close(self) -> None:
        """Leaves it. May be called again."""


_world: World | None = None


def enter(world: World) -> World:
    """Makes a world that of this process.

    Raises:
        RuntimeError: If it has one already.
    """
    global _world
    if _world is not None:
        raise RuntimeError(f"this process is in {_world} already: call glt.distributed.finalize() first")
    _world = world
    return world


def leave() -> World | None:
    """Makes this process have no world; returns the one that it had, which is not closed."""
    global _world
    left, _world = _world, None
    return left


def current_world() -> World | None:
    """The world of this process, if it has one."""
    return _world


def require_world() -> World:
    """The world of this process.

    Raises:
        RuntimeError: If it has none.
    """
    if _world is None:
        raise RuntimeError("this process is in no world yet: call glt.distributed.initialize() first")
    return _world
