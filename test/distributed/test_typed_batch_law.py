"""Heterogeneous batches are the same wherever they are made, whatever the options, element for element."""

import os

import pytest
import torch
from dist_typed_world import FOLLOWS, RATED, RATES, SCHEMA, Case, reference, run_cases
from test_one_batch_law import assert_same

from glt.testing.cluster import Cluster

FULL = os.environ.get("GLT_FULL") == "1"

FAN_OUT = {edge_type: [2, 2] for edge_type in SCHEMA.edge_types} | {RATES: [3, -1], RATED: [4, 0], FOLLOWS: [0, 3]}
EVERYTHING = {"shuffle": True, "with_edge": True, "collect_features": True}
CASES = [
    Case("features and edges", loader=EVERYTHING),
    Case("counts per edge type", FAN_OUT, "user", {"with_edge": True, "drop_last": True}),
    Case("replace", [3, 3, 2], "user", {"replace": True, "collect_features": True}),
    Case("seeds without edges", [3, 3], "tag", EVERYTHING),
]

DISJOINT = {"disjoint": True, "with_edge": True}
OPTIONS = [
    Case("disjoint", [3, 2], "user", DISJOINT | {"collect_features": True}),
    Case("disjoint, replace", [3, 2], "item", DISJOINT | {"replace": True, "shuffle": True}),
    Case("weighted", [4, 3], "user", EVERYTHING | {"weight_attr": "weight"}),
    Case("weighted, replace", [4, 3], "item", {"weight_attr": "weight", "replace": True}),
    Case("temporal", [4, 3], "item", EVERYTHING | {"time_attr": "time"}, times=True),
    Case("last", [4, 3], "user", {"time_attr": "time", "temporal_strategy": "last"}, times=True),
]
OPTIONS += [
    Case("subgraph", [4, 3], "user", EVERYTHING, kind="DistSubGraphLoader"),
    Case("induced", [3, 2], "item", {"subgraph_type": "induced"}),
]
WEIGHTED = {"mode": "binary", "amount": 1.5, "src_weight": torch.arange(90.0), "dst_weight": torch.ones(60)}
LINK = "DistLinkNeighborLoader"
LINKS = [
    Case("links", [3, 2], RATES, EVERYTHING, kind=LINK),
    Case("binary", [3, 2], RATES, EVERYTHING | {"neg_sampling": WEIGHTED, "exclude_edges": "reverse"}, kind=LINK),
    Case("triplet", [-1, 2], FOLLOWS, {"neg_sampling": {"mode": "triplet", "amount": 2}, "exclude_edges": "self"},
         kind=LINK),
    Case("disjoint triplet", [3, 2], RATED, DISJOINT | {"neg_sampling": "triplet", "exclude_edges": "reverse"},
         kind=LINK),
    Case("temporal links", [3, 2], RATES, {"neg_sampling": "binary", "time_attr": "time"}, True, LINK),
]  # fmt: skip
NODE_TIMES = [
    Case("as of the seeds", [4, 3], "item", {"time_attr": "time", "collect_features": True}),
    Case("as of input_time", [4, 3], "user", {"time_attr": "time", "temporal_strategy": "last"}, times=True),
    Case("negatives in time", [3, 2], RATES, {"neg_sampling": "binary", "time_attr": "time"}, True, LINK),
    Case("triplets in time", [3, 2], FOLLOWS, {"neg_sampling": "triplet", "time_attr": "time"}, True, LINK),
]


def compare(world, mode, given, cases):
    with Cluster(world.num_parts, run_cases, world.path, mode, given, cases) as cluster:
        by_rank = cluster.results()
        cluster.expect_nothing_left()
    for rank, results in enumerate(by_rank):
        for case, batches in zip(cases, results, strict=True):
            assert_same(batches, list(reference(world, case, rank)), f"{case.name}, rank {rank}")


GRID = [
    (parts, mode, edge_dir, read_local)
    for parts in (1, 2, 4)
    for mode in ("mp", "collocated")
    for edge_dir in ("in", "out")
    for read_local in (False, True)
]
DEFAULT_GRID = [(2, "collocated", "in", False), (2, "mp", "out", False), (4, "collocated", "out", True),
                (1, "collocated", "out", False)]  # fmt: skip


@pytest.mark.parametrize(("parts", "mode", "edge_dir", "read_local"), GRID if FULL else DEFAULT_GRID)
def test_batches_are_the_same_everywhere(typed_world, parts, mode, edge_dir, read_local):
    # Each loader in worker mode starts programs, which is what takes the time.
    cases = CASES if mode == "collocated" or FULL else CASES[:1]
    compare(typed_world(parts, edge_dir), mode, {"worker_concurrency": 3, "read_local": read_local}, cases)


@pytest.mark.parametrize(("parts", "mode", "edge_dir", "read_local"), GRID if FULL else DEFAULT_GRID)
def test_options_give_the_same_batches_everywhere(typed_world, parts, mode, edge_dir, read_local):
    cases = OPTIONS + LINKS if mode == "collocated" or FULL else [OPTIONS[4], LINKS[1]]
    compare(typed_world(parts, edge_dir), mode, {"worker_concurrency": 3, "read_local": read_local}, cases)


@pytest.mark.parametrize(("parts", "mode", "edge_dir", "read_local"), GRID if FULL else DEFAULT_GRID[:1])
def test_times_of_nodes_give_the_same_batches_everywhere(typed_world, parts, mode, edge_dir, read_local):
    world = typed_world(parts, edge_dir, "node")
    compare(world, mode, {"worker_concurrency": 3, "read_local": read_local}, NODE_TIMES)
