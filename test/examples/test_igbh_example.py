"""The example of IGBH, MLPerf's graph: its files of all sizes, and R-GAT on partitions against full neighbours."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/igbh"
NUM_PAPERS, WIDTH = 300, 8


@pytest.fixture
def layout(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    import layout

    return layout


def make(run, folder, size, *flags):
    run(EXAMPLE / "make_igbh.py", "--path", "igbh", "--size", size, "--papers", NUM_PAPERS, *flags, folder=folder)
    return folder / "igbh" / size / "processed"


@pytest.mark.parametrize("size", ["small", "large"])
def test_edges_are_those_of_the_files_and_their_reverses(size, tmp_path, run, layout):
    files = make(run, tmp_path, size, "--features", WIDTH)
    graph = layout.read_graph(tmp_path / "igbh", size, 19, tmp_path)
    edges = graph["edge_index"]
    given = np.load(files / "paper__topic__fos/edge_index.npy")
    assert np.array_equal(edges["paper", "topic", "fos"], given.T)
    assert np.array_equal(edges["fos", "rev_topic", "paper"], given.T[::-1])
    assert ("journal", "rev_published", "paper") in edges or size == "small"
    assert len(edges) == (11 if size == "large" else 7), "as MLPerf's"
    given = np.load(files / "paper__cites__paper/edge_index.npy")
    given = given[given[:, 0] != given[:, 1]]
    loops = np.stack([np.arange(NUM_PAPERS)] * 2, axis=1)
    wanted = np.concatenate([given, given[:, ::-1], loops])
    assert sorted(edges["paper", "cites", "paper"].T.tolist()) == sorted(wanted.tolist())


@pytest.mark.parametrize("size", ["small", "large"])
def test_tables_are_mapped(size, tmp_path, run, layout):
    """With NumPy's header, and the bare numbers of papers and authors of the large sizes."""
    files = make(run, tmp_path, size, "--features", WIDTH)
    graph = layout.read_graph(tmp_path / "igbh", size, 2983, tmp_path)
    for node_type, x in graph["node_feat"].items():
        file = files / node_type / "node_feat.npy"
        is_bare = size == "large" and node_type in ("paper", "author")
        assert isinstance(x, np.memmap) and file.stat().st_size == x.nbytes + (0 if is_bare else 128)
        assert np.allclose(np.linalg.norm(x, axis=1), 1, atol=1e-5), "as it was made"
    labels = graph["node_label"]["paper"]
    assert labels.dtype == np.int16 and labels.max() > 19 and len(labels) == NUM_PAPERS


def test_papers_without_a_label_have_none(tmp_path, layout):
    np.array([3, np.nan, 18], np.float32).tofile(tmp_path / "bare.npy")
    mapped = layout.map_file(tmp_path / "bare.npy", (-1,))
    assert layout._labels(mapped, tmp_path / "labels.npy").tolist() == [3, -1, 18]


def test_the_split_is_that_of_mlperf(layout, monkeypatch):
    found = layout.split("tiny", 2983, 100_000)
    torch.manual_seed(42)  # of its split_seeds.py
    order = torch.randperm(100_000)
    assert torch.equal(found["train"], order[:60_000]) and torch.equal(found["val"], order[60_000:60_500])
    monkeypatch.setitem(layout.LABELLED, ("full", 19), 700)
    assert max(each.max() for each in layout.split("full", 19, 1000).values()) < 700, "the first have labels"


def test_rgat_learns_as_with_all_neighbours(tmp_path, run):
    """A nineteenth is chance, and a linear model on features alone has about 0.6."""
    make(run, tmp_path, "tiny", "--papers", 1000)
    run(EXAMPLE / "partition.py", "--store_dtype", "float16", folder=tmp_path)
    found = []
    for flags in (["--num_workers", 1], ["--num_workers", 0, "--num_neighbors=-1,-1,-1"]):
        flags += ["--epochs", 10, "--batch_size", 128, "--hidden_channels", 32, "--lr", 0.02]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        told = run(*torchrun, EXAMPLE / "train.py", *flags, folder=tmp_path).stdout
        assert re.search(r"Epoch: 09, Loss: \d\.\d{4}, Val: 0\.\d{4}, \S+ batches/s", told), told
        found.append(float(re.findall(r"validation accuracy (\S+)", told)[0]))
    sampled, full = found
    assert sampled > 0.7 and sampled > full - 0.1, found
