"""What ``glt copy`` asks of a host about its files, and the answer.

It runs on the host, where it is sent, so it needs the standard library only: one JSON object comes on stdin, and one
goes to stdout. ``"do": "prepare"`` makes the directory ``root`` ready for ``files`` (sizes by path) of a run, and
``"do": "verify"`` compares ``files`` (size, and CRC-32 of each block as hexadecimal text, by path) with what is there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from typing import Any

_MANIFEST = "manifest.json"


def prepare(asked: dict[str, Any]) -> dict[str, Any]:
    """Makes the directory, and answers ``problems``, and ``num_missing_bytes``, those of files that are not there.

    Files of another run are in the way; with ``replace`` they are removed, its manifest first, so that nothing loads
    what is half of one run and half of the other.
    """
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
        run, there = "of nobody knows which", []
    if run == asked["run_id"]:
        return
    if not asked["replace"]:
        problems.append(f"{root} holds another run ({run}): choose another --rel-data-path, or give --replace")
        return
    os.remove(manifest)
    for path in there:
        full = os.path.normpath(os.path.join(root, path))
        if path not in asked["files"] and full.startswith(os.path.join(os.path.normpath(root), "")):
            if os.path.isfile(full):
                os.remove(full)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


def verify(asked: dict[str, Any]) -> dict[str, Any]:
    """Answers ``bad``: what is wrong with each file that is not as the manifest says, by path."""
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


if __name__ == "__main__":
    question = json.loads(sys.stdin.buffer.read())
    print(json.dumps({"prepare": prepare, "verify": verify}[question["do"]](question)))
