"""The native module built with sanitizers, in a folder of its own, and programs of Python that run with it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_RUNTIMES = {"address": ["libasan.so"], "thread": ["libtsan.so"]}
_OPTIONS = {
    # Python keeps much until its end, which is no leak. What asks for too much memory gets a MemoryError, as ever.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:max_allocation_size_mb=8192",
    "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
MARKS = ("Sanitizer", "runtime error:")  # of what they report


def build(sanitizers: str, timeout_s: float) -> dict[str, str]:
    """Builds the module with ``sanitizers``, "address,undefined" or "thread", where sources have changed; returns the
    environment of Python programs that import that one. They must not start in the root of the repository, where Python
    would find the other first."""
    folder = ROOT / "build" / "sanitized" / sanitizers
    command = [sys.executable, "setup.py", "--quiet", "build", "--build-base", str(folder)]
    options = {"GLT_SANITIZE": sanitizers, "GLT_CUDA": "0"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | options, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (library,) = folder.glob("lib.*")
    compiler = os.environ.get("CXX", "g++")
    # Before all others, since Python itself is not built with them; and what throws, which they look for at the start.
    preloaded = [_found(compiler, name) for name in [*_RUNTIMES[sanitizers.split(",")[0]], "libstdc++.so.6"]]
    path = os.pathsep.join([str(library), str(ROOT / "test")])
    return os.environ | _OPTIONS | {"LD_PRELOAD": " ".join(preloaded), "PYTHONPATH": path}


def _found(compiler: str, name: str) -> str:
    done = subprocess.run([*compiler.split(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()
