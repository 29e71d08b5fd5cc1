"""Batches of a partitioned PyG graph have all attributes that local batches of the graph have, element for element."""

import pytest
import torch
from dist_typed_world import snapshot, write_typed_world
from dist_world import NUM_EDGES, NUM_NODES, join, options

import glt
from glt.partition import RandomPartitioner, graph_arguments
from glt.testing import random_graph
from glt.testing.cluster import Cluster

RATES = ("user", "rates", "item")
LOADER = {"num_neighbors": [4, 3], "batch_size": 16, "random_seed": 5, "shuffle": True}
DISTRIBUTED = {"with_edge": True, "collect_features": True}


def plain_graph():
    data = random_graph(NUM_NODES, NUM_EDGES, seed=3).to_data()
    data.train_mask = torch.arange(NUM_NODES) % 3 == 0
    data.embedding = torch.arange(NUM_NODES * 6).view(NUM_NODES, 2, 3).bfloat16()
    data.edge_weight = torch.arange(NUM_EDGES).remainder(7).double()
    data.kind = torch.arange(NUM_EDGES, dtype=torch.uint8)
    data["edge/kind"] = torch.arange(NUM_EDGES)
    return data


def typed_graph(root):
    data = write_typed_world(root, 1, time_level="node").to_data()
    data["user"].train_mask = torch.arange(90) % 2 == 0
    data["item"].seen = torch.arange(60, dtype=torch.int16)
    data["ghost"].seen = torch.empty(0, dtype=torch.int16)
    data[RATES].kind = torch.arange(1400).view(700, 2)
    data[RATES]["kind/e0"] = torch.arange(700)
    data["tag", "on", "item"].train_mask = torch.arange(80) % 5 == 0
    return data


def sampled(trainer, path, mode, given):
    """Batches of each set of options, and what the dataset offers."""
    data = join(trainer, path)
    results = []
    for each in given:
        with glt.distributed.DistNeighborLoader(
            data, worker_options=options(trainer, mode), **LOADER, **DISTRIBUTED, **each
        ) as loader:
            results.append([snapshot(batch) for batch in loader])
    return results


def compare(data, path, mode, given):
    with Cluster(2, sampled, path, mode, given, deadline_s=120.0) as cluster:
        by_rank = cluster.results()
        cluster.expect_nothing_left()
    for options_, batches in zip(given, by_rank[0], strict=True):
        local = glt.loader.NeighborLoader(data, **LOADER, **options_)
        for got, wanted in zip(batches, (snapshot(batch) for batch in local), strict=True):
            # PyG takes ids out of the batch where nothing asks for them; ours were asked for.
            wanted = {name: value for name, value in wanted.items() if isinstance(value, torch.Tensor)}
            assert {name for name, value in got.items() if isinstance(value, torch.Tensor)} == wanted.keys()
            for name, value in wanted.items():
                assert got[name].dtype == value.dtype and torch.equal(got[name], value), name


@pytest.mark.timeout(150)
@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_a_graph_without_types(tmp_path, mode):
    data = plain_graph()
    arguments = graph_arguments(data, weight_attr="edge_weight")
    RandomPartitioner(tmp_path / "parts", 2, **arguments, edge_assign_strategy="by_dst").partition()
    seeds = {"input_nodes": torch.arange(0, NUM_NODES, 11)}
    given = [seeds, seeds | {"weight_attr": "edge_weight"}, seeds | {"subgraph_type": "bidirectional"}]
    compare(data, tmp_path / "parts", mode, given[: 1 if mode == "mp" else 3])


@pytest.mark.timeout(150)
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
def test_a_graph_of_types(tmp_path):
    data = typed_graph(tmp_path)
    arguments = graph_arguments(data, weight_attr="weight", time_attr="time")
    RandomPartitioner(tmp_path / "typed", 2, **arguments, edge_assign_strategy="by_dst").partition()
    seeds = {"input_nodes": ("item", torch.arange(0, 60, 7))}
    given = [
        seeds, seeds | {"weight_attr": "weight"}, seeds | {"time_attr": "time", "disjoint": True},
        seeds | {"subgraph_type": "bidirectional"},
    ]  # fmt: skip
    compare(data, tmp_path / "typed", "collocated", given)


def test_a_dataset_offers_the_tables_of_its_partition(tmp_path):
    data = typed_graph(tmp_path)
    RandomPartitioner(tmp_path / "typed", 2, **graph_arguments(data, time_attr="time")).partition()
    own = glt.distributed.DistDataset().load(tmp_path / "typed", 1)
    assert own.node_attrs.keys() == {"user", "item", "ghost"} and own.node_attrs["user"].keys() == {"train_mask"}
    assert own.edge_attrs[RATES].keys() == {"kind", "kind/e0", "weight"}
    nodes = torch.from_numpy(own.own.nodes[0].ids)
    assert torch.equal(own.node_attrs["user"]["train_mask"][nodes], data["user"].train_mask[nodes])
    plain = plain_graph()
    RandomPartitioner(tmp_path / "plain", 2, **graph_arguments(plain)).partition()
    own = glt.distributed.DistDataset().load(tmp_path / "plain", 0)
    assert own.node_attrs.keys() == {"train_mask", "embedding"}
    assert own.edge_attrs.keys() == {"edge_weight", "kind", "edge/kind"}
