"""Whoever brings which slice, and however many ranks: the bytes that one machine writes."""

import numpy as np
from distributed_run import PARTITIONERS, files_under, random_graph, run_jobs
from partition_world import hetero_world

from glt.partition import load_partition
from glt.testing.cluster import Cluster


def homogeneous():
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


def hetero(time_level, strategy, num_parts):
    return hetero_world(time_level) | {"num_parts": num_parts, "edge_assign_strategy": strategy, "random_seed": 3}


def owners_of(graph):
    owners = {each: np.arange(count) % 3 for each, count in graph["num_nodes"].items()}
    return {name: value for name, value in graph.items() if name != "random_seed"} | {"owners": owners}


def skewed(num_nodes, num_parts, dtype=np.float32):
    """Of each partition how hot nodes are; some are equally hot, and some are read by nobody."""
    rng = np.random.default_rng(num_parts)
    hot = np.round(rng.random((num_parts, num_nodes)) ** 3, 2) * (rng.random(num_nodes) < 0.8)
    return list(hot.astype(dtype))


# partitioner, ranks, round_bytes, arguments
CASES = {
    "homogeneous-1": ("random", 1, 1 << 20, homogeneous()),
    "homogeneous-2": ("random", 2, 200, homogeneous()),
    "homogeneous-3": ("random", 3, 1000, homogeneous()),
    "balanced": ("random", 3, 1 << 20, homogeneous() | {"balance_ntypes": [np.arange(37) % 4, np.arange(37) % 3 == 0]}),
    "edge-times": ("random", 3, 700, hetero("edge", "by_src", 3)),
    "node-times": ("random", 2, 1 << 20, hetero("node", "by_dst", 3)),
    "no-times": ("random", 3, 1, hetero(None, "by_src", 2)),  # the third rank writes no partition
    "assigned": ("assigned", 3, 1 << 20, owners_of(hetero("edge", "by_dst", 3))),
    "frequency": ("frequency", 3, 300, homogeneous() | {"probs": skewed(37, 5), "cache_ratio": 0.2, "random_seed": 4}),
    "frequency-relabelled": (
        "frequency",
        3,
        200,
        homogeneous() | {"probs": skewed(37, 5, np.float64), "relabel": True, "cache_ratio": 1.0},
    ),
    "frequency-types": (
        "frequency",
        3,
        64,
        hetero("node", "by_src", 4)
        | {"probs": {t: skewed(n, 4) for t, n in (("paper", 23), ("author", 11), ("ghost", 0))}, "cache_ratio": 0.5},
    ),
    "relabelled": ("random", 3, 90, homogeneous() | {"relabel": True, "return_mapping": True}),
    "relabelled-types": ("random", 2, 1 << 20, hetero("edge", "by_dst", 3) | {"relabel": True, "return_mapping": True}),
    "cached-by-bytes": (
        "assigned",
        3,
        1,  # a row at a time
        owners_of(hetero("node", "by_dst", 3))
        | {"hotness": [{"paper": each} for each in skewed(23, 3)], "cache_memory_budget": {"paper": 200}}
        | {"relabel": True},
    ),
    "one-hotness": ("random", 3, 1 << 20, homogeneous() | {"hotness": skewed(37, 1)[0], "cache_ratio": 1.0}),
    "topology": ("random", 3, 1 << 20, {"num_nodes": 9, "num_parts": 3, "edge_index": np.arange(16).reshape(2, 8) % 9}),
}


def test_the_same_bytes_as_one_machine(tmp_path):
    root = tmp_path / "distributed"
    jobs = [
        (kind, name, world_size, arguments | {"round_bytes": round_bytes})
        for name, (kind, world_size, round_bytes, arguments) in CASES.items()
    ]
    apart = "homogeneous-3"
    kind, world_size, round_bytes, arguments = CASES[apart]
    jobs.append((kind, "host{rank}/parts", world_size, arguments | {"round_bytes": round_bytes}))
    wanted = {
        name: PARTITIONERS[kind](
            tmp_path / name, **{each: value for each, value in arguments.items() if each != "return_mapping"}
        ).partition()
        for name, (kind, _, _, arguments) in CASES.items()
    }
    for name in ("frequency", "frequency-relabelled", "frequency-types", "cached-by-bytes", "one-hotness"):
        assert any("/cache/" in path for path in files_under(tmp_path / name)), name
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
