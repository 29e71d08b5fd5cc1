"""The file and the page of the GPU benchmarks' figures."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.part import Outcome
from benchmarks.gpu.results import Results, page

ROOT = Path(__file__).parents[2]


def test_the_page_says_what_falls_short_first():
    rows = [{"what": "a", "tier": "device", "ms": 1.5, "gb_per_s": 41.0, "goal": 40.0},
            {"what": "b", "tier": "pinned", "ms": 2.5, "gb_per_s": 30.0, "goal": 40.0}]  # fmt: skip
    data = json.loads((ROOT / "benchmarks" / "results" / "gpu.json").read_text())
    data["parts"] = {"gather": data["parts"]["gather"] | {"rows": rows}}
    lines = page(data, ["checks", "gather"]).splitlines()
    assert lines[0] == "# NVIDIA H200" and "1 of 2 goals are met, 1 fall short." in lines
    short = lines.index("| gather | b: tier pinned | 30 | 40 | falls short by 25.0% |")
    assert lines[short + 1] == "| gather | a: tier device | 41 | 40 | met |"
    assert "| checks | not run | - | - | - | - | - |" in lines
    assert "| b | pinned | 2.5 | 30 | 40 |" in lines[lines.index("## gather") :]


ABOUT = {"toy": False, "machine": {"torch": "2", "cpu": "c", "cores": 2}, "gpu": "G", "cuda": "13", "extension": "x"}


@pytest.mark.parametrize(
    "text",
    ["", '{"gpu": ', "[]", "null", "3", "{}", '{"gpu": "\xff"}', ABOUT, ABOUT | {"parts": []}]
    + [ABOUT | {"parts": {"gather": part}} for part in ({}, [], {"outcome": "done"}, {"outcome": "done", "rows": None})]
    + [ABOUT | {"parts": {"gather": {"outcome": "done", "rows": [{"what": "x", "goal": 3}]}}}],
)
def test_a_file_of_another_shape_is_refused(text, tmp_path):
    (tmp_path / "gpu.json").write_text(text if isinstance(text, str) else json.dumps(text), encoding="latin-1")
    with pytest.raises(SystemExit, match=r"gpu.json is not JSON as this writes it .*: delete it, or name another"):
        Results(tmp_path, dict(ABOUT), ["checks", "gather"])


def test_parts_keep_what_they_ran_on(tmp_path):
    names, newer = ["checks", "gather"], ABOUT | {"cuda": "14", "machine": ABOUT["machine"] | {"torch": "3"}}
    Results(tmp_path, dict(ABOUT), names).put("gather", Outcome("done", 1.0, []))
    Results(tmp_path, newer, names).put("checks", Outcome("failed: a\nb | c", 1.0, []))
    lines = (tmp_path / "gpu.md").read_text().splitlines()
    [gather], [checks] = ([line for line in lines if line.startswith(f"| {name} |")] for name in ("gather", "checks"))
    assert gather.endswith("| 13 | 2 |") and checks.endswith("| 14 | 3 |")
    assert checks.startswith("| checks | failed: a b / c |") and any(
        "do not hold (failed: a b | c)" in x for x in lines
    )


def test_the_page_of_the_figures_is_theirs():
    results = ROOT / "benchmarks" / "results"
    assert page(json.loads((results / "gpu.json").read_text()), list(PARTS)) == (results / "gpu.md").read_text()
