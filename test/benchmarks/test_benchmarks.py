"""Benchmarks run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import registers

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("bench_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_runs_at_toy_size(name, tmp_path, start):
    words, cache = ["-m", f"benchmarks.{name}", "--toy"], {"GLT_BENCH_CACHE": str(tmp_path)}
    if name == NAMES[0]:  # as users start it
        command, env = [sys.executable, *words], os.environ | cache
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    else:
        done = start(*words, **cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "glt" in done.stdout
    assert not list(tmp_path.glob("tmp*")), "left its scratch files behind"


def test_the_pictures_of_the_docs_are_drawn(tmp_path, start):
    pytest.importorskip("matplotlib")
    done = start("-m", "benchmarks.plot_scale", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name for path in (ROOT / "docs" / "_static").glob("scale-*.svg")}
    page = (ROOT / "docs" / "scale.md").read_text()
    assert drawn == {name for name in drawn if f"](_static/{name})" in page} != set()


def test_an_unknown_name_is_refused(start):
    done = start("-m", "benchmarks", "no_such_benchmark")
    assert done.returncode != 0
    assert "no_such_benchmark" in done.stderr


REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5firstv' for 'sm_90'
ptxas info    : Function properties for _Z5firstv
    24 bytes stack frame, 32 bytes spill stores, 48 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 24 bytes cumulative stack size, 8192 bytes smem
ptxas info    : Compile time = 36.728 ms
ptxas info    : Compiling entry function '_Z6secondv' for 'sm_80'
ptxas info    : Function properties for _Z6secondv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 11 registers
"""


def test_reports_are_read():
    first, second = registers.parse(REPORT)
    assert (first.arch, first.registers, first.shared, first.stack, first.spilled) == ("sm_90", 80, 8192, 24, 80)
    assert (second.arch, second.registers, second.shared, second.stack, second.spilled) == ("sm_80", 11, 0, 0, 0)
    assert "| - / 80 |" in registers.table([first, second]) and "| 11 / - |" in registers.table([first, second])


def test_no_kernel_spills():
    kernels = registers.compiled()
    if not kernels:
        pytest.skip("needs a build with CUDA")
    assert len(kernels) > 40, "over forty kernels, and the library may be for one architecture"
    assert [(k.name, k.arch) for k in kernels if k.spilled] == []
    by_age = ("DrawByWeight", "DrawByNumber")  # which steps of age a row has: more than registers hold
    local = [(k.name, k.arch) for k in kernels if k.stack and k.name not in by_age]
    assert local == [], "what is indexed at run time is in local memory"
