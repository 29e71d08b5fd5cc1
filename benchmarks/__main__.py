"""Runs the benchmarks, each in a process of its own: ``python -m benchmarks [sampler gather ...] [--toy]``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Runs the benchmarks one after another.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--toy", action="store_true", help="tiny graphs: shows that the benchmarks run, nothing else")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    failed = []
    for name in options.names or NAMES:
        command = [sys.executable, "-m", f"benchmarks.bench_{name}", *(["--toy"] if options.toy else [])]
        if subprocess.run(command).returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
