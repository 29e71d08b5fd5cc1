"""Graphs as arguments of a partitioner, and the run that they give."""

import numpy as np

from glt.partition import RandomPartitioner, read_graph

CITES, WRITES = ("paper", "cites", "paper"), ("au/thor", "writes__it", "paper")


def plain(num_nodes=50, num_edges=400):
    """Arguments of a partitioner of a graph that has some of everything."""
    rng = np.random.default_rng(0)
    return {
        "num_nodes": num_nodes,
        "edge_index": rng.integers(0, num_nodes, (2, num_edges)),
        "node_feat": rng.random((num_nodes, 3)).astype(np.float32),
        "node_label": rng.integers(0, 5, num_nodes),
        "edge_feat": rng.random((num_edges, 2)),
        "edge_weight": rng.random(num_edges),
        "edge_time": rng.integers(0, 99, num_edges),
        "node_attrs": {"train_mask": rng.random(num_nodes) < 0.5, "year": rng.integers(1990, 2020, num_nodes)},
        "edge_attrs": {"kind": rng.integers(0, 3, num_edges)},
    }


def typed():
    rng = np.random.default_rng(1)
    counts = {"paper": 30, "au/thor": 20, "ghost": 0}
    edge_index = {
        CITES: rng.integers(0, 30, (2, 90)),
        WRITES: np.stack([rng.integers(0, 20, 60), rng.integers(0, 30, 60)]),
    }
    return {
        "num_nodes": counts,
        "edge_index": edge_index,
        "node_feat": {"paper": rng.random((30, 2)).astype(np.float32)},
        "node_label": {"paper": rng.integers(0, 3, 30)},
        "node_time": {"paper": rng.integers(0, 9, 30)},
        "edge_weight": {WRITES: rng.random(60)},
        "node_attrs": {"au/thor": {"train_mask": rng.random(20) < 0.5}},
        "edge_attrs": {CITES: {"p/os": rng.integers(0, 9, 90)}},
    }


def run_id(out, arguments):
    return RandomPartitioner(out, 3, **arguments, chunk_size=7, random_seed=4).partition().run_id


def assert_same(tmp_path, source, wanted, **options):
    """The graph that is read gives the run of the wanted one."""
    got = read_graph(source, tmp_path, **options)
    out = tmp_path / f"out of {source.name}"
    assert run_id(out / "got", got) == run_id(out / "wanted", wanted)
    assert not list(tmp_path.glob("glt-*"))
    return got
