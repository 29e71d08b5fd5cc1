"""Loops that ask memory ahead still do once compiled: a compiler may take asking for nothing, and leave it out."""

import platform
import re
import subprocess
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "csrc" / "core"
INSTRUCTION = {"x86_64": r"^\s+prefetch", "aarch64": r"^\s+prfm"}


def functions_of(source, cxx):
    """Assembly by mangled name, as setup.py has it compiled."""
    options = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", f"-I{CORE.parent}", "-S", "-o", "-"]
    done = subprocess.run([*cxx, *options, str(CORE / source)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^(_Z\w+):.*$", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.skipif(platform.machine() not in INSTRUCTION, reason="knows the instructions of x86-64 and AArch64 only")
@pytest.mark.parametrize(
    ("source", "name", "least"),
    [
        ("relabel.cc", "find_or_add", 6),  # before and in the loop, of three kinds of tables
        ("hotness.cc", "add_doubt", 12),  # of three arrays, with 32 and 64 bits, one thread and several
        ("sample.cc", "sample_rows", 3),  # columns, and edge ids where there are some
    ],
    ids=["relabelling", "hotness", "sampling"],
)
def test_memory_is_asked_ahead(source, name, least, cxx):
    asked = {
        function: len(re.findall(INSTRUCTION[platform.machine()], body, re.MULTILINE))
        for function, body in functions_of(source, cxx).items()
        if name in function
    }
    assert sum(asked.values()) >= least, f"instructions that ask ahead in {source}: {asked}"
