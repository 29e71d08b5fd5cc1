"""Times before the epoch, in whatever integers they come: the directory is that of the same times in int64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed_run import files_under, slice_of
from local_exchange import LocalExchange, in_ranks, use_threads
from partition_world import assert_union_is_the_input, load_all

from glt.partition import RandomPartitioner, partition_distributed

WIDTHS = [np.int8, np.int16, np.int32, np.int64]
NUM_NODES, NUM_EDGES = 20, 150


def graph(level: str, dtype: Any, relabel: bool) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    edge_index = generator.integers(0, NUM_NODES, (2, NUM_EDGES))
    time = generator.integers(-100, 28, {"edge_time": NUM_EDGES, "node_time": NUM_NODES}[level])
    return {"num_nodes": NUM_NODES, "edge_index": edge_index, level: time.astype(dtype), "relabel": relabel}


def tables_under(root: Path) -> dict[str, bytes]:
    return {path: data for path, data in files_under(root).items() if path.endswith(".npy")}


@pytest.mark.parametrize("relabel", [False, True])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("level", ["edge_time", "node_time"])
def test_the_directory_is_that_of_int64(tmp_path, level, dtype, relabel):
    given, wide = graph(level, dtype, relabel), graph(level, np.int64, relabel)
    RandomPartitioner(tmp_path / "parts", 2, **given).partition()
    RandomPartitioner(tmp_path / "wide", 2, **wide).partition()
    assert tables_under(tmp_path / "parts") == tables_under(tmp_path / "wide")
    if not relabel:
        assert_union_is_the_input(load_all(tmp_path / "parts"), **{k: v for k, v in wide.items() if k != "relabel"})


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_unsigned_times_stay_as_large_as_they_are(tmp_path, dtype):
    given = graph("edge_time", np.int64, False)
    given["edge_time"] = (given["edge_time"] % 50 + np.iinfo(dtype).max - 49).astype(dtype)
    RandomPartitioner(tmp_path / "parts", 2, **given).partition()
    wide = given | {"edge_time": given["edge_time"].astype(np.int64)}
    assert_union_is_the_input(load_all(tmp_path / "parts"), **{k: v for k, v in wide.items() if k != "relabel"})


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("level", ["edge_time", "node_time"])
def test_ranks_write_what_one_machine_writes(tmp_path, monkeypatch, level, dtype):
    use_threads(monkeypatch)
    given = graph(level, dtype, False)
    given[level] = torch.from_numpy(given[level])

    def rank_of(exchange: LocalExchange) -> Any:
        mine: Any = slice_of(given, exchange.rank, 2)
        return partition_distributed(
            RandomPartitioner, tmp_path / "ranks", num_parts=2, **mine, group=exchange, num_threads=1
        )

    wanted = RandomPartitioner(tmp_path / "one", 2, **given, num_threads=1).partition()
    assert in_ranks(2, rank_of) == [wanted] * 2
    assert files_under(tmp_path / "ranks") == files_under(tmp_path / "one")
    RandomPartitioner(tmp_path / "wide", 2, **graph(level, np.int64, False)).partition()
    assert tables_under(tmp_path / "ranks") == tables_under(tmp_path / "wide")
