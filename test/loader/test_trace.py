"""Traces of loaders of a trainer's process and its DataLoader workers, and beside those of torch.profiler."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
import traced
from torch.profiler import profile, record_function

import glt
from glt.data.synthetic import synthetic_graph
from glt.loader import HGTLoader, NeighborLoader, RandomWalkLoader, ShaDowKHopSampler

TASK = synthetic_graph(500)
PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "trace.md").read_text()


def make_loader(**options):
    return NeighborLoader(TASK.to_pyg(), [4, 2], torch.arange(80), batch_size=10, random_seed=3, **options)


def test_what_this_process_does_lies_in_what_it_waits_for(tmp_path):
    loader = make_loader(transform=lambda batch: batch)
    with loader.trace(tmp_path / "trace.json") as trace:
        list(loader)
        assert repr(trace) == f"Trace({tmp_path}/trace.json, 8 batches)"
    found = traced.read(tmp_path / "trace.json")
    traced.expect_nested([event for events in found.values() for event in events])
    assert "batch" not in found and {event["pid"] for event in found["sample"]} == {os.getpid()}
    waited = {event["args"]["batch"]: traced.span(event) for event in found["wait for batch"]}
    assert sorted(waited) == [*range(8)]
    for name in ("sample", "gather", "transform"):
        assert [event["args"]["batch"] for event in found[name]] == [*range(8)]
        assert all(traced.is_in(traced.span(event), waited[event["args"]["batch"]]) for event in found[name])


@pytest.mark.parametrize("filter_per_worker", [False, True])
@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_workers_tell_what_they_do(tmp_path, options, filter_per_worker):
    plain = [batch.n_id for batch in make_loader()]
    loader = make_loader(filter_per_worker=filter_per_worker, **options)
    for epoch in range(2):
        with loader.trace(tmp_path / "trace.json"):
            nodes = [batch.n_id for batch in loader]
        if epoch == 0:
            assert all(torch.equal(got, wanted) for got, wanted in zip(nodes, plain, strict=True))
        found = traced.read(tmp_path / "trace.json")
        pids = {event["pid"] for event in found["batch"]}
        assert len(pids) == 2 and os.getpid() not in pids
        traced.expect_lives(found, 8, ["sample", "gather"] if filter_per_worker else ["sample"], pids)
        assert ({event["pid"] for event in found["gather"]} == pids) == filter_per_worker
        assert sum("worker 1 of the loader" in event["args"]["name"] for event in found["process_name"]) == 1


def test_workers_that_run_without_room_for_a_trace_are_refused(tmp_path):
    loader = make_loader(num_workers=1, persistent_workers=True)
    list(loader)
    with pytest.raises(ValueError, match="persistent_workers = True, and they run already, without room for a trace"):
        loader.trace(tmp_path / "trace.json")


@pytest.mark.parametrize("is_persistent", [False, True])
def test_what_workers_did_before_is_in_no_trace(tmp_path, is_persistent):
    """A worker makes one batch at a time: none of an iteration that was left, or was not traced, lies across others."""
    loader = make_loader(num_workers=2, persistent_workers=is_persistent)
    for name in ("left.json", "after.json"):
        with loader.trace(tmp_path / name):
            for _, _ in zip(range(4), loader, strict=False):
                pass
            list(loader)
        list(loader)
        lines = {(event["pid"], event["tid"]) for event in traced.read(tmp_path / name)["batch"]}
        assert len(lines) == len({pid for pid, _ in lines})


def test_a_batch_that_fails_is_not_trained_on(tmp_path):
    def transform(batch):
        if batch.input_id[0] == 30:
            raise KeyError("batch 3")
        return batch

    loader = make_loader(transform=transform)
    with loader.trace(tmp_path / "trace.json"):
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        with pytest.raises(KeyError, match="batch 3"):
            next(batches)
        list(batches)
    found = traced.read(tmp_path / "trace.json")
    for name in ("wait for batch", "train"):
        assert [event["args"]["batch"] for event in found[name]] == [0, 1, 2, 4, 5, 6, 7]


def test_the_thread_that_takes_batches_is_the_trainer(tmp_path):
    loader = make_loader()
    with loader.trace(tmp_path / "trace.json"):
        thread = threading.Thread(target=list, args=(loader,))
        thread.start()
        thread.join(60)
    found = traced.read(tmp_path / "trace.json")
    assert [each["args"]["name"] for each in found["thread_name"]] == ["glt: trainer"]
    for name in ("sample", "wait for batch"):
        assert {event["tid"] for event in found[name]} == {found["thread_name"][0]["tid"]}
        assert [event["args"]["batch"] for event in found[name]] == [*range(8)]


def test_every_loader_is_traced(tmp_path):
    typed = glt.data.synthetic.synthetic_hetero_graph(200, 100, 8).to_pyg()
    plain, kind = TASK.to_pyg(), typed.node_types[0]
    for loader in (
        HGTLoader(typed, [4], input_nodes=(kind, torch.arange(64)), batch_size=8),
        ShaDowKHopSampler(plain, 1, 3, node_idx=torch.arange(64), batch_size=8),
        RandomWalkLoader(glt.Dataset.from_pyg(plain), 4, 2, input_nodes=torch.arange(64), batch_size=8),
        make_loader(num_workers="auto"),
    ):
        with loader.trace(tmp_path / "trace.json"):
            list(loader)
        found = traced.read(tmp_path / "trace.json")
        assert len(found["sample"]) == len(found["wait for batch"]) == len(found["train"]) == 8


def test_nothing_is_written_before_and_after(tmp_path):
    loader, path = make_loader(), tmp_path / "trace.json"
    trace = loader.trace(path)
    list(loader)
    trace.close()
    trace.close()
    size = path.stat().st_size
    list(loader)
    assert path.stat().st_size == size < 8 * 5000
    with loader.trace(path):
        pass
    assert sorted(traced.read(path)) == ["process_name", "thread_name"]
    with pytest.raises(TypeError, match="path = None: expected the path of a file to write"):
        loader.trace(None)


def test_a_file_has_one_trace_at_a_time(tmp_path):
    first, second = make_loader(num_workers=1, persistent_workers=True), make_loader()
    for _ in range(2):
        with first.trace(tmp_path / "trace.json"):
            list(first)
            with pytest.raises(ValueError, match=r"path = .*trace.json': another trace is being written there"):
                second.trace(tmp_path / "trace.json")
        assert len(traced.read(tmp_path / "trace.json")["train"]) == 8
    with second.trace(tmp_path / "trace.json"):  # a worker of the first lives
        list(second)
    assert len(traced.read(tmp_path / "trace.json")["train"]) == 8
    with second.trace(os.devnull):
        list(second)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        second.trace("/dev/full")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_torch_profilers_times_are_the_same(tmp_path, monkeypatch, num_workers):
    """By the code of the page."""
    monkeypatch.chdir(tmp_path)
    loader, steps = make_loader(num_workers=num_workers, filter_per_worker=True), []

    def step(batch):
        with record_function("step"):
            began_ns = time.time_ns()
            torch.mm(batch.x, batch.x.T)
            time.sleep(0.02)
            steps.append((began_ns, time.time_ns()))

    _, code = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    code = code.partition("def step(batch):\n    pass")[0] + code.partition("your model here\n")[2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's profiler
        exec(compile(code, "trace.md", "exec"), {"loader": loader, "step": step, "profile": profile})
    found = traced.read("both.json")
    trained = {event["args"]["batch"]: traced.span(event) for event in found["train"]}
    theirs = sorted(traced.span(event) for event in found["step"])
    assert len(theirs) == len(trained) == 8 and len(found["aten::mm"]) == 8
    for index, (begin, end) in enumerate(theirs):
        # torch converts ticks of the processor, on a busy machine not to the millisecond.
        assert traced.is_in((begin, end), (trained[index][0] - 5e6, trained[index][1] + 5e6)), (index, begin, trained)
        assert end - begin >= 2e7
    base_ns = json.loads(Path("torch.json").read_text())["baseTimeNanoseconds"]
    # Others may have run between the beginnings of an event and of its step, but not of all.
    assert min(abs(begin + base_ns - of[0]) for (begin, _), of in zip(theirs, steps, strict=True)) < 5e6
    assert {event["pid"] for event in found["step"]} == {event["pid"] for event in found["train"]}


KILLED = """
import os, signal, torch
from glt.data.synthetic import synthetic_graph
from glt.loader import NeighborLoader

loader = NeighborLoader(synthetic_graph(500).to_pyg(), [2], torch.arange(40), batch_size=10)
loader.trace("trace.json")
for batch in loader:
    if batch.input_id[0] == 30:
        os.kill(os.getpid(), signal.SIGKILL)
"""


FULL = """
import resource, torch
from glt.data.synthetic import synthetic_graph
from glt.loader import NeighborLoader

loader = NeighborLoader(synthetic_graph(500).to_pyg(), [2], torch.arange(40), batch_size=10)
loader.trace("trace.json")
batches = iter(loader)
next(batches)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
try:
    next(batches)
except OSError as error:
    print(error)
print(len(list(batches)))
"""


def test_a_full_disk_is_told_once_and_ends_the_trace(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", FULL]
    done = subprocess.run(command, cwd=tmp_path, timeout=120, capture_output=True, text=True)
    assert done.stdout == "[Errno 27] File too large: 'trace.json'\n2\n", done.stderr


def test_what_a_killed_process_leaves_lacks_the_last_bracket(tmp_path):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLED], cwd=tmp_path, timeout=120)
    assert done.returncode == -signal.SIGKILL
    events = json.loads((tmp_path / "trace.json").read_text() + "]")
    assert [each["args"]["batch"] for each in events if each["name"] == "wait for batch"] == [0, 1, 2, 3]
