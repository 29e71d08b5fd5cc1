"""Builds ``glt._core``: every source with its own compiler by one rule, then one link. Needs no torch and no GPU.

Environment:
    GLT_CUDA=0|1       Leave CUDA out, or insist on it. Default: compile the kernels when a toolkit is found.
    GLT_CUDA_ARCHS     Real architectures, default "80;90"; PTX of the last one is embedded as well.
    CUDA_HOME          The toolkit. Default: the conventional folder.
    CXX                The host compiler, default g++.
    GLT_SANITIZE       Sanitizers for the host code, for example "address" or "thread".
    GLT_DEBUG=1        -O0 -g in place of -O3.
"""

import hashlib
import os
import shlex
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


def cuda_home() -> Path | None:
    """Returns the CUDA toolkit, or None for a build without CUDA. ``nvcc`` on PATH may be a wrapper, so not that."""
    wanted = os.environ.get("GLT_CUDA", "auto")
    if wanted not in ("0", "1", "auto"):
        raise SystemExit(f"GLT_CUDA = {wanted!r}: expected 0 (without CUDA) or 1 (insist on CUDA)")
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if wanted != "0" and (home / "bin" / "nvcc").exists():
        return home
    if wanted == "1":
        raise SystemExit(f"GLT_CUDA = 1, but {home}/bin/nvcc does not exist: set CUDA_HOME to the toolkit")
    return None


CUDA = cuda_home()
OPTIMIZE = ["-O0", "-g"] if os.environ.get("GLT_DEBUG") == "1" else ["-O3"]
SANITIZE = [f"-fsanitize={s}" for s in os.environ.get("GLT_SANITIZE", "").split(",") if s]


def compiler(source: str) -> list[str]:
    """Returns the command that compiles ``source``, without its input and output."""
    if source.endswith(".cu"):
        archs = os.environ.get("GLT_CUDA_ARCHS", "80;90").split(";")
        gencode = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
        gencode.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
        return [f"{CUDA}/bin/nvcc", "-std=c++20", "-O3", "-lineinfo", "--expt-relaxed-constexpr", "-Xptxas=-v",
                *gencode,
                "-Xcompiler=-fPIC,-Wall,-fvisibility=hidden"]  # fmt: skip
    cxx = shlex.split(os.environ.get("CXX", "g++"))
    # No fused multiply-adds: processors that have them would round otherwise than those that do not.
    return [*cxx, "-std=c++20", *OPTIMIZE, *SANITIZE, "-ffp-contract=off", "-g1", "-fPIC", "-Wall", "-Wextra",
            "-fvisibility=hidden"]  # fmt: skip


def is_fresh(obj: Path, depfile: Path) -> bool:
    """Tells whether ``obj`` is newer than everything it was made from."""
    if not (obj.exists() and depfile.exists()):
        return False
    made = obj.stat().st_mtime
    names = depfile.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    return all(Path(n).exists() and Path(n).stat().st_mtime <= made for n in names)


class BuildExt(build_ext):
    """Compiles each source with its own compiler, only if it or a header it includes has changed."""

    def build_extension(self, ext: Extension) -> None:
        with ThreadPool(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as pool:
            ext.extra_objects = pool.map(lambda source: self.compile(ext, source), sorted(ext.sources))
        ext.sources = []  # nothing left but the link, which is cheap: always do it
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        super().build_extension(ext)

    def compile(self, ext: Extension, source: str) -> str:
        includes = [f"-I{d}" for d in [*ext.include_dirs, *self.compiler.include_dirs]]
        command = [*compiler(source), *includes, *(f"-D{k}={v}" for k, v in ext.define_macros)]
        tag = hashlib.md5(" ".join(command).encode()).hexdigest()[:8]  # new flags, new object
        obj = ROOT / "build" / ("obj-sanitized" if SANITIZE else "obj") / f"{source}.{tag}.o"
        depfile = obj.with_suffix(".d")
        if self.force or not is_fresh(obj, depfile):
            obj.parent.mkdir(parents=True, exist_ok=True)
            command += ["-MD", "-MF", str(depfile), "-c", source, "-o", str(obj)]
            if source.endswith(".cu"):
                keep_report(command, obj.with_suffix(".ptxas"))
            else:
                subprocess.check_call(command, cwd=ROOT)
        return str(obj)


def keep_report(command: list[str], report: Path) -> None:
    """Runs nvcc and keeps what ptxas says of each kernel, which ``python -m benchmarks.gpu.registers`` reads."""
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    other = [line for line in done.stderr.splitlines(True) if done.returncode or "warning" in line or "error" in line]
    sys.stderr.writelines(other)
    done.check_returncode()
    report.write_text(done.stderr)


def sources() -> list[str]:
    """All of csrc; the kernels (``.cu``) only where there is a toolkit. The host can run their bodies without one."""
    kinds = ["*.cc", "*.cu"] if CUDA else ["*.cc"]
    return sorted(str(f.relative_to(ROOT)) for kind in kinds for f in (ROOT / "csrc").glob(f"*/{kind}"))


def extension() -> Extension:
    ext = Extension(
        "glt._core",
        sources=sources(),
        include_dirs=[str(ROOT / "csrc"), pybind11.get_include()],
        define_macros=[("GLT_HAS_CUDA", "1" if CUDA else "0")],
        language="c++",
        extra_link_args=[*SANITIZE, "-lrt", "-lpthread", "-ldl"],
    )
    if CUDA:
        ext.include_dirs.append(str(CUDA / "include"))
        ext.libraries = ["cudart_static"]  # static: no CUDA library is needed to import the module
        ext.library_dirs = [str(CUDA / "lib64")]
    return ext


if sys.platform != "linux":
    raise SystemExit(f"glt needs Linux (futex and memfd), found {sys.platform}")
setup(ext_modules=[extension()], cmdclass={"build_ext": BuildExt})
