"""The command ``glt launch``: a job's servers and trainers, on this host or on several."""

from __future__ import annotations

import argparse
import resource
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import glt
from glt.launch.console import Console
from glt.launch.host_call import Answer, ask_hosts
from glt.launch.host_options import hosts_of, reach_of, workspace_of
from glt.launch.hosts import Host
from glt.launch.job import Job
from glt.launch.job_plan import JobSpec, partitions_of_hosts, plan_job, shown_plan
from glt.launch.launch_options import add_arguments, command_of
from glt.launch.reach import Reach

__all__ = ["add_arguments", "run"]

_NOT_STARTED: Final = 3  # 2 is argparse's
_FILES: Final = 128  # that are open besides
_FILES_OF_HOST: Final = 3  # the pipes of its ssh
_CHECK_S: Final = 90.0  # beyond the time that connections have


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Runs the job and returns its exit status."""
    console = Console()
    try:
        reach, hosts, spec = _asked_for(arguments)
        _allow_files(_FILES + _FILES_OF_HOST * len(hosts))
    except ValueError as error:
        parser.error(str(error))
    if arguments.dry_run:
        if spec.part_config is not None and not reach.over_ssh:
            spec, problems = _checked(reach, hosts, spec, arguments.master_port)
            if problems:
                return _refuse(console, problems)
        print("\n".join(shown_plan(hosts, plan_job(spec))))
        if spec.master_port == 0:
            console.say("ports of 0 are found when the job starts")
        return 0
    spec, problems = _checked(reach, hosts, spec, arguments.master_port)
    if problems:
        return _refuse(console, problems)
    job = Job(
        reach, list(zip(hosts, plan_job(spec), strict=True)), stop_s=spec.stop_s, drain_s=arguments.drain_timeout,
        timeout_s=arguments.timeout, console=console,
    )  # fmt: skip
    return job.run()


def _allow_files(wanted: int) -> None:
    """Raises this process's own limit of open files where many hosts need more.

    Raises:
        ValueError: If that is not allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(f"so many hosts need {wanted} open files, and ulimit -n allows {hard}: raise it")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refuse(console: Console, problems: Sequence[str]) -> int:
    for each in problems:
        console.say(each)
    console.say("nothing was started")
    return _NOT_STARTED


def _asked_for(arguments: argparse.Namespace) -> tuple[Reach, list[Host], JobSpec]:
    """What the flags ask for; ports are 0 where they are to be found."""
    for flag in ("workspace", "python", "part_config", "script"):
        if getattr(arguments, flag) == "":  # of a shell's variable that is not set, as a rule
            name = flag if flag == "script" else f"--{flag.replace('_', '-')}"
            raise ValueError(f"{name} is empty: expected a path")
    hosts, reach = hosts_of(arguments), reach_of(arguments)
    command, python = command_of(arguments.script, arguments.args)
    if python is not None:
        if arguments.python not in (None, python):
            raise ValueError(f"--python {arguments.python}, and the command names {python}: name one of them")
        reach = replace(reach, python=python)
    if arguments.num_servers + arguments.num_trainers == 0:
        raise ValueError("--num-servers 0 and --num-trainers 0: nothing would run")
    ours = sorted({name for name, _ in arguments.extra_envs if name in _CONTRACT})
    if ours:
        raise ValueError(f"--extra-envs {ours[0]}: it is glt launch that sets it; see docs/launch.md")
    spec = JobSpec(
        hosts=tuple(hosts), num_servers=arguments.num_servers, num_trainers=arguments.num_trainers,
        num_workers=arguments.num_workers, command=tuple(command),
        workspace=workspace_of(arguments.workspace, reach.over_ssh), part_config=arguments.part_config, num_parts=None,
        envs=dict(arguments.extra_envs), num_omp_threads=arguments.num_omp_threads,
        master_addr=hosts[0].name if reach.over_ssh else "127.0.0.1", master_port=arguments.master_port or 0,
        server_port=hosts[0].port or 0, interpreter=reach.interpreter, stop_s=arguments.stop_timeout,
    )  # fmt: skip
    return reach, hosts, spec


_CONTRACT: Final = frozenset(
    {"GLT_ROLE", "GLT_SERVER_RANK", "GLT_NUM_SERVERS", "GLT_NUM_TRAINERS", "GLT_NUM_WORKERS", "GLT_MASTER_ADDR",
     "GLT_MASTER_PORT", "GLT_PART_CONFIG", "GLT_PARTITION"}
)  # fmt: skip


def _checked(reach: Reach, hosts: Sequence[Host], spec: JobSpec, master_port: int | None) -> tuple[JobSpec, list[str]]:
    """Asks all hosts what they have; returns the job with what was found, and what is in its way."""
    question: dict[str, Any] = {
        "workspace": spec.workspace, "script": spec.command[0], "part_config": spec.part_config, "ports": [],
        "envs": dict(spec.envs), "versions": reach.over_ssh or reach.python is not None,
    }  # fmt: skip
    questions = [question | {"ports": [spec.master_port, spec.server_port]}, *[question] * (len(hosts) - 1)]
    answers = ask_hosts(reach, hosts, "host_check", questions, reach.connect_timeout_s + _CHECK_S)
    problems = [f"host {each.host.name}: {each.problem}" for each in answers if each.told is None]
    told = [each for each in answers if each.told is not None]
    problems += [f"host {each.host.name}: {problem}" for each in told for problem in each.told["problems"]]
    if not problems:
        problems = _disagreements(spec, told)
    if problems:
        return spec, problems
    master, server = answers[0].told["ports"]
    return replace(spec, master_port=master, server_port=server, num_parts=answers[0].told.get("num_parts")), []


def _disagreements(spec: JobSpec, answers: Sequence[Answer]) -> list[str]:
    """What is wrong although each host by itself is right."""
    problems = []
    for what in ("glt", "torch"):
        found = {each.host.name: each.told[what] for each in answers if what in each.told}
        if what == "glt" and found:
            found = {"this host": glt.__version__} | found
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{version} on {host}" for host, version in found.items())
            problems.append(f"hosts have different versions of {what}: {shown}; install the same, or give --python")
    if spec.part_config is None:
        return problems
    runs = {each.host.name: each.told["run_id"] for each in answers}
    if len(set(runs.values())) > 1:
        shown = ", ".join(f"{run} on {host}" for host, run in runs.items())
        return [*problems, f"--part-config {spec.part_config} is of different runs: {shown}; glt copy sends one to all"]
    if spec.num_servers == 0:
        return problems
    try:
        wanted = partitions_of_hosts(len(spec.hosts), spec.num_servers, answers[0].told["num_parts"])
    except ValueError as error:
        return [*problems, f"--part-config {spec.part_config}: {error}"]
    for each, parts in zip(answers, wanted, strict=True):
        if missing := sorted(set(parts) - set(each.told["parts"])):
            problems.append(
                f"host {each.host.name}: {spec.part_config} lacks part{missing[0]}, which its servers load: glt copy "
                f"with the same hosts and --num-servers {spec.num_servers} sends it"
            )
    return problems
