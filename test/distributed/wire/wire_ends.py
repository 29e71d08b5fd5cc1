"""Connections of a test: read on the loop of this process, with what came of them in queues."""

import asyncio
import os
import queue
import shutil
import socket
import subprocess
from concurrent.futures import Future

import pytest

from glt.distributed.wire.connection import Connection
from glt.distributed.wire.credentials import TlsOptions
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
        on_loop(lambda: self.connection._tick(asyncio.get_running_loop().time()))

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


class Certificates:
    """An authority and what it has signed, in a folder."""

    def __init__(self, folder):
        if shutil.which("openssl") is None:
            pytest.skip("the command openssl is not installed: no certificates can be made")
        self._folder = folder
        self.ca = self._path("ca.pem")
        self._openssl("req", "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem", *_KEY)

    def _path(self, name):
        return os.fspath(self._folder / name)

    def _openssl(self, *words):
        run = subprocess.run(
            ["openssl", *words], cwd=self._folder, check=True, capture_output=True, timeout=LONG_S, text=True
        )
        return run.stdout

    def issue(self, name, days=2, host="IP:127.0.0.1"):
        """Signs a certificate and puts it, with its key, in place of what has this name."""
        new = f"{name}-{os.urandom(4).hex()}"
        self._openssl("req", "-subj", f"/CN={name}", "-keyout", f"{new}.key", "-out", f"{new}.csr", *_KEY)
        (self._folder / f"{new}.ext").write_text(f"subjectAltName={host}\n")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{new}.ext")
        self._openssl("x509", "-req", "-in", f"{new}.csr", "-days", str(days), "-out", f"{new}.pem", *signed)
        for end in ("key", "pem"):
            os.replace(self._path(f"{new}.{end}"), self._path(f"{name}.{end}"))

    def tls(self, name=None, **more):
        """Options that show the certificate of that name, or none, and trust this authority."""
        mine = {} if name is None else {"cert": self._path(f"{name}.pem"), "key": self._path(f"{name}.key")}
        return TlsOptions(**{**mine, "ca": self.ca, **more})

    def serial(self, name):
        return self._openssl("x509", "-in", f"{name}.pem", "-noout", "-serial").strip().partition("=")[2]


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
