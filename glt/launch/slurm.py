"""The command ``glt slurm``: the batch script of a job."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Final

from glt.distributed.slurm import FIRST_PORT, NUM_PORTS
from glt.launch.hosts import add_flag, count, variable

_DESCRIPTION: Final = """\
Writes the batch script of a job for SLURM: plain bash to read, change and keep. Processes run the script, which calls
glt.distributed.initialize(), or, without servers, glt.distributed.init_worker_group(): both take rank and addresses
from SLURM. All nodes see the folder in which sbatch is called."""

_EPILOG: Final = """\
examples:
  two nodes with four trainers each; the first trainer of each node also serves:
    glt slurm --nodes 2 --num-trainers 4 --part-config parts -o job.sbatch train.py --lr 0.01
    sbatch job.sbatch
  the same with a server of its own on each node, which has four sampling processes:
    glt slurm --nodes 2 --num-trainers 4 --num-servers 1 --num-workers 4 --part-config parts train.py | sbatch"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    group = parser.add_argument_group("what is asked of SLURM")
    add_flag(group, "nodes", "nodes (default: 1)", type=count(1, 1 << 16), default=1, metavar="N")
    add_flag(group, "cpus-per-task", "CPUs of each process (default: SLURM's)", type=count(1, 4096), metavar="N")
    add_flag(group, "gpus-per-node", "GPUs of each node", type=count(1, 1024), metavar="N")
    add_flag(group, "time", "limit, as sbatch takes it, such as 2:00:00", metavar="T")
    add_flag(group, "partition", "partition of the cluster", metavar="NAME")
    add_flag(group, "job-name", "name of the job (default: that of the script)", metavar="NAME")
    sbatch = "another option of sbatch, such as account=team or requeue; may be repeated"
    add_flag(group, "sbatch-option", sbatch, action="append", default=[], metavar="K[=V]")

    group = parser.add_argument_group("the job")
    processes = count(1, 1024)
    add_flag(group, "num-trainers", "trainers on each node (default: 1)", type=processes, default=1, metavar="N")
    servers = "servers on each node (default: 0: the first trainer of each node also serves)"
    add_flag(group, "num-servers", servers, type=count(0, 1024), default=0, metavar="N")
    workers = "sampling processes of each server (default: 0)"
    add_flag(group, "num-workers", workers, type=count(0, 1024), default=0, metavar="K")
    add_flag(group, "part-config", "partition directory, or its part_config", metavar="P")
    envs = "environment variable of all processes; may be repeated"
    add_flag(group, "extra-envs", envs, action="append", type=variable, default=[], metavar="A=B")
    add_flag(group, "python", "interpreter on the nodes (default: the path of this one)", metavar="PATH")

    output = "file to write, which must not exist (default: stdout)"
    parser.add_argument("-o", "--output", help=output, metavar="FILE")
    parser.add_argument("script", help="the script, relative to the folder in which sbatch is called")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments, as they are; ours come first")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    try:
        text = batch_script(arguments)
    except ValueError as error:
        parser.error(str(error))
    if arguments.output is None:
        sys.stdout.write(text)
        return 0
    try:
        with Path(arguments.output).open("x") as file:
            file.write(text)
    except FileExistsError:
        parser.error(f"{arguments.output} exists: name another file, or remove it")
    except OSError as error:
        parser.error(f"{arguments.output} cannot be written: {error.strerror}")
    return 0


def batch_script(arguments: argparse.Namespace) -> str:
    """Returns the file; ValueError if a flag makes no sense."""
    for flag in ("script", "part_config", "python", "time", "partition", "job_name", "output"):
        if getattr(arguments, flag) == "":  # of a shell's variable that is not set, as a rule
            raise ValueError(f"{flag if flag == 'script' else '--' + flag.replace('_', '-')} is empty")
    if arguments.num_servers and not arguments.part_config:
        raise ValueError("--num-servers without --part-config: a server needs to know which partitions it serves")
    lines = [
        "#!/bin/bash",
        f"# Written by: {shlex.join(['glt', *sys.argv[1:]])}",
        *_options(arguments),
        "",
        *_start(arguments),
    ]
    lines += _two_steps(arguments) if arguments.num_servers else _one_step(arguments)
    extra = _exports(arguments)
    for name, value in arguments.extra_envs:
        if any(re.match(rf"(export (.* )?)?{name}=", line) for line in lines if line not in extra):
            raise ValueError(f"--extra-envs {name}={value}: the script itself sets {name}; leave it out")
    text = "\n".join(lines) + "\n"
    if any(line.startswith("#SBATCH") and not line.isprintable() for line in lines):
        raise ValueError("an option of sbatch has more than one line")
    return text


def _options(arguments: argparse.Namespace) -> list[str]:
    options = {
        "job-name": arguments.job_name or Path(arguments.script).stem,
        "nodes": arguments.nodes,
        "ntasks-per-node": arguments.num_trainers + arguments.num_servers,
        "cpus-per-task": arguments.cpus_per_task,
        "gpus-per-node": arguments.gpus_per_node,
        "time": arguments.time,
        "partition": arguments.partition,
    }
    for each in arguments.sbatch_option:
        name, equals, value = each.partition("=")
        if not name.replace("-", "").isalnum():
            raise ValueError(f"--sbatch-option {each}: expected NAME=VALUE or NAME, such as account=team or requeue")
        if not equals and name.lstrip("-") in options:
            raise ValueError(f"--sbatch-option {each}: it needs a value, and glt slurm has a flag for it")
        options[name.lstrip("-")] = value if equals else True
    given = {name: value for name, value in options.items() if value is not None}
    return [
        f"#SBATCH --{name}" + ("" if value is True else f"={shlex.quote(str(value))}") for name, value in given.items()
    ]


def _start(arguments: argparse.Namespace) -> list[str]:
    lines = [
        "set -euo pipefail",
        'cd "$SLURM_SUBMIT_DIR"',
        "",
        "# Processes get the environment in which sbatch was called.",
        "export PYTHONUNBUFFERED=1",
    ]
    if arguments.cpus_per_task is not None:
        lines.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # srun does not take it from sbatch since 22.05")
    lines += _exports(arguments)
    if arguments.part_config is not None:
        given = shlex.quote(arguments.part_config)
        is_whole = os.path.isabs(arguments.part_config) or "://" in arguments.part_config
        lines.append(f"export GLT_PART_CONFIG={given}" if is_whole else f'export GLT_PART_CONFIG="$PWD"/{given}')
    if arguments.num_workers:
        lines.append(f"export GLT_NUM_WORKERS={arguments.num_workers}")
    python = shlex.quote(arguments.python or sys.executable)
    return [
        *lines,
        "",
        "# By this token the processes of the job know each other. It is removed when the job ends.",
        'export GLT_TOKEN_FILE="$PWD/glt-$SLURM_JOB_ID.token"',
        "trap 'rm -f \"$GLT_TOKEN_FILE\"' EXIT",
        f'{python} -m glt token "$GLT_TOKEN_FILE" > /dev/null',
        "",
    ]


def _exports(arguments: argparse.Namespace) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in arguments.extra_envs]


def _command(arguments: argparse.Namespace) -> str:
    return shlex.join([arguments.python or sys.executable, arguments.script, *arguments.args])


def _one_step(arguments: argparse.Namespace) -> list[str]:
    return [
        "# Each task is a trainer. The first that fails ends the job; srun names it, its node and how it ended.",
        f"srun --kill-on-bad-exit=1 --label {_command(arguments)}",
    ]


def _two_steps(arguments: argparse.Namespace) -> list[str]:
    servers, trainers = arguments.num_servers, arguments.num_trainers
    steps = []
    for role, number in (("server", servers), ("trainer", trainers)):
        tasks = "$SLURM_NNODES" if number == 1 else f"$((SLURM_NNODES * {number}))"
        steps += [
            f"GLT_ROLE={role} srun --ntasks={tasks} --ntasks-per-node={number} --overlap \\",
            f"    --kill-on-bad-exit=1 --label {_command(arguments)} \\",
            f'    || {{ status=$?; echo "a {role} failed" >&2; exit $status; }} &',
        ]
    return [
        "# Server 0 runs on the first node, at a port of this job's own.",
        f"export GLT_NUM_SERVERS=$((SLURM_NNODES * {servers})) GLT_NUM_TRAINERS=$((SLURM_NNODES * {trainers}))",
        "export GLT_MASTER_ADDR=$SLURMD_NODENAME",
        f"export GLT_MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID * 2 % {NUM_PORTS} + 1))",
        "",
        "# The first task that fails ends its step; srun names it, its node and how it ended.",
        *steps,
        "wait -n && wait -n  # the first step that fails ends the job, and SLURM the other one",
    ]
