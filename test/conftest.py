"""What the tests of all rooms share: this folder on their path, forked sampling processes and programs (see forked.py),
and C++ that only tests call."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from gpus import NO_GPU

from glt.cli import main
from glt.distributed.context import get_context, resign
from glt.testing.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "test")]))


def pytest_configure(config):
    """The default run forks sampling processes; runs with tests of real components start them as users do."""
    if "not integration" in config.getoption("markexpr"):
        Cluster.__init__.__kwdefaults__["preload"] += ("forked_trainers",)


@pytest.fixture(autouse=True)
def _no_place_is_kept():
    """A test that takes a place in a job gives it up: a later one of this process could take no other."""
    before = get_context()
    yield
    kept = get_context()
    if kept != before:
        resign()
        pytest.fail(f"this test is still {kept}")


@pytest.fixture(scope="session")
def start():
    """Runs ``python WORDS...``, forked, from the root of the repository unless told otherwise; returns how it ended."""

    def start(*words, folder=ROOT, timeout_s=280, **environment):
        # A script finds only what is beside it, or installed.
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
        command = [sys.executable, *map(str, words)]
        if NO_GPU is None:  # a forked process could not use it
            return subprocess.run(command, cwd=folder, env=env, timeout=timeout_s, capture_output=True, text=True)
        return forked.run(command, folder, env, timeout_s)

    return start


@pytest.fixture(scope="session")
def run(start):
    """The same of a program that is to succeed."""

    def run(*words, **options):
        done = start(*words, **options)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def command(capsys):
    """Runs ``glt WORDS...`` in this process; returns its exit status, and what it wrote to stdout and to stderr."""

    def command(*words):
        try:
            status = main([*map(str, words)])
        except SystemExit as ended:  # of argparse
            status = ended.code
        return status, *capsys.readouterr()

    return command


@pytest.fixture(scope="session")
def cxx():
    """The compiler's command, as setup.py takes it."""
    command = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(command[0]) is None:
        assert "CXX" not in os.environ, f"CXX = {os.environ['CXX']!r}: there is no {command[0]}"
        pytest.skip("no C++ compiler")
    return command


@pytest.fixture(scope="session")
def native_rng(cxx, tmp_path_factory):
    """The functions of core/native_rng.cc: the generator of csrc/core/rng.h as the host computes it."""
    library = tmp_path_factory.mktemp("native_rng") / "native_rng.so"
    options = ["-std=c++20", "-O2", "-fPIC", "-shared", f"-I{ROOT / 'csrc'}"]
    source = ROOT / "test" / "core" / "native_rng.cc"
    subprocess.run([*cxx, *options, str(source), "-o", str(library)], check=True, timeout=120)
    return ctypes.CDLL(str(library))
