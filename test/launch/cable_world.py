"""Two network namespaces that stand for hosts, with a cable between them and an sshd on each."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sshd_world import Sshd, need_sshd

HERE, THERE, NOWHERE = "10.197.3.1", "10.197.3.2", "10.197.3.99"


@dataclass
class Cable:
    """What tests need of it.

    Attributes:
        mark: In the names of namespaces and devices.
        server: The sshd of the first host; the other's has the same keys and port.
    """

    mark: str
    server: Sshd

    @property
    def before(self) -> tuple[str, ...]:
        """What precedes a command, for it to run on the first host."""
        return ("ip", "netns", "exec", f"glt-l0-{self.mark}")

    @contextmanager
    def cut(self) -> Iterator[None]:
        """There is no cable inside the ``with`` block."""
        set_link = ("-n", f"glt-l1-{self.mark}", "link", "set", f"l1{self.mark}")
        ip(*set_link, "down")
        try:
            yield
        finally:
            ip(*set_link, "up")
            self._wait_until_connected()

    def _wait_until_connected(self, timeout_s: float = 30.0) -> None:
        """A link that is up carries nothing for a moment, and a host that was not found is not asked for at once."""
        deadline = time.monotonic() + timeout_s
        connect = f"import socket; socket.create_connection(('{THERE}', {self.server.port}), 2)"
        while (done := subprocess.run([*self.before, sys.executable, "-c", connect], capture_output=True)).returncode:
            assert time.monotonic() < deadline, done.stderr.decode()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@contextmanager
def open_cable(folder: Path) -> Iterator[Cable]:
    """Makes the hosts; skips, by name, where that cannot be."""
    need_sshd("ip", "rsync")
    mark = uuid.uuid4().hex[:8]
    names, servers = [f"glt-l{at}-{mark}" for at in range(2)], []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ends = ("type", "veth", "peer", "name", f"l1{mark}", "netns", names[1])
            ip("link", "add", f"l0{mark}", "netns", names[0], *ends)
            for at, name in enumerate(names):
                ip("-n", name, "addr", "add", f"{(HERE, THERE)[at]}/24", "dev", f"l{at}{mark}")
                for device in ("lo", f"l{at}{mark}"):
                    ip("-n", name, "link", "set", device, "up")
            servers.append(Sshd(folder, ("0.0.0.0",), ("ip", "netns", "exec", names[0])))
            servers.append(servers[0].another(("ip", "netns", "exec", names[1])))
        except (OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", b"") or b""
            pytest.skip(f"no network namespaces with cables here: {error} {told.decode(errors='replace').strip()}")
        servers[0].need_login(HERE, ("ip", "netns", "exec", names[0]))
        yield Cable(mark, servers[0])
    finally:
        for server in servers:
            server.close()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)
