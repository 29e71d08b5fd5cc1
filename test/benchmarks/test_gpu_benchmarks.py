"""The GPU benchmarks run, on the host executor where there is no GPU, and say what is missing."""

import json
import os
import signal
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import PARTS
from glt.data.device import missing_for_cuda

GPU = ("-m", "benchmarks.gpu")
ROOT = Path(__file__).parents[2]


def test_every_part_runs_at_toy_size(tmp_path, run):
    named = [part for part in PARTS if not part.startswith("training")]
    done = run(*GPU, "--toy", "--results", tmp_path, *named)
    parts = ("M1 random reads", "M2 stamps", "M3 zero-copy reads", "kernels by time", "M6 gaps", "M7 gather, glt")
    for what in (
        *parts,
        "M6: no graph",
        "M8: by hash",
        "hot half",
        "without edge ids",
        "W0 sampling, glt",
        "link batches, glt",
        "M9 products",
        "rows of 400",
    ):
        assert what in done.stdout
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["toy"] and {name: each["outcome"] for name, each in found["parts"].items()} == dict.fromkeys(
        named, "done"
    )
    written = (tmp_path / "gpu.md").read_text()
    assert "The checks of kernels against the CPU hold" in written and "| training | not run |" in written
    assert "| a copy over the bus |" in written and "| absent | dgl.graphbolt |" in written


def test_training_runs_at_toy_size_from_samplers_in_every_place(tmp_path, run):
    done = run(*GPU, "--toy", "--folder", tmp_path, "training", "training_workers")
    assert [path.name for path in tmp_path.iterdir()] == ["parts-600-6000"]  # both have used it
    for sampler in ("CPU, 1 workers", "GPU, device memory", "GPU, zero copy", "GPU, one worker process", "window of 8"):
        assert sampler in done.stdout


@pytest.mark.skipif(missing_for_cuda() is None, reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_what_is_missing(start):
    done = start(*GPU, "--no-build")
    assert done.returncode == 1
    assert f"no GPU benchmarks of glt here: {missing_for_cuda()}" in done.stdout


def test_no_time_for_anything_is_said(start):
    done = start(*GPU, "--toy", "--budget", "0.001", "gaps", "training")
    assert done.returncode == 1 and "no time was left to look at the GPU" in done.stdout


FEW_EPOCHS = """
import sys, torch
from benchmarks.gpu import training
from benchmarks.gpu.part import PartReport

asked = []
class Few(PartReport):
    def has_room_for(self, seconds):
        asked.append(seconds)
        return len(asked) <= 4  # the unmeasured epochs of three, and a measured one of the first

report = Few(True, f"{sys.argv[1]}/told", sys.argv[1], 0.0)
try:
    training.measure(report, torch.device("cpu"))
except RuntimeError as error:
    print(error)
assert [(row["sampler"], row["num_epochs"]) for row in report.rows] == [("GPU, device memory", 1)], report.rows
assert asked[:3] == [0.0] * 3 and min(asked[3:]) > 0, asked  # as long as their last one took
"""


def test_epochs_that_do_not_fit_are_left_out(tmp_path, run):
    said = run("-c", FEW_EPOCHS, tmp_path).stdout
    assert "GPU, zero copy; GPU, local, window of 8: no measured epoch in the time given" in said


SMALL_CHANNEL = """
import sys, torch
from benchmarks.gpu import training
from benchmarks.gpu.part import PartReport

training._batch_bytes = lambda loader: 4000  # of which one is about 100,000
report = PartReport(True, f"{sys.argv[1]}/told", sys.argv[1], 0.0)
training.measure_workers(report, torch.device("cpu"))
"""


def test_batches_that_pass_in_pieces_are_not_timed(tmp_path, start):
    done = start("-c", SMALL_CHANNEL, tmp_path)
    assert done.returncode == 1 and "'CPU, 1 workers': " in done.stderr, done.stdout + done.stderr
    assert "passed in pieces" in done.stderr and "larger channel_size" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such_part"], "no part is called no_such_part"),
        (["--budget", "0"], "--budget = 0.0: expected seconds, more than 0"),
        (["--budget", "nan"], "--budget = nan: expected seconds, more than 0"),
        (["--toy", "--results", f"{__file__}/folder"], "folder: files cannot be written there"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(words, said, start):
    done = start(*GPU, *words)
    assert done.returncode == 2 and said in done.stderr


SOME_PARTS = """
import os, signal, time

def quick(report, device):
    report.add(what="quick row", x_per_s=30.0, goal=40.0)

def fails(report, device):
    raise ValueError("it is wrong")

def aborts(report, device):
    report.add(what="row before it")
    os.abort()

def ends_without_a_name(report, device):
    os.kill(os.getpid(), signal.SIGRTMIN + 6)

def interrupts_the_run(report, device):
    report.add(what="row before it")
    os.kill(os.getppid(), int(os.environ["WITH"]))
    time.sleep(600)

def fails_later(report, device):
    path = report.folder / "fails_later"
    if path.exists():
        raise ValueError("it is\\nwrong now")
    path.touch()
    report.add(what="row of the first time")

def hangs(report, device):
    time.sleep(600)

def kills_once(report, device, whom=os.getpid):
    path = report.folder / whom.__name__
    if not path.exists():
        path.touch()
        os.kill(whom(), signal.SIGKILL)
        time.sleep(600)  # the run's death is this part's
    report.add(what="row of the second time")

def kills_the_run_once(report, device):
    kills_once(report, device, os.getppid)
"""
WITH_SOME_PARTS = """
import json, signal, sys
from benchmarks.gpu import __main__ as program
from benchmarks.gpu.part import Part

program.PARTS = {name: Part(f"some_parts:{name}", seconds) for name, seconds in json.loads(sys.argv.pop(1)).items()}
if "checks" in program.PARTS:
    program.PARTS["checks"] = Part("some_parts:fails", 50)
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background have it ignored
sys.exit(program.main())
"""


@pytest.fixture
def of_some_parts(tmp_path, start):
    """Runs the benchmark with other parts, of so many seconds; returns how it ended, and its JSON."""
    (tmp_path / "some_parts.py").write_text(SOME_PARTS)
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, tmp_path)))}

    def of_some_parts(parts, *words, **environ):
        given = ["--toy", "--folder", tmp_path / "kept", "--results", tmp_path / "results", *words]
        done = start("-c", WITH_SOME_PARTS, json.dumps(parts), *given, **paths, **environ)
        path = tmp_path / "results" / "gpu.json"
        return done, json.loads(path.read_text())["parts"] if path.exists() else {}

    return of_some_parts


def test_parts_that_crash_hang_or_fail_are_named_and_the_others_run(tmp_path, of_some_parts):
    done, parts = of_some_parts({"aborts": 50, "hangs": 0.3, "fails": 50, "ends_without_a_name": 50, "quick": 50})
    failed = "failed: aborts, hangs, fails, ends_without_a_name; see above"
    assert done.returncode == 1 and failed in done.stdout, done.stdout + done.stderr
    outcomes = {name: part["outcome"] for name, part in parts.items()}
    assert outcomes.pop("hangs") == "stopped: it had not ended after 0.9 s"
    assert outcomes.pop("ends_without_a_name") == f"ended by signal {signal.SIGRTMIN + 6}"
    assert outcomes == {"aborts": "ended by SIGABRT", "fails": "failed: ValueError: it is wrong", "quick": "done"}
    assert parts["aborts"]["rows"] == [{"what": "row before it"}], "what it had measured is kept"
    assert "| aborts | ended by SIGABRT |" in (tmp_path / "results" / "gpu.md").read_text()


def test_a_run_goes_on_with_what_is_missing(tmp_path, of_some_parts):
    given = {"quick": 50, "kills_once": 50, "kills_the_run_once": 50}
    killed, first = of_some_parts(given)
    assert killed.returncode == -9, killed.stdout + killed.stderr
    outcomes = {name: part["outcome"] for name, part in first.items()}
    assert outcomes == {"quick": "done", "kills_once": "ended by SIGKILL"}, (
        "and nothing of the part in which it was killed"
    )
    done, second = of_some_parts(given)
    assert done.returncode == 0 and "done before, and kept: quick; " in done.stdout, done.stdout + done.stderr
    assert {name: part["outcome"] for name, part in second.items()} == dict.fromkeys(given, "done")
    assert second["quick"] == first["quick"]
    done, third = of_some_parts(given)
    assert f"kept: {', '.join(given)}; --again" in done.stdout and third == second
    done, fourth = of_some_parts(given, "quick")  # named, so done again; the others are kept
    assert "quick row" in done.stdout and set(fourth) == set(given)


def test_a_part_that_fails_later_keeps_its_figures(tmp_path, of_some_parts):
    _, first = of_some_parts({"fails_later": 50})
    done, second = of_some_parts({"fails_later": 50}, "fails_later", "fails_later")
    assert done.returncode == 1 and done.stdout.count("fails_later: failed") == 1, done.stdout + done.stderr
    since = second["fails_later"].pop("since")
    assert second == first and since.startswith("failed: ValueError: it is\nwrong now (")
    lines = (tmp_path / "results" / "gpu.md").read_text().splitlines()
    assert any(line.startswith("| fails_later | done |") and "it is wrong now" in line for line in lines)
    (tmp_path / "kept" / "fails_later").unlink()
    done, third = of_some_parts({"fails_later": 50})  # not named, and done again
    assert done.returncode == 0 and "since" not in third["fails_later"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_keeps_the_rows_that_it_has(number, of_some_parts):
    done, parts = of_some_parts({"interrupts_the_run": 50, "quick": 50}, WITH=str(int(number)))
    assert done.returncode == 128 + number and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert list(parts) == ["interrupts_the_run"] and parts["interrupts_the_run"]["outcome"] == "interrupted"
    assert parts["interrupts_the_run"]["rows"] == [{"what": "row before it"}]


@pytest.mark.parametrize("how", ["another extension", "--again"])
def test_a_run_starts_afresh(how, tmp_path, of_some_parts):
    of_some_parts({"quick": 50})
    path = tmp_path / "results" / "gpu.json"
    found = json.loads(path.read_text())
    found["parts"]["quick"]["rows"], found["parts"]["old"] = [], found["parts"]["quick"]
    if how == "another extension":
        found["extension"] = "another"
    path.write_text(json.dumps(found))
    done, parts = of_some_parts({"quick": 50}, *([how] if how == "--again" else []))
    assert list(parts) == ["quick"] and parts["quick"]["rows"], done.stdout
    assert ("is of extension another, this is extension" in done.stdout) == (how == "another extension")


def test_nothing_is_timed_unless_checks_hold(of_some_parts):
    done, parts = of_some_parts({"checks": 50, "quick": 50})
    assert done.returncode == 1 and "the checks are not done: nothing is timed" in done.stdout
    assert {name: part["outcome"] for name, part in parts.items()} == {"checks": "failed: ValueError: it is wrong"}
    done, parts = of_some_parts({"checks": 50, "quick": 50}, "quick")
    assert done.returncode == 0 and parts["quick"]["outcome"] == "done", "parts that are named are"


def test_without_time_for_the_checks_all_that_is_missing_is_named(of_some_parts):
    done, parts = of_some_parts({"checks": 50, "quick": 1}, "--budget", "40")
    assert done.returncode == 1 and parts == {}
    assert "left for the checks, about 50 s: python -m benchmarks.gpu --no-build does them and all" in done.stdout
    assert "gpu.md" not in done.stdout, "there is none"


def test_a_part_that_would_not_fit_is_left_out(of_some_parts):
    done, parts = of_some_parts({"quick": 50, "hangs": 1000})
    assert "no time was left for these: python -m benchmarks.gpu --no-build hangs" in done.stdout
    assert done.returncode == 0 and list(parts) == ["quick"]
