"""What is known of one GPU: ``gpu.json``, written after each part, and ``gpu.md``, its page."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._harness import glt_commit, show
from benchmarks.gpu.part import Outcome

Row = dict[str, Any]
Which = tuple[str, Row]  # rows of a part by what they say: {column: value, ...}

SECTORS, BUS_READS, BUS_COPY = (
    "random 32-byte sectors of device memory", "random 32-byte reads of pinned memory", "a copy over the bus"
)  # fmt: skip
_READS = {"footprint_gib": 1, "row_bytes": 32, "order": "random"}
LIMITS: dict[str, tuple[Which, str, str]] = {  # where each is measured, and its unit
    SECTORS: (("reads", _READS | {"what": "M1 random reads"}), "m_reads_per_s", "M/s"),
    BUS_READS: (("reads", _READS | {"what": "M3 zero-copy reads", "tier": "pinned"}), "m_reads_per_s", "M/s"),
    BUS_COPY: (("reads", {"what": "M5 copy to the device"}), "gb_per_s", "GB/s"),
}
_SECTORS_OF_400 = 13  # 400 bytes cover so many, at least
_ROWS: Row = {"what": "M7 gather, glt", "row_bytes": 400}
BESIDE: tuple[tuple[Which, Callable[[Row], float], str], ...] = (  # what is held against which
    (("sampling", {"tier": "CUDA", "options": "uniform"}), lambda row: row["m_edges_per_s"], SECTORS),
    (("sampling", {"tier": "ZERO_COPY", "options": "uniform"}), lambda row: row["m_edges_per_s"], BUS_READS),
    (("gather", _ROWS | {"tier": "device"}), lambda row: row["gb_per_s"] * 1e3 / 400 * _SECTORS_OF_400, SECTORS),
    (("gather", _ROWS | {"tier": "pinned"}), lambda row: row["gb_per_s"], BUS_COPY),
    (("gather", _ROWS | {"tier": "device 20%, pinned"}), lambda row: row["gb_per_s"] * 0.8, BUS_COPY),
)


class Results:
    """Figures of one GPU and one compiled extension.

    Args:
        folder: Where they are kept; those of the same GPU and extension that are there are gone on with. None: nowhere.
        about: ``toy``, ``machine``, ``gpu``, ``cuda`` and ``extension``, the digest of its file.
        names: Of all parts, in the order of the page.
    """

    def __init__(self, folder: Path | None, about: Row, names: Sequence[str]) -> None:
        self._folder, self._names = folder, list(names)
        self._data: Row = {"benchmark": "gpu", **about, "parts": {}}
        if folder is not None and (folder / "gpu.json").exists():
            self._take(folder / "gpu.json")

    @property
    def parts(self) -> dict[str, Row]:
        parts: dict[str, Row] = self._data["parts"]
        return parts

    def _take(self, path: Path) -> None:
        """Takes the parts of the file, unless they are of something else; says so then."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            page(found, self._names)  # what has another shape has no page
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise SystemExit(
                f"{path} is not JSON as this writes it ({type(error).__name__}: {error}): delete it, or name another "
                "folder with --results"
            ) from None
        for key in ("toy", "gpu", "extension"):
            if found.get(key) != self._data[key]:
                print(
                    f"{path} is of {key} {found.get(key)}, this is {key} {self._data[key]}: starting afresh", flush=True
                )
                return
        self._data["parts"] = found["parts"]

    def has(self, name: str) -> bool:
        """Whether that part was run to its end, and has not failed since."""
        return name in self.parts and self.parts[name]["outcome"] == "done" and "since" not in self.parts[name]

    def put(self, name: str, outcome: Outcome) -> None:
        """Takes what a part gave, and writes both files. One that fails leaves the figures of an earlier run."""
        made = {
            "outcome": outcome.outcome, "seconds": outcome.seconds, "date": time.strftime("%Y-%m-%d"),
            "glt": glt_commit(), "cuda": self._data["cuda"], "torch": self._data["machine"]["torch"],
        }  # fmt: skip
        before = self.parts.get(name, {"outcome": "not run"})
        if outcome.outcome != "done" and before["outcome"] == "done":
            before["since"] = f"{outcome.outcome} ({made['date']}, glt {made['glt']})"
        else:
            self.parts[name] = {**made, "rows": outcome.rows}
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(self._folder / "gpu.json", json.dumps(self._data, indent=1) + "\n")
            _write(self._folder / "gpu.md", page(self._data, self._names))

    def summary(self) -> str:
        written = self._folder is not None and (self._folder / "gpu.md").exists()
        return f"{_held(list(_goals(self._data)))}{f'; {self._folder}/gpu.md' if written else ''}"


def _write(path: Path, text: str) -> None:
    """All of it or nothing, if this is killed."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


def page(data: Row, names: Sequence[str]) -> str:
    """The page of a ``gpu.json``: what falls short first."""
    parts: dict[str, Row] = data["parts"]
    names = [*names, *(name for name in parts if name not in names)]
    machine, goals = data["machine"], list(_goals(data))
    on = data["gpu"] or "No GPU: the kernels' code on the host"
    lines = [f"# {on}, toy sizes: these figures mean nothing" if data["toy"] else f"# {on}", ""]
    lines += [
        f"By `python -m benchmarks.gpu`: extension {data['extension'] or 'unknown'}; last on {machine['cpu']}, "
        f"{machine['cores']} cores.",
        "",
        "## What holds, and what does not",
        "",
        f"{_held(goals)}.",
        "",
    ]
    goals.sort(key=lambda goal: goal[2] >= goal[1]["goal"])
    lines += _table(
        [
            {"part": name, "row": _called(row), "measured": rate, "goal": row["goal"], "": _verdict(rate, row["goal"])}
            for name, row, rate in goals
        ]
    )
    lines += [_checked(parts.get("checks")), ""]
    run: dict[str, Row] = {name: parts.get(name, {"outcome": "not run", "rows": []}) for name in names}
    lines += _table(
        [
            {"part": name, "outcome": each["outcome"], **{key: each[key] for key in each if key != "rows"}}
            for name, each in run.items()
        ]
    )
    lines += ["## Limits, and what is reached of them", "", *_limits(parts)]
    for name in names:
        if name in parts and parts[name]["rows"]:
            lines += [f"## {name}", "", *_table(parts[name]["rows"])]
    return "\n".join(lines).rstrip() + "\n"


def _goals(data: Row) -> Iterator[tuple[str, Row, float]]:
    """Each row that has a goal: its part, itself and what was measured, which is its rate."""
    for name, part in data["parts"].items():
        for row in part["rows"]:
            if row.get("goal") is not None:
                rates = [value for key, value in row.items() if key.endswith("_per_s")]
                yield name, row, rates[0]


def _held(goals: Sequence[tuple[str, Row, float]]) -> str:
    short = sum(measured < row["goal"] for _, row, measured in goals)
    return f"{len(goals) - short} of {len(goals)} goals are met, {short} fall short"


def _verdict(measured: float, goal: float) -> str:
    return "met" if measured >= goal else f"falls short by {1 - measured / goal:.1%}"


def _called(row: Row) -> str:
    """What a row is of: its words and whole numbers."""
    words = [f"{key} {value}" for key, value in row.items() if key != "what" and isinstance(value, str | int)]
    return f"{row['what']}: {', '.join(words)}"


def _checked(checks: Row | None) -> str:
    if checks is None:
        return "No checks of kernels against the CPU are in this file."
    passed, failed, skipped = (sum(row[key] for row in checks["rows"]) for key in ("passed", "failed", "skipped"))
    verdict = "hold" if checks["outcome"] == "done" else f"do not hold ({checks['outcome']})"
    if "since" in checks:
        verdict = f"held, and not since ({checks['since']})"
    counts = f"{passed} passed, {failed} failed, {skipped} skipped"
    return _line(f"The checks of kernels against the CPU {verdict}: {counts}.")


def _found(parts: dict[str, Row], which: Which) -> list[Row]:
    name, wanted = which
    rows = parts[name]["rows"] if name in parts else []
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def _limits(parts: dict[str, Row]) -> list[str]:
    limits = {name: (row[column], unit) for name, (which, column, unit) in LIMITS.items()
              for row in _found(parts, which)}  # fmt: skip
    if not limits:
        return ["Not measured: they are rows of the part `reads`.", ""]
    lines = _table([{"limit": name, "": f"{show(value)} {unit}"} for name, (value, unit) in limits.items()])
    shares = []
    for which, value_of, name in BESIDE:
        for row in _found(parts, which) if name in limits else []:
            value, (limit, unit) = value_of(row), limits[name]
            told = f"{show(value)} {unit}"
            shares.append({"glt": _called(row), "": told, "limit": name, "share": f"{value / limit:.0%}"})
    lines += _table(shares)
    lines += [
        "An edge counts as one read, a row of 400 bytes as 13 sectors. Those of one row lie side by side, which costs "
        "less than as many at random: hence shares beyond 100%. Of two tiers, what comes over the bus counts.",
        "",
    ]
    return lines


def _table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[show(row.get(key)) for key in columns] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return [*(f"| {' | '.join(_line(cell).replace('|', '/') for cell in line)} |" for line in lines), ""]


def _line(text: str) -> str:
    return " ".join(text.splitlines())
