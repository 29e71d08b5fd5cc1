"""The hosts of a job that is launched: what runs on each (commands and environments, before anything is started),
and how a host is reached: here or over ssh."""

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
from pathlib import Path, PurePosixPath
from typing import Any, Final

from glt.distributed.job.hosts import THIS_HOST, Host, parse_hosts, read_hosts
from glt.distributed.wire.addresses import is_own_address

TORCHRUN: Final = "torchrun"  # as what torchrun itself says is marked


@dataclass(frozen=True)
class JobSpec:
    """What was asked for. Host 0 has server 0 and trainer 0.

    Attributes:
        num_servers, num_trainers: On each host. Without servers there are no roles: trainers are as torchrun's.
        num_workers: Sampling processes of each server.
        command: The script and its arguments.
        part_config, num_parts: The partitions, and how many; None if they were not given.
        envs: More environment variables, for all processes.
        num_omp_threads: ``OMP_NUM_THREADS`` of trainers; None: what torchrun chooses.
        master_addr: Address of host 0, as all hosts reach it.
        master_port, server_port: Free ports of host 0: of ``torch.distributed``, and of server 0.
        stop_s: How long a process has to end once it is told to.
    """

    hosts: tuple[Host, ...]
    num_servers: int
    num_trainers: int
    num_workers: int
    command: tuple[str, ...]
    workspace: str
    part_config: str | None
    num_parts: int | None
    envs: dict[str, str]
    num_omp_threads: int | None
    master_addr: str
    master_port: int
    server_port: int
    interpreter: str
    stop_s: float


@dataclass(frozen=True)
class ProcessPlan:
    """A process that a host starts: ``server-<rank>``, or ``torchrun``, which starts the trainers named in ``streams``,
    by local rank; ``env`` is added to the host's environment."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    streams: tuple[str, ...] = ()

    def shown(self) -> str:
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(self.argv)])


def partition_of(server: int, num_servers: int, num_parts: int) -> int:
    """The partition that a server loads. Servers of one host load as few different ones as there can be, and each is
    loaded by as many servers as any other, give or take one."""
    return server * num_parts // num_servers


def partitions_of_hosts(num_hosts: int, num_servers: int, num_parts: int) -> list[list[int]]:
    """The partitions that each host needs, ascending, given the number of servers on each. ValueError if there are
    fewer servers than partitions; says how many are needed."""
    total = num_hosts * num_servers
    if total < num_parts:
        raise ValueError(
            f"{num_parts} partitions, and {total} servers ({num_servers} on each of {num_hosts} hosts): some "
            f"partitions would be loaded by no server; give --num-servers {-(-num_parts // num_hosts)}, or make fewer"
        )
    loaded = [partition_of(server, total, num_parts) for server in range(total)]
    return [sorted(set(loaded[at * num_servers : (at + 1) * num_servers])) for at in range(num_hosts)]


def plan_job(spec: JobSpec) -> list[list[ProcessPlan]]:
    """What each host runs."""
    plans = []
    for at in range(len(spec.hosts)):
        ranks = range(at * spec.num_servers, (at + 1) * spec.num_servers)
        trainers = [_plan_trainers(spec, at)] if spec.num_trainers else []
        plans.append([*(_plan_server(spec, rank) for rank in ranks), *trainers])
    return plans


def _contract(spec: JobSpec) -> dict[str, str]:
    """What servers and trainers both get; :mod:`glt.distributed.job.initialize` reads it."""
    env = {
        "PYTHONUNBUFFERED": "1",  # else lines would come when a buffer is full, and the last ones never
        "GLT_NUM_SERVERS": str(len(spec.hosts) * spec.num_servers),
        "GLT_NUM_TRAINERS": str(len(spec.hosts) * spec.num_trainers),
        "GLT_NUM_WORKERS": str(spec.num_workers),
    }
    if spec.num_servers:
        env |= {"GLT_MASTER_ADDR": spec.master_addr, "GLT_MASTER_PORT": str(spec.server_port)}
    if spec.part_config is not None:
        env["GLT_PART_CONFIG"] = str(PurePosixPath(spec.workspace, spec.part_config))
    return env


def _plan_server(spec: JobSpec, rank: int) -> ProcessPlan:
    env = _contract(spec) | {"GLT_ROLE": "server", "GLT_SERVER_RANK": str(rank)}
    if spec.num_parts is not None:
        env["GLT_PARTITION"] = str(partition_of(rank, int(env["GLT_NUM_SERVERS"]), spec.num_parts))
    argv = (spec.interpreter, "-u", *spec.command)
    return ProcessPlan(f"server-{rank}", argv, env | spec.envs, spec.workspace)


def _plan_trainers(spec: JobSpec, at: int) -> ProcessPlan:
    env = _contract(spec) | ({"GLT_ROLE": "trainer"} if spec.num_servers else {})
    env["TORCHELASTIC_SHUTDOWN_TIMEOUT"] = str(max(1, int(spec.stop_s)))
    if spec.num_omp_threads is not None:
        env["OMP_NUM_THREADS"] = str(spec.num_omp_threads)
    nodes = (f"--nnodes={len(spec.hosts)}", f"--node-rank={at}", f"--nproc-per-node={spec.num_trainers}")
    master = (f"--master-addr={spec.master_addr}", f"--master-port={spec.master_port}")
    agent = (spec.interpreter, "-u", "-m", "glt.launch.agent", "{pipes}")  # which the keeper replaces
    argv = (*agent, *nodes, *master, *spec.command)
    ranks = range(at * spec.num_trainers, (at + 1) * spec.num_trainers)
    streams = tuple(f"trainer-{rank}" for rank in ranks)
    return ProcessPlan(TORCHRUN, argv, env | spec.envs, spec.workspace, streams)


class Children:
    """Child processes, with pipes for stdin, stdout and stderr, that can be ended all at once from any thread."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_stopped = False

    @contextmanager
    def start(self, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Starts a program; kills it if it still runs at the end of the ``with`` block. OSError if there is no such
        program, and after :meth:`stop`."""
        with self._lock:
            if self._is_stopped:
                raise InterruptedError("it was stopped")
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self._running.add(process)
        with process:
            try:
                yield process
            finally:
                process.kill()
                with self._lock:
                    self._running.discard(process)

    def stop(self) -> None:
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
        ssh_options: For ``ssh -o``, before ours, so that they win.
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
        alive = (f"ServerAliveInterval={-(-self.lost_timeout_s // 3)}", "ServerAliveCountMax=3")
        ours = ("BatchMode=yes", "ConnectionAttempts=1", f"ConnectTimeout={self.connect_timeout_s}", *alive)
        words = ["ssh", "-T", "-x"]
        words += [word for option in (*self.ssh_options, *ours) for word in ("-o", option)]
        words += ["-p", str(self.ssh_port)] if self.ssh_port is not None else []
        return words + (["-l", self.ssh_user] if self.ssh_user is not None else [])

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        """The command that runs ``words`` on a host; the words arrive as they are, whatever is in them."""
        return [*self.shell(), host.name, "exec " + shlex.join(words)] if self.over_ssh else list(words)

    def run_program(self, host: Host, module: str) -> tuple[list[str], bytes]:
        """The command that runs a module of this package on a host as ``__main__``, and what its stdin has to begin
        with. The module must need the standard library only."""
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
    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer from {least} to {most}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 365 * 86400.0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, more than 0")
    return value


def variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE; give the flag once for each")
    return name, value


def add_host_arguments(parser: Any, *, required: bool) -> None:
    group = parser.add_argument_group("hosts").add_mutually_exclusive_group(required=required)
    lines = "file with a host on each line: ADDRESS [PORT], the port being that of server 0 if it is the first host's"
    add_flag(group, "ip-config", lines, metavar="FILE")
    add_flag(group, "hosts", "the same on the command line", metavar="H1,H2")


def add_reach_arguments(parser: Any) -> None:
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


def reach_of(arguments: argparse.Namespace, hosts: Sequence[Host], by_ssh_alone: bool = False) -> Reach:
    """Returns how hosts are reached; raises ValueError if ssh is needed and missing, or a flag would do nothing.

    A job of this host alone needs no ssh, named or not, unless a flag says how it is reached. ``by_ssh_alone``: hosts
    that are named are always reached over ssh. Nothing is reached in a dry run.
    """
    named = arguments.ip_config is not None or arguments.hosts is not None
    flags = [flag for flag in ("ssh_user", "ssh_port", "ssh_option") if getattr(arguments, flag)]
    if flags and not named:
        raise ValueError(f"--{flags[0].replace('_', '-')} without --ip-config or --hosts: nothing is reached over ssh")
    is_here = len(hosts) == 1 and not flags and not by_ssh_alone and is_own_address(hosts[0].name)
    over_ssh = named and not is_here
    if over_ssh and not arguments.dry_run and shutil.which("ssh") is None:
        raise ValueError("hosts are reached over ssh, and there is none here: install it (openssh-client)")
    ssh = arguments.ssh_user, arguments.ssh_port, tuple(arguments.ssh_option)
    return Reach(over_ssh, arguments.python, *ssh, arguments.connect_timeout, arguments.lost_timeout)


def workspace_of(given: str | None, over_ssh: bool) -> str:
    """Returns the directory on the hosts; raises ValueError if it is relative and hosts may take that differently."""
    path = os.path.expanduser(given) if given is not None else os.getcwd()
    if over_ssh and not Path(path).is_absolute():
        raise ValueError(f"--workspace {given}: expected an absolute path, the same on all hosts")
    return os.path.abspath(path)
