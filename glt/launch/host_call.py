"""One question to a program on each host, asked of all at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from glt.launch.children import Children, Stopped
from glt.launch.hosts import Host
from glt.launch.reach import Reach

_MAX_AT_ONCE = 32
_SSH_FAILED, _NOT_FOUND = 255, 127


@dataclass(frozen=True)
class Answer:
    """What a host answered, or why it did not.

    Attributes:
        host: Who.
        told: Its answer; None if there is none.
        problem: Why not; empty if there is one.
    """

    host: Host
    told: Any
    problem: str = ""


def ask_host(
    reach: Reach, host: Host, module: str, question: Any, timeout_s: float, children: Children | None = None
) -> Answer:
    """Runs a module of this package on a host, which reads JSON and writes JSON, and returns its answer."""
    command, begin = reach.run_program(host, module)
    try:
        with (children or Children()).start(command) as process:
            out, err = process.communicate(begin + json.dumps(question).encode(), timeout_s)
            code = process.returncode
    except subprocess.TimeoutExpired:
        return Answer(host, None, f"no answer within {timeout_s:g} s: is it overloaded, or its file system gone?")
    except Stopped:
        return Answer(host, None, "it was stopped")
    except OSError as error:
        return Answer(host, None, f"{command[0]} cannot be started: {error}")
    if code == 0:
        try:  # the last line: what the shell there prints at its start comes before
            return Answer(host, json.loads(out.strip().splitlines()[-1]))
        except (ValueError, IndexError):
            return Answer(host, None, f"its answer makes no sense: {out[-200:]!r}")
    return Answer(host, None, why_failed(reach, code, err.decode(errors="replace")))


def why_failed(reach: Reach, code: int, said: str) -> str:
    """Why a program on a host failed, and what to do, from its exit code and what it wrote to stderr."""
    last = " ".join(said.strip().splitlines()[-1:]) or "it said nothing"
    if reach.over_ssh and code == _SSH_FAILED:
        return (
            f"ssh does not reach it ({last}): try {' '.join(reach.shell()[:1])} by hand; it must not ask for anything"
        )
    if code == _NOT_FOUND:
        return f"there is no {reach.interpreter} there ({last}): give --python"
    return f"its program failed with exit code {code} ({last})"


def ask_hosts(
    reach: Reach,
    hosts: Sequence[Host],
    module: str,
    questions: Sequence[Any],
    timeout_s: float,
    children: Children | None = None,
) -> list[Answer]:
    """Asks each host its question, all at once."""
    with ThreadPoolExecutor(min(len(hosts), _MAX_AT_ONCE)) as pool:
        pairs = zip(hosts, questions, strict=True)
        asked = [pool.submit(ask_host, reach, host, module, each, timeout_s, children) for host, each in pairs]
        return [each.result() for each in asked]
