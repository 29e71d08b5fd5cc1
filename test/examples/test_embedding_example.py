"""The example of embeddings learns what the same model learns with torch's embeddings in one process."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import glt
from glt.distributed import DistEmbedding, DistGraph

ROOT = Path(__file__).resolve().parents[2]
MATHOVERFLOW = ROOT.parent / "shared" / "data" / "mathoverflow.npz"
TOY = {"epochs": 12, "batch_size": 1024, "lr": 0.05, "dim": 8}


def load(name):
    spec = importlib.util.spec_from_file_location(f"embedding_{name}", ROOT / "examples" / "embeddings" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


prepare, train = load("prepare"), load("train")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("line")
    prepare.prepare(folder, num_parts=2)
    return folder


@pytest.fixture
def alone(monkeypatch):
    for name in ("GLT_ROLE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield
    glt.distributed.finalize()


def margins(folder, options):
    """Of this process as a job: what is found, what without structure, and what torch's embeddings find."""
    glt.distributed.initialize(part_config=folder / "parts")
    graph = DistGraph("graph")
    held_out = torch.from_numpy(np.load(folder / "held_out.npy"))
    found, without = (train.learn(graph, options, held_out, has_structure) for has_structure in (True, False))
    width = 0.5 / options.dim**0.5
    first = [
        DistEmbedding(graph.num_nodes(), options.dim, name, ("uniform", -width, width)).weight[:]
        for name in ("source", "target")
    ]
    model = train.Line(*(torch.nn.Embedding.from_pretrained(rows, freeze=False, sparse=True) for rows in first))
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=options.lr)
    train.train(model, optimizer, graph.find_edges, graph.num_edges(), graph.num_nodes(), options)
    source, target = model.source.weight.detach(), model.target.weight.detach()
    return found, without, train.chance_of_order(source, target, held_out, options.random_seed)


@pytest.mark.usefixtures("alone")
def test_two_trainers_one_process_and_torch_learn_the_same(toy, run):
    found, without, of_torch = margins(toy, train.Options(**TOY))
    assert abs(found - of_torch) < 0.005, "the only difference is how sums are rounded"
    assert abs(without - 0.5) < 0.03 and found - without > 0.15, (found, without)
    arguments = ["examples/embeddings/train.py", "--dir", str(toy)]
    arguments += [text for name, value in TOY.items() for text in (f"--{name}", str(value))]
    told = run("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *arguments).stdout
    (of_two,) = re.findall(r"edges found: ([0-9.]+), without structure ([0-9.]+), margin", told)
    assert tuple(map(float, of_two)) == pytest.approx((found, without), abs=0.005)


@pytest.mark.shared
@pytest.mark.skipif(not MATHOVERFLOW.exists(), reason=f"{MATHOVERFLOW} is absent")
@pytest.mark.usefixtures("alone")
def test_a_real_graph_without_features(tmp_path):
    prepare.prepare(tmp_path, str(MATHOVERFLOW))
    found, without, of_torch = margins(tmp_path, train.Options(epochs=2, dim=16))
    assert abs(found - of_torch) < 0.005
    assert abs(without - 0.5) < 0.02 and found - without > 0.3, (found, without)
