"""What ``glt launch`` adds to torchrun: time from the command to the first line of the script, and output per second.

Claim: the first line of a trainer comes at most half a second later than with ``torchrun`` alone; a flood of lines,
each with who wrote it, takes at most 1.5 times as long as torchrun's, whose lines are torn.

Method: two trainers, on this host, no servers, whose script prints the time of its first statement, then a number of
lines. Contestants take turns in one run; each starts as a shell would start it. "first line" is from the start of the
command to that statement; "all" to the end of the command, which includes stopping.

    python -m benchmarks.bench_launch [--rounds 5] [--toy]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._harness import Report, arguments, interleave
from glt.testing.cluster import free_port

_SCRIPT = """\
import sys, time
sys.stdout.write(f"began {time.time()}\\n")  # in one piece: torchrun has both trainers write to one pipe
for number in range(int(sys.argv[1])):
    print("line", number)
"""
_TRAINERS = 2


class Contestant:
    """A launcher: runs the script and remembers when its first line came, and how many lines came at all."""

    def __init__(self, name: str, script: Path, num_lines: int) -> None:
        self.name, self.script, self.num_lines = name, script, num_lines
        self.first_s: list[float] = []

    def command(self) -> list[str]:
        words = [str(self.script), str(self.num_lines)]
        if self.name == "torchrun":
            start = ["torch.distributed.run", f"--nproc-per-node={_TRAINERS}", "--master-addr=127.0.0.1",
                     f"--master-port={free_port()}"]  # fmt: skip
        else:
            start = ["glt", "launch", "--num-servers", "0", "--num-trainers", str(_TRAINERS), "--num-omp-threads", "1"]
        return [sys.executable, "-m", *start, *words]

    def __call__(self) -> float:
        begin = time.time()
        done = subprocess.run(self.command(), capture_output=True, text=True, timeout=240)
        lines = done.stdout.splitlines()
        began = [float(each) for each in re.findall(r"began (\d+\.\d+)", done.stdout)]
        if done.returncode or len(began) != _TRAINERS or len(lines) != _TRAINERS * (1 + self.num_lines):
            raise RuntimeError(f"{self.name}: exit status {done.returncode}, {len(lines)} lines:\n{done.stderr}")
        self.first_s.append(min(began) - begin)
        return float(len(lines))


def main() -> None:
    options = arguments(__doc__, rounds=5)
    num_lines = 10 if options.toy else 50_000
    report = Report("launch", options.toy)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(_SCRIPT)
        contestants = {name: Contestant(name, script, num_lines) for name in ("torchrun", "glt launch")}
        timings = interleave(contestants, 1 if options.toy else options.rounds, warmup=0 if options.toy else 1)
    rounds = len(timings["torchrun"].seconds)
    first = {name: sorted(each.first_s[-rounds:])[rounds // 2] for name, each in contestants.items()}
    for name, timing in timings.items():
        report.add(
            launcher=name, trainers=_TRAINERS, lines=_TRAINERS * num_lines, first_line_s=first[name],
            over_torchrun_s=first[name] - first["torchrun"], all_s=timing.median(),
            quartiles=timing.quartiles(), all_over_torchrun=timing.median() / timings["torchrun"].median(),
        )  # fmt: skip
    report.finish()


if __name__ == "__main__":
    main()
