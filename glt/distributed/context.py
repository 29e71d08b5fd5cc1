"""Who this process is within a distributed job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DistRole(Enum):
    """What a process does. Servers and clients come with the server-client mode."""

    WORKER = "worker"


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
    global _context
    for name, value in (("world_size", world_size), ("rank", rank)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} = {value!r}: expected an integer")
    if world_size < 1:
        raise ValueError(f"world_size = {world_size}: expected at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank = {rank} is outside [0, {world_size}) (world_size = {world_size})")
    if not group_name or not all(c.isalnum() or c in "_-:" for c in group_name) or len(group_name) > 64:
        raise ValueError(
            f"group_name = {group_name!r}: expected 1 to 64 letters, digits, '-', '_' or ':' (it names RPC peers)"
        )
    context = DistContext(DistRole.WORKER, world_size, rank, group_name, world_size, rank)
    if _context is not None and _context != context:
        raise RuntimeError(f"init_worker_group: this process is already {_context}; it cannot become {context}")
    _context = context
    return context


def get_context() -> DistContext | None:
    """Returns the place of this process, or None before ``init_worker_group``."""
    return _context


def require_context() -> DistContext:
    """Returns the place of this process, or raises saying how to give it one."""
    if _context is None:
        raise RuntimeError(
            "no distributed context: call glt.distributed.init_worker_group(world_size, rank, group_name) first"
        )
    return _context
