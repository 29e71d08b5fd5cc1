"""How the hosts of a job are reached: programs started here or over ssh, and the flags that say how."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from glt.distributed.job.hosts import THIS_HOST, Host, parse_hosts, read_hosts


class Stopped(Exception):
    """No more programs are to be started."""


class Children:
    """Child processes, with pipes for stdin, stdout and stderr, that can be ended all at once from any thread."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_stopped = False

    @contextmanager
    def start(self, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Starts a program; it is killed if it still runs at the end of the ``with`` block.

        Raises:
            Stopped: After :meth:`stop`.
            OSError: If there is no such program.
        """
        with self._lock:
            if self._is_stopped:
                raise Stopped("stopped")
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self._running.add(process)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            with self._lock:
                self._running.discard(process)
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what was in it was not read

    def stop(self) -> None:
        """Ends all that run, and lets none begin."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                process.terminate()


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
        lost_timeout_s: After which a silent host is taken for lost; and its launcher, there.
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
        """Returns the command that runs a module of this package on a host, and what its stdin has to begin with.

        The module runs as ``__main__``, and must need the standard library only.
        """
        file = import_module(f"glt.launch.{module}").__file__
        assert file is not None
        source = Path(file).read_bytes()
        boot = f"exec({_BOOT.format(name=f'glt.launch.{module}')!r})"  # of one line: not all shells take more
        return self.command(host, [self.interpreter, "-I", "-u", "-c", boot]), b"%8d%s" % (len(source), source)


def add_flag(group: Any, name: str, help: str, **options: Any) -> None:
    """Adds a flag with dashes, and with underscores, as DGL's tools spell it."""
    spelled = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
    group.add_argument(*spelled, dest=name.replace("-", "_"), help=help, **options)


def count(least: int, most: int) -> Callable[[str], int]:
    """Parses an integer from ``least`` to ``most``."""

    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer from {least} to {most}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """Parses seconds, more than 0 and at most a year."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 365 * 86400.0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, more than 0")
    return value


def variable(text: str) -> tuple[str, str]:
    """Parses ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE; give the flag once for each")
    return name, value


def add_host_arguments(parser: Any, *, required: bool) -> None:
    """Adds flags that name hosts."""
    group = parser.add_argument_group("hosts").add_mutually_exclusive_group(required=required)
    lines = "file with a host on each line: ADDRESS [PORT], the port being that of server 0 if it is the first host's"
    add_flag(group, "ip-config", lines, metavar="FILE")
    add_flag(group, "hosts", "the same on the command line", metavar="H1,H2")


def add_reach_arguments(parser: Any) -> None:
    """Adds flags that tell how hosts are reached."""
    group = parser.add_argument_group("how hosts are reached: by ssh, without a password")
    add_flag(group, "ssh-user", "user there (default: ssh's)", metavar="U")
    add_flag(group, "ssh-port", "port of sshd (default: ssh's)", type=count(1, 65535), metavar="P")
    add_flag(group, "ssh-option", "for ssh -o; may be repeated", action="append", default=[], metavar="K=V")
    reach_s, lost_s = count(1, 3600), count(1, 86400)
    add_flag(group, "connect-timeout", "seconds to reach a host (default: 10)", type=reach_s, default=10, metavar="S")
    lost = "seconds after which a silent host is taken for lost, and its processes end by themselves (default: 30)"
    add_flag(group, "lost-timeout", lost, type=lost_s, default=30, metavar="S")
    add_flag(group, "python", "interpreter on the hosts (default: the path of the one that runs this)", metavar="PATH")


def hosts_of(arguments: argparse.Namespace) -> list[Host]:
    """Returns the hosts that were named, or this one; raises ValueError, saying where, if they are named wrongly."""
    if arguments.ip_config is not None:
        try:
            return read_hosts(arguments.ip_config)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--ip-config {arguments.ip_config}: cannot be read: {error}") from error
    return [THIS_HOST] if arguments.hosts is None else parse_hosts(arguments.hosts)


def reach_of(arguments: argparse.Namespace) -> Reach:
    """Returns how hosts are reached; raises ValueError if ssh is needed and missing, or a flag would do nothing."""
    over_ssh = arguments.ip_config is not None or arguments.hosts is not None
    for flag in ("ssh_user", "ssh_port", "ssh_option"):
        if not over_ssh and getattr(arguments, flag):
            raise ValueError(f"--{flag.replace('_', '-')} without --ip-config or --hosts: nothing is reached over ssh")
    if over_ssh and shutil.which("ssh") is None:
        raise ValueError("hosts are reached over ssh, and there is none here: install it (openssh-client)")
    return Reach(
        over_ssh,
        arguments.python,
        arguments.ssh_user,
        arguments.ssh_port,
        tuple(arguments.ssh_option),
        arguments.connect_timeout,
        arguments.lost_timeout,
    )


def workspace_of(given: str | None, over_ssh: bool) -> str:
    """Returns the directory on the hosts; raises ValueError if it is relative and hosts may take that differently."""
    path = os.path.expanduser(given) if given is not None else os.getcwd()
    if over_ssh and not Path(path).is_absolute():
        raise ValueError(f"--workspace {given}: expected an absolute path, the same on all hosts")
    return os.path.abspath(path)
