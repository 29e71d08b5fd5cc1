"""Hosts on links of a chosen rate and delay: network namespaces of this machine whose packets a process carries.

Each host has one network card, a TUN device. ``tc`` (a token bucket) lets so many Gbit/s out of it, and the carrier as
many into each host: two that send to a third share its link. The carrier holds each packet for half of the round trip
less what it takes itself. It needs root, iproute2 and ``/dev/net/tun``. (``netem`` would hold packets, but not every
kernel has it, ours has not.) On this machine it carries some 7 Gbit/s, which takes a core.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import select
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from glt.forecast.model import PAYLOAD
from glt.testing.network import enter, ip

DEVICE = "glt0"
_TUNSETIFF, _TUNSETOFFLOAD, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x1, 0x2
_VNET_HEAD = 10  # bytes before each packet: whether it is several of TCP in one, and how long each is
_PR_SET_TIMERSLACK = 29
_FRAME_BYTES = 38  # Ethernet's head, check sum and gap around each packet
_REPEATED_BYTES = 52  # heads of IP and TCP, of every packet but the first of several in one
_MTU = 1500
# Of TCP: the plainest control of congestion (bbr, which some hosts have, sends in small pieces), and as little before a
# card as real ones let wait there (byte queue limits): what is acknowledged would wait behind it.
_SETTINGS = ("tcp_congestion_control=reno", "tcp_limit_output_bytes=262144")
_MOST_QUEUED_S = 0.05  # at a host's link: then tc drops, as a switch does
_WAKE_S = 50e-6  # what a process that sleeps is late, and what it takes to carry
_START_S, _CROSS_S, _PORT = 20, 1.5, 7000


@dataclass(frozen=True)
class Link:
    """Of each host to the switch, in both directions.

    Attributes:
        gbit: Gbit/s.
        rtt_ms: Between two hosts, milliseconds.
    """

    gbit: float
    rtt_ms: float


class Links:
    """Hosts and the process that carries packets between them; a context manager.

    Args:
        num_hosts: Hosts, at most 200.
    """

    def __init__(self, num_hosts: int) -> None:
        mark = uuid.uuid4().hex[:6]
        self.names = tuple(f"glt-{mark}-{host}" for host in range(num_hosts))
        self.addresses = tuple(address_of(host) for host in range(num_hosts))
        self._commands: Connection | None = None
        self._process: Any = None

    def __enter__(self) -> Links:
        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
                for setting in _SETTINGS:
                    command = ["ip", "netns", "exec", name, "sysctl", "-qw", f"net.ipv4.{setting}"]
                    subprocess.run(command, check=True, capture_output=True, timeout=_START_S)
            context = multiprocessing.get_context("spawn")
            self._commands, theirs = context.Pipe()
            self._process = context.Process(target=carry, args=(self.names, theirs), name="links", daemon=True)
            self._process.start()
            theirs.close()
            self._ask(None)
        except (OSError, EOFError, subprocess.SubprocessError) as error:
            self.__exit__()
            raise OSError(f"no network namespaces with TUN devices here: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(_START_S)
        for name in self.names:
            with contextlib.suppress(subprocess.SubprocessError):
                ip("netns", "del", name)

    def _ask(self, what: Link | None) -> None:
        assert self._commands is not None
        self._commands.send(what)
        if not self._commands.poll(_START_S):
            raise OSError(f"the process of the links says nothing for {_START_S} s")
        self._commands.recv()

    def shape(self, link: Link) -> None:
        """Gives all hosts links like this, from now on."""
        for name in self.names:
            rate = ("rate", f"{link.gbit:g}gbit", "burst", "256kb", "latency", f"{_MOST_QUEUED_S * 1e3:g}ms")
            command = ["tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root", "tbf", *rate]
            subprocess.run(command, check=True, capture_output=True, timeout=_START_S)
        self._ask(link)

    def crossing_gbit(self) -> float:
        """What of each card two streams of TCP that cross get, with their heads: less than the link has, for the heads
        of what is acknowledged, and what this machine can carry."""
        context, answers, processes = multiprocessing.get_context("spawn"), [], []
        for rank in range(2):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=cross, args=(self.names, rank, theirs), daemon=True))
            answers.append(ours)
            processes[-1].start()
        try:
            if not all(each.poll(2 * _START_S) for each in answers):
                raise OSError(f"nothing came over the link within {2 * _START_S} s")
            return float(sum(each.recv() for each in answers)) / 2 * 8e-9 / PAYLOAD
        finally:
            for process in processes:
                process.kill()
                process.join(_START_S)


def place(names: tuple[str, ...], rank: int) -> str:
    """Moves this process to its host; returns rank 0's address."""
    enter(names[rank])
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    return address_of(0)


def address_of(host: int) -> str:
    return f"10.198.0.{host + 1}"


def carry(names: tuple[str, ...], commands: Connection) -> None:
    """Makes the devices, then carries packets until it is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    devices = []
    for host, name in enumerate(names):
        enter(name)
        devices.append(_tun())
        ip("addr", "add", f"{address_of(host)}/24", "dev", DEVICE)
        ip("link", "set", DEVICE, "mtu", str(_MTU), "txqueuelen", "10000", "up")
    delay_s, byte_s = 0.0, 0.0  # no delay: some 0.04 ms round trip
    waiting: list[deque[tuple[float, bytes]]] = [deque() for _ in devices]  # by receiver, in the order of arrival
    free_s = [0.0] * len(devices)  # when the link into each host has carried what it was given
    host_of = {device: host for host, device in enumerate(devices)}
    while True:
        now = time.perf_counter()
        due = min((queue[0][0] for queue in waiting if queue), default=now + 1.0)
        for ready in select.select([*devices, commands], [], [], max(due - now, 0.0))[0]:
            if ready is commands:
                link = commands.recv()
                if link is not None:
                    delay_s, byte_s = max(link.rtt_ms * 1e-3 / 2 - _WAKE_S, 0.0), 8e-9 / link.gbit
                commands.send(None)
                continue
            packet = os.read(ready, 1 << 17)
            to = packet[_VNET_HEAD + 19] - 1
            if packet[_VNET_HEAD] >> 4 != 4 or not 0 <= to < len(devices) or to == host_of[ready]:
                continue  # of IPv6, which hosts try by themselves, or to all
            now = time.perf_counter()
            free_s[to] = max(free_s[to], now) + _wire_bytes(packet) * byte_s
            waiting[to].append((free_s[to] + delay_s, packet))
        now = time.perf_counter()
        for device, queue in zip(devices, waiting, strict=True):
            while queue and queue[0][0] <= now:
                os.write(device, queue.popleft()[1])


def _wire_bytes(packet: bytes) -> int:
    """What a packet, or several of TCP in one, takes on a cable."""
    num_bytes = len(packet) - _VNET_HEAD
    (size,) = struct.unpack_from("=H", packet, 4)
    count = max(1, -(-(num_bytes - _REPEATED_BYTES) // size)) if size else 1
    return num_bytes + count * _FRAME_BYTES + (count - 1) * _REPEATED_BYTES


def _tun() -> int:
    """A TUN device of this thread's network namespace that takes packets of TCP as large as the kernel makes them."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(device, _TUNSETVNETHDRSZ, struct.pack("i", _VNET_HEAD))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return device


def cross(names: tuple[str, ...], rank: int, answer: Connection) -> None:
    """Sends to the other host without end, and tells the bytes per second that come from there."""
    place(names, rank)
    if rank == 0:
        with socket.create_server((address_of(0), _PORT)) as server:
            server.settimeout(_START_S)
            back, out = (server.accept()[0] for _ in range(2))
    else:
        out, back = _connection(), _connection()

    def send() -> None:
        data = bytes(1 << 20)
        with contextlib.suppress(ConnectionError):  # the other was killed first
            while True:
                out.send(data)

    threading.Thread(target=send, daemon=True).start()
    room, begin = bytearray(1 << 20), time.monotonic()
    while time.monotonic() < begin + _CROSS_S:  # until both are at full speed
        back.recv_into(room)
    total, begin = 0, time.monotonic()
    while time.monotonic() < begin + _CROSS_S:
        total += back.recv_into(room)
    answer.send(total / (time.monotonic() - begin))
    threading.Event().wait(_START_S)  # the other may still count


def _connection() -> socket.socket:
    """To rank 0, as soon as it listens."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            return socket.create_connection((address_of(0), _PORT), _START_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
