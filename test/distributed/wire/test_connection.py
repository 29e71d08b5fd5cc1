"""Frames between two ends of a socket: whole, in order, bounded, and ended cleanly; addresses."""

import json
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from promptness import eventually

from glt import _deadlines as deadlines
from glt.distributed.wire import old_connection as module
from glt.distributed.wire.old_connection import Connection, Pulse, own_address, printed, reachable_address
from glt.distributed.wire.old_listener import Listener
from glt.errors import ChannelTimeout, ConnectionLost, MessageError, RendezvousError

Pair = tuple[Connection, Connection]


@pytest.fixture
def pair():
    a, b = socket.socketpair()
    left, right = Connection(a, "right"), Connection(b, "left", max_bytes=32 << 20)
    yield left, right
    left.close()
    right.close()


def test_what_is_sent_arrives(pair):
    left, right = pair
    left.send({"a": [1, "ü"]})
    data = torch.arange(100_003, dtype=torch.int32).view(torch.uint8)
    sender = threading.Thread(target=left.send_data, args=(data, 60.0, 3, 2**40))
    sender.start()
    assert right.receive_json(60.0) == {"a": [1, "ü"]}
    assert torch.equal(right.receive_data(60.0), data)
    assert (right.what, right.number) == (3, 2**40)
    sender.join(60)
    left.send_all({"b": None}, [torch.empty(0, dtype=torch.uint8), data[:3].clone()])
    assert right.receive_json(60.0) == {"b": None}
    assert torch.equal(right.receive_data(60.0), data[:3])


def frame(body=b"", kind=1, length=None):
    return struct.pack("<4sBB2xQQ", b"GLTF", kind, 0, 0, len(body) if length is None else length) + body


def test_a_frame_that_is_cut_in_pieces_is_put_together_over_several_calls(pair):
    left, right = pair
    whole = frame(json.dumps({"long": "x" * 50}).encode())
    for byte in whole[:-1]:
        left.socket.send(bytes([byte]))
        with pytest.raises(ChannelTimeout):
            right.receive(0.0)
    left.socket.send(whole[-1:])
    assert right.receive_json(60.0) == {"long": "x" * 50}


def test_many_threads_send_whole_frames(pair):
    left, right = pair

    def send(index):
        for _ in range(20):
            left.send_data(torch.full((50_000,), index, dtype=torch.uint8), number=index)
            left.beat()

    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(send, index) for index in range(4)]
        counts = [0] * 4
        for _ in range(80):
            got = right.receive_data(60.0)
            assert (got == right.number).all() and got.numel() == 50_000
            counts[right.number] += 1
        for each in sending:
            each.result(60)
    assert counts == [20] * 4


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: there\r\n\r\n", "begins no frame"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(30), "begins no frame"),
        (frame(kind=2, length=1 << 40), "at most"),
        (frame(length=65 << 20), "at most"),
        (frame(kind=3, length=1), "at most 0"),
        (frame(kind=9), "begins no frame"),
        (frame(b"{..."), "no JSON"),
        (frame(b"\xff\xff"), "no JSON"),
        (frame(b"[]"), "no object"),
        (frame(b"[" * 100_000), "no JSON"),
    ],
    ids=["http", "tls", "long data", "long json", "long beat", "kind", "json", "utf-8", "list", "deep"],
)
def test_what_is_no_frame_is_refused(pair, sent, words):
    left, right = pair
    left.socket.setblocking(True)
    left.socket.sendall(sent)
    with pytest.raises(MessageError, match=words):
        right.receive(60.0)


def test_data_where_control_is_due_and_the_other_way_round(pair):
    left, right = pair
    left.send({})
    left.send_data(torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(MessageError, match="control frame where data"):
        right.receive_data(60.0)
    with pytest.raises(MessageError, match="data where a control frame"):
        right.receive_json(60.0)


def test_a_control_frame_that_is_too_long_is_not_sent(pair, monkeypatch):
    left, right = pair
    monkeypatch.setattr(module, "MAX_JSON_BYTES", 1000)
    for send in (left.send, lambda value: left.send_all(value, [])):
        with pytest.raises(ValueError, match="at most 1000"):
            send({"a": "x" * 1000})
    left.send({"a": "short"})
    assert right.receive_json(60.0) == {"a": "short"}


def test_the_end_is_heard_by_whoever_waits(pair):
    _, right = pair
    pool = ThreadPoolExecutor(2)
    waiting = [pool.submit(end.receive, 60.0) for end in pair]
    right.close()
    right.close()
    with pytest.raises(ConnectionLost, match="lost the connection to right: it was closed there"):
        waiting[0].result(60)
    with pytest.raises(ConnectionLost, match="the connection to left was closed here"):
        waiting[1].result(60)
    for end in pair:
        with pytest.raises(ConnectionLost):
            end.send({})
    pool.shutdown()


def test_who_takes_nothing_is_given_up(pair):
    left, _ = pair
    with pytest.raises(ChannelTimeout, match="right took nothing for"):
        left.send_data(torch.zeros(16 << 20, dtype=torch.uint8), timeout_s=0.2)
    with pytest.raises(ConnectionLost):  # part of the frame went out: what follows would be garbage
        left.send({})


def test_a_send_waits_its_turn_no_longer_than_it_may(pair):
    left, _ = pair
    pool = ThreadPoolExecutor(1)
    sending = pool.submit(left.send_data, torch.zeros(16 << 20, dtype=torch.uint8), 60.0)
    assert eventually(left._sending.locked)
    with pytest.raises(ChannelTimeout):
        left.send({}, timeout_s=0.0)
    left.beat()  # waits for nothing
    left.close()
    with pytest.raises(ConnectionLost):
        sending.result(60)
    pool.shutdown()


def test_beats_are_signs_of_life_and_nothing_else(pair):
    left, right = pair
    right.heard_s = time.monotonic() - 100
    left.beat()
    left.send({"a": 1})
    assert right.receive_json(60.0) == {"a": 1}
    assert right.silent_s() < 100
    left.close()
    left.beat()  # nobody is told


def test_the_pulse_outlives_the_connections_that_end_under_it(pair, monkeypatch):
    monkeypatch.setattr(deadlines, "BEAT_S", 0.001)
    pulse = Pulse()
    monkeypatch.setattr(module, "pulse", pulse)
    kept, other = pair
    pulse.add(kept)
    for _ in range(300):
        ends = socket.socketpair()
        brief = Connection(ends[0], "nobody")
        pulse.add(brief)
        brief.close()
        ends[1].close()
    ends = socket.socketpair()
    pulse.add(Connection(ends[0], "nobody"))  # collected without being closed
    closed = Connection(ends[1], "nobody")
    closed.socket.close()  # as another thread might, between the list of connections and the beat
    pulse.add(closed)
    for _ in range(2):
        other.heard_s = 0.0
        with pytest.raises(ChannelTimeout):
            other.receive(0.5)
        assert other.heard_s > 0
    kept.close()
    ends[0].close()
    pulse.discard(closed)
    assert eventually(lambda: pulse._thread is None)


def test_who_reads_nothing_but_lives_is_not_taken_for_cut_off(monkeypatch):
    """The kernel of a process that is stopped has no room for more, and says so."""
    monkeypatch.setattr(deadlines, "CUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = Connection(socket.create_connection(listener.getsockname()), "right")
        right = Connection(listener.accept()[0], "left", max_bytes=64 << 20)
    data = torch.arange(8 << 20, dtype=torch.int32).view(torch.uint8)  # more than both kernels hold
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(left.send_data, data, 60.0)
        for _ in range(20):
            time.sleep(0.1)
            left.check_route()
            left.beat()
        assert torch.equal(right.receive_data(60.0), data)
        sending.result(60)
    left.close()
    right.close()


def test_the_way_to_another_host():
    assert own_address(("127.0.0.1", 1)) == own_address(("localhost", 1)) == "127.0.0.1"
    assert reachable_address("0.0.0.0", ("127.0.0.1", 1)) == "127.0.0.1"
    assert printed("127.0.0.1", 5) == "127.0.0.1:5" and printed("::1", 5) == "[::1]:5"
    with pytest.raises(RendezvousError, match=r"master_addr = 'nowhere\.invalid': no such host"):
        own_address(("nowhere.invalid", 1))


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
        Listener(("0.0.0.0", port), 1, ("nowhere.invalid", 1), lambda *_: None)
    socket.create_server(("0.0.0.0", port)).close()
