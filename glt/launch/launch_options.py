"""The flags of ``glt launch``."""

from __future__ import annotations

import argparse
import os
import re
import shlex

from glt.launch.host_options import (
    add_host_arguments,
    add_reach_arguments,
    count,
    seconds,
    spelled,
    variable,
)

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
  141  nobody reads its output, or there is no room for it

examples:
  two servers and four trainers on this host:
    glt launch --num-servers 2 --num-trainers 4 --part-config parts train.py --lr 0.01
  one server and two trainers on each host of a file:
    glt launch --ip-config ip_config.txt --workspace /data/job --num-trainers 2 --part-config parts train.py
  the same, as DGL's launch.py takes it:
    glt launch --ip_config ip_config.txt --workspace /data/job --num_trainers 2 --part_config parts "python3 train.py"

docs/launch.md has recipes for SLURM and Kubernetes, and the environment that processes are given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags, what the command is and how it ends."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_host_arguments(parser, required=False)

    group = parser.add_argument_group("the job")
    group.add_argument(*spelled("num-servers"), dest="num_servers", type=count(0, 1024), default=1, metavar="N",
                       help="servers on each host (default: 1); 0: none, and no roles")  # fmt: skip
    group.add_argument(*spelled("num-trainers"), "--num_clients", dest="num_trainers", type=count(0, 1024), default=1,
                       metavar="N", help="trainers on each host (default: 1)")  # fmt: skip
    group.add_argument(*spelled("num-workers"), *spelled("num-samplers"), dest="num_workers", type=count(0, 1024),
                       default=0, metavar="K", help="sampling processes of each server (default: 0)")  # fmt: skip
    group.add_argument(*spelled("num-omp-threads"), dest="num_omp_threads", type=count(1, 4096), metavar="N",
                       help="OMP_NUM_THREADS of trainers (default: as torchrun chooses)")  # fmt: skip
    group.add_argument(*spelled("part-config"), dest="part_config", metavar="P",
                       help="partition directory, or its part_config; in --workspace if relative")  # fmt: skip
    group.add_argument("--workspace", metavar="DIR",
                       help="where everything runs, the same path on all hosts (default: where you are)")  # fmt: skip
    group.add_argument(*spelled("extra-envs"), dest="extra_envs", action="append", type=variable, default=[],
                       metavar="A=B", help="environment variable of all processes; may be repeated")  # fmt: skip
    group.add_argument(*spelled("master-port"), dest="master_port", type=count(1, 65535), metavar="P",
                       help="port of torch.distributed on the first host (default: one that is free)")  # fmt: skip
    add_reach_arguments(parser)

    group = parser.add_argument_group("how it ends")
    group.add_argument("--timeout", type=seconds, metavar="S", help="seconds for the whole job (default: any time)")
    group.add_argument(*spelled("stop-timeout"), dest="stop_timeout", type=seconds, default=10.0, metavar="S",
                       help="seconds that processes have to end; then they are killed (default: 10)")  # fmt: skip
    group.add_argument(*spelled("drain-timeout"), dest="drain_timeout", type=seconds, default=60.0, metavar="S",
                       help="seconds that servers have after the last trainer (default: 60)")  # fmt: skip
    group.add_argument(*spelled("dry-run"), dest="dry_run", action="store_true",
                       help="print what would run where, and start nothing")  # fmt: skip

    parser.add_argument("script", help="the script, relative to --workspace; or the whole command, quoted")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments; they arrive as they are")


def command_of(script: str, args: list[str]) -> tuple[list[str], str | None]:
    """Returns the script with its arguments, and the interpreter that a quoted command names by its path.

    Raises:
        ValueError: If a quoted command is none that torchrun could start.
    """
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
