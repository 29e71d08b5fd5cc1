"""The command ``glt``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from itertools import pairwise
from types import FrameType
from typing import Any, Final, NoReturn

import glt
from glt.demo import Options
from glt.errors import PartitionError

_HANDLED: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def early_stop(flags: Sequence[str]) -> Iterator[None]:
    """SIGTERM and SIGINT end this process with status 0, as a server that is not ready does, and say so on stderr, with
    ``--log-format json`` among the flags as an object. For the seconds in which ``glt serve`` is imported; needs the
    standard library only."""
    is_json = "--log-format=json" in flags or any(pair == ("--log-format", "json") for pair in pairwise(flags))

    def stop(number: int, frame: FrameType | None) -> None:
        text = f"stopped by {signal.Signals(number).name} before it was ready"
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said: dict[str, Any] = {"time": time, "level": "info", "logger": __name__, "message": text}
        said |= {"server": None, "worker": None, "pid": os.getpid()}
        line = json.dumps(said) if is_json else f"{time} INFO pid {os.getpid()}: {__name__}: {text}"
        os.write(2, f"{line}\n".encode())
        os._exit(0)  # an exception might be caught by what is being imported

    before = {each: signal.signal(each, stop) for each in _HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Commands with a module of their own: it has add_arguments(parser) and run(parser, arguments), the exit status.
_COMMANDS: Final = {
    "demo": ("glt.demo", "partition a graph, sample with workers, train with DDP"),
    "describe": ("glt.tables.command_describe", "guess what tables are, as a description for glt build"),
    "build": ("glt.tables.command", "build a graph with dense ids from tables"),
    "inspect": ("glt.partition.inspect", "report what a partition directory holds, and verify it"),
    "import": ("glt.partition.command_import", "take over the partition directory of another library"),
    "forecast": ("glt.forecast.command", "how many batches a cluster makes, and what limits it"),
    "launch": ("glt.launch.command", "run a script as the servers and trainers of a job, on one host or more"),
    "copy": ("glt.launch.copy", "send each host of a job its partitions"),
    "slurm": ("glt.launch.slurm", "write the batch script of a job for SLURM"),
    "partition": ("glt.partition.command", "partition a graph on disk"),
    "token": ("glt.distributed.wire.command", "make the token by which the processes of a job know each other"),
    "serve": ("glt.distributed.server.command", "run a server that samples a partition for clients"),
    "top": ("glt.distributed.endpoint.top", "show servers and their loaders, live, in the terminal"),
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a flag in one line: the usage of a command with many flags would hide it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")


def make_parser(commands: Container[str] = tuple(_COMMANDS)) -> Parser:
    """Returns the parser of ``glt``, with the flags of ``commands``; other commands have but their names, so that
    neither their modules nor torch need be imported."""
    parser = Parser(prog="glt", description="Decoupled graph sampling for PyTorch Geometric.")
    parser.add_argument("--version", action="version", version=f"glt {glt.__version__}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (module, help_) in _COMMANDS.items():
        command = parsers.add_parser(name, help=help_)
        if name in commands:
            chosen = importlib.import_module(module)
            chosen.add_arguments(command)
            command.set_defaults(parser=command, run=run_demo if name == "demo" else chosen.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``glt`` with ``argv`` (the process's own arguments if None) and returns its exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    with early_stop(given) if given[:1] == ["serve"] else nullcontext():
        arguments = vars(make_parser(given[:1]).parse_args(given))
        parser, run_command = arguments.pop("parser"), arguments.pop("run")
        del arguments["command"]
        try:
            status: int = run_command(parser, argparse.Namespace(**arguments))
        except KeyboardInterrupt:
            print(f"{parser.prog}: stopped", file=sys.stderr)
            return 128 + signal.SIGINT
        return status


def run_demo(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Runs the demo; a bad flag, data set or partition_dir becomes the parser's error."""
    try:
        options = Options(**vars(arguments))
    except ValueError as error:
        parser.error(str(error))
    # torch and torch_geometric take seconds to import; a typo should not.
    from glt.demo.job import load_task, run

    try:
        task = load_task(options)
    except (OSError, ImportError, ValueError) as error:
        parser.error(str(error))
    try:
        run(task, options)
    except PartitionError as error:  # what a trainer raises arrives as another type, with its traceback
        parser.error(str(error))
    return 0
