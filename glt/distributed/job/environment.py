"""The role and rank of this process in a job, read from its environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class JobRole(Enum):
    """What a process of a job does.

    A job with ``SERVER`` and ``TRAINER`` processes is started by ``glt launch``. A job of ``PEER`` processes is started
    by torchrun: all are trainers, and one on each host also serves.
    """

    SERVER = "server"
    TRAINER = "trainer"
    PEER = "peer"
    STANDALONE = "standalone"


@dataclass(frozen=True)
class JobEnvironment:
    """This process and its job.

    Attributes:
        role: What the process does.
        rank: Of a trainer among trainers, of a server among servers.
        num_trainers: Trainers of the job.
        num_servers: Servers of the job; of peers, their hosts.
        master: Host and port of server 0; None: the port is chosen later.
        host_index: Of a peer, the position of its host.
        is_first_on_host: Of a peer, whether it serves.
        partition: Which one a server loads; None: by its rank.
    """

    role: JobRole
    rank: int
    num_trainers: int
    num_servers: int
    master: tuple[str, int | None] = ("localhost", None)
    host_index: int = 0
    is_first_on_host: bool = True
    partition: int | None = None


def read_environment(env: Mapping[str, str] = os.environ) -> JobEnvironment:
    """Reads what ``glt launch`` or torchrun has set.

    Raises:
        ValueError: If a variable is missing or makes no sense; names it.
    """
    role = env.get("GLT_ROLE")
    if role is None:
        return _without_servers(env)
    if role not in ("server", "trainer"):
        raise ValueError(f"GLT_ROLE = {role!r}: expected 'server', 'trainer', or that it is not set")
    why = f"which GLT_ROLE = {role!r} calls for; glt launch sets it"
    num_servers, num_trainers = (_number(env, name, 1, why) for name in ("GLT_NUM_SERVERS", "GLT_NUM_TRAINERS"))
    address = env.get("GLT_MASTER_ADDR")
    if not address:
        raise ValueError(f"GLT_MASTER_ADDR is not set, {why}: expected the host of server 0")
    master = address, _number(env, "GLT_MASTER_PORT", 1, why, 65535)
    if role == "server":
        rank = _number(env, "GLT_SERVER_RANK", 0, why, num_servers - 1)
        partition = _number(env, "GLT_PARTITION", 0, why) if env.get("GLT_PARTITION") else None
        return JobEnvironment(JobRole.SERVER, rank, num_trainers, num_servers, master, partition=partition)
    rank = _number(env, "RANK", 0, f"{why}, by way of torchrun", num_trainers - 1)
    if env.get("WORLD_SIZE", str(num_trainers)) != str(num_trainers):
        raise ValueError(
            f"WORLD_SIZE = {env['WORLD_SIZE']} and GLT_NUM_TRAINERS = {num_trainers}: expected the same number of "
            "trainers"
        )
    return JobEnvironment(JobRole.TRAINER, rank, num_trainers, num_servers, master)


def _without_servers(env: Mapping[str, str]) -> JobEnvironment:
    if not env.get("WORLD_SIZE"):
        return JobEnvironment(JobRole.STANDALONE, 0, 1, 1)
    why = "which WORLD_SIZE calls for; torchrun sets it"
    num_trainers = _number(env, "WORLD_SIZE", 1, why)
    if num_trainers == 1:
        return JobEnvironment(JobRole.STANDALONE, 0, 1, 1)
    rank = _number(env, "RANK", 0, why, num_trainers - 1)
    local_rank = _number(env, "LOCAL_RANK", 0, why, num_trainers - 1)
    on_host = _number(env, "LOCAL_WORLD_SIZE", 1, why, num_trainers) if env.get("LOCAL_WORLD_SIZE") else num_trainers
    if num_trainers % on_host:
        raise ValueError(
            f"WORLD_SIZE = {num_trainers}, LOCAL_WORLD_SIZE = {on_host}: expected the same number of trainers on each "
            "host"
        )
    host = _number(env, "GROUP_RANK", 0, why, num_trainers // on_host - 1) if env.get("GROUP_RANK") else rank // on_host
    address = env.get("MASTER_ADDR")
    if not address:
        raise ValueError(f"MASTER_ADDR is not set, {why}: expected the host of rank 0")
    return JobEnvironment(
        JobRole.PEER, rank, num_trainers, num_trainers // on_host, (address, None), host, local_rank == 0
    )


def _number(env: Mapping[str, str], name: str, least: int, why: str, most: int = 1 << 20) -> int:
    text = env.get(name)
    if text is None:
        raise ValueError(f"{name} is not set, {why}")
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"{name} = {text!r}: expected a number from {least} to {most}")
    return int(text)
