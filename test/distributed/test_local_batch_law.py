"""The local loaders on the whole graph give the batches of the distributed ones, element for element."""

import pytest
import torch
from dist_typed_world import Case, snapshot
from test_typed_batch_law import CASES, LINKS, NODE_TIMES, OPTIONS

import glt
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, context

ONLY_DISTRIBUTED = ("with_edge", "collect_features")
BIDIRECTIONAL = [
    Case(
        "bidirectional", [3, 2], "item", {"subgraph_type": "bidirectional", "with_edge": True, "collect_features": True}
    )
]


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """This process is the only trainer."""
    monkeypatch.setattr(context, "_context", None)
    glt.distributed.init_worker_group(1, 0, "alone")
    yield


def batches(loader):
    return [snapshot(batch) for _ in range(2) for batch in loader]


def assert_local_is_the_same(path, data, kind, arguments):
    with getattr(glt.distributed, kind)(
        DistDataset().load(path, 0), worker_options=CollocatedDistSamplingWorkerOptions(), **arguments
    ) as loader:
        got = batches(loader)
    flags = {name: value for name, value in arguments.items() if name not in ONLY_DISTRIBUTED}
    wanted = batches(getattr(glt.loader, kind.removeprefix("Dist"))(data, **flags))
    assert len(got) == len(wanted) > 0
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        # The local loader always looks everything up, and carries attributes that partitions lack.
        assert a.keys() <= b.keys(), a.keys() - b.keys()
        if arguments.get("collect_features") and arguments.get("with_edge"):
            assert {name.rpartition("/")[2] for name in b.keys() - a.keys()} <= {"weight", "time"}
        for name, value in a.items():
            same = torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name]
            assert same, (i, name, value, b[name])


@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
@pytest.mark.parametrize("case", [*CASES, *OPTIONS, *BIDIRECTIONAL], ids=lambda case: case.name)
def test_nodes_and_subgraphs(typed_world, case):
    world = typed_world(1)
    assert_local_is_the_same(world.path, world.to_data(), case.kind, case.arguments(1))


@pytest.mark.parametrize("case", LINKS, ids=lambda case: case.name)
def test_links(typed_world, case):
    world = typed_world(1)
    assert_local_is_the_same(world.path, world.to_data(), case.kind, case.arguments(1))


@pytest.mark.parametrize("case", NODE_TIMES, ids=lambda case: case.name)
def test_times_of_nodes(typed_world, case):
    world = typed_world(1, "in", "node")
    assert_local_is_the_same(world.path, world.to_data(), case.kind, case.arguments(1))


def labelled(batch):
    batch.label = batch.y[: batch.batch_size]
    return batch


@pytest.mark.parametrize(
    "flags",
    [
        {}, {"input_id": torch.arange(60) * 3}, {"input_nodes": torch.arange(600) % 7 == 1, "transform": labelled},
        {"disjoint": True, "replace": True}, {"subgraph_type": "bidirectional"}, {"subgraph_type": "induced"},
        {"neg_sampling": "binary", "exclude_edges": "reverse", "edge_label": torch.arange(60) % 3},
        {"neg_sampling": {"mode": "triplet", "amount": 3, "dst_weight": torch.arange(600.0)}, "disjoint": True},
    ],
    ids=lambda flags: ", ".join(flags),
)  # fmt: skip
def test_graphs_without_types(world, flags):
    made = world(1)
    kind, name = ("DistNeighborLoader", "input_nodes")
    seeds = torch.cat([torch.arange(0, 600, 11), torch.arange(5)])  # 60
    if "neg_sampling" in flags:
        kind, name, seeds = "DistLinkNeighborLoader", "edge_label_index", made.graph.edge_index[:, :60]
    given = {"num_neighbors": [4, 3], name: seeds, "batch_size": 16, "random_seed": 7, "shuffle": True}
    assert_local_is_the_same(
        made.path, made.graph.to_data(), kind, given | flags | {"collect_features": True, "with_edge": True}
    )
