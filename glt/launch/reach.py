"""How a program is started on a host: as a child of this process, or over ssh."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from glt.launch.hosts import Host

# Reads a program from stdin, and not a byte more, and runs it: hosts need no glt for that, and nothing is quoted.
_BOOT = """\
import os
def take(size):
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            raise SystemExit(1)
        data += more
    return data
exec(compile(take(int(take(8))), {name!r}, "exec"))
"""


@dataclass(frozen=True)
class Reach:
    """How hosts are reached.

    Attributes:
        over_ssh: Else everything runs on this host.
        python: Interpreter there; None: the same path as here.
        ssh_user, ssh_port: Those of ssh if None.
        ssh_options: For ``ssh -o``, before ours, so that they win.
        connect_timeout_s: For a connection.
        lost_timeout_s: After which a host that gives no sign is taken for lost; and its launcher, there.
    """

    over_ssh: bool
    python: str | None = None
    ssh_user: str | None = None
    ssh_port: int | None = None
    ssh_options: tuple[str, ...] = ()
    connect_timeout_s: int = 10
    lost_timeout_s: int = 30

    @property
    def interpreter(self) -> str:
        """Path of the interpreter on the hosts."""
        return self.python or sys.executable

    def shell(self) -> list[str]:
        """The ssh command, without a host: it never asks for anything, and notices when a host is gone."""
        ours = (
            "BatchMode=yes",
            "ConnectionAttempts=1",
            f"ConnectTimeout={self.connect_timeout_s}",
            f"ServerAliveInterval={-(-self.lost_timeout_s // 3)}",
            "ServerAliveCountMax=3",
        )
        words = ["ssh", "-T", "-x"]
        words += [word for option in (*self.ssh_options, *ours) for word in ("-o", option)]
        words += ["-p", str(self.ssh_port)] if self.ssh_port is not None else []
        return words + (["-l", self.ssh_user] if self.ssh_user is not None else [])

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """The command that runs ``words`` on a host; the words arrive as they are, whatever is in them."""
        return [*self.shell(), host.name, "exec " + shlex.join(words)] if self.over_ssh else list(words)

    def run_program(self, host: Host, module: str) -> tuple[list[str], bytes]:
        """The command that runs a module of this package on a host, and what its stdin has to begin with.

        The module must need the standard library only; it runs as ``__main__``.
        """
        file = import_module(f"glt.launch.{module}").__file__
        assert file is not None
        source = Path(file).read_bytes()
        boot = f"exec({_BOOT.format(name=f'glt.launch.{module}')!r})"  # of one line: not all shells take more
        return self.command(host, [self.interpreter, "-I", "-u", "-c", boot]), b"%8d%s" % (len(source), source)
