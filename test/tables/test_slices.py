"""Many ranks partition a built graph, each with its part of the rows: the directory is that of one process."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_building import description, tables, write  # noqa: F401  # tables is a fixture

import glt
from glt.partition import RandomPartitioner, partition_distributed, read_graph
from glt.testing.cluster import Cluster


def partition(trainer, folder, out):
    torch.distributed.init_process_group(
        "gloo", f"tcp://localhost:{trainer.port}", rank=trainer.rank, world_size=trainer.world_size
    )
    graph = glt.tables.read_slice(folder, trainer.rank, trainer.world_size)
    partition_distributed(RandomPartitioner, out, 2, **graph)
    torch.distributed.destroy_process_group()
    return len(graph["node_feat"]["account"])


def test_the_same_directory(tables, tmp_path):  # noqa: F811
    glt.tables.build(description(write(tmp_path / "in", tables)), tmp_path / "graph")
    with Cluster(3, partition, tmp_path / "graph", tmp_path / "many") as cluster:
        assert cluster.results() == [100, 100, 100]
    RandomPartitioner(tmp_path / "one", 2, read_graph(tmp_path / "graph/graph.json", tmp_path)).partition()
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert Path("keys/account/index.npy") in files
    for path in files:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "many" / path).read_bytes(), path


def test_slices_are_all_rows_in_order(tables, tmp_path):  # noqa: F811
    glt.tables.build(description(write(tmp_path / "in", tables)), tmp_path / "graph")
    whole = read_graph(tmp_path / "graph/graph.json", tmp_path)
    slices = [glt.tables.read_slice(tmp_path / "graph", rank, 7) for rank in range(7)]
    for edge_type, index in whole["edge_index"].items():
        np.testing.assert_array_equal(np.concatenate([each["edge_index"][edge_type] for each in slices], 1), index)
        for name in ("edge_weight", "edge_time", "edge_feat"):
            joined = np.concatenate([each[name][edge_type] for each in slices])
            np.testing.assert_array_equal(joined, whole[name][edge_type])
    for name in ("node_feat", "node_label"):
        joined = np.concatenate([each[name]["account"] for each in slices])
        np.testing.assert_array_equal(joined, whole[name]["account"])
    many = glt.tables.read_slice(tmp_path / "graph", 0, 100_000)  # more ranks than rows
    assert many["node_feat"]["account"].shape == (0, len(whole["node_feat"]["account"][0]))
    with pytest.raises(ValueError, match="rank = 7"):
        glt.tables.read_slice(tmp_path / "graph", 7, 7)
    with pytest.raises(FileNotFoundError, match="a graph that glt built"):
        glt.tables.read_slice(tmp_path, 0, 1)
