"""Two hosts with a cable between them that a test may cut: network namespaces of this one."""

import ctypes
import os
import subprocess
import time
import uuid

import pytest

_CLONE_NEWNET = 0x40000000


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20).stdout


def enter(namespace):
    """Moves this thread, and those that it starts, into a network namespace."""
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    finally:
        os.close(fd)


@pytest.fixture
def hosts():
    """Two network namespaces with a cable between them: 10.199.0.1 and 10.199.0.2."""
    mark = uuid.uuid4().hex[:8]
    names = (f"glt-a-{mark}", f"glt-b-{mark}")
    try:
        for name in names:
            ip("netns", "add", name)
        first, second = (("name", device_of(name), "netns", name) for name in names)
        ip("link", "add", *first, "type", "veth", "peer", *second)
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.199.0.{number}/24", "dev", device_of(name))
            for device in ("lo", device_of(name)):
                ip("-n", name, "link", "set", device, "up")
        for name in names:
            wait_until_it_runs(name)
    except (OSError, subprocess.SubprocessError) as error:
        remove(names)
        said = getattr(error, "stderr", "") or ""
        pytest.skip(f"no network namespaces with cables here: {error} {said.strip()}")
    yield names
    remove(names)


def wait_until_it_runs(host):
    """The kernel marks a device as running a moment after it is up; until then torch's rpc takes 127.0.0.1 instead."""
    deadline = time.monotonic() + 20
    while "state UP" not in (shown := ip("-n", host, "link", "show", "dev", device_of(host))):
        if time.monotonic() > deadline:
            raise OSError(f"the cable of {host} does not come up: {shown}")
        time.sleep(0.05)


def remove(names):
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


def device_of(host):
    """The name of its end of the cable."""
    _, letter, mark = host.split("-")
    return f"g{letter}{mark}"


def switch(hosts, state):
    """Cuts the cable between the hosts, or mends it."""
    ip("-n", hosts[1], "link", "set", device_of(hosts[1]), state)
