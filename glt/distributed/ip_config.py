"""Which line of the file that names the hosts of a job is this host's."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from glt.errors import RendezvousError
from glt.launch.hosts import Host

DEFAULT_PORT = 30050  # DGL's

_SIOCGIFADDR = 0x8915


def find_this_host(hosts: Sequence[Host], path: str | os.PathLike[str]) -> int:
    """Which line is this host's.

    Raises:
        glt.errors.RendezvousError: If none is, or several are; names the addresses of this host.
    """
    mine = [at for at, host in enumerate(hosts) if _is_local(host.name)]
    if len(mine) == 1:
        return mine[0]
    names = [host.name for host in hosts]
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
