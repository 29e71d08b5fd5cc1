"""The page of deadlines says what the table of deadlines has, and names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glt import _deadlines

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deadlines.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "::" in line]


def test_seconds_are_those_of_the_table() -> None:
    named = re.findall(r"(?<!\+ )`([A-Z_]+_S)` \(([\d.]+) s\)", PAGE) + [
        ("DEFAULT_RPC_S", seconds) for seconds in re.findall(r"`rpc_timeout` \(([\d.]+) s\)", PAGE)
    ]
    assert len(named) > 15
    assert {name: float(seconds) for name, seconds in named} == {name: getattr(_deadlines, name) for name, _ in named}
    sums = re.findall(r"((?:`[A-Z_]+_S` \+ )+`[A-Z_]+_S`): ([\d.]+) s", PAGE)
    assert sums
    for terms, seconds in sums:
        assert sum(getattr(_deadlines, name) for name in re.findall(r"[A-Z_]+_S", terms)) == float(seconds)


@pytest.mark.parametrize("row", ROWS)
def test_each_row_is_tested(row: str) -> None:
    file, name = re.findall(r"`([\w/]+\.py)::(\w+)`", row)[0]
    assert f"def {name}(" in (ROOT / "test" / "distributed" / file).read_text(), row


def test_no_module_has_time_constants_of_its_own() -> None:
    """But those that are sent to other hosts and import no glt."""
    apart = {"_deadlines.py", "launch/keeper.py", "launch/check.py", "launch/agent.py"}
    found = []
    for path in (ROOT / "glt").rglob("*.py"):
        name = str(path.relative_to(ROOT / "glt"))
        for line in path.read_text().splitlines():
            if name not in apart and re.match(r"_?[A-Z][A-Z_]*_S\b(?<!BYTES_PER_S).*= *[\d.]+", line):
                found.append(f"{name}: {line}")
    assert not found


def test_each_deadline_is_used() -> None:
    used = "".join(path.read_text() for path in (ROOT / "glt").rglob("*.py"))
    names = [name for name in vars(_deadlines) if name.endswith("_S")]
    assert len(names) > 30 and [name for name in names if f"deadlines.{name}" not in used] == []
