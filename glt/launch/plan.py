"""What runs where: the processes of a job, their commands and environments, before anything is started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from glt.distributed.job.hosts import Host

TORCHRUN: Final = "torchrun"  # as what torchrun itself says is marked
PIPES: Final = "{pipes}"  # which the keeper replaces


@dataclass(frozen=True)
class JobSpec:
    """What was asked for.

    Attributes:
        hosts: Host 0 has server 0 and trainer 0.
        num_servers, num_trainers: On each host. Without servers there are no roles: trainers are as torchrun's.
        num_workers: Sampling processes of each server.
        command: The script and its arguments.
        workspace: Directory on each host, in which everything runs.
        part_config: As processes of the job get it, if they do.
        num_parts: Partitions of it; None if it was not given.
        envs: More environment variables, for all processes.
        num_omp_threads: ``OMP_NUM_THREADS`` of trainers; None: what torchrun chooses.
        master_addr: Address of host 0, as all hosts reach it.
        master_port, server_port: Free ports of host 0: of ``torch.distributed``, and of server 0.
        interpreter: Path on the hosts.
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
    envs: Mapping[str, str]
    num_omp_threads: int | None
    master_addr: str
    master_port: int
    server_port: int
    interpreter: str
    stop_s: float


@dataclass(frozen=True)
class ProcessPlan:
    """A process that a host starts.

    Attributes:
        name: ``server-<rank>``, or ``torchrun``, which starts those of ``streams``.
        argv: Its command.
        env: What its environment has more than that of the host.
        cwd: Where it runs.
        streams: Names of the trainers that it starts, by local rank.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    streams: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "streams": list(self.streams),
        }

    def shown(self) -> str:
        """As a shell would run it."""
        words = [*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(self.argv)]
        return " ".join(words)


def partition_of(server: int, num_servers: int, num_parts: int) -> int:
    """Returns the partition that a server of the job loads.

    Servers of one host load as few different partitions as there can be, and each is loaded by as many servers as any
    other, give or take one.
    """
    return server * num_parts // num_servers


def partitions_of_hosts(num_hosts: int, num_servers: int, num_parts: int) -> list[list[int]]:
    """Returns the partitions that each host needs, ascending, given the number of servers on each.

    Raises:
        ValueError: If there are fewer servers than partitions; says how many are needed.
    """
    total = num_hosts * num_servers
    if total < num_parts:
        raise ValueError(
            f"{num_parts} partitions, and {total} servers ({num_servers} on each of {num_hosts} hosts): some "
            f"partitions would be loaded by no server; give --num-servers {-(-num_parts // num_hosts)}, or make fewer"
        )
    loaded = [partition_of(server, total, num_parts) for server in range(total)]
    return [sorted(set(loaded[at * num_servers : (at + 1) * num_servers])) for at in range(num_hosts)]


def plan_job(spec: JobSpec) -> list[list[ProcessPlan]]:
    """Returns the processes of each host, servers first."""
    if spec.num_parts is not None and spec.num_servers:
        partitions_of_hosts(len(spec.hosts), spec.num_servers, spec.num_parts)
    return [_plan_host(spec, at) for at in range(len(spec.hosts))]


def _plan_host(spec: JobSpec, at: int) -> list[ProcessPlan]:
    ranks = range(at * spec.num_servers, (at + 1) * spec.num_servers)
    plans = [_plan_server(spec, rank) for rank in ranks]
    return [*plans, _plan_trainers(spec, at)] if spec.num_trainers else plans


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
    return ProcessPlan(f"server-{rank}", argv, env | dict(spec.envs), spec.workspace)


def _plan_trainers(spec: JobSpec, at: int) -> ProcessPlan:
    env = _contract(spec) | ({"GLT_ROLE": "trainer"} if spec.num_servers else {})
    env["TORCHELASTIC_SHUTDOWN_TIMEOUT"] = str(max(1, int(spec.stop_s)))
    if spec.num_omp_threads is not None:
        env["OMP_NUM_THREADS"] = str(spec.num_omp_threads)
    nodes = (f"--nnodes={len(spec.hosts)}", f"--node-rank={at}", f"--nproc-per-node={spec.num_trainers}")
    master = (f"--master-addr={spec.master_addr}", f"--master-port={spec.master_port}")
    agent = (spec.interpreter, "-u", "-m", "glt.launch.agent", PIPES)
    argv = (*agent, *nodes, *master, *spec.command)
    first = at * spec.num_trainers
    streams = tuple(f"trainer-{rank}" for rank in range(first, first + spec.num_trainers))
    return ProcessPlan(TORCHRUN, argv, env | dict(spec.envs), spec.workspace, streams)


def shown_plan(hosts: Sequence[Host], plans: Sequence[Sequence[ProcessPlan]]) -> list[str]:
    """The plan for people to read, one process a line."""
    return [f"{each.name}@{host.name}: {each.shown()}" for host, own in zip(hosts, plans, strict=True) for each in own]
