"""rsync to a host, over the same ssh: what was interrupted goes on where it was, and no half file has a file's name."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence

from glt.launch.children import Children, Stopped
from glt.launch.hosts import Host
from glt.launch.reach import Reach

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
