"""The core gives the same bits on aarch64 as here: it is compiled for both, and an emulator runs the former."""

import importlib.util
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / "test/core/core_bits.cc", *sorted((ROOT / "csrc/core").glob("*.cc"))]
OPTIONS = ["-std=c++20", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
SYSROOT = Path("/usr/aarch64-linux-gnu")

# A version that changes a line changes what a key means, which docs/stability.md promises not to do.
BITS = """\
graph and weights 1196644665b37b44
uniform 0037c9f79c2710b8
uniform, three threads 0037c9f79c2710b8
with replacement 1b147e5813710710
by weight 580dc27f278fc3fd
by weight, with replacement 93385e3f749b9585
by time, disjoint 3c7e7274f60a2333
latest, disjoint a796d9f0373c35ac
by number fe7235df43716db9
by number, int32 fe7235df43716db9
by number and weight 9d1c74a8cc5e49c4
induced ab3990bdccdfd759
induced, int32 ab3990bdccdfd759
induced, disjoint 99c1ff87130c31fb
negatives f57ea72acdf4e2d1
hotness 561823cb216a0eee
hotness by weight efea364a2d95cb20
optimizers cdd557cf50b6962c
gather and checksum 0db2a40ec9427949
fennel b63aaa346358cbec
ring 156507a5ba148d0f
"""


def build(compiler, folder):
    """Compiles the program, two files at a time, and returns its path."""

    def compile_one(source):
        out = folder / f"{source.stem}.o"
        subprocess.run([*compiler, *OPTIONS, "-c", str(source), "-o", str(out)], check=True, timeout=300)
        return str(out)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, SOURCES))
    program = folder / "core_bits"
    subprocess.run([*compiler, *objects, "-o", str(program), "-pthread"], check=True, timeout=300)
    return str(program)


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_this_machine(cxx, tmp_path):
    said = subprocess.run([build(cxx, tmp_path)], stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout
    assert said == BITS


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_aarch64(tmp_path):
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None or not SYSROOT.is_dir():
        pytest.skip("no emulator of aarch64 here: apt-get install qemu-user-static libc6-arm64-cross")
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no compiler for aarch64 here: pip install ziglang")
    program = build([sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.28"], tmp_path)
    command = [emulator, "-L", str(SYSROOT), program]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
    assert said == BITS
