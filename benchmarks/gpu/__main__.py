"""Checks and times what runs on the GPU, and prints one table: ``python -m benchmarks.gpu [PART ...] [OPTION ...]``.

Builds the extension first, so that the figures are of this source. Each part prints its rows when it is done; all of
them are kept in ``benchmarks/results/gpu[-PART ...].json``. Without a GPU it says what is missing; with --toy the parts
then run on the CPU, through the kernels' host executor, which shows that they run and nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import traceback
from pathlib import Path

from benchmarks.gpu.limits import Limits

LIMITED = ("training", "training_workers")  # these look at the clock themselves
PARTS = ("gather", "sampling", "links", "kernels", "reads", "atomics", "gaps", "interference", *LIMITED, "peers")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--toy", action="store_true", help="toy sizes, no figures kept; runs without a GPU too")
    parser.add_argument("--no-build", action="store_true", help="time the extension that is there")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin nothing that would end later")
    parser.add_argument("--folder", type=Path, help="where the training parts keep their partitioned graph, 3 GB")
    options = parser.parse_args()
    if options.budget is not None and options.budget <= 0:
        parser.error(f"--budget = {options.budget}: expected seconds, more than 0")
    limits = Limits(options.budget, options.folder)  # the build counts
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not options.toy and not options.no_build:
        root = Path(__file__).parents[2]
        subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=root, check=True)

    import torch  # after the build: glt loads the extension

    from benchmarks._harness import Report
    from glt.data.device import missing_for_cuda

    missing = missing_for_cuda()
    if missing is not None:
        print(f"no GPU benchmarks of glt here: {missing}")
        if not options.toy:
            return 1
        print("running on the CPU through the host executor: the figures mean nothing")
    device = torch.device("cpu") if missing is not None else torch.device("cuda", torch.cuda.current_device())
    report = Report("-".join(["gpu", *options.parts]), options.toy)
    if missing is None:
        report.machine |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
        print(f"on {report.machine['gpu']}, CUDA {report.machine['cuda']}", flush=True)
    failed, left_out = [], []
    for name in options.parts or PARTS:
        first = len(report.rows)
        if not limits.has_room_for(0):
            left_out.append(name)
            continue
        try:
            more = {"limits": limits, "in_workers": name == "training_workers"} if name in LIMITED else {}
            module = importlib.import_module(f"benchmarks.gpu.{name.removesuffix('_workers')}")
            module.measure(report, device, **more)
            if missing is None:
                torch.cuda.empty_cache()  # tables of one part are not to be in the way of the next, or of its workers
        except Exception:  # what the other parts find is worth having
            traceback.print_exc()
            failed.append(name)
        if first < len(report.rows):
            report.print_rows(report.rows[first:])  # now: somebody may end this before the last part is done
    report.finish()
    if left_out:
        print(f"no time was left for these: python -m benchmarks.gpu --no-build {' '.join(left_out)}")
    if failed:
        print(f"failed: {', '.join(failed)}; see above")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
