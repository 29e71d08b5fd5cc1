"""Where this process is in its job: role and rank, from environment variables, and the host, from the file that
names all hosts."""

from __future__ import annotations

import ipaddress
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

DEFAULT_PORT = 30050  # DGL's


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
        rank: Of a trainer among trainers, of a server among servers.
        num_servers: Of peers, their hosts.
        master: Host and port of server 0; None: the port is chosen later.
        host_index: Of a peer, the position of its host.
        is_first_on_host: Of a peer, whether it serves.
        partition: Which one a server loads; None: by its rank.
        peer_port: Of peers, the port of server 0 where no store can tell them another.
    """

    role: JobRole
    rank: int
    num_trainers: int
    num_servers: int
    master: tuple[str, int | None] = ("localhost", None)
    host_index: int = 0
    is_first_on_host: bool = True
    partition: int | None = None
    peer_port: int = DEFAULT_PORT


def read_environment(env: Mapping[str, str] = os.environ) -> JobEnvironment:
    """Reads what ``glt launch`` or torchrun has set, or has been taken from SLURM; ValueError names a variable that is
    missing or makes no sense."""
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
    port = _number(env, "GLT_MASTER_PORT", 1, why, 65535) if env.get("GLT_MASTER_PORT") else DEFAULT_PORT
    return JobEnvironment(
        JobRole.PEER,
        rank,
        num_trainers,
        num_trainers // on_host,
        (address, None),
        host,
        local_rank == 0,
        peer_port=port,
    )


def _number(env: Mapping[str, str], name: str, least: int, why: str, most: int = 1 << 20) -> int:
    text = env.get(name)
    if text is None:
        raise ValueError(f"{name} is not set, {why}")
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"{name} = {text!r}: expected a number from {least} to {most}")
    return int(text)


_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")  # none that ssh would take for an option


@dataclass(frozen=True)
class Host:
    """A host, by name or address; ``port`` is that of server 0 if this is its host, None: one that is free."""

    name: str
    port: int | None = None


THIS_HOST = Host("localhost")


def read_hosts(path: str | os.PathLike[str]) -> list[Host]:
    """Reads a file with a host on each line, ``ADDRESS [PORT]``; ``#`` begins a comment. ValueError names the file and
    line that is none, a host named twice, or a file without hosts."""
    hosts = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").split("\n"), 1):
        where = f"{path}, line {number}"
        match line.partition("#")[0].split():
            case []:
                continue
            case [name]:
                hosts.append(_host(name, None, where))
            case [name, port] if re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65535:
                hosts.append(_host(name, int(port), where))
            case _:
                raise ValueError(f"{where}: {line.strip()!r}: expected ADDRESS, or ADDRESS and a PORT from 1 to 65535")
    return _checked(hosts, str(path))


def parse_hosts(text: str) -> list[Host]:
    """Returns the hosts of ``h1,h2``; ValueError if one is no name or address, or is named twice."""
    return _checked([_host(word.strip(), None, "--hosts") for word in text.split(",")], "--hosts")


def _host(name: str, port: int | None, where: str) -> Host:
    is_name = _NAME.fullmatch(name) and not re.fullmatch("[0-9.]+", name)
    if not is_name and _address(name) is None:
        raise ValueError(f"{where}: {name!r} is neither the name nor the address of a host")
    return Host(name, port)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _checked(hosts: list[Host], where: str) -> list[Host]:
    if not hosts:
        raise ValueError(f"{where} names no host: expected one per line, for example 10.0.0.1")
    ((name, count),) = Counter(str(_address(host.name) or host.name.lower()) for host in hosts).most_common(1)
    if count > 1:
        raise ValueError(
            f"{where} names {name} twice: name it once; --num-servers and --num-trainers tell how many "
            "processes each host runs"
        )
    return hosts
