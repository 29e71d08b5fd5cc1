"""A mistake of a first day: a script as a newcomer writes it, and what glt says to it."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

import glt

MARK = "# <- here"
GLT = Path(glt.__file__).parent

# What each script begins with; "parts" is a directory of two partitions beside it.
BEGIN = """\
import os
import signal
import subprocess
import sys

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

import glt.distributed as gd
from glt.data import Dataset, Feature
from glt.loader import LinkNeighborLoader, NeighborLoader
from glt.partition import FennelPartitioner, FrequencyPartitioner, MetisPartitioner, RandomPartitioner, load_partition

n = 100
ids = torch.arange(10)
edge_index = torch.stack([torch.arange(n).repeat_interleave(2), torch.arange(2 * n) * 7 % n])
data = Data(x=torch.ones(n, 4), edge_index=edge_index, y=torch.arange(n) % 3)
hetero = HeteroData()
hetero["user"].x = torch.ones(n, 4)
hetero["item"].x = torch.ones(n, 4)
hetero["user", "buys", "item"].edge_index = edge_index
"""


@dataclass(frozen=True)
class Mistake:
    """``source`` has the wrong line, which ends with ``MARK``, or is the last. Its message names the ``argument`` (or
    what else is wrong) and its ``value``, says what was ``expected`` and, where that is more, what to ``do``."""

    name: str
    source: str
    error: str
    argument: str
    value: str
    expected: str
    do: str = ""

    def script(self) -> str:
        marked = self.source if MARK in self.source else f"{self.source}  {MARK}"
        return f"{BEGIN}\n{marked}\n"

    def judge(self, done, line: int = 1) -> None:
        """Checks how its program ended: what it said, and that only the user's line and a check of glt are shown, and
        torch's calls of a module's ``forward``. ``line`` is that of the script's first."""
        assert done.returncode == 1, f"{done.returncode}\n{done.stderr}"
        traceback = done.stderr[done.stderr.rindex("Traceback (most recent call last):") :]
        calls = re.findall(r'^  File "(.+?)", line (\d+), in .+$', traceback, re.M)
        said = traceback[traceback.rindex('  File "') :].split("\n", 1)[1]
        name, _, message = re.search(r"^((?:\w+\.)*\w+)(: )(.+)", said, re.M | re.S).groups()
        assert name.rpartition(".")[2] == self.error, traceback
        for piece in (self.argument, self.value, self.expected, self.do):
            assert piece in message, f"{piece!r} is not in: {message}"
        if sys.version_info >= (3, 11):
            (at,) = [i for i, text in enumerate(self.script().split("\n"), line) if text.endswith(MARK)]
            calls = [call for call in calls if not call[0].endswith("torch/nn/modules/module.py")]
            assert calls[-2] == ("train.py", str(at)), traceback
            assert Path(calls[-1][0]).is_relative_to(GLT), traceback


def leftovers(folder: Path, before: set[str]) -> list[str]:
    """What a program left that ran in ``folder``, with its temporary files there: files, shared memory, processes."""
    left = [str(path) for path in folder.rglob("*.tmp-*")] + [str(path) for path in (folder / "tmp").iterdir()]
    left += sorted(f"/dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - before if name.startswith("glt"))
    for process in psutil.process_iter():
        try:
            if process.environ().get("GLT_MISTAKE") == str(folder):
                left.append(f"process {process.pid}: {process.cmdline()}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it ended meanwhile, or is none of ours
    return left
