"""The program that ``glt launch`` and ``glt copy`` ask about a host, before they start or send anything there.

It is sent to the host, not imported there, so it needs the standard library only: one JSON object comes on stdin, and
one goes to stdout. ``"do"`` says which of the functions of :data:`ANSWERS` answers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import zlib
from typing import Any

_MANIFEST = "manifest.json"
_PROBE_S = 60.0
_PROBE = """\
import importlib.metadata, json, sys
sys.path[0] = sys.argv[1]
import glt
print(json.dumps({"glt": glt.__version__, "torch": importlib.metadata.version("torch")}))
"""


def check(asked: dict[str, Any]) -> dict[str, Any]:
    """Says what a job would lack on this host.

    ``asked`` has ``workspace``; ``script`` (relative to it, or absolute); ``part_config`` or None; ``ports`` (0 for one
    that is free); ``envs``; ``versions`` (whether to look for them). Returns ``problems``; ``ports``; ``num_parts``,
    ``run_id`` and ``parts`` (those that are here) of the part_config; versions of ``glt`` and ``torch``.
    """
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
    root = path if os.path.isdir(path) else os.path.dirname(path)
    file = path if not os.path.exists(path) else os.path.join(root, _MANIFEST)
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
    """Returns ``port`` if it is free; for 0 one that is free, below those that the kernel gives to connections."""
    if port:
        return _bind(port)
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
        env = {**os.environ, **envs}
        done = subprocess.run(
            command, cwd=workspace, env=env, input="", capture_output=True, text=True, timeout=_PROBE_S
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


def prepare(asked: dict[str, Any]) -> dict[str, Any]:
    """Makes the directory ``root`` ready for ``files`` (sizes by path) of ``run_id``. Files of another run are in the
    way; with ``replace`` they are removed, the manifest first, so that nothing loads half of a run. Returns
    ``problems`` and ``num_missing_bytes``."""
    root, files = asked["root"], asked["files"]
    problems: list[str] = []
    if shutil.which("rsync") is None:
        problems.append("there is no rsync: install it")
    try:
        os.makedirs(root, exist_ok=True)
        _clear_way(root, asked, problems)
        missing = sum(size for path, size in files.items() if _size(os.path.join(root, path)) != size)
        free = shutil.disk_usage(root).free
    except OSError as error:
        problems.append(f"{root} cannot be used: {error.strerror or error}")
        return {"problems": problems, "num_missing_bytes": 0}
    if missing > free:
        problems.append(f"{root} has room for {free / 2**30:.2f} GiB, and {missing / 2**30:.2f} GiB are to be sent")
    return {"problems": problems, "num_missing_bytes": missing}


def _clear_way(root: str, asked: dict[str, Any], problems: list[str]) -> None:
    manifest = os.path.join(root, _MANIFEST)
    try:
        with open(manifest, encoding="utf-8") as file:
            document = json.load(file)
        run, there = document["run_id"], sorted(document["files"])
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        run, there = "of unknown origin", []
    if run == asked["run_id"]:
        return
    if not asked["replace"]:
        problems.append(f"{root} holds another run ({run}): choose another --rel-data-path, or give --replace")
        return
    os.remove(manifest)
    for path in there:
        full = os.path.normpath(os.path.join(root, path))
        is_inside = full.startswith(os.path.join(os.path.normpath(root), ""))
        if path not in asked["files"] and is_inside and os.path.isfile(full):
            os.remove(full)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


def verify(asked: dict[str, Any]) -> dict[str, Any]:
    """Compares ``files`` of ``root`` (size, and CRC-32 of each block of ``block_bytes`` in hexadecimal). Returns
    ``bad``: what is wrong, by path."""
    bad: dict[str, str] = {}
    for path, (size, checksum) in asked["files"].items():
        full = os.path.join(asked["root"], path)
        found = _size(full)
        if found != size:
            bad[path] = f"has {found} bytes, not {size}" if found >= 0 else "is missing"
            continue
        with open(full, "rb") as file:
            blocks = iter(lambda file=file: file.read(asked["block_bytes"]), b"")  # type: ignore[misc]
            if "".join(f"{zlib.crc32(block):08x}" for block in blocks) != checksum:
                bad[path] = "has another checksum"
    return {"bad": bad}


ANSWERS = {"check": check, "prepare": prepare, "verify": verify}

if __name__ == "__main__":
    question = json.loads(sys.stdin.buffer.read())
    print(json.dumps(ANSWERS[question["do"]](question)))
