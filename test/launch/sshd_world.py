"""An sshd of a test's own: on a port of its own, with keys of its own, in a temporary directory."""

import getpass
import os
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from copy import copy
from pathlib import Path

import network
import pytest
from launch_world import wait_until

from glt.testing.cluster import free_port


def need_sshd(*others):
    """Skips, by name, where a program is missing."""
    for name in ("ssh", "ssh-keygen", "sshd", *others):
        if find(name) is None:
            pytest.skip(f"no {name} here: apt-get install openssh-server rsync iproute2")


def find(name):
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


class Sshd:
    """An sshd that lets this user in; its files are in ``folder``, and ``before`` precedes its command."""

    def __init__(self, folder, addresses, before=()):
        folder.mkdir()
        self.folder, self.port = folder, free_port()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        key = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"[*]:{self.port} {key}")
        listen = "".join(f"ListenAddress {each}\n" for each in addresses)
        (folder / "config").write_text(
            f"Port {self.port}\n{listen}HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nPidFile none\n"
            "StrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\nUsePAM no\nUseDNS no\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root insists on it
        self._start(folder / "log", before)

    def _start(self, log, before):
        sshd = find("sshd")
        assert sshd is not None
        self.log = log.open("wb")
        command = [*before, sshd, "-D", "-e", "-f", str(self.folder / "config")]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.log)
        deadline = time.monotonic() + 30
        while b"Server listening" not in log.read_bytes():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.close()
                pytest.skip(f"sshd does not start here: {log.read_text().strip()}")
            time.sleep(0.02)

    def another(self, before):
        """One with the same port and keys, on another host."""
        other = copy(self)
        other._start(self.folder / f"log-{uuid.uuid4().hex}", before)
        return other

    @property
    def flags(self):
        """Of ``glt launch`` and ``glt copy``: how to get in."""
        options = (
            f"IdentityFile={self.folder}/user",
            f"UserKnownHostsFile={self.folder}/known",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "StrictHostKeyChecking=yes",
            "GlobalKnownHostsFile=/dev/null",
        )
        words = ["--ssh-port", str(self.port), "--ssh-user", getpass.getuser(), "--connect-timeout", "30"]
        return words + [word for option in options for word in ("--ssh-option", option)]

    def need_login(self, host, before=()):
        """Skips where this user may not log in, as one whose account is locked."""
        words = [word if word != "--ssh-option" else "-o" for word in self.flags[6:]]
        command = [*before, "ssh", "-p", str(self.port), "-o", "BatchMode=yes", *words, host, "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode:
            self.close()
            pytest.skip(f"this user may not log in with ssh here: {done.stderr.strip()}")

    def close(self):
        """Ends it; connections that there are stay."""
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


class Cable:
    """Two hosts with an sshd on each, of the same keys and port; ``before`` runs a command on the first."""

    def __init__(self, hosts, server):
        self.hosts, self.server, self.before = hosts, server, network.on(hosts[0])

    @contextmanager
    def cut(self):
        """There is no cable inside the ``with`` block."""
        network.switch(self.hosts, "down")
        try:
            yield
        finally:
            network.switch(self.hosts, "up")
            self._wait_until_connected()

    def _wait_until_connected(self):
        """A link that is up carries nothing for a moment, and a host that was not found is not asked for at once."""
        connect = f"import socket; socket.create_connection(('{network.ADDRESSES[1]}', {self.server.port}), 2)"
        command = [*self.before, sys.executable, "-c", connect]
        wait_until(lambda: subprocess.run(command, capture_output=True).returncode == 0, 30.0)


@contextmanager
def open_cable(folder):
    need_sshd("ip", "rsync")
    with network.two_hosts() as hosts:
        servers = [Sshd(folder, ("0.0.0.0",), network.on(hosts[0]))]
        try:
            servers.append(servers[0].another(network.on(hosts[1])))
            servers[0].need_login(network.ADDRESSES[0], network.on(hosts[0]))
            yield Cable(hosts, servers[0])
        finally:
            for server in servers:
                server.close()
