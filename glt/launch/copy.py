"""The command ``glt copy``: each host of a job gets its partitions, and nothing else, verified there."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from glt import _deadlines as deadlines
from glt._checks import format_size
from glt.distributed.job.hosts import Host
from glt.errors import PartitionError
from glt.launch.hosts import (
    Children,
    Reach,
    add_flag,
    add_host_arguments,
    add_reach_arguments,
    count,
    hosts_of,
    partitions_of_hosts,
    reach_of,
)
from glt.launch.job import ask_host, ask_hosts
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
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_host_arguments(parser, required=True)
    group = parser.add_argument_group("what is sent")
    add_flag(group, "part-config", "partition directory here, or the part_config in it", required=True, metavar="P")
    add_flag(group, "workspace", "directory on the hosts, an absolute path", required=True, metavar="DIR")
    inside = "where in --workspace (default: the name of the directory here)"
    add_flag(group, "rel-data-path", inside, metavar="D")
    add_flag(group, "script-folder", "directory of scripts, sent into --workspace under its own name", metavar="F")
    servers = "servers that glt launch will start on each host (default: the fewest)"
    add_flag(group, "num-servers", servers, type=count(1, 1024), metavar="N")
    add_flag(group, "replace", "remove partitions of another run that are there", action="store_true")
    at_once = "hosts that are sent to at the same time (default: 4)"
    add_flag(group, "max-at-once", at_once, type=count(1, 1024), default=4, metavar="N")
    add_flag(group, "dry-run", "print what each host would get, and send nothing", action="store_true")
    add_reach_arguments(parser)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    try:
        copier, copies = _asked_for(arguments)
    except ValueError as error:
        parser.error(str(error))
    if arguments.dry_run:
        for copy in copies:
            shown = ", ".join(map(str, copy.parts))
            print(f"{copy.host.name}: partitions {shown}, {len(copy.sizes)} files, {copy.num_bytes} bytes")
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
    hosts = hosts_of(arguments)
    reach = reach_of(arguments, hosts, by_ssh_alone=True)
    if not arguments.dry_run and shutil.which("rsync") is None:
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
    copies = [HostCopy(host, own, _sizes(manifest, own)) for host, own in zip(hosts, parts, strict=True)]
    target = str(Path(arguments.workspace) / relative)
    extra = [] if given.is_dir() or given.name == layout.MANIFEST else [given.name]
    return Copier(reach, root, manifest, target, extra, scripts, arguments.replace, arguments.max_at_once), copies


def _sizes(manifest: Manifest, parts: list[int]) -> dict[str, int]:
    return {path: entry.num_bytes for path, entry in manifest.files.items() if layout.part_of(path) in (None, *parts)}


_PERCENT = re.compile(rb"(\d+)%")


class CopyError(Exception):
    """What a host was to be sent is not there, or not right; the text says why."""


def _run(process: subprocess.Popen[bytes], names: bytes, progress: Callable[[int], None]) -> tuple[int, str]:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    errors: list[bytes] = []
    listener = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    listener.start()
    with suppress(BrokenPipeError), process.stdin:  # it says why on stderr
        process.stdin.write(names)
    while data := os.read(process.stdout.fileno(), 1 << 12):
        if found := _PERCENT.findall(data):
            progress(int(found[-1]))
    code = process.wait()
    listener.join(10)
    return code, " ".join(b" ".join(errors).decode(errors="replace").split())


_VERIFY_BYTES_PER_S: Final = 5e6  # of the slowest disk that is waited for


@dataclass(frozen=True)
class HostCopy:
    """What a host gets: partitions, and the sizes of all files by their paths."""

    host: Host
    parts: list[int]
    sizes: dict[str, int]

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes.values())


@dataclass
class Copier:
    """Sends a partition directory to hosts, by rsync over ssh. What was interrupted goes on where it was.

    Attributes:
        root, target: The directory here, and there.
        extra: More files of ``root``, sent last, such as a part_config.
        script_folder: A directory that is sent too, and to where; None: none.
        replace: Whether another run that is there is removed.
        max_at_once: Hosts that are sent to at the same time.
    """

    reach: Reach
    root: Path
    manifest: Manifest
    target: str
    extra: Sequence[str]
    script_folder: tuple[str, str] | None
    replace: bool
    max_at_once: int

    def __post_init__(self) -> None:
        self._children = Children()
        self._lock = threading.Lock()
        self.has_sent = False

    def run(self, copies: Sequence[HostCopy]) -> list[str]:
        """Sends everything; returns what went wrong, by host, and nothing if all is there and verified."""
        problems = self._prepare(copies)
        if problems:
            return problems
        self.has_sent = True
        with ThreadPoolExecutor(self.max_at_once) as pool:
            try:
                return [problem for found in pool.map(self._send_all, copies) for problem in found]
            finally:
                self._children.stop()  # for those that a Ctrl-C left running

    def _prepare(self, copies: Sequence[HostCopy]) -> list[str]:
        asked = {"do": "prepare", "root": self.target, "run_id": self.manifest.run_id, "replace": self.replace}
        questions = [asked | {"files": copy.sizes} for copy in copies]
        hosts = [copy.host for copy in copies]
        answers, problems = ask_hosts(self.reach, hosts, questions, deadlines.HOST_S, self._children)
        for copy, answer in zip(copies, answers, strict=True):
            if "num_missing_bytes" in answer:
                missing = format_size(answer["num_missing_bytes"])
                self._tell(copy, f"{missing} of {format_size(copy.num_bytes)} are to be sent")
        return problems

    def _send_all(self, copy: HostCopy) -> list[str]:
        root, paths = str(self.root), list(copy.sizes)
        try:
            self._send(copy, root, self.target, paths)
            bad = self._verify(copy, paths)
            if bad:  # of the right size and time, but not what they should be
                self._tell(copy, f"{len(bad)} files are damaged there, and sent again")
                self._send(copy, root, self.target, sorted(bad), by_checksum=True)
                bad = self._verify(copy, sorted(bad))
            if bad:
                path, why = min(bad.items())
                raise CopyError(f"{self.target}/{path} {why}, even sent again; is it damaged in {self.root} too?")
            if self.script_folder is not None:
                self._send(copy, *self.script_folder, None)
            self._send(copy, root, self.target, [*self.extra, layout.MANIFEST])
        except CopyError as error:
            return [f"host {copy.host.name}: {error}; the same command goes on from here"]
        shown = ", ".join(map(str, copy.parts)) or "none"
        self._tell(copy, f"partitions {shown} are whole in {self.target}")
        return []

    def _send(
        self, copy: HostCopy, source: str, target: str, paths: Sequence[str] | None, by_checksum: bool = False
    ) -> None:
        """Sends files of the directory ``source`` into ``target`` on a host: ``paths`` relative to them, or None for
        the whole tree. ``by_checksum`` compares contents, else size and time."""
        name = f"[{copy.host.name}]" if ":" in copy.host.name else copy.host.name
        command = ["rsync", "--times", "--partial-dir=.rsync-partial", "--info=progress2", "--protect-args"]
        command += ["--rsh", shlex.join(self.reach.shell()), *(["--checksum"] if by_checksum else [])]
        command += ["--recursive", "--links", "--perms"] if paths is None else ["--files-from=-", "--from0"]
        total = format_size(copy.num_bytes) if source == str(self.root) else source
        said_at, said = time.monotonic(), 0

        def progress(percent: int) -> None:
            nonlocal said_at, said
            if percent > said and time.monotonic() - said_at > deadlines.PROGRESS_S:
                said_at, said = time.monotonic(), percent
                self._tell(copy, f"{percent}% of {total}")

        try:
            with self._children.start([*command, f"{source}/", f"{name}:{target}/"]) as process:
                code, text = _run(process, b"".join(os.fsencode(path) + b"\0" for path in paths or ()), progress)
        except InterruptedError as error:
            raise CopyError(str(error)) from error
        except OSError as error:
            raise CopyError(f"rsync cannot be started: {error}") from error
        if code:
            raise CopyError(f"rsync ended with code {code}: {text or 'it said nothing'}")

    def _verify(self, copy: HostCopy, paths: Sequence[str]) -> dict[str, str]:
        files = {path: (copy.sizes[path], self.manifest.files[path].checksum) for path in paths}
        block_bytes = self.manifest.checksum_block_bytes
        question = {"do": "verify", "root": self.target, "files": files, "block_bytes": block_bytes}
        work_s = deadlines.HOST_S + sum(size for size, _ in files.values()) / _VERIFY_BYTES_PER_S
        answer = ask_host(self.reach, copy.host, question, work_s, self._children)
        if "problems" in answer:
            raise CopyError(f"cannot be verified: {answer['problems'][0]}")
        found: dict[str, str] = answer["bad"]
        return found

    def _tell(self, copy: HostCopy, text: str) -> None:
        with self._lock:
            _say(f"{copy.host.name}: {text}")
