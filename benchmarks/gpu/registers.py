"""What the kernels compile to, without a GPU: ``python -m benchmarks.gpu.registers [--no-build]``.

Prints one table: registers, shared memory, local memory (stack) and spills of each kernel for each architecture, as
ptxas reported them when the extension was built. Exits with 1 if a kernel spills.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\S+)' for '(?P<arch>\w+)'\n"
    r"(?:.*\n)*?\s+(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads\n"
    r"(?:.*\n)*?.*Used (?P<registers>\d+) registers(?P<rest>.*)"
)


@dataclass(frozen=True)
class Compiled:
    """One kernel for one architecture; sizes in bytes, of a thread, shared memory of a block."""

    name: str
    arch: str
    registers: int
    shared: int
    stack: int
    spilled: int


def parse(report: str) -> list[Compiled]:
    """Reads what ``ptxas -v`` prints."""
    found = [match.groupdict() for match in KERNEL.finditer(report)]
    names = _short_names([each["name"] for each in found])
    return [
        Compiled(
            name, each["arch"], int(each["registers"]), _shared_bytes(each["rest"]), int(each["stack"]),
            int(each["stores"]) + int(each["loads"]),
        )
        for name, each in zip(names, found, strict=True)
    ]  # fmt: skip


def _shared_bytes(rest: str) -> int:
    found = re.search(r"(\d+) bytes smem", rest)
    return int(found.group(1)) if found else 0


def _short_names(mangled: list[str]) -> list[str]:
    """``PickRows<15>`` of ``void glt::cuda::(anonymous namespace)::run_body<glt::cuda::PickRows<15>>(...)``."""
    names = mangled
    if shutil.which("c++filt"):
        done = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True)
        names = done.stdout.splitlines()
    short = []
    for name in names:
        body = re.search(r"run_body<(.*)>\(", name)
        name = body.group(1) if body else re.sub(r"\(glt::cuda::TieredTable.*\)$", "", name)
        name = re.sub(r"void |glt::cuda::|\(anonymous namespace\)::", "", name)
        short.append(re.sub(r"\((?:int|[\w:]+)\)(\d)", r"\1", name).replace(" >", ">").strip())
    return short


def reports() -> list[Path]:
    """The report of each source of the last build with CUDA; none without one since kernels changed."""
    build = runpy.run_path(str(ROOT / "setup.py"))
    files = build["digests"]()
    newest: dict[str, Path] = {}
    for path in sorted((ROOT / "build" / "obj" / "csrc" / "cuda").glob("*.ptxas"), key=lambda p: p.stat().st_mtime):
        if build["is_fresh"](path.with_suffix(".o"), files):
            newest[path.name.split(".cu.")[0]] = path
    return [path for name, path in sorted(newest.items()) if (ROOT / "csrc" / "cuda" / f"{name}.cu").exists()]


def compiled() -> list[Compiled]:
    return [kernel for path in reports() for kernel in parse(path.read_text())]


def table(kernels: list[Compiled]) -> str:
    """In Markdown: a row for each kernel, ``sm_80 / sm_90`` in each column."""
    archs = sorted({kernel.arch for kernel in kernels})
    by_name: dict[str, dict[str, Compiled]] = {}
    for kernel in kernels:
        by_name.setdefault(kernel.name, {})[kernel.arch] = kernel
    lines = [f"| kernel ({' / '.join(archs)}) | registers | shared bytes | local bytes | spilled bytes |"]
    lines.append("|---|---|---|---|---|")
    for name, of_arch in sorted(by_name.items(), key=lambda item: [int(d) if d.isdigit() else d for d in
                                                                   re.split(r"(\d+)", item[0])]):  # fmt: skip
        cells = [
            " / ".join(str(getattr(of_arch[arch], field)) if arch in of_arch else "-" for arch in archs)
            for field in ("registers", "shared", "stack", "spilled")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    if "--no-build" not in sys.argv[1:]:
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        if subprocess.run(command, cwd=ROOT, env=os.environ | {"GLT_CUDA": "1"}).returncode:
            return 1
    kernels = compiled()
    if not kernels:
        print("no build with CUDA here: set CUDA_HOME to a toolkit and leave --no-build out")
        return 1
    print(table(kernels))
    spilling = sorted({f"{kernel.name} ({kernel.arch})" for kernel in kernels if kernel.spilled})
    if spilling:
        print(f"\nspill: {', '.join(spilling)}")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
