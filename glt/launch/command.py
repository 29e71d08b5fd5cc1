"""The command ``glt launch``: a job's servers and trainers, on this host or on several."""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
from dataclasses import replace
from typing import Any, Final

import glt
from glt import _deadlines as deadlines
from glt.distributed.wire.credentials import Token
from glt.launch.hosts import (
    Children,
    JobSpec,
    Reach,
    add_flag,
    add_host_arguments,
    add_reach_arguments,
    count,
    hosts_of,
    partitions_of_hosts,
    plan_job,
    reach_of,
    seconds,
    variable,
    workspace_of,
)
from glt.launch.job import Console, Job, ask_hosts

_DESCRIPTION = """\
Runs a script as the servers and trainers of a job, on this host, or on several over ssh. Every process runs the same
script; glt.distributed.initialize() tells it what it is, from its environment. Trainers are started by torchrun. Output
comes line by line, with who said it. When a process fails, everything is stopped, and it is said which and why."""

_EPILOG = """\
exit status:
  0    all processes ended without an error
  N    that of the process that failed first; 128 + signal if it was killed
  1    servers did not end after the trainers
  2    a flag is wrong
  3    it was not started: a host is not reached, or lacks something; all that is missing is named
  124  --timeout is over;  130, 143  stopped by Ctrl-C, SIGTERM;  255  a host was lost
  141  its output has no reader, or no room

examples:
  two servers and four trainers on this host:
    glt launch --num-servers 2 --num-trainers 4 --part-config parts train.py --lr 0.01
  one server and two trainers on each host of a file:
    glt launch --ip-config ip_config.txt --workspace /data/job --num-trainers 2 --part-config parts train.py
  the same, as DGL's launch.py takes it:
    glt launch --ip_config ip_config.txt --workspace /data/job --num_trainers 2 --part_config parts "python3 train.py"

docs/guides/launching.md has a recipe for Kubernetes, and the environment that processes are given; for SLURM there is
glt slurm."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_host_arguments(parser, required=False)

    group = parser.add_argument_group("the job")
    processes = count(0, 1024)
    servers = "servers on each host (default: 1); 0: none, and no roles"
    add_flag(group, "num-servers", servers, type=processes, default=1, metavar="N")
    trainers = ("--num-trainers", "--num_trainers", "--num_clients")
    group.add_argument(*trainers, type=processes, default=1, metavar="N", help="trainers on each host (default: 1)")
    workers = ("--num-workers", "--num_workers", "--num-samplers", "--num_samplers")
    workers_help = "sampling processes of each server (default: 0)"
    group.add_argument(*workers, type=processes, default=0, metavar="K", help=workers_help)
    threads = "OMP_NUM_THREADS of trainers (default: as torchrun chooses)"
    add_flag(group, "num-omp-threads", threads, type=count(1, 4096), metavar="N")
    add_flag(group, "part-config", "partition directory, or its part_config; in --workspace if relative", metavar="P")
    workspace = "where everything runs, the same path on all hosts (default: where you are)"
    add_flag(group, "workspace", workspace, metavar="DIR")
    envs = "environment variable of all processes; may be repeated"
    add_flag(group, "extra-envs", envs, action="append", type=variable, default=[], metavar="A=B")
    port = "port of torch.distributed on the first host (default: one that is free)"
    add_flag(group, "master-port", port, type=count(1, 65535), metavar="P")
    token = "file with the job's token, see glt token (default: GLT_TOKEN_FILE here, or a new one for the job)"
    add_flag(group, "token-file", token, metavar="FILE")
    add_reach_arguments(parser)

    group = parser.add_argument_group("how it ends")
    add_flag(group, "timeout", "seconds for the whole job (default: any time)", type=seconds, metavar="S")
    stop = "seconds that processes have to end; then they are killed (default: 10)"
    add_flag(group, "stop-timeout", stop, type=seconds, default=10.0, metavar="S")
    drain = "seconds that servers have after the last trainer (default: 60)"
    add_flag(group, "drain-timeout", drain, type=seconds, default=60.0, metavar="S")
    add_flag(group, "dry-run", "print what would run where, and start nothing", action="store_true")

    parser.add_argument("script", help="the script, relative to --workspace; or the whole command, quoted")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments, as they are; ours come first")


def command_of(script: str, args: list[str]) -> tuple[list[str], str | None]:
    """Returns the script with its arguments, and the interpreter that a quoted command names by its path. ValueError if
    torchrun could not start the command."""
    if args or not re.match(r"\s*(\S*/)?python[0-9.]*\s", script):
        return [script, *args], None
    try:
        interpreter, *words = shlex.split(script)
    except ValueError as error:
        raise ValueError(f"{script!r} is no command: {error}") from error
    python = interpreter if os.path.isabs(interpreter) else None
    if not words or words[0].startswith("-"):
        raise ValueError(
            f"{script!r}: expected 'python3 SCRIPT ARGS...', without options of the interpreter; give "
            "--extra-envs PYTHON...=... in their place"
        )
    return words, python


__all__ = ["add_arguments", "run"]

_NOT_STARTED: Final = 3  # 2 is argparse's
_FILES: Final = 128  # that are open besides
_FILES_OF_HOST: Final = 3  # the pipes of its ssh


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    console = Console()
    try:
        reach, spec = _asked_for(arguments)
        token = _token(arguments)
        _allow_files(_FILES + _FILES_OF_HOST * len(spec.hosts))
    except ValueError as error:
        parser.error(str(error))
    if not arguments.dry_run or (spec.part_config is not None and not reach.over_ssh):
        spec, problems = _checked(reach, spec)
        if problems:
            for problem in (*problems, "nothing was started"):
                console.say(problem)
            return _NOT_STARTED
    plans = list(zip(spec.hosts, plan_job(spec), strict=True))
    if not arguments.dry_run:
        return Job(reach, plans, token, console, spec.stop_s, arguments.drain_timeout, arguments.timeout).run()
    for host, processes in plans:
        for each in processes:
            print(f"{each.name}@{host.name}: {each.shown()}")
    if spec.master_port == 0:
        console.say("ports of 0 are found when the job starts")
    return 0


def _token(arguments: argparse.Namespace) -> Token | None:
    """The one that is given, or a new one; none where transport='rpc' is asked for, which has no use for it."""
    if token_file := arguments.token_file or os.environ.get("GLT_TOKEN_FILE"):
        return Token.read(token_file)
    asked = dict(arguments.extra_envs).get("GLT_TRANSPORT") or os.environ.get("GLT_TRANSPORT")
    return None if asked == "rpc" else Token.new()


def _allow_files(wanted: int) -> None:
    """Raises this process's limit of open files where many hosts need more; ValueError if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(f"so many hosts need {wanted} open files, and ulimit -n allows {hard}: raise it")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _asked_for(arguments: argparse.Namespace) -> tuple[Reach, JobSpec]:
    """What the flags ask for; ports are 0 where they are to be found."""
    for flag in ("workspace", "python", "part_config", "token_file", "script"):
        if getattr(arguments, flag) == "":  # of a shell's variable that is not set, as a rule
            name = flag if flag == "script" else f"--{flag.replace('_', '-')}"
            raise ValueError(f"{name} is empty: expected a path")
    hosts = hosts_of(arguments)
    reach = reach_of(arguments, hosts)
    if behind := next((each for each in arguments.args if each in ("--dry-run", "--dry_run")), None):
        raise ValueError(
            f"{behind} stands behind the script, whose argument it would be: the flags of glt launch come first; for a "
            f"script that has such a flag, quote the whole command: 'python {arguments.script} {behind}'"
        )
    command, python = command_of(arguments.script, arguments.args)
    if python is not None:
        if arguments.python not in (None, python):
            raise ValueError(f"--python {arguments.python}, and the command names {python}: name one of them")
        reach = replace(reach, python=python)
    if arguments.num_servers + arguments.num_trainers == 0:
        raise ValueError("--num-servers 0 and --num-trainers 0: nothing would run")
    ours = sorted({name for name, _ in arguments.extra_envs if name in _CONTRACT})
    if ours:
        raise ValueError(f"--extra-envs {ours[0]}: it is glt launch that sets it; see docs/guides/launching.md")
    spec = JobSpec(
        hosts=tuple(hosts),
        num_servers=arguments.num_servers,
        num_trainers=arguments.num_trainers,
        num_workers=arguments.num_workers,
        command=tuple(command),
        workspace=workspace_of(arguments.workspace, reach.over_ssh),
        part_config=arguments.part_config,
        num_parts=None,
        envs=dict(arguments.extra_envs),
        num_omp_threads=arguments.num_omp_threads,
        master_addr=hosts[0].name if reach.over_ssh else "127.0.0.1",
        master_port=arguments.master_port or 0,
        server_port=hosts[0].port or 0,
        interpreter=reach.interpreter,
        stop_s=arguments.stop_timeout,
    )
    return reach, spec


_OURS = "ROLE SERVER_RANK NUM_SERVERS NUM_TRAINERS NUM_WORKERS MASTER_ADDR MASTER_PORT PART_CONFIG PARTITION TOKEN_FILE"
_CONTRACT: Final = frozenset(f"GLT_{name}" for name in _OURS.split())


def _checked(reach: Reach, spec: JobSpec) -> tuple[JobSpec, list[str]]:
    """Asks all hosts what they have; returns the job with what was found, and what is in its way."""
    question: dict[str, Any] = {
        "do": "check",
        "workspace": spec.workspace,
        "script": spec.command[0],
        "part_config": spec.part_config,
        "envs": spec.envs,
        "versions": reach.over_ssh or reach.python is not None,
    }
    ports = [[spec.master_port, spec.server_port], *[[]] * (len(spec.hosts) - 1)]
    questions = [question | {"ports": each} for each in ports]
    answers, problems = ask_hosts(reach, spec.hosts, questions, deadlines.HOST_CHECK_S, Children())
    if problems := problems or _disagreements(spec, answers):
        return spec, problems
    master, server = answers[0]["ports"]
    return replace(spec, master_port=master, server_port=server, num_parts=answers[0].get("num_parts")), []


def _disagreements(spec: JobSpec, answers: list[dict[str, Any]]) -> list[str]:
    problems = []
    names = [host.name for host in spec.hosts]
    for what in ("glt", "torch"):
        found = {name: answer[what] for name, answer in zip(names, answers, strict=True) if what in answer}
        if what == "glt" and found:
            found = {"this host": glt.__version__} | found
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{version} on {host}" for host, version in found.items())
            problems.append(f"hosts have different versions of {what}: {shown}; install the same, or give --python")
    if spec.part_config is None:
        return problems
    runs = {name: answer["run_id"] for name, answer in zip(names, answers, strict=True)}
    if len(set(runs.values())) > 1:
        shown = ", ".join(f"{run} on {host}" for host, run in runs.items())
        return [*problems, f"--part-config {spec.part_config} is of different runs: {shown}; glt copy sends one to all"]
    if spec.num_servers == 0:
        return problems
    try:
        wanted = partitions_of_hosts(len(spec.hosts), spec.num_servers, answers[0]["num_parts"])
    except ValueError as error:
        return [*problems, f"--part-config {spec.part_config}: {error}"]
    for name, answer, parts in zip(names, answers, wanted, strict=True):
        if missing := sorted(set(parts) - set(answer["parts"])):
            problems.append(
                f"host {name}: {spec.part_config} lacks part{missing[0]}, which its servers load: glt copy "
                f"with the same hosts and --num-servers {spec.num_servers} sends it"
            )
    return problems
