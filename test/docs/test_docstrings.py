"""Every public name has an example in its docstring, and each example runs.

An example finds ``torch, np, os, shutil, glt`` imported, and in its folder ``parts``: the ring of 40 nodes in two
partitions, in-edges, with features and labels. A server of it listens at ``MASTER_ADDR:MASTER_PORT``. ``of-others`` has
directories of other libraries.
"""

import doctest
import inspect
import os
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import glt
from glt._faces import FACES
from glt.distributed.context import current_world, resign
from glt.testing.cluster import free_port

ROOT = Path(__file__).resolve().parents[2]
READERS = ["glt.data.tasks", "glt.data.synthetic"]


def public_objects():
    """Functions and classes by the module that defines them, each once."""
    found = {}
    for face in [*FACES, *READERS]:
        module = import_module(face)
        names = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == face
        ]
        for name in names:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


OBJECTS = public_objects()


def is_plain_error(value):
    """An exception that adds nothing but a name to its root, GltError: the example of that shows how to catch it."""
    return inspect.isclass(value) and issubclass(value, glt.errors.GltError) and "__init__" not in vars(value)


def example_of(name):
    """The doctest of a docstring; None if it has none."""
    names = {"torch": torch, "np": np, "os": os, "shutil": shutil, "glt": glt, "__name__": "examples"}
    found = doctest.DocTestFinder(recurse=False).find(OBJECTS[name], name, globs=names)
    return found[0] if found else None


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The folder that has what examples take for granted, and the address of a server."""
    sys.path.insert(0, str(ROOT / "test" / "partition"))
    import peer_world

    folder = tmp_path_factory.mktemp("examples")
    ring = glt.testing.ring_graph()
    tables = {"node_feat": ring.x, "node_label": ring.y, "edge_assign_strategy": "by_dst"}
    glt.partition.RandomPartitioner(str(folder / "parts"), 2, 40, ring.edge_index, **tables).partition()
    (folder / "of-others").mkdir()
    peer_world.unpack(folder / "of-others")
    with pytest.MonkeyPatch.context() as patch:
        peer_world.write_pyg(folder / "of-others" / "pyg", ring.to_data(), 2, patch)
    sys.path.remove(str(ROOT / "test" / "partition"))
    port = str(free_port())
    command = f"serve --partition {folder / 'parts'} --servers 1 --rank 0 --master-addr 127.0.0.1 --master-port {port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "glt", *command.split()],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield folder, port
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


@pytest.mark.parametrize("name", [name for name, value in OBJECTS.items() if not is_plain_error(value)])
def test_the_example_runs(name, world, tmp_path, monkeypatch):
    folder, port = world
    for each in ("parts", "of-others"):
        (tmp_path / each).symlink_to(folder / each)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", port)
    torch.manual_seed(0)
    test = example_of(name)
    assert test is not None and test.examples, f"{name} has no example in its docstring"
    told = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    try:
        failed = runner.run(test, out=told.append).failed
        assert not failed, "".join(told)
    finally:
        if glt.distributed.get_context() is not None and current_world() is not None:
            glt.distributed.finalize()
        resign()


def test_what_cannot_run_here_is_known():
    """Of an example that is skipped nothing is checked: it downloads, measures for 15 s, or needs Ray."""
    skipped = {name for name, value in OBJECTS.items() if "+SKIP" in (value.__doc__ or "")}
    assert skipped == {"glt.data.tasks.read_ogb", "glt.forecast.calibration.calibrate", "glt.ray.serve"}


def test_there_are_names():
    assert len(OBJECTS) > 130 and "glt.loader.loaders.NeighborLoader" in OBJECTS
