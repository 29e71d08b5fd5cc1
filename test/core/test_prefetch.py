"""Loops that ask memory ahead still do once compiled: a compiler may take asking for nothing, and leave it out."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "csrc" / "core"
INSTRUCTION = {"x86_64": "prefetch", "aarch64": "prfm"}


def functions_of(source):
    """Assembly by mangled name, as setup.py has it compiled."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [
        compiler,
        "-std=c++20",
        "-O3",
        "-fPIC",
        "-fvisibility=hidden",
        f"-I{CORE.parent}",
        "-S",
        "-o",
        "-",
        str(CORE / source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^(_Z\w+):$", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.skipif(platform.machine() not in INSTRUCTION, reason="knows the instructions of x86-64 and AArch64 only")
@pytest.mark.parametrize(
    ("source", "name", "count"),
    [("node_set.cc", "NodeSet14find_or_add_in", 3), ("hotness.cc", "add_doubt", 4), ("sample.cc", "sample_rows", 1)],
    ids=["relabelling", "hotness", "sampling"],
)
def test_memory_is_asked_ahead(source, name, count):
    asking = [
        function
        for function, body in functions_of(source).items()
        if name in function and INSTRUCTION[platform.machine()] in body
    ]
    assert len(asking) >= count, f"of the functions {name} in {source} only {asking} ask ahead"
