"""torchrun restarts the trainers of examples/elastic.py, and they go on within the epoch."""

import ast
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "elastic.py"
EVERY, NUM_EPOCHS, KILLED_IN_STEP = 5, 2, 18

# The example, in which trainer 1 is killed in the middle of its step, once.
KILLED = f"""
import os, runpy, signal, sys
import torch

if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
    real, steps = torch.optim.Adam.step, []

    def step(self, *args):
        steps.append(self)
        if len(steps) == {KILLED_IN_STEP}:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *args)

    torch.optim.Adam.step = step
sys.argv[0] = {str(EXAMPLE)!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def torchrun(start, folder, script, *, num_trainers=2, restarts=0):
    folder.mkdir(exist_ok=True)
    flags = ["--standalone", "--nproc-per-node", num_trainers, "--max-restarts", restarts]
    options = ["--checkpoint", folder / "c.pt", "--every", EVERY, "--epochs", NUM_EPOCHS, "--seeds-log", folder / "log"]
    words = ["-m", "torch.distributed.run", *flags, script, *options, "--batch-size", "50"]
    return start(*words, folder=folder, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def history(folder, restart):
    """Per trainer, a line for each batch: the epoch and number of the next one, and its seeds."""
    lines = [(folder / f"log.{restart}.{rank}").read_text().splitlines() for rank in range(2)]
    return [[tuple(line.split(" ", 2)) for line in each] for each in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, start):
    """The folder of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    done = torchrun(start, folder, EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_killed_trainer_restarts_within_the_epoch(start, whole, tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    done = torchrun(start, tmp_path, tmp_path / "killed.py", restarts=1)
    assert done.returncode == 0, done.stdout + done.stderr
    expected, before, after = history(whole, 0), history(tmp_path, 0), history(tmp_path, 1)
    for rank in range(2):
        kept = len(expected[rank]) - len(after[rank])
        assert before[rank] == expected[rank][: len(before[rank])]
        assert 0 < kept < len(before[rank]), "batches after the last checkpoint are trained again"
        assert before[rank][:kept] + after[rank] == expected[rank]
        epoch, number, _ = before[rank][kept - 1]
        assert int(number) % EVERY == 0 and (epoch, number) != ("1", "0"), "within an epoch"
    for epoch in range(NUM_EPOCHS):
        for rank in range(2):
            per_epoch = len(expected[rank]) // NUM_EPOCHS
            history_of = (before[rank][:kept] + after[rank])[epoch * per_epoch : (epoch + 1) * per_epoch]
            seeds = [seed for _, _, text in history_of for seed in ast.literal_eval(text)]
            assert len(seeds) > 100 and sorted(seeds) == sorted(set(seeds)) == list(range(len(seeds))), "each once"
    one, other = (torch.load(folder / "c.pt", weights_only=True) for folder in (whole, tmp_path))
    assert one["loaders"] == other["loaders"] and one["model"].keys() == other["model"].keys()
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


def test_another_number_of_trainers_is_refused(start, whole):
    done = torchrun(start, whole, EXAMPLE, num_trainers=1)
    assert done.returncode != 0 and "c.pt is of 2 trainers, and there are 1" in done.stderr


def test_a_store_that_is_kept_over_restarts_is_refused(start, tmp_path):
    said = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "1"}
    done = start(EXAMPLE, "--checkpoint", tmp_path / "c.pt", **said)
    assert done.returncode == 1 and "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in done.stderr
