"""The file that names the hosts of a job, and which of them this one is."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glt.errors import RendezvousError

DEFAULT_PORT = 30050  # DGL's

_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class ConfiguredHost:
    """A line of the file.

    Attributes:
        address: Name or address of the host.
        port: At which its first server listens; None where the line has none.
    """

    address: str
    port: int | None


def read_ip_config(path: str | os.PathLike[str]) -> list[ConfiguredHost]:
    """Reads a file with a host on each line, ``ADDRESS [PORT]``; ``#`` begins a comment.

    Raises:
        ValueError: If a line is none, or there is no host; names the file and the line.
        OSError: If the file cannot be read.
    """
    hosts = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or (len(words) == 2 and not (words[1].isdecimal() and 1 <= int(words[1]) <= 65535)):
            raise ValueError(
                f"ip_config = {os.fspath(path)!r}, line {number}: {line.strip()!r}: expected ADDRESS, or ADDRESS and a "
                "PORT from 1 to 65535"
            )
        hosts.append(ConfiguredHost(words[0], int(words[1]) if len(words) == 2 else None))
    if not hosts:
        raise ValueError(f"ip_config = {os.fspath(path)!r} names no host: expected one per line, such as 10.0.0.1")
    return hosts


def find_this_host(hosts: Sequence[ConfiguredHost], path: str | os.PathLike[str]) -> int:
    """Which line is this host's.

    Raises:
        glt.errors.RendezvousError: If none is, or several are; names the addresses of this host.
    """
    mine = [at for at, host in enumerate(hosts) if _is_local(host.address)]
    if len(mine) == 1:
        return mine[0]
    names = [host.address for host in hosts]
    what = "none of them is an address of this host" if not mine else f"{[names[at] for at in mine]} are all this host"
    raise RendezvousError(
        f"ip_config = {os.fspath(path)!r} names {names}, and {what}, {socket.gethostname()}, whose interfaces have "
        f"{local_addresses()}: name each host once, by an address that it has"
    )


def local_addresses() -> list[str]:
    """IPv4 addresses of this host's interfaces, with the names of these."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            found.append(f"{socket.inet_ntoa(answer[20:24])} ({name})")
    return found


def _is_local(address: str) -> bool:
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise RendezvousError(f"ip_config names {address!r}: there is no such host ({error})") from error
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(where)  # only at an address of this host
            except OSError:
                continue
            return True
    return False
