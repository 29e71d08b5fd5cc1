"""How much of this machine's memory the files of a folder take that processes have mapped."""

import os
from collections.abc import Iterable
from pathlib import Path


def with_children(pid: int) -> list[int]:
    """A process and those that it has started, for example to sample."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += with_children(int(child))
    return found


def mapped_bytes(folder: str | os.PathLike[str], pids: Iterable[int]) -> tuple[int, int]:
    """Returns what files of ``folder`` take in these processes: ``(resident, proportional)`` bytes.

    A page that n processes have mapped counts n times in the first, summed over all of them, and once in the second.
    """
    root = os.path.realpath(folder) + "/"
    totals = {"Rss:": 0, "Pss:": 0}
    for pid in pids:
        is_ours = False
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            key, _, rest = line.partition(" ")
            if "-" in key:  # a mapping begins: its last column is the file
                is_ours = root in line
            elif is_ours and key in totals:
                totals[key] += int(rest.split()[0]) << 10
    return totals["Rss:"], totals["Pss:"]
