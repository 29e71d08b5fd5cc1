"""Builds ``glt._core``: every source with its own compiler by one rule, then one link. Needs no torch and no GPU.

Environment:
    GLT_CUDA=0|1       Leave the CUDA kernels out, or insist on them. Default: see :func:`decide`.
    GLT_CUDA_ARCHS     Real architectures, default "80;90"; PTX of the last one is embedded as well.
    CUDA_HOME          The toolkit. Default: the conventional folder.
    CXX                The host compiler, default g++.
    MAX_JOBS           Compilations at a time, default the number of processors.
    GLT_SANITIZE       Sanitizers for the engine on the host: "address,undefined", or "thread", also for the bindings.
    GLT_DEBUG=1        -O0 -g in place of -O3; symbols are kept.
"""

import hashlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
SANITIZE = [f"-fsanitize={s}" for s in os.environ.get("GLT_SANITIZE", "").split(",") if s]
BY_THREADS = "-fsanitize=thread" in SANITIZE
DEBUG = os.environ.get("GLT_DEBUG") == "1"


# Whether the kernels are compiled.


def decide(environ: Mapping[str, str], torch: tuple[str, str | None] | None) -> tuple[Path | None, str]:
    """Returns the CUDA toolkit, or None for a build without kernels, and why, in words.

    Without GLT_CUDA the kernels are compiled where there is a toolkit, unless torch is known to be a build for the CPU.
    ``torch`` is its version and that of its CUDA (None of a build for the CPU); None where it cannot be seen: pip's
    isolated builds do not see what is installed.
    """
    wanted = environ.get("GLT_CUDA", "auto")
    if wanted not in ("0", "1", "auto"):
        raise SystemExit(f"GLT_CUDA = {wanted!r}: expected 0 (without CUDA) or 1 (insist on CUDA)")
    home = Path(environ.get("CUDA_HOME", "/usr/local/cuda"))
    nvcc = home / "bin" / "nvcc"  # one on PATH may be a wrapper, so not that
    if wanted == "0":
        return None, "no CUDA kernels: GLT_CUDA=0"
    if not nvcc.exists():
        if wanted == "1":
            raise SystemExit(f"GLT_CUDA = 1, but {nvcc} does not exist: set CUDA_HOME to the toolkit")
        return None, f"no CUDA kernels: {nvcc} does not exist (CUDA_HOME names the toolkit)"
    if wanted == "1":
        return home, "with CUDA kernels: GLT_CUDA=1"
    if torch is None:
        return home, f"with CUDA kernels: {nvcc} exists, and torch is not seen from here; GLT_CUDA=0 leaves them out"
    version, cuda = torch
    if cuda is None:
        return None, f"no CUDA kernels: torch {version} is a build for the CPU; GLT_CUDA=1 compiles them all the same"
    return home, f"with CUDA kernels: {nvcc} exists, and torch {version} is built with CUDA {cuda}"


def visible_torch() -> tuple[str, str | None] | None:
    """Returns the version of torch and of its CUDA, without importing it (seconds); None where there is none."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    said = runpy.run_path(str(Path(found.origin).parent / "version.py"))
    return str(said["__version__"]), said["cuda"]


# How a source is compiled.


@cache
def release_of(*program: str) -> str:
    """Returns what ``program --version`` says: a new compiler makes new objects. A program may be several words."""
    if shutil.which(program[0]) is None:
        raise SystemExit(
            f"building glt needs a C++20 compiler, and {program[0]} is not there: install g++ (12 or newer), or set CXX"
        )
    done = subprocess.run([*program, "--version"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{shlex.join(program)} --version ended with {done.returncode}: {done.stderr.strip()[-500:]!r}; expected a "
            "compiler that works: mend it, or let CXX (of nvcc: CUDA_HOME) name another"
        )
    return done.stdout


def host_compiler() -> list[str]:
    """Returns the words of CXX; all but the last may belong to what starts it, such as ccache."""
    return shlex.split(os.environ.get("CXX") or "g++")


def releases_for(source: str, cuda: Path | None) -> list[str]:
    """Returns what tells the compilers of ``source``'s object: nvcc has a host compiler, and variables of its own."""
    if not source.endswith(".cu"):
        return [release_of(*host_compiler())]
    host = os.environ.get("NVCC_CCBIN", "g++")
    host = f"{host}/g++" if Path(host).is_dir() else host
    flags = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("NVCC_")]
    return [release_of(f"{cuda}/bin/nvcc"), release_of(host) if shutil.which(host) else f"no {host}", *flags]


def compiler(source: str, cuda: Path | None) -> list[str]:
    """Returns the command that compiles ``source``, without its input, its output and folders of others' headers."""
    if source.endswith(".cu"):
        archs = os.environ.get("GLT_CUDA_ARCHS", "80;90").split(";")
        gencode = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
        gencode.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
        return [f"{cuda}/bin/nvcc", "-std=c++20", "-O3", "-lineinfo", "--expt-relaxed-constexpr", "-Xptxas=-v",
                *gencode,
                "-Xcompiler=-fPIC,-Wall,-fvisibility=hidden", "-Icsrc"]  # fmt: skip
    optimize = ["-O0", "-g"] if DEBUG else ["-O3"]
    if is_sanitized(source):
        optimize = [*SANITIZE, "-O1", "-g1", "-fno-omit-frame-pointer"]
        if BY_THREADS:
            optimize += ["-include", "csrc/thread_sanitizer.h"]
    # No fused multiply-adds: processors that have them would round otherwise than those that do not.
    return [*host_compiler(), "-std=c++20", *optimize, "-ffp-contract=off", "-fPIC", "-Wall", "-Wextra",
            "-fvisibility=hidden", "-Icsrc"]  # fmt: skip


def is_sanitized(source: str) -> bool:
    """Tells whether GLT_SANITIZE is for ``source``. The bindings, which take two thirds of the time to compile, are
    checked for races alone: there no code may be left out."""
    return bool(SANITIZE) and (BY_THREADS or not source.startswith("csrc/python/"))


def headers(source: str, cuda: Path | None) -> tuple[list[str], str]:
    """Returns the options for the headers of others, which only the bindings include, and what tells their version.

    The folders themselves tell nothing: those of pip's isolated builds have another name each time, and are gone
    afterwards. So neither an object's name nor what it is compared with (``-MMD``) has them.
    """
    if not source.startswith("csrc/python/"):
        return [], ""
    options = [f"-isystem{folder}" for folder in (pybind11.get_include(), sysconfig.get_path("include"))]
    told = f"pybind11 {pybind11.__version__}, {sysconfig.get_config_var('SOABI')}"
    if "GLT_HAS_CUDA" in (ROOT / source).read_text():  # the others are the same with and without kernels
        options += [f"-DGLT_HAS_CUDA={int(cuda is not None)}", *([f"-isystem{cuda}/include"] if cuda else [])]
        told += f", CUDA {release_of(f'{cuda}/bin/nvcc') if cuda else None}"
    return options, told


def object_of(source: str, cuda: Path | None) -> Path:
    """Returns where the object of ``source`` is kept: other options, compilers or headers, another name."""
    words = [*compiler(source, cuda), headers(source, cuda)[1], *releases_for(source, cuda)]
    tag = hashlib.md5(" ".join(words).encode()).hexdigest()[:8]
    return ROOT / "build" / ("obj-sanitized" if is_sanitized(source) else "obj") / f"{source}.{tag}.o"


def digests() -> dict[str, str]:
    """Returns a digest of each file of csrc, by its path from the root."""
    files = [file for file in (ROOT / "csrc").rglob("*") if file.is_file()]
    return {str(file.relative_to(ROOT)): hashlib.md5(file.read_bytes()).hexdigest() for file in files}


def is_fresh(obj: Path, files: Mapping[str, str]) -> bool:
    """Tells whether ``obj`` was made from ``files``, as :func:`digests` returns them.

    Times tell less: an older tree that is unpacked over a newer one has older times and other contents.
    """
    record = obj.with_suffix(".made")
    if not (obj.exists() and record.exists()):
        return False
    made_from = [line.split(" ", 1) for line in record.read_text().splitlines()]
    return all(files.get(name) == digest for digest, name in made_from)


def compile_source(source: str, obj: Path, cuda: Path | None) -> float:
    """Compiles; returns the seconds that it took.

    An object is complete, or not there, if this is killed or runs twice at a time. Its record has the digests of what
    there was before: a file that is changed meanwhile makes it stale.
    """
    begin = time.monotonic()
    before = digests()
    obj.parent.mkdir(parents=True, exist_ok=True)
    record = obj.with_suffix(".made")
    with tempfile.TemporaryDirectory(prefix="making-", dir=obj.parent) as folder:
        made = Path(folder) / obj.name
        command = [*compiler(source, cuda), *headers(source, cuda)[0]]
        command += ["-MMD", "-MF", str(made.with_suffix(".d")), "-c", source, "-o", str(made)]
        if source.endswith(".cu"):
            keep_report(command, made.with_suffix(".ptxas"))
        else:
            subprocess.check_call(command, cwd=ROOT)
        told = made.with_suffix(".d").read_text().replace("\\\n", " ").split(":", 1)[1].split()
        names = [name for name in map(os.path.normpath, told) if name.startswith("csrc/")]  # nvcc tells others', too
        made.with_suffix(".made").write_text("".join(f"{before.get(name)} {name}\n" for name in names))
        record.unlink(missing_ok=True)
        for suffix in (".ptxas", ".o", ".made"):  # the record last: without it the object is not used
            if made.with_suffix(suffix).exists():
                os.replace(made.with_suffix(suffix), obj.with_suffix(suffix))
    return time.monotonic() - begin


def keep_report(command: list[str], report: Path) -> None:
    """Runs nvcc and keeps what ptxas says of each kernel, which ``python -m benchmarks.gpu.registers`` reads."""
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    other = [line for line in done.stderr.splitlines(True) if done.returncode or "warning" in line or "error" in line]
    sys.stderr.writelines(other)
    done.check_returncode()
    report.write_text(done.stderr)


def sources(cuda: Path | None) -> list[str]:
    """All of csrc, the longest to compile first; the kernels (``.cu``) only with a toolkit. The host can run their
    bodies without one."""
    kinds = ["*.cu", "*.cc"] if cuda else ["*.cc"]
    found = [file for kind in kinds for file in (ROOT / "csrc").glob(f"*/{kind}")]
    found.sort(key=lambda file: (file.suffix != ".cu", -file.stat().st_size))
    return [str(file.relative_to(ROOT)) for file in found]


# The commands of setuptools.


class Build(build):
    """Starts from an empty folder: a wheel has no file that was deleted or renamed since the last build here."""

    def run(self) -> None:
        if Path(self.build_base).resolve() in Path(self.build_lib).resolve().parents:  # not what --build-lib names
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildExt(build_ext):
    """Compiles what has changed, each source with its own compiler, and says so; then links."""

    def build_extension(self, ext: Extension) -> None:
        cuda, why = decide(os.environ, visible_torch())
        print(f"glt: {why}", flush=True)
        if cuda:
            release = re.findall(r"release ([\d.]+)", release_of(f"{cuda}/bin/nvcc"))[0]
            archs = os.environ.get("GLT_CUDA_ARCHS", "80;90").split(";")
            print(f"glt: nvcc {release} compiles them for {' '.join(f'sm_{arch}' for arch in archs)}", flush=True)
            ext.libraries = ["cudart_static"]  # static: no CUDA library is needed to import the module
            ext.library_dirs = [str(cuda / "lib64"), str(cuda / "lib")]  # of an installer, of packages
        objects = {source: object_of(source, cuda) for source in sources(cuda)}
        files = digests()
        stale = [source for source, obj in objects.items() if self.force or not is_fresh(obj, files)]
        print(f"glt: {len(objects) - len(stale)} of {len(objects)} files are compiled already", flush=True)
        with ThreadPool(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as pool:
            times = pool.imap_unordered(lambda s: (s, compile_source(s, objects[s], cuda)), stale)
            for number, (source, seconds) in enumerate(times, 1):
                print(f"[{number}/{len(stale)}] {source} {seconds:.1f} s", flush=True)
        ext.extra_objects = [str(obj) for _, obj in sorted(objects.items())]
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)  # the link is cheap: always do it
        super().build_extension(ext)


def native(name: str) -> dict:
    """Returns what setuptools is told of the native module ``name``."""
    strip = [] if DEBUG or SANITIZE else ["-Wl,-s"]
    # What a compiler links statically, such as its libstdc++, must not be taken for torch's: its symbols stay inside.
    flags = [*SANITIZE, *strip, "-Wl,--exclude-libs,ALL", "-lrt", "-lpthread", "-ldl"]
    extension = Extension(name, sources=[], language="c++", extra_link_args=flags)
    return {"ext_modules": [extension], "cmdclass": {"build": Build, "build_ext": BuildExt}}


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit(f"glt needs Linux (futex and memfd), found {sys.platform}")
    setup(**native("glt._core"))
