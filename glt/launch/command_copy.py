"""The command ``glt copy``: each host of a job gets its partitions.

Exit status: 0 if everything is there and verified; 1 if a host could not be sent to; 2 for wrong flags; 3 if nothing
was sent, since a host is not reached or lacks something; 130 and 143 if it was stopped, and the same command goes on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from glt.errors import PartitionError
from glt.launch.copy import Copier, HostCopy
from glt.launch.hosts import add_host_arguments, add_reach_arguments, count, hosts_of, reach_of, spelled
from glt.launch.plan import partitions_of_hosts
from glt.partition.format import layout
from glt.partition.format.manifest import Manifest

__all__ = ["add_arguments", "run"]

_DONE, _FAILED, _NOTHING_SENT = 0, 1, 3  # 2 is argparse's

_DESCRIPTION = """\
Sends each host of a job its partitions, by rsync: the manifest, the books, and the partitions that its servers load,
and nothing else. What is there already is not sent again. Checksums are compared on the host, and the manifest comes
last: what is not whole does not load. Interrupted, the same command goes on where it was."""

_EPILOG = """\
exit status:
  0  everything is there, and verified
  1  a host could not be sent to, or what is there is not right; it is named
  2  a flag is wrong
  3  nothing was sent: a host is not reached, or lacks rsync or room; all that is missing is named

example:
  glt copy --ip-config ip_config.txt --part-config parts --workspace /data/job
  glt launch --ip-config ip_config.txt --part-config parts --workspace /data/job train.py"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags, what the command is and how it ends."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_host_arguments(parser, required=True)
    group = parser.add_argument_group("what is sent")
    group.add_argument(
        *spelled("part-config"),
        dest="part_config",
        required=True,
        metavar="P",
        help="partition directory here, or the part_config in it",
    )
    group.add_argument("--workspace", required=True, metavar="DIR", help="directory on the hosts, an absolute path")
    group.add_argument(
        *spelled("rel-data-path"),
        dest="rel_data_path",
        metavar="D",
        help="where in --workspace (default: the name of the directory here)",
    )
    group.add_argument(
        *spelled("script-folder"),
        dest="script_folder",
        metavar="F",
        help="directory of scripts, sent into --workspace under its own name",
    )
    group.add_argument(
        *spelled("num-servers"),
        dest="num_servers",
        type=count(1, 1024),
        metavar="N",
        help="servers that glt launch will start on each host (default: the fewest)",
    )
    group.add_argument("--replace", action="store_true", help="remove partitions of another run that are there")
    group.add_argument(
        *spelled("max-at-once"),
        dest="max_at_once",
        type=count(1, 1024),
        default=4,
        metavar="N",
        help="hosts that are sent to at the same time (default: 4)",
    )
    group.add_argument(
        *spelled("dry-run"),
        dest="dry_run",
        action="store_true",
        help="print what each host would get, and send nothing",
    )
    add_reach_arguments(parser)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Sends what is missing and returns the exit status."""
    try:
        copier, copies = _asked_for(arguments)
    except ValueError as error:
        parser.error(str(error))
    if arguments.dry_run:
        for copy in copies:
            shown = ", ".join(map(str, copy.parts))
            print(
                f"{copy.host.name}: partitions {shown}, {len(copier.files_of(copy))} files, "
                f"{copier.num_bytes_of(copy)} bytes"
            )
        return _DONE
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        problems = copier.run(copies)
    except KeyboardInterrupt as error:
        _say("stopped; the same command goes on from here")
        return 128 + (error.args[0] if error.args else signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    for problem in problems:
        _say(problem)
    if not problems:
        return _DONE
    if not copier.has_sent:
        _say("nothing was sent")
        return _NOTHING_SENT
    return _FAILED


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def _say(text: str) -> None:
    print(f"glt copy: {text}", file=sys.stderr, flush=True)


def _asked_for(arguments: argparse.Namespace) -> tuple[Copier, list[HostCopy]]:
    hosts, reach = hosts_of(arguments), reach_of(arguments)
    if shutil.which("rsync") is None:
        raise ValueError("there is no rsync here: install it")
    given = Path(os.path.abspath(os.path.expanduser(arguments.part_config)))
    root = given if given.is_dir() else given.parent
    if not given.exists():
        raise ValueError(f"--part-config {arguments.part_config}: there is no such file or directory")
    try:
        manifest = Manifest.read(root)
    except PartitionError as error:
        raise ValueError(f"--part-config {arguments.part_config}: {error}") from error
    if not Path(arguments.workspace).is_absolute():
        raise ValueError(f"--workspace {arguments.workspace}: expected an absolute path, the same on all hosts")
    relative = arguments.rel_data_path or root.name
    if Path(relative).is_absolute() or ".." in Path(relative).parts:
        raise ValueError(f"--rel-data-path {relative}: expected a path inside --workspace")
    scripts = None
    if arguments.script_folder is not None:
        folder = Path(os.path.abspath(os.path.expanduser(arguments.script_folder)))
        if not folder.is_dir():
            raise ValueError(f"--script-folder {arguments.script_folder}: there is no such directory")
        scripts = (str(folder), str(Path(arguments.workspace) / folder.name))
    num_servers = arguments.num_servers or -(-manifest.num_parts // len(hosts))
    parts = partitions_of_hosts(len(hosts), num_servers, manifest.num_parts)
    copies = [HostCopy(host, tuple(own)) for host, own in zip(hosts, parts, strict=True)]
    copier = Copier(
        reach,
        root,
        manifest,
        str(Path(arguments.workspace) / relative),
        extra=[] if given.is_dir() or given.name == layout.MANIFEST else [given.name],
        script_folder=scripts,
        replace=arguments.replace,
        max_at_once=arguments.max_at_once,
        say=_say,
    )
    return copier, copies
