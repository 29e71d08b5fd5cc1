"""What ``glt launch`` asks of a host before it starts anything there, and the answer.

It runs on the host, where it is sent, so it needs the standard library only: one JSON object comes on stdin, and one
goes to stdout. Of the question: ``workspace``, ``script`` (relative to it, or absolute), ``part_config`` or null,
``ports`` (each a port, or 0 for one that is free), ``envs``, ``versions`` (whether to look for them). Of the answer:
``problems``, a list of texts; ``ports``; ``num_parts``, ``run_id`` and ``parts`` (those that are here) of the
part_config; ``glt`` and ``torch``, versions.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from typing import Any

_PROBE_S = 60.0
_PROBE = """\
import importlib.metadata, json, sys
sys.path[0] = sys.argv[1]
import glt
print(json.dumps({"glt": glt.__version__, "torch": importlib.metadata.version("torch")}))
"""


def check(asked: dict[str, Any]) -> dict[str, Any]:
    """Answers a question."""
    problems: list[str] = []
    answer: dict[str, Any] = {"problems": problems, "ports": []}
    workspace = asked["workspace"]
    if not os.path.isdir(workspace):
        problems.append(f"--workspace {workspace} is no directory there: make it, or share it")
        return answer
    script = os.path.join(workspace, asked["script"])
    if not os.path.isfile(script):
        problems.append(
            f"there is no file {script}: the script is looked for in --workspace; copy it with glt copy --script-folder"
        )
    if asked["part_config"] is not None:
        answer |= _partitions(os.path.join(workspace, asked["part_config"]), problems)
    for port in asked["ports"]:
        try:
            answer["ports"].append(_free_port(port, answer["ports"]))
        except OSError as error:
            problems.append(f"port {port} is taken ({error.strerror}): choose another, or leave it out for a free one")
    if asked["versions"] and not problems:
        answer |= _versions(workspace, os.path.dirname(script), asked["envs"], problems)
    return answer


def _partitions(path: str, problems: list[str]) -> dict[str, Any]:
    """Reads the manifest of a partition directory, or that beside a part_config."""
    root = path if os.path.isdir(path) else os.path.dirname(path)
    file = path if not os.path.exists(path) else os.path.join(root, "manifest.json")
    try:
        with open(file, encoding="utf-8") as opened:
            document = json.load(opened)
        num_parts = int(document["num_parts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.append(
            f"--part-config {path}: {file} cannot be read ({type(error).__name__}: {error}): expected what a "
            "partitioner wrote; glt copy sends it"
        )
        return {}
    parts = [part for part in range(num_parts) if os.path.isdir(os.path.join(root, f"part{part}"))]
    return {"num_parts": num_parts, "run_id": document.get("run_id"), "parts": parts}


def _free_port(port: int, taken: list[int]) -> int:
    """Returns ``port`` if nobody uses it; for 0 one that is free, below those that the kernel gives to connections."""
    if port:
        _bind(port)
        return port
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest = int(file.read().split()[0])
    for _ in range(50 if lowest > 12_000 else 0):
        candidate = random.SystemRandom().randrange(10_000, lowest)
        try:
            if candidate not in taken:
                return _bind(candidate)
        except OSError:
            continue  # taken
    return _bind(0)


def _bind(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, after those of the last job
        probe.bind(("", port))
        return int(probe.getsockname()[1])


def _versions(workspace: str, folder: str, envs: dict[str, str], problems: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-c", _PROBE, folder]  # where the script looks first
    try:
        done = subprocess.run(
            command,
            cwd=workspace,
            env={**os.environ, **envs},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
        )
    except subprocess.TimeoutExpired:
        problems.append(f"{sys.executable} did not import glt within {_PROBE_S:g} s: is its file system reachable?")
        return {}
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        problems.append(
            f"{sys.executable} cannot import glt and torch ({why}): install them there, or give --python, or "
            "--extra-envs PYTHONPATH=..."
        )
        return {}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(check(json.loads(sys.stdin.buffer.read()))))
