"""Frames between two ends of a connection: whole, in order, bounded, and ended cleanly, over every kind of socket."""

import asyncio
import gc
import json
import os
import resource
import socket
import struct
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from promptness import eventually
from wire_ends import LONG_S, End, on_loop, tcp_pair, tls_pair

from glt import _deadlines as deadlines
from glt.channel.message import MessageKind, MessageLayout
from glt.distributed.wire import connection as module
from glt.distributed.wire.beats import add_tick, beats, discard_tick
from glt.distributed.wire.calls import Landing
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.threads import NativePool, wait_for
from glt.errors import ChannelTimeout, ConnectionLost, MessageError, PeerLost

HEADER = struct.Struct("<4sBB2xIQQ")


def pair_of(kind, request):
    if kind == "tls":
        return tls_pair(request.getfixturevalue("certificates"))
    return tcp_pair() if kind == "tcp" else socket.socketpair()


@pytest.fixture(params=["unix", "tcp", "tls"])
def pair(request):
    """Two ends, of which the right one is read."""
    ends = [End(sock, name) for sock, name in zip(pair_of(request.param, request), ("right", "left"), strict=True)]
    ends[1].start()
    yield ends
    for each in ends:
        each.close()


@pytest.fixture
def raw():
    """A socket that says what it likes, and the end that reads it, not started."""
    sock, other = socket.socketpair()
    end = End(other, "a stranger")
    yield sock, end
    sock.close()
    end.close()


def frame(body=b"", data=b"", kind=1, num_json=None, num_data=None, number=0):
    lengths = (len(body) if num_json is None else num_json), (len(data) if num_data is None else num_data)
    return HEADER.pack(b"GLT2", kind, 0, lengths[0], number, lengths[1]) + body + data


# -- what is sent arrives --------------------------------------------------------------------------------------------


def test_what_is_sent_arrives(pair):
    left, right = pair
    long = torch.arange(2_000_003, dtype=torch.int32).view(torch.uint8)
    left.connection.send({"a": [1, "ü"]})
    left.connection.send({"b": None}, [torch.empty(0, dtype=torch.uint8), long, long[:3].clone()], what=3, number=2**40)
    left.connection.send(what=7)
    first, second, third = (right.next() for _ in range(3))
    assert (first.value, first.data, first.what, first.number) == ({"a": [1, "ü"]}, None, 0, 0)
    assert second.value == {"b": None} and (second.what, second.number) == (3, 2**40)
    assert torch.equal(second.data, torch.cat([long, long[:3]])) and second.data.data_ptr() % 64 == 0
    assert (third.value, third.data, third.what) == ({}, None, 7)


def test_a_send_that_fails_keeps_nothing_of_who_sent(raw):
    _, end = raw
    end.connection.close(PeerLost("it is gone"))
    kept = Kept()
    gone = weakref.ref(kept)

    def send(kept):
        end.connection.send({"a": 1})

    with pytest.raises(PeerLost, match="it is gone"):
        send(kept)
    del kept
    assert gone() is None


class Kept:
    """What may be referred to weakly."""


def test_a_call_that_fails_keeps_nothing_of_what_it_was_given():
    def fail(kept):
        raise ValueError("no")

    pool, kept = NativePool(1, "test"), Kept()
    gone = weakref.ref(kept)
    gc.disable()
    try:
        assert isinstance(pool.submit(fail, kept).exception(LONG_S), ValueError)
        del kept
        assert eventually(lambda: gone() is None)
    finally:
        gc.enable()
        pool.shutdown(LONG_S)


def test_many_threads_send_whole_frames_in_the_order_of_each(pair):
    left, right = pair

    def send(index):
        for i in range(20):
            left.connection.send({"i": i}, [torch.full((50_000,), index, dtype=torch.uint8)], number=index)

    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(send, index) for index in range(4)]
        counts = [0] * 4
        for _ in range(80):
            got = right.next()
            assert got.value == {"i": counts[got.number]} and (got.data == got.number).all()
            counts[got.number] += 1
        for each in sending:
            each.result(LONG_S)
    assert counts == [20] * 4


def test_more_than_the_kernels_hold_goes_out_while_the_other_end_reads(pair):
    """In both directions at once, from the loop and from here."""
    left, right = pair
    left.start()
    data = torch.arange(6 << 20, dtype=torch.int32).view(torch.uint8)
    left.connection.send({}, [data])
    on_loop(lambda: right.connection.send({}, [data]))
    wait_for(left.connection.drained(), LONG_S)
    for end in pair:
        assert torch.equal(end.next().data, data)


def test_who_waits_for_what_another_thread_sends_is_woken(pair):
    left, right = pair
    data = torch.zeros(1 << 20, dtype=torch.uint8)

    def send():
        for _ in range(30):
            left.connection.send({}, [data])

    sending = threading.Thread(target=send)
    sending.start()
    while sending.is_alive():
        wait_for(left.connection.drained(), LONG_S)
    for _ in range(30):
        right.next()


def test_a_frame_that_is_cut_in_pieces_is_put_together(raw):
    sock, end = raw
    end.start()
    whole = frame(json.dumps({"long": "x" * 50}).encode(), b"data", number=9)
    for byte in whole[:-1]:
        sock.send(bytes([byte]))
    time.sleep(0.05)
    assert end.frames.empty()
    sock.send(whole[-1:] + frame(b"{}") * 2)
    got = end.next()
    assert (got.value, got.number, bytes(got.data.numpy())) == ({"long": "x" * 50}, 9, b"data")
    assert [end.next().value for _ in range(2)] == [{}, {}]


def test_json_that_is_too_long_is_not_sent(pair, monkeypatch):
    left, right = pair
    monkeypatch.setattr(module, "MAX_JSON_BYTES", 1000)
    with pytest.raises(ValueError, match="at most 1000"):
        left.connection.send({"a": "x" * 1000})
    left.connection.send({"a": "short"})
    assert right.next().value == {"a": "short"}


def test_nothing_is_read_of_what_is_paused(pair):
    left, right = pair
    on_loop(right.connection.pause)
    left.connection.send({"a": 1})
    time.sleep(0.1)
    assert right.frames.empty()
    on_loop(right.connection.resume)
    assert right.next().value == {"a": 1}


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: there\r\n\r\n", "begins no frame"),
        (b"SSH-", "begins no frame"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(30), "begins no frame of glt, but one of TLS"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "begins no frame of glt, but one of TLS"),
        (frame(num_data=1 << 40), "and 33554432 of data"),
        (frame(num_json=65 << 20), "at most 67108864 bytes of JSON"),
        (frame(kind=3, num_json=1), "at most 0 bytes of JSON"),
        (frame(kind=3, num_data=1), "and 0 of data"),
        (frame(kind=2, data=b"x"), "begins no frame"),
        (frame(kind=9), "begins no frame"),
        (frame(b"{..."), "no JSON"),
        (frame(b"\xff\xff"), "no JSON"),
        (frame(b"[]"), "no object"),
        (frame(b"[" * 100_000), "no JSON"),
    ],
    ids=[
        *("http", "ssh", "tls", "alert", "long data", "long json", "long beat", "data of a beat", "greeting", "kind"),
        *("json", "utf-8", "list", "deep"),
    ],
)
def test_what_is_no_frame_is_refused(raw, sent, words):
    sock, end = raw
    end.start()
    sock.sendall(sent)
    error = end.why()
    assert isinstance(error, MessageError) and words in str(error) and "a stranger" in str(error)
    with pytest.raises(MessageError):
        end.connection.send({})


@pytest.mark.parametrize(
    ("sent", "is_taken"),
    [
        (frame(json.dumps({"a": "x" * 65_000}).encode()), True),
        (frame(num_json=(64 << 10) + 1), False),
        (frame(b"{}", b"x"), False),
        (frame(kind=2, num_data=129), False),
    ],
    ids=["short", "long json", "data", "long greeting"],
)
def test_of_strangers_little_is_taken(raw, sent, is_taken):
    """Of those who have not proven who they are."""
    sock, end = raw
    sock.sendall(sent)
    receiving = end.connection.receive(LONG_S)
    if is_taken:
        assert wait_for(receiving)["a"]
    else:
        with pytest.raises(MessageError, match=r"of at most (65536|0) bytes of JSON and (0|128) of data"):
            wait_for(receiving)


def test_strangers_are_given_up_in_time_and_keep_to_their_turn(raw):
    sock, end = raw
    whole = frame(b'{"a": 1}')
    sock.sendall(whole[:-3])
    with pytest.raises(ChannelTimeout, match=r"nothing from a stranger within 0\.05 s"):
        wait_for(end.connection.receive(0.05))
    sock.sendall(whole[-3:])
    with pytest.raises(MessageError, match=r"sent \['a'\] where a greeting was due"):
        wait_for(end.connection.receive_greeting(LONG_S))
    sock.sendall(frame(kind=2, data=b"hello"))
    with pytest.raises(MessageError, match="a greeting where a frame was due"):
        wait_for(end.connection.receive(LONG_S))


def test_strangers_cannot_have_frames_kept(raw):
    sock, end = raw
    sock.sendall(frame() * 2000)
    wait_for(end.connection.receive(LONG_S))
    assert eventually(lambda: end.connection.is_closed) and len(end.connection._frames) < 8
    with pytest.raises(MessageError, match="more than 4 frames before it was answered"):
        for _ in range(8):
            wait_for(end.connection.receive(LONG_S))


def room(end):
    data = end.connection._data
    return 0 if data is None else data.numel()


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_announced_lengths_take_no_memory_ahead_of_the_bytes(raw):
    sock, end = raw
    end.start(max_data_bytes=1 << 33)
    before = resident_bytes()
    sock.sendall(frame(num_data=1 << 33))
    assert eventually(lambda: room(end) == 1 << 20)
    for num_sent in (2 << 20, 16 << 20, 24 << 20):
        sock.sendall(bytes(num_sent - end.connection._filled))
        assert eventually(lambda num_sent=num_sent: end.connection._filled == num_sent)
        assert room(end) <= 8 * num_sent
    assert room(end) == 64 << 20 and resident_bytes() - before < 48 << 20
    sock.close()
    assert isinstance(end.why(), ConnectionLost)


def test_data_whose_memory_grows_are_whole(raw):
    sock, end = raw
    end.start()
    data = torch.randint(0, 256, (5_000_001,), dtype=torch.uint8)
    sock.sendall(frame(b"{}", data.numpy().tobytes()) + frame(b'{"b": 1}'))
    assert torch.equal(end.next().data, data) and end.next().value == {"b": 1}


def test_what_was_asked_for_is_received_into_memory_of_its_length(raw):
    sock, end = raw
    end.connection.is_ours = True
    end.start()
    sock.sendall(frame(num_data=16 << 20))
    assert eventually(lambda: room(end) == 16 << 20)


@pytest.mark.parametrize("error", [KeyError("a"), TypeError("t"), AttributeError("b"), MessageError("odd"), OSError(5)])
def test_what_the_taker_raises_ends_that_connection(raw, error, caplog):
    sock, end = raw

    def take(got):
        raise error

    end.start(take)
    sock.sendall(frame(b"{}") * 3)
    found = end.why()
    assert isinstance(found, MessageError) and str(error) in str(found)
    assert ("could not be dealt with" in caplog.text) == isinstance(error, AttributeError | OSError)


# -- landings and descriptors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [0, 5, 100_000])
def test_a_value_lands_where_it_belongs(pair, num_rows):
    left, right = pair
    sent, out = torch.arange(num_rows * 4.0).view(-1, 4), torch.full((num_rows, 4), -1.0)
    asked = []

    def find(number, length):
        asked.append((number, length))
        return landing if number == 5 else None

    landing = Landing(out)
    right.connection.find_landing = find
    parts = MessageLayout({"t0": (sent.dtype, sent.shape)}).parts({"t0": sent}, MessageKind.REQUEST)
    left.connection.send({"value": {"__glt__": "tensor", "name": "t0"}}, parts, number=5)
    got = right.next()
    assert got.is_landed and landing.value(got.value["value"]) is out and torch.equal(out, sent)
    left.connection.send({}, parts, number=6)
    assert not (got := right.next()).is_landed and got.data.numel() == landing.nbytes
    assert asked == [(5, landing.nbytes), (6, landing.nbytes)]


def test_descriptors_go_along_a_unix_socket():
    ends = [End(sock) for sock in socket.socketpair()]
    left, right = ends
    right.connection.is_ours = True
    right.start()
    reading, writing = os.pipe()
    left.connection.send({"a": 1}, fds=[writing])
    os.close(writing)
    assert right.next().value == {"a": 1}
    (got,) = right.connection.fds
    right.connection.fds.clear()
    assert os.write(got, b"through") == 7 and os.read(reading, 9) == b"through"
    os.close(got)
    assert os.read(reading, 9) == b""  # no copy is left
    left.connection.send({}, fds=[reading])
    right.next()
    left.close()
    right.why()
    assert not right.connection.fds  # those that are not taken are closed with it
    right.close()
    os.close(reading)


def test_descriptors_that_were_not_asked_for_are_refused():
    left, right = (End(sock) for sock in socket.socketpair())
    right.start()
    reading, writing = os.pipe()
    left.connection.send({}, fds=[writing])
    os.close(writing)
    assert "sent 1 descriptors, which nothing here asked for" in str(right.why())
    assert os.read(reading, 1) == b""
    os.close(reading)
    left.close()


# -- life and death --------------------------------------------------------------------------------------------------


def test_the_end_is_heard_at_both_ends(pair):
    left, right = pair
    left.start()
    right.connection.close()
    right.connection.close()
    assert "lost the connection to right: " in str(left.why())
    assert "the connection to left was closed here" in str(right.why())
    for end in pair:
        with pytest.raises(ConnectionLost):
            end.connection.send({})
        assert end.connection.is_closed
        end.start()  # whoever starts it now is told, too
        assert isinstance(end.why(), ConnectionLost)


def test_who_takes_nothing_is_given_up(pair):
    left, right = pair
    left.start()
    on_loop(right.connection.pause)
    left.connection.send({}, [torch.zeros(32 << 20, dtype=torch.uint8)])
    left.tick()
    assert not left.has_ended()
    left.connection.stall_s = 0.2
    time.sleep(0.3)
    left.tick()
    assert isinstance(left.why(), ChannelTimeout) and "right took nothing for 0.2 s" in str(left.why())


def test_who_takes_little_at_a_time_is_not(request):
    """Of one long message, as slowly as it may be."""
    for kind in ("tcp", "tls"):
        left, right = (End(sock) for sock in pair_of(kind, request))
        left.start()
        left.connection.stall_s = 1.0
        left.connection.send({}, [torch.zeros(24 << 20, dtype=torch.uint8)])
        right.start()
        for _ in range(15):  # a turn of 8 MiB at most
            on_loop(right.connection.pause)
            left.tick()
            time.sleep(0.15)
            on_loop(right.connection.resume)
        assert right.next().data.numel() == 24 << 20 and not left.has_ended()
        left.close()
        right.close()


def test_who_reads_nothing_but_lives_is_not_taken_for_cut_off(monkeypatch):
    """The kernel of a process that is stopped has no room for more, and says so."""
    monkeypatch.setattr(deadlines, "CUT_S", 0.2)
    left, right = (End(sock) for sock in tcp_pair())
    left.start()
    data = torch.arange(8 << 20, dtype=torch.int32).view(torch.uint8)  # more than both kernels hold
    left.connection.send({}, [data])
    for _ in range(20):
        time.sleep(0.1)
        left.tick()
    right.start()
    assert torch.equal(right.next().data, data) and not left.has_ended()
    left.close()
    right.close()


def test_beats_are_signs_of_life_and_nothing_else(pair):
    left, right = pair
    left.start()
    right.connection.silence_s = 30.0
    right.connection._heard_s = 0.0
    left.tick()
    assert eventually(lambda: right.connection.silent_s() < 30)
    right.tick()
    assert not right.has_ended() and right.frames.empty()


def test_who_is_silent_is_given_up_but_not_by_one_that_did_not_listen(raw):
    _, end = raw
    end.start(silence_s=0.1)
    end.connection.host = "the host"
    on_loop(end.connection.pause)
    time.sleep(0.2)
    end.tick()
    assert not end.has_ended()
    on_loop(end.connection.resume)
    end.tick()
    assert not end.has_ended()
    time.sleep(0.2)
    end.tick()
    error = end.why()
    assert isinstance(error, PeerLost) and "no sign of life for 0.1 s" in str(error) and "ps on the host" in str(error)


def test_beats_go_on_whatever_ends_or_raises_beside_them(monkeypatch):
    monkeypatch.setattr(deadlines, "BEAT_S", 0.01)
    left, right = (End(sock) for sock in socket.socketpair())
    left.start()
    right.start()
    said, ticked = [], threading.Event()

    def tick():
        ticked.set()
        raise ZeroDivisionError("its own mistake")

    def listen(loop, context):
        said.append(context["exception"])

    handler = on_loop(lambda: asyncio.get_running_loop().set_exception_handler(listen))
    add_tick(tick)
    for _ in range(100):
        brief = [End(sock).start() for sock in socket.socketpair()]
        for each in brief:
            each.close()
    for _ in range(2):
        right.connection._heard_s = 0.0
        assert eventually(lambda: right.connection.silent_s() < 1) and ticked.wait(LONG_S)
    discard_tick(tick)
    on_loop(lambda: asyncio.get_running_loop().set_exception_handler(handler))
    assert said and all(isinstance(each, ZeroDivisionError) for each in said)
    left.close()
    right.close()
    assert eventually(lambda: beats._timer is None)  # nothing is left to do


def test_parting_lets_what_was_sent_arrive(pair):
    left, right = pair
    left.start()
    data = torch.arange(4 << 20, dtype=torch.int32).view(torch.uint8)
    left.connection.send({}, [data])
    right.connection.send({"crossing": 1})
    parted = asyncio.run_coroutine_threadsafe(left.connection.parted(), left.connection._loop)
    assert torch.equal(right.next().data, data)
    assert "it was closed there" in str(right.why())
    right.close()
    parted.result(LONG_S)
    assert not left.has_ended()  # it knew
    with pytest.raises(ConnectionLost):
        left.connection.send({})


def test_nothing_is_sent_after_parting_which_ends_by_itself(pair, monkeypatch):
    monkeypatch.setattr(deadlines, "GOODBYE_S", 0.2)
    left, right = pair
    left.start()
    on_loop(right.connection.pause)
    on_loop(left.connection.part)
    with pytest.raises(ConnectionLost, match="parted from right"):
        left.connection.send({})
    assert not left.connection.is_closed
    wait_for(left.connection.parted(), LONG_S)
    assert left.connection.is_closed and not left.has_ended()


def test_a_fork_neither_reads_nor_ends_what_is_its_parents(pair):
    left, right = pair
    left.start()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            left.connection.send({})
        except ConnectionLost as error:
            if "is a fork of the one" in str(error):
                fresh = [End(sock) for sock in socket.socketpair()]
                fresh[1].start()
                fresh[0].connection.send({"in": "the child"})
                code = 0 if fresh[1].next().value == {"in": "the child"} else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    left.connection.send({"a": 1})
    assert right.next().value == {"a": 1}
    right.close()
    assert isinstance(left.why(), ConnectionLost)  # no copy of the socket is open elsewhere


def test_connections_leave_nothing_behind():
    for _ in range(50):
        left, right = (End(sock).start() for sock in socket.socketpair())
        left.close()
        right.why()
        right.close()
    assert not module._open and not beats._ticks


def test_a_connection_says_what_it_is():
    sock, other = socket.socketpair()
    connection = Connection(sock, "server 3")
    assert repr(connection) == "Connection(server 3)"
    connection.close()
    other.close()
    on_loop(lambda: None)
