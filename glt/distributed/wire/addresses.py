"""Addresses of this host, as others reach them and as they are printed; how many connections a process may have."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
from pathlib import Path

from glt._checks import is_exhausted, naming_the_limit
from glt.errors import RendezvousError


def printed(host: str, port: int) -> str:
    """``host:port``, or ``[host]:port`` of an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether an address, as a user or ``getsockname`` gives it, is one that no other host reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # other names, of whatever they begin with, may be of any host


def reachable_address(host: str, master: tuple[str, int]) -> str:
    """The address under which others reach a server that listens at ``host``: that one; if it listens everywhere, this
    host's address on the way to server 0."""
    if host not in ("", "0.0.0.0", "::"):
        return host if ":" in host else socket.gethostbyname(host)
    return own_address(master)


def own_address(master: tuple[str, int]) -> str:
    """The address of this host on the way to another, which need not be there: nothing is sent."""
    try:
        found = socket.getaddrinfo(*master, type=socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError) as error:
        raise RendezvousError(f"master_addr = {master[0]!r}: no such host ({error})") from error
    # IPv4 first, as servers listen: localhost, for example, has addresses of both families.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    try:
        with naming_the_limit(), socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        if is_exhausted(error):
            raise
        raise RendezvousError(
            f"there is no way from {socket.gethostname()} to master_addr = {master[0]!r}: {error}; give host=, the "
            "address of the interface to listen on"
        ) from error


def is_own_address(host: str) -> bool:
    """Whether a name or address is one of this host's own; a name that there is not is none."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):  # the latter of a name that no host can have, such as a..b
        return False
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(where)  # only at an address of this host
            except OSError:
                continue
            return True
    return False


def host_id() -> str:
    """Tells hosts apart, and containers with names of their own."""
    return f"{socket.gethostname()}/{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def network_id() -> str:
    """Tells networks apart: processes with the same one reach each other by loopback."""
    return f"{host_id()}/{os.stat('/proc/self/ns/net').st_ino}"


def allow_descriptors() -> int:
    """Raises the limit of this process as far as it may itself; returns it.

    Each client takes descriptors on a server, and what shells allow by default is soon used up.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
