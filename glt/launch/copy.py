"""Sends hosts their partitions: all that a host needs and nothing else, verified there, the manifest last."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from glt._checks import format_size
from glt.distributed.job.hosts import Host
from glt.launch.hosts import Children, Reach, Stopped
from glt.launch.link import Answer, ask_host, ask_hosts
from glt.partition.format import layout
from glt.partition.format.manifest import Manifest

# rsync to a host, over the same ssh: what was interrupted goes on where it was, and no half file has a file's name.


_PERCENT = re.compile(rb"(\d+)%")


class RsyncError(Exception):
    """rsync failed; the text says why."""


class Rsync:
    """Runs rsync, for several hosts at once.

    Args:
        reach: How hosts are reached.
        children: What it runs is one of.
    """

    def __init__(self, reach: Reach, children: Children) -> None:
        self._reach, self._children = reach, children

    def send(
        self,
        host: Host,
        source: str,
        target: str,
        paths: Sequence[str] | None,
        *,
        by_checksum: bool = False,
        progress: Callable[[int], None] = lambda percent: None,
    ) -> None:
        """Sends files of a directory into one on a host.

        Args:
            host: Where to.
            source, target: The directories.
            paths: Files, relative to them; None: the whole tree, links as links.
            by_checksum: Whether to compare contents; else files of the same size and time are taken for the same.
            progress: Called with the percentage of bytes that are there.

        Raises:
            RsyncError: If it fails; with what it said.
        """
        name = f"[{host.name}]" if ":" in host.name else host.name
        where = f"{name}:{target}/" if self._reach.over_ssh else f"{target}/"
        command = ["rsync", "--times", "--partial-dir=.rsync-partial", "--info=progress2", "--protect-args",
                   "--rsh", shlex.join(self._reach.shell()), *(["--checksum"] if by_checksum else []),
                   *(["--recursive", "--links", "--perms"] if paths is None else ["--files-from=-", "--from0"]),
                   f"{source}/", where]  # fmt: skip
        try:
            with self._children.start(command) as process:
                code, said = _run(process, b"".join(os.fsencode(path) + b"\0" for path in paths or ()), progress)
        except Stopped as error:
            raise RsyncError("it was stopped") from error
        if code:
            raise RsyncError(f"rsync ended with code {code}: {said or 'it said nothing'}")


def _run(process: subprocess.Popen[bytes], names: bytes, progress: Callable[[int], None]) -> tuple[int, str]:
    """Gives rsync its list, and returns its exit code and what it said on stderr."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    errors: list[bytes] = []
    listener = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    listener.start()
    try:
        process.stdin.write(names)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it says why on stderr
    while data := os.read(process.stdout.fileno(), 1 << 12):
        if found := _PERCENT.findall(data):
            progress(int(found[-1]))
    code = process.wait()
    listener.join(10)
    return code, " ".join(b" ".join(errors).decode(errors="replace").split())


_ASK_S: Final = 60.0
_VERIFY_BYTES_PER_S: Final = 5e6  # of the slowest disk that is waited for
_SAY_S: Final = 5.0  # between two words of progress of a host


@dataclass(frozen=True)
class HostCopy:
    """What a host gets.

    Attributes:
        host: Which.
        parts: Its partitions, ascending.
    """

    host: Host
    parts: tuple[int, ...]


class Copier:
    """Sends a partition directory to hosts.

    Args:
        reach: How they are reached.
        root: The directory here.
        manifest: Its manifest.
        target: The directory there.
        extra: More files of ``root``, sent last, such as a part_config.
        script_folder: A directory that is sent too, and to where; None: none.
        replace: Whether another run that is there is removed.
        max_at_once: Hosts that are sent to at the same time.
        say: Told what happens.
    """

    def __init__(
        self,
        reach: Reach,
        root: Path,
        manifest: Manifest,
        target: str,
        *,
        extra: Sequence[str],
        script_folder: tuple[str, str] | None,
        replace: bool,
        max_at_once: int,
        say: Callable[[str], None],
    ) -> None:
        self._reach, self._root, self._manifest, self._target = reach, root, manifest, target
        self._extra, self._script_folder, self._replace = tuple(extra), script_folder, replace
        self._max_at_once, self._say = max_at_once, say
        self._children = Children()
        self._rsync = Rsync(reach, self._children)
        self._lock = threading.Lock()
        self.has_sent = False

    def run(self, copies: Sequence[HostCopy]) -> list[str]:
        """Sends everything; returns what went wrong, by host, and nothing if all is there and verified."""
        problems = self._prepare(copies)
        if problems:
            return problems
        self.has_sent = True
        with ThreadPoolExecutor(self._max_at_once) as pool:
            try:
                return [problem for found in pool.map(self._send_all, copies) for problem in found]
            finally:
                self._children.stop()  # for those that a Ctrl-C left running

    def files_of(self, copy: HostCopy) -> list[str]:
        """The files of the manifest that a host gets."""
        return [path for path in self._manifest.files if layout.part_of(path) in (None, *copy.parts)]

    def num_bytes_of(self, copy: HostCopy) -> int:
        """Their size."""
        return sum(self._manifest.files[path].num_bytes for path in self.files_of(copy))

    def _prepare(self, copies: Sequence[HostCopy]) -> list[str]:
        sizes = [{path: self._manifest.files[path].num_bytes for path in self.files_of(copy)} for copy in copies]
        questions = [
            {"do": "prepare", "root": self._target, "files": files, "run_id": self._manifest.run_id,
             "replace": self._replace} for files in sizes
        ]  # fmt: skip
        timeout_s = self._reach.connect_timeout_s + _ASK_S
        answers = ask_hosts(
            self._reach, [copy.host for copy in copies], "host_files", questions, timeout_s, self._children
        )
        problems = []
        for copy, answer in zip(copies, answers, strict=True):
            problems += [f"host {copy.host.name}: {each}" for each in _problems(answer)]
            if answer.told is not None:
                missing = format_size(answer.told["num_missing_bytes"])
                self._tell(copy, f"{missing} of {format_size(self.num_bytes_of(copy))} are to be sent")
        return problems

    def _send_all(self, copy: HostCopy) -> list[str]:
        paths = self.files_of(copy)
        try:
            self._send(copy, paths)
            bad = self._verify(copy, paths)
            if bad:  # of the right size and time, but not what they should be
                self._tell(copy, f"{len(bad)} files are damaged there, and sent again")
                self._send(copy, sorted(bad), by_checksum=True)
                bad = self._verify(copy, sorted(bad))
            if bad:
                path, why = min(bad.items())
                raise RsyncError(f"{self._target}/{path} {why}, even sent again; is it damaged in {self._root} too?")
            if self._script_folder is not None:
                self._rsync.send(copy.host, *self._script_folder, None)
            self._rsync.send(copy.host, str(self._root), self._target, [*self._extra, layout.MANIFEST])
        except RsyncError as error:
            return [f"host {copy.host.name}: {error}; the same command goes on from here"]
        shown = ", ".join(map(str, copy.parts)) or "none"
        self._tell(copy, f"partitions {shown} are whole in {self._target}")
        return []

    def _send(self, copy: HostCopy, paths: Sequence[str], by_checksum: bool = False) -> None:
        total, said_at, said = format_size(self.num_bytes_of(copy)), time.monotonic(), 0

        def progress(percent: int) -> None:
            nonlocal said_at, said
            if percent > said and time.monotonic() - said_at > _SAY_S:
                said_at, said = time.monotonic(), percent
                self._tell(copy, f"{percent}% of {total}")

        self._rsync.send(copy.host, str(self._root), self._target, paths, by_checksum=by_checksum, progress=progress)

    def _verify(self, copy: HostCopy, paths: Sequence[str]) -> dict[str, str]:
        entries = {path: self._manifest.files[path] for path in paths}
        question = {
            "do": "verify", "root": self._target, "block_bytes": self._manifest.checksum_block_bytes,
            "files": {path: [entry.num_bytes, entry.checksum] for path, entry in entries.items()},
        }  # fmt: skip
        num_bytes = sum(entry.num_bytes for entry in entries.values())
        timeout_s = self._reach.connect_timeout_s + _ASK_S + num_bytes / _VERIFY_BYTES_PER_S
        answer = ask_host(self._reach, copy.host, "host_files", question, timeout_s, self._children)
        if answer.told is None:
            raise RsyncError(f"cannot be verified: {answer.problem}")
        found: dict[str, str] = answer.told["bad"]
        return found

    def _tell(self, copy: HostCopy, text: str) -> None:
        with self._lock:
            self._say(f"{copy.host.name}: {text}")


def _problems(answer: Answer) -> list[str]:
    return [answer.problem] if answer.told is None else list(answer.told["problems"])
