"""Addresses of this host, as others reach them and as they are printed."""

import socket

import pytest

from glt.distributed.wire.addresses import is_loopback, is_own_address, own_address, printed, reachable_address
from glt.distributed.wire.handshake import dial
from glt.distributed.wire.listener import Listener
from glt.errors import RendezvousError


def test_the_way_to_another_host():
    assert own_address(("127.0.0.1", 1)) == own_address(("localhost", 1)) == "127.0.0.1"
    assert reachable_address("0.0.0.0", ("127.0.0.1", 1)) == "127.0.0.1"
    assert printed("127.0.0.1", 5) == "127.0.0.1:5" and printed("::1", 5) == "[::1]:5"
    with pytest.raises(RendezvousError, match=r"master_addr = 'nowhere\.invalid': no such host"):
        own_address(("nowhere.invalid", 1))
    assert all(map(is_loopback, ("127.0.0.1", "127.0.1.1", "::1", "0:0:0:0:0:0:0:1", "localhost")))
    assert not any(map(is_loopback, ("10.0.0.1", "::", "", "0.0.0.0", "127.example.org", "localhost.example.org")))


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    assert own_address(("::1", 1)) == reachable_address("::", ("::1", 1)) == "::1"


def test_a_listener_that_cannot_tell_where_it_is_leaves_the_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(RendezvousError, match="no such host"):
        Listener(("0.0.0.0", port), "server 1", ("nowhere.invalid", 1), lambda *_: None)
    socket.create_server(("0.0.0.0", port)).close()


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "nowhere.invalid", "192.0.2.7"])
def test_what_is_no_address_of_this_host(host):
    """Names that no host can have are a UnicodeError of Python's."""
    assert not is_own_address(host)
    if host != "192.0.2.7":
        with pytest.raises(RendezvousError, match=f"'{host}': no such host"):
            own_address((host, 1))
        with pytest.raises(RendezvousError, match=f"there is no host '{host}'"):
            dial((host, 1), "server 0", {}, 5.0)
