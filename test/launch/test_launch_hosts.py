"""Two hosts, a server and trainers on each: ``glt copy``, then ``glt launch`` of an example, and how that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cable_world import HERE, THERE, Cable
from launch_world import PATHS, Launched, marked

pytestmark = pytest.mark.integration

Launch = Callable[..., Launched]
EXAMPLE = Path(__file__).parents[2] / "examples" / "embeddings"
LONG = ("--epochs", 100_000)


@pytest.fixture(scope="module")
def workspace(cable: Cable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``glt copy`` sent to both hosts, which have one file system here: the example, and its partitions."""
    folder = tmp_path_factory.mktemp("hosts")
    prepare = [sys.executable, EXAMPLE / "prepare.py", "--output_dir", folder / "line", "--num_parts", "2"]
    subprocess.run(prepare, check=True, timeout=120)
    copy = [
        *"glt copy --hosts".split(),
        f"{HERE},{THERE}",
        *cable.server.flags,
        "--part-config",
        folder / "line/parts",
        "--workspace",
        folder / "job",
        *"--rel-data-path line/parts --script-folder".split(),
        EXAMPLE,
    ]
    command = [*cable.before, sys.executable, "-m", *map(str, copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{HERE}: partitions 0 are whole" in done.stderr and f"{THERE}: partitions 1 are whole" in done.stderr
    (folder / "line" / "held_out.npy").rename(folder / "job" / "line" / "held_out.npy")
    return folder / "job"


class HostsJob:
    """The example that runs on both hosts."""

    def __init__(self, launch: Launch, cable: Cable, workspace: Path, num_trainers: int, *words: object) -> None:
        self.launched = launch(
            "--hosts",
            f"{HERE},{THERE}",
            *cable.server.flags,
            *PATHS,
            "--workspace",
            workspace,
            "--num-trainers",
            num_trainers,
            *"--part-config line/parts --lost-timeout 5 --stop-timeout 3 --num-omp-threads 1".split(),
            *"embeddings/train.py --dir line".split(),
            *words,
            before=cable.before,
        )
        self.mark = f"{workspace}/line/parts", "GLT_PART_CONFIG"

    def pid_of(self, trainer: int) -> int:
        """Of the process itself, not of those that it started."""
        (found,) = (
            pid for pid in marked(*self.mark) if f"RANK={trainer}" in environment(pid) and "train.py" in words(pid)[2]
        )
        return found

    def ended(self) -> int:
        """Waits for the end of everything, on both hosts, within a minute; returns the exit status."""
        begin = time.monotonic()
        status = self.launched.ended()
        while left := marked(*self.mark):
            assert time.monotonic() - begin < 60, [words(pid) for pid in left]
            time.sleep(0.05)
        return status


def environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_text().split("\0")
    except OSError:
        return []  # gone meanwhile


def words(pid: int) -> list[str]:
    try:
        return [*Path(f"/proc/{pid}/cmdline").read_text().split("\0"), "", "", ""]
    except OSError:
        return ["", "", ""]


@pytest.fixture
def start(launch: Launch, cable: Cable, workspace: Path) -> Iterator[Callable[[int], HostsJob]]:
    """Starts one with so many trainers on each host; it would run for days, and has begun to learn."""
    started = []

    def start(num_trainers: int) -> HostsJob:
        started.append(HostsJob(launch, cable, workspace, num_trainers, *LONG))
        started[-1].launched.wait_for(f"trainers: {2 * num_trainers}")
        return started[-1]

    yield start
    for pid in marked(*started[-1].mark) if started else ():
        os.kill(pid, signal.SIGKILL)


def test_an_example_learns(launch: Launch, cable: Cable, workspace: Path) -> None:
    job = HostsJob(launch, cable, workspace, 1, "--epochs", 1)
    assert job.ended() == 0, job.launched.out + job.launched.err
    assert "trainers: 2" in job.launched.out and f"trainer-0@{HERE} | edges found: 0." in job.launched.out


def test_who_is_killed_is_named(start: Callable[[int], HostsJob]) -> None:
    """Of four trainers, one that waits for the others at every step."""
    job = start(2)
    pid = job.pid_of(3)
    os.kill(pid, signal.SIGKILL)
    assert job.ended() == 137, job.launched.err
    assert f"failed: trainer-3@{THERE}: pid {pid} was killed by SIGKILL" in job.launched.err, job.launched.err


def test_a_host_that_is_cut_off_is_named(start: Callable[[int], HostsJob], cable: Cable) -> None:
    job = start(1)
    with cable.cut():
        assert job.ended() == 255, job.launched.err
    assert f"failed: host {THERE}: failed (code 255)" in job.launched.err, job.launched.err


def test_ctrl_c(start: Callable[[int], HostsJob]) -> None:
    job = start(1)
    job.launched.process.send_signal(signal.SIGINT)
    assert job.ended() == 130
    assert "failed" not in job.launched.err, job.launched.err
