"""Two hosts with a cable between them: network namespaces of this one. They need root and iproute2."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
import uuid
from collections.abc import Iterator

ADDRESSES = ("10.199.0.1", "10.199.0.2")
NOWHERE = "10.199.0.99"  # an address of the same network that no host has
_CLONE_NEWNET = 0x40000000
_DEADLINE_S = 20


def ip(*words: str) -> str:
    """What ``ip`` says."""
    command = ["ip", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DEADLINE_S).stdout


def enter(host: str) -> None:
    """Moves this thread, and those that it starts, to a host."""
    fd = os.open(f"/run/netns/{host}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {host}")
    finally:
        os.close(fd)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """Makes hosts at ``ADDRESSES`` and gives their names. Raises OSError where that is not allowed."""
    mark = uuid.uuid4().hex[:8]
    names = (f"glt-a-{mark}", f"glt-b-{mark}")
    try:
        for name in names:
            ip("netns", "add", name)
        first, second = (("name", device_of(name), "netns", name) for name in names)
        ip("link", "add", *first, "type", "veth", "peer", *second)
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", device_of(name))
            for device in ("lo", device_of(name)):
                ip("-n", name, "link", "set", device, "up")
        for name in names:
            _wait_until_it_runs(name)
    except (OSError, subprocess.SubprocessError) as error:
        _remove(names)
        said = getattr(error, "stderr", "") or ""
        raise OSError(f"no network namespaces with cables here: {error} {said.strip()}") from error
    try:
        yield names
    finally:
        _remove(names)


def device_of(host: str) -> str:
    """The name of its end of the cable."""
    _, letter, mark = host.split("-")
    return f"g{letter}{mark}"


def _wait_until_it_runs(host: str) -> None:
    """The kernel marks a device as running a moment after it is up; until then torch's rpc takes 127.0.0.1 instead."""
    deadline = time.monotonic() + _DEADLINE_S
    while "state UP" not in (shown := ip("-n", host, "link", "show", "dev", device_of(host))):
        if time.monotonic() > deadline:
            raise OSError(f"the cable of {host} does not come up: {shown}")
        time.sleep(0.05)


def _remove(names: tuple[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=_DEADLINE_S)
