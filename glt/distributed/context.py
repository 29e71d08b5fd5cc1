"""Who this process is within a distributed job, and the other trainers and the servers that it can ask."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from glt._tracebacks import short_traceback

if TYPE_CHECKING:
    from glt.distributed.engine.dataset import DistDataset
    from glt.distributed.options import WorkerOptions
    from glt.distributed.server.client import RemoteDataset, Reply


class DistRole(Enum):
    """What a process does: a trainer that samples by itself, a server, or a client of servers.

    Example:
        >>> [role.value for role in glt.distributed.DistRole]
        ['worker', 'server', 'client']
    """

    WORKER = "worker"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True)
class DistContext:
    """The place of this process in the job.

    Attributes:
        role: What it does.
        world_size: Processes of this role.
        rank: This one among them.
        group_name: Name of the group that they form.
        global_world_size: Processes of all roles.
        global_rank: This one among all.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=2, rank=1)
        >>> context.worker_name, context.role.value
        ('distributed-worker-1', 'worker')
    """

    role: DistRole
    world_size: int
    rank: int
    group_name: str
    global_world_size: int
    global_rank: int

    @property
    def worker_name(self) -> str:
        return f"{self.group_name}-{self.rank}"

    def num_servers(self) -> int:
        """Number of servers of the job; 0 in worker mode."""
        others = self.global_world_size - self.world_size
        return {DistRole.SERVER: self.world_size, DistRole.CLIENT: others}.get(self.role, 0)

    def num_clients(self) -> int:
        """Number of clients of the job; 0 in worker mode, and where servers serve any number."""
        others = self.global_world_size - self.world_size
        return {DistRole.SERVER: others, DistRole.CLIENT: self.world_size}.get(self.role, 0)


_context: DistContext | None = None


@short_traceback
def init_worker_group(
    world_size: int | None = None, rank: int | None = None, group_name: str = "distributed-worker"
) -> DistContext:
    """Says which trainer this process is. Call it once, before creating loaders.

    Without ``world_size`` and ``rank`` the environment says it: ``WORLD_SIZE`` and ``RANK``, as torchrun sets them, or
    else the variables of a step of SLURM. These become torchrun's in ``os.environ``, for
    ``torch.distributed.init_process_group``.

    Args:
        world_size: Number of trainers.
        rank: This trainer, in ``[0, world_size)``.
        group_name: Name of the group, the same in all its trainers.

    Raises:
        RuntimeError: If this process was already given another place.
        TypeError, ValueError: If an argument is out of range, only one of the two is given, or the environment says
            nothing.

    Example:
        >>> context = glt.distributed.init_worker_group(world_size=2, rank=1, group_name="trainer")
        >>> context.worker_name
        'trainer-1'
    """
    if world_size is None and rank is None:
        from glt.distributed.slurm import adopt_environment  # sampling processes have no use for it

        adopt_environment()
        world_size, rank = (_from_environment(name) for name in ("WORLD_SIZE", "RANK"))
    check_place(world_size, rank, group_name)
    assert world_size is not None and rank is not None
    return become(DistContext(DistRole.WORKER, world_size, rank, group_name, world_size, rank))


def _from_environment(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise ValueError(
            f"world_size and rank were not given, and {name} = {text!r} in the environment: give both, or start the "
            "script with torchrun, or srun in a job of SLURM"
        )
    return int(text)


def check_place(
    world_size: Any, rank: Any, group_name: Any, names: tuple[str, str, str] = ("world_size", "rank", "group_name")
) -> None:
    """Raises unless ``rank`` is one of ``world_size``, and ``group_name`` a name; ``names`` are theirs, in errors."""
    of, which, group = names
    for name, value in ((of, world_size), (which, rank)):
        if isinstance(value, bool) or not isinstance(value, int):
            hint = f"; give int({name})" if isinstance(value, str) else ""
            raise TypeError(f"{name} = {value!r}: expected an integer{hint}")
    if world_size < 1:
        raise ValueError(f"{of} = {world_size}: expected at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"{which} = {rank} is outside [0, {world_size}) ({of} = {world_size}): ranks count from 0")
    if not isinstance(group_name, str):
        raise TypeError(f"{group} = {group_name!r}: expected text")
    if not group_name or not all(c.isalnum() or c in "_-:" for c in group_name) or len(group_name) > 64:
        raise ValueError(
            f"{group} = {group_name!r}: expected 1 to 64 letters, digits, '-', '_' or ':' (it names peers)"
        )


def become(context: DistContext) -> DistContext:
    """Gives this process its place, once."""
    global _context
    if _context is not None and _context != context:
        raise RuntimeError(f"this process is already {_context}; it cannot become {context}")
    _context = context
    return context


def resign() -> None:
    """Takes its place from this process: it may be given another."""
    global _context
    _context = None


def get_context() -> DistContext | None:
    """Returns the place of this process, or None before ``init_worker_group``, ``init_server`` or ``init_client``.

    Example:
        >>> glt.distributed.get_context() is None
        True
        >>> glt.distributed.init_worker_group(world_size=2, rank=1) == glt.distributed.get_context()
        True
    """
    return _context


def require_context() -> DistContext:
    """Returns the place of this process, or raises saying how to give it one."""
    if _context is None:
        raise RuntimeError(
            "no distributed context: call glt.distributed.init_worker_group(world_size, rank, group_name) first, or "
            "init_client(...) for sampling on servers"
        )
    return _context


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

    def reader_of(self, partition: int) -> int:
        """A server that answers questions about a partition: another one of those that have loaded it while the first
        is lost."""

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
    """Makes a world that of this process."""
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
    """The world of this process."""
    if _world is None:
        raise RuntimeError("this process is in no world yet: call glt.distributed.initialize() first")
    return _world
