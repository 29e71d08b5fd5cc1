"""Who this process is within a distributed job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class DistRole(Enum):
    """What a process does: a trainer that samples by itself, a server, or a client of servers."""

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
        return {DistRole.SERVER: self.world_size, DistRole.CLIENT: self.global_world_size - self.world_size}.get(
            self.role, 0
        )

    def num_clients(self) -> int:
        """Number of clients of the job; 0 in worker mode, and where servers serve any number."""
        return {DistRole.SERVER: self.global_world_size - self.world_size, DistRole.CLIENT: self.world_size}.get(
            self.role, 0
        )


_context: DistContext | None = None


def init_worker_group(world_size: int, rank: int, group_name: str = "distributed-worker") -> DistContext:
    """Says which trainer this process is. Call it once, before creating loaders.

    Args:
        world_size: Number of trainers.
        rank: This trainer, in ``[0, world_size)``.
        group_name: Name of the group, the same in all its trainers.

    Raises:
        RuntimeError: If this process was already given another place.
        TypeError, ValueError: If an argument is out of range.
    """
    check_place(world_size, rank, group_name)
    return become(DistContext(DistRole.WORKER, world_size, rank, group_name, world_size, rank))


def check_place(
    world_size: Any, rank: Any, group_name: Any, names: tuple[str, str, str] = ("world_size", "rank", "group_name")
) -> None:
    """Raises unless ``rank`` is one of ``world_size``, and ``group_name`` a name; ``names`` are theirs, in errors."""
    of, which, group = names
    for name, value in ((of, world_size), (which, rank)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} = {value!r}: expected an integer")
    if world_size < 1:
        raise ValueError(f"{of} = {world_size}: expected at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"{which} = {rank} is outside [0, {world_size}) ({of} = {world_size})")
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
    """Returns the place of this process, or None before ``init_worker_group``, ``init_server`` or ``init_client``."""
    return _context


def require_context() -> DistContext:
    """Returns the place of this process, or raises saying how to give it one."""
    if _context is None:
        raise RuntimeError(
            "no distributed context: call glt.distributed.init_worker_group(world_size, rank, group_name) first, or "
            "init_client(...) for sampling on servers"
        )
    return _context
