"""What a host answers about its files: room, rsync, and damage, without any ssh."""

from __future__ import annotations

import json
import shutil
import zlib
from collections import namedtuple
from pathlib import Path

import pytest

from glt.launch.check import prepare, verify


def test_room_and_rsync_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    usage = namedtuple("usage", "total used free")(1 << 40, 0, 3 << 29)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    (tmp_path / "there").write_bytes(b"x" * 100)
    files = {"there": 100, "b": 1 << 31}
    asked = {"root": str(tmp_path), "files": files, "run_id": "x", "replace": False}
    answer = prepare(asked)
    assert answer["num_missing_bytes"] == 1 << 31
    assert answer["problems"] == [
        "there is no rsync: install it",
        f"{tmp_path} has room for 1.50 GiB, and 2.00 GiB are to be sent",
    ]


def test_only_files_of_the_other_run_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    root = tmp_path / "root"
    root.mkdir()
    outside = tmp_path / "outside"
    for path in (outside, root / "old", root / "kept", root / "mine"):
        path.write_text("x")
    (root / "manifest.json").write_text(json.dumps({"run_id": "a", "files": {"old": {}, "kept": {}, "../outside": {}}}))
    asked = {"root": str(root), "files": {"kept": 1}, "run_id": "b", "replace": True}
    assert prepare(asked) == {"problems": [], "num_missing_bytes": 0}
    assert sorted(path.name for path in root.iterdir()) == ["kept", "mine"] and outside.exists()


def test_damage_is_found(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10
    checksum = "".join(f"{zlib.crc32(content[at : at + 1000]):08x}" for at in range(0, len(content), 1000))
    for name, data in (("whole", content), ("short", content[:-1]), ("other", content[:-1] + b"x")):
        (tmp_path / name).write_bytes(data)
    entry = [len(content), checksum]
    files = dict.fromkeys(("whole", "short", "other", "absent"), entry)
    bad = verify({"root": str(tmp_path), "files": files, "block_bytes": 1000})["bad"]
    assert bad == {"short": "has 2559 bytes, not 2560", "other": "has another checksum", "absent": "is missing"}
