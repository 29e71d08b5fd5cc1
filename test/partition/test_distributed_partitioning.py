"""Whoever brings which slice, and however many ranks: the bytes that one machine writes."""

from pathlib import Path
from typing import Any

import numpy as np
from distributed_run import Job, files_under, random_graph, run_jobs, slice_of
from partition_world import hetero_world

from glt.partition import AssignedPartitioner, RandomPartitioner, load_partition
from glt.partition.distributed.outline import disk_bytes, forecast_of, outline
from glt.partition.distributed.slices import EDGE_TABLES, NODE_TABLES, GraphSlice, _num_rows
from glt.partition.graph_input import GraphInput
from glt.testing_cluster import Cluster


def homogeneous() -> dict[str, Any]:
    graph = random_graph(37, 301)
    ids = np.arange(37)
    return graph | {
        "num_parts": 5,
        "node_label": ids % 4,
        "node_time": ids[::-1].astype(np.int16),
        "edge_feat": np.arange(602, dtype=np.int32).reshape(301, 2),
        "edge_weight": np.arange(301, dtype=np.float32) % 7,
        "node_attrs": {"train_mask": ids % 3 == 0},
        "edge_attrs": {"kind": np.arange(301) % 5},
        "edge_assign_strategy": "by_dst",
    }


def hetero(time_level: str | None, strategy: str, num_parts: int) -> dict[str, Any]:
    return hetero_world(time_level) | {"num_parts": num_parts, "edge_assign_strategy": strategy, "random_seed": 3}


def owners_of(graph: dict[str, Any]) -> dict[str, Any]:
    owners = {each: np.arange(count) % 3 for each, count in graph["num_nodes"].items()}
    return {name: value for name, value in graph.items() if name != "random_seed"} | {"owners": owners}


# partitioner, ranks, round_bytes, arguments
CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "homogeneous-1": ("random", 1, 1 << 20, homogeneous()),
    "homogeneous-2": ("random", 2, 200, homogeneous()),
    "homogeneous-3": ("random", 3, 1000, homogeneous()),
    "balanced": ("random", 3, 1 << 20, homogeneous() | {"balance_ntypes": [np.arange(37) % 4, np.arange(37) % 3 == 0]}),
    "edge-times": ("random", 3, 700, hetero("edge", "by_src", 3)),
    "node-times": ("random", 2, 1 << 20, hetero("node", "by_dst", 3)),
    "no-times": ("random", 3, 1, hetero(None, "by_src", 2)),  # the third rank writes no partition
    "assigned": ("assigned", 3, 1 << 20, owners_of(hetero("edge", "by_dst", 3))),
    "topology": ("random", 3, 1 << 20, {"num_nodes": 9, "num_parts": 3, "edge_index": np.arange(16).reshape(2, 8) % 9}),
}


def test_the_forecast_is_that_of_the_whole_graph(tmp_path: Path) -> None:
    given = hetero("edge", "by_src", 4)
    partitioner = RandomPartitioner(tmp_path / "parts", **given)
    part = slice_of(given, 1, 3)
    tables = {name: part.get(name) for name in NODE_TABLES + EDGE_TABLES}
    rows = [_num_rows(tables, node_type) for node_type in given["num_nodes"]]
    num_edges = np.array([[each.num_edges, 0, 0] for each in partitioner.graph.edges]).T
    names = (
        "node_feat",
        "edge_feat",
        "node_label",
        "edge_weight",
        "edge_time",
        "node_time",
        "node_attrs",
        "edge_attrs",
    )
    graph = GraphInput.of(
        "out", given["num_nodes"], part["edge_index"], *(tables[name] for name in names), num_rows=rows
    )
    slices = GraphSlice(graph, np.array([rows, rows, rows]), num_edges)
    assert forecast_of(partitioner, outline(slices)) == partitioner.forecast()
    assert disk_bytes(partitioner, slices, [0]) > 1.9 * disk_bytes(partitioner, slices, [1]) > 0  # 2 of 4 partitions


def test_the_same_bytes_as_one_machine(tmp_path: Path) -> None:
    root = tmp_path / "distributed"
    jobs: list[Job] = [
        (kind, name, world_size, arguments | {"round_bytes": round_bytes})
        for name, (kind, world_size, round_bytes, arguments) in CASES.items()
    ]
    apart = "homogeneous-3"
    kind, world_size, round_bytes, arguments = CASES[apart]
    jobs.append((kind, "host{rank}/parts", world_size, arguments | {"round_bytes": round_bytes}))
    classes = {"random": RandomPartitioner, "assigned": AssignedPartitioner}
    wanted = {
        name: classes[kind](tmp_path / name, **arguments).partition() for name, (kind, _, _, arguments) in CASES.items()
    }
    with Cluster(3, run_jobs, root, jobs, preload=("glt.partition",)) as cluster:
        run_ids = cluster.results()
    assert sorted(path.name for path in root.iterdir()) == sorted([*CASES, "host0", "host1", "host2"])
    for at, (name, (_, world_size, _, _)) in enumerate(CASES.items()):
        assert [ids[at] for ids in run_ids] == [wanted[name].run_id] * world_size + [None] * (3 - world_size), name
        written, expected = files_under(root / name), files_under(tmp_path / name)
        assert written.keys() == expected.keys(), name
        assert [path for path in expected if written[path] != expected[path]] == [], name
    expected = files_under(tmp_path / apart)
    for rank in range(3):
        written = files_under(root / f"host{rank}" / "parts")
        parts = {f"part{idx}" for idx in range(rank, 5, 3)}
        assert written == {
            path: data for path, data in expected.items() if not path.startswith("part") or path.split("/")[0] in parts
        }
        load_partition(root / f"host{rank}" / "parts", rank)
