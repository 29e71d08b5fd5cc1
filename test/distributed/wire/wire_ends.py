"""Connections of a test: read on the loop of this process, with what came of them in queues."""

import asyncio
import queue
import socket
from concurrent.futures import Future

from glt.distributed.wire.connection import Connection
from glt.distributed.wire.handshake import shake_hands
from glt.distributed.wire.threads import process_loop, wait_for

LONG_S = 60.0


def on_loop(call, *args):
    """What ``call(*args)`` returns, on the loop."""

    async def run():
        return call(*args)

    return wait_for(run(), LONG_S)


class End:
    """One end of a connection: its frames, and why it ended."""

    def __init__(self, sock, peer="the other"):
        self.connection = Connection(sock, peer)
        self.frames, self._ended = queue.Queue(), Future()

    def start(self, on_frame=None, max_data_bytes=32 << 20, silence_s=None):
        def start():
            self.connection.start(
                on_frame or self.frames.put, self._ended.set_result, max_data_bytes=max_data_bytes, silence_s=silence_s
            )

        on_loop(start)
        return self

    def next(self):
        return self.frames.get(timeout=LONG_S)

    def why(self, timeout_s=LONG_S):
        """The reason of its end."""
        return self._ended.result(timeout_s)

    def has_ended(self):
        return self._ended.done()

    def tick(self):
        """What is done every second, now."""
        on_loop(self.connection._tick)

    def close(self):
        self.connection.close()
        on_loop(lambda: None)  # it has ended when this returns


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        return left, listener.accept()[0]


def tls_pair(certificates):
    left, right = tcp_pair()
    for each in (left, right):
        each.setblocking(False)
    options = {"do_handshake_on_connect": False}
    left = certificates.tls().context(False).wrap_socket(left, server_hostname="127.0.0.1", **options)
    right = certificates.tls("good").context(True).wrap_socket(right, server_side=True, **options)

    async def shake():
        until_s = process_loop.get().time() + LONG_S
        await asyncio.gather(shake_hands(left, until_s), shake_hands(right, until_s))

    wait_for(shake(), LONG_S)
    return left, right
