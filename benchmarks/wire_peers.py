"""The contestants of bench_wire: each answers calls in a server process and makes them in a client process.

There are four calls. ``EMPTY`` carries nothing; a ``REPLY`` is as long as ``payload``, a ``REQUEST`` carries as much;
an ``ECHO`` returns what it carried. All but gRPC, which has its own, put 16 bytes before: the call, and the length.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._harness import find_peers
from glt.data.arrays import pooled_empty
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import Frame
from glt.distributed.wire.threads import call_on_loop, process_loop

EMPTY, REPLY, REQUEST, ECHO = range(4)
DEADLINE_S = 60.0
HOST = "localhost"
_HEADER = struct.Struct("<QQ")


def payload(num_bytes: int) -> torch.Tensor:
    return torch.randint(256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def context(folder: str | None, of_server: bool) -> ssl.SSLContext | None:
    """For the certificate in a folder; None: plain."""
    if folder is None:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if of_server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    if of_server:
        made.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    else:
        made.load_verify_locations(f"{folder}/cert.pem")
    return made


def _timed(call: Callable[[int], Any], kind: int, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        call(kind)
        seconds.append(time.perf_counter() - start)
    return seconds


async def _timed_task(call: Callable[[int], Coroutine[Any, Any, Any]], kind: int, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        await call(kind)
        seconds.append(time.perf_counter() - start)
    return seconds


def _accept(server: Callable[[socket.socket], None], tls: ssl.SSLContext | None) -> int:
    """Listens for one connection, which ``server`` is given; returns the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        with listener:
            sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server(sock if tls is None else tls.wrap_socket(sock, server_side=True))

    threading.Thread(target=take, daemon=True).start()
    return int(listener.getsockname()[1])


def _connected(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock if tls is None else tls.wrap_socket(sock, server_hostname=HOST)


# -- glt -----------------------------------------------------------------------------------------------------------


def serve_glt(data: torch.Tensor, folder: str | None) -> int:
    def serve(sock: socket.socket) -> None:
        connection = Connection(sock, "the client")

        def answer(frame: Frame) -> None:
            back = {REPLY: data, ECHO: frame.data}.get(frame.what)
            connection.send(None, () if back is None else (back,), what=frame.what)

        call_on_loop(lambda: connection.start(answer, lambda error: None, max_data_bytes=1 << 30))

    return _accept(serve, context(folder, True))


class Glt:
    """A connection of glt; calls from a thread."""

    def __init__(self, port: int, data: torch.Tensor, folder: str | None) -> None:
        self._connection = Connection(_connected(port, context(folder, False)), "the server")
        self._connection.is_ours = True  # it asked for what comes
        self._data = data
        self._answered: Callable[[Any], None] = print
        call_on_loop(
            lambda: self._connection.start(
                lambda frame: self._answered(frame.data), lambda error: None, max_data_bytes=1 << 30
            )
        )

    def call(self, kind: int) -> Any:
        got, came = [], threading.Event()

        def answered(data: Any) -> None:
            got.append(data)
            came.set()

        self._answered = answered
        self._send(kind)
        assert came.wait(DEADLINE_S), "no answer"
        return got[0]

    def _send(self, kind: int) -> None:
        self._connection.send(None, (self._data,) if kind in (REQUEST, ECHO) else (), what=kind)

    async def acall(self, kind: int) -> Any:
        came = process_loop.get().create_future()
        self._answered = came.set_result
        self._send(kind)
        return await came

    def run(self, kind: int, count: int) -> list[float]:
        return _timed(self.call, kind, count)

    def close(self) -> None:
        self._connection.close()


class GltTask(Glt):
    """The same; calls from a task on the loop."""

    def run(self, kind: int, count: int) -> list[float]:
        task = asyncio.run_coroutine_threadsafe(_timed_task(self.acall, kind, count), process_loop.get())
        return task.result(DEADLINE_S)


# -- asyncio's own transports --------------------------------------------------------------------------------------


class _Frames(asyncio.BufferedProtocol):
    """Calls ``on_frame`` with the call and its data, which are read into pooled memory, as glt's are."""

    def __init__(self, on_frame: Callable[[_Frames, int, Any], None]) -> None:
        self._on_frame = on_frame
        self._head, self._body, self._filled = memoryview(bytearray(_HEADER.size)), None, 0
        self._data: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, kind: int, data: Any) -> None:
        parts = [_HEADER.pack(kind, 0 if data is None else data.numel())]
        if data is not None:
            parts.append(memoryview(data.numpy()))
        if sys.version_info >= (3, 12):
            self.transport.writelines(parts)  # sendmsg
        else:  # there it joins the parts: two copies more
            for part in parts:
                self.transport.write(part)

    def get_buffer(self, sizehint: int) -> Any:
        return (self._head if self._data is None else self._body)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._data is None:
            if self._filled < _HEADER.size:
                return
            kind, length = _HEADER.unpack(self._head)
            self._filled = 0
            if length == 0:
                self._on_frame(self, kind, None)
            else:
                self._data, self._kind = pooled_empty((length,), torch.uint8), kind
                self._body = memoryview(self._data.numpy())
        elif self._filled == len(self._body):
            data, self._data, self._filled = self._data, None, 0
            self._on_frame(self, self._kind, data)


def _own_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def serve_asyncio(data: torch.Tensor, folder: str | None) -> int:
    def answer(protocol: _Frames, kind: int, got: Any) -> None:
        protocol.send(kind, {REPLY: data, ECHO: got}.get(kind))

    loop = _own_loop()
    serving = loop.create_server(lambda: _Frames(answer), "127.0.0.1", 0, ssl=context(folder, True))
    server = asyncio.run_coroutine_threadsafe(serving, loop).result(DEADLINE_S)
    return int(server.sockets[0].getsockname()[1])


class Asyncio:
    """asyncio's transport with a BufferedProtocol; calls from a thread."""

    def __init__(self, port: int, data: torch.Tensor, folder: str | None) -> None:
        self._loop, self._data = _own_loop(), data
        self._answered: Callable[[Any], None] = print
        tls = context(folder, False)
        connecting = self._loop.create_connection(
            lambda: _Frames(lambda _, kind, got: self._answered(got)),
            "127.0.0.1", port, ssl=tls, server_hostname=tls and HOST,
        )  # fmt: skip
        _, self._protocol = asyncio.run_coroutine_threadsafe(connecting, self._loop).result(DEADLINE_S)

    def call(self, kind: int) -> Any:
        got, came = [], threading.Event()

        def answered(data: Any) -> None:
            got.append(data)
            came.set()

        self._answered = answered
        self._loop.call_soon_threadsafe(self._send, kind)  # no other thread may
        assert came.wait(DEADLINE_S), "no answer"
        return got[0]

    def _send(self, kind: int) -> None:
        self._protocol.send(kind, self._data if kind in (REQUEST, ECHO) else None)

    async def acall(self, kind: int) -> Any:
        came = self._loop.create_future()
        self._answered = came.set_result
        self._send(kind)
        return await came

    def run(self, kind: int, count: int) -> list[float]:
        return _timed(self.call, kind, count)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._protocol.transport.abort)


class AsyncioTask(Asyncio):
    """The same; calls from a task on the loop."""

    def run(self, kind: int, count: int) -> list[float]:
        task = asyncio.run_coroutine_threadsafe(_timed_task(self.acall, kind, count), self._loop)
        return task.result(DEADLINE_S)


# -- a blocking socket ---------------------------------------------------------------------------------------------


def _send_blocking(sock: socket.socket, kind: int, data: Any) -> None:
    sock.sendall(_HEADER.pack(kind, 0 if data is None else data.numel()))
    if data is not None:
        sock.sendall(data.numpy().data)


def _receive_blocking(sock: socket.socket) -> tuple[int, Any]:
    head = bytearray(_HEADER.size)
    _fill(sock, memoryview(head))
    kind, length = _HEADER.unpack(head)
    if length == 0:
        return kind, None
    data = pooled_empty((length,), torch.uint8)
    _fill(sock, data.numpy().data)
    return kind, data


def _fill(sock: socket.socket, view: memoryview) -> None:
    while len(view):
        count = sock.recv_into(view)
        if count == 0:
            raise EOFError
        view = view[count:]


def serve_blocking(data: torch.Tensor, folder: str | None) -> int:
    def serve(sock: socket.socket) -> None:
        try:
            while True:
                kind, got = _receive_blocking(sock)
                _send_blocking(sock, kind, {REPLY: data, ECHO: got}.get(kind))
        except (EOFError, OSError):
            sock.close()  # it is over

    return _accept(serve, context(folder, True))


class Blocking:
    """A blocking socket, which can do nothing else meanwhile."""

    def __init__(self, port: int, data: torch.Tensor, folder: str | None) -> None:
        self._socket, self._data = _connected(port, context(folder, False)), data

    def call(self, kind: int) -> Any:
        _send_blocking(self._socket, kind, self._data if kind in (REQUEST, ECHO) else None)
        return _receive_blocking(self._socket)[1]

    def run(self, kind: int, count: int) -> list[float]:
        return _timed(self.call, kind, count)

    def close(self) -> None:
        self._socket.close()


def _tensor(got: Any) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(got, np.uint8).copy())


# -- ZeroMQ --------------------------------------------------------------------------------------------------------


def serve_zmq(data: torch.Tensor, folder: str | None) -> int:
    import zmq

    sock = zmq.Context.instance().socket(zmq.PAIR)
    port = sock.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        while True:
            head, got = sock.recv_multipart(copy=False)
            kind = int(bytes(head))
            sock.send_multipart([bytes(head), {REPLY: data.numpy(), ECHO: got.buffer}.get(kind, b"")], copy=False)

    threading.Thread(target=serve, daemon=True).start()
    return int(port)


class Zmq:
    """A pair of ZeroMQ's sockets, whose own threads read and write."""

    def __init__(self, port: int, data: torch.Tensor, folder: str | None) -> None:
        import zmq

        self._socket, self._data = zmq.Context.instance().socket(zmq.PAIR), data
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def call(self, kind: int) -> Any:
        self._socket.send_multipart([b"%d" % kind, self._data.numpy() if kind in (REQUEST, ECHO) else b""], copy=False)
        got = self._socket.recv_multipart(copy=False)[1].buffer
        return _tensor(got) if kind == ECHO else got

    def run(self, kind: int, count: int) -> list[float]:
        return _timed(self.call, kind, count)

    def close(self) -> None:
        self._socket.close(0)


# -- gRPC ----------------------------------------------------------------------------------------------------------

_NO_LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def serve_grpc(data: torch.Tensor, folder: str | None) -> int:
    import grpc

    reply = bytes(data.numpy())

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            kind = int(details.method.rsplit("/", 1)[1])
            return grpc.unary_unary_rpc_method_handler(lambda got, _: {REPLY: reply, ECHO: got}.get(kind, b""))

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()], options=_NO_LIMITS)
    if folder is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = Path(folder, "key.pem").read_bytes(), Path(folder, "cert.pem").read_bytes()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    _kept.append(server)
    return int(port)


_kept: list[Any] = []


class Grpc:
    """gRPC's calls of one request and one reply, of bytes."""

    def __init__(self, port: int, data: torch.Tensor, folder: str | None) -> None:
        import grpc

        self._data = bytes(data.numpy())
        where = f"127.0.0.1:{port}"
        if folder is None:
            self._channel = grpc.insecure_channel(where, _NO_LIMITS)
        else:
            trusted = grpc.ssl_channel_credentials(Path(folder, "cert.pem").read_bytes())
            named = ("grpc.ssl_target_name_override", HOST)
            self._channel = grpc.secure_channel(where, trusted, [*_NO_LIMITS, named])
        self._calls = [self._channel.unary_unary(f"/bench/{kind}") for kind in range(4)]

    def call(self, kind: int) -> Any:
        got = self._calls[kind](self._data if kind in (REQUEST, ECHO) else b"", timeout=DEADLINE_S)
        return _tensor(got) if kind == ECHO else got

    def run(self, kind: int, count: int) -> list[float]:
        return _timed(self.call, kind, count)

    def close(self) -> None:
        self._channel.close()


SERVERS = {
    "glt": serve_glt, "asyncio": serve_asyncio, "blocking": serve_blocking, "zmq": serve_zmq, "grpc": serve_grpc,
}  # fmt: skip
CLIENTS: dict[str, Any] = {
    "glt": Glt, "glt, in a task": GltTask, "asyncio": Asyncio, "asyncio, in a task": AsyncioTask,
    "blocking": Blocking, "zmq": Zmq, "grpc": Grpc,
}  # fmt: skip


def contestants(with_tls: bool) -> list[str]:
    """The names of clients that can run here; ZeroMQ has no TLS."""
    absent = {"zmq", "grpc"} - set(find_peers("zmq", "grpc"))
    return [name for name in CLIENTS if name not in absent and not (with_tls and name == "zmq")]
