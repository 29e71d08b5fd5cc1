"""Two hosts with a cable between them that a test may cut."""

import contextlib

import pytest

from glt.testing import network
from glt.testing.network import ADDRESSES, NOWHERE, device_of, enter, ip

__all__ = ["ADDRESSES", "NOWHERE", "device_of", "enter", "hosts", "ip", "on", "switch", "two_hosts"]


def on(host):
    """What precedes a command that runs on a host."""
    return ("ip", "netns", "exec", host)


@contextlib.contextmanager
def two_hosts():
    """As :func:`glt.testing.network.two_hosts`; skips where that is not allowed."""
    with contextlib.ExitStack() as stack:
        try:
            names = stack.enter_context(network.two_hosts())
        except OSError as error:
            pytest.skip(str(error))
        yield names


@pytest.fixture
def hosts():
    with two_hosts() as names:
        yield names


def switch(hosts, state):
    """Cuts the cable between the hosts ("down"), or mends it ("up")."""
    ip("-n", hosts[1], "link", "set", device_of(hosts[1]), state)
