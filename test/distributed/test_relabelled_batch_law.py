"""Batches of relabelled partitions are those of the whole graph in the new ids, wherever they are made."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from dist_typed_world import NUM_NODES, RATED, RATES, SCHEMA, TypedWorld, write_typed_world
from test_local_batch_law import assert_local_is_the_same
from test_typed_batch_law import CASES, LINKS, NODE_TIMES, OPTIONS, compare

import glt
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, context
from glt.partition import load_partition

Relabelled = Callable[..., TypedWorld]


def in_new_ids(world):
    """The input of a relabelled directory under the maps that it holds."""
    part = load_partition(world.path, 0)
    nodes = {t: n.id_map for t, n in zip(SCHEMA.node_types, part.nodes, strict=True)}
    edges = {t: e.id_map for t, e in zip(SCHEMA.edge_types, part.edges, strict=True)}

    def moved(tables, maps):
        return {t: table[torch.from_numpy(maps[t].original).long()] for t, table in tables.items()}

    edge_index = {
        (s, r, t): torch.stack([nodes[s].to_new(ends[0]), nodes[t].to_new(ends[1])])
        for (s, r, t), ends in world.edge_index.items()
    }
    return replace(
        world,
        edge_index={t: table.T for t, table in moved({t: e.T for t, e in edge_index.items()}, edges).items()},
        node_feat=moved(world.node_feat, nodes), node_label=moved(world.node_label, nodes),
        node_time=moved(world.node_time, nodes), edge_feat=moved(world.edge_feat, edges),
        edge_weight=moved(world.edge_weight, edges), edge_time=moved(world.edge_time, edges),
    )  # fmt: skip


@pytest.fixture(scope="module")
def relabelled(tmp_path_factory):
    """Returns the relabelled directory of the graph of :mod:`dist_typed_world`, and the whole graph in its ids."""
    made = {}

    def make(num_parts, edge_dir="in", time_level="edge"):
        key = (num_parts, edge_dir, time_level)
        if key not in made:
            root = tmp_path_factory.mktemp("relabelled")
            made[key] = in_new_ids(write_typed_world(root, *key, relabel=True))
        return made[key]

    return make


@pytest.fixture
def alone(monkeypatch):
    """This process is the only trainer."""
    monkeypatch.setattr(context, "_context", None)
    glt.distributed.init_worker_group(1, 0, "alone")


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("parts", "mode", "edge_dir", "read_local"),
    [(2, "collocated", "in", False), (2, "mp", "out", False), (4, "collocated", "out", True), (1, "mp", "in", False)],
)
def test_batches_are_those_of_the_whole_graph(relabelled, parts, mode, edge_dir, read_local):
    # Each loader in worker mode starts programs, which is what takes the time.
    few = [CASES[0], OPTIONS[4], OPTIONS[7], LINKS[1]]  # features and edges, temporal, induced, binary
    cases = {"collocated": [*CASES, *OPTIONS, *LINKS] if parts == 2 else few, "mp": few[:parts]}[mode]
    compare(relabelled(parts, edge_dir), mode, {"worker_concurrency": 3, "read_local": read_local}, cases)


@pytest.mark.parametrize("case", [CASES[1], OPTIONS[2], LINKS[1]], ids=lambda case: case.name)
def test_local_loaders_on_the_whole_graph_give_the_same(alone, relabelled, case):
    world = relabelled(1)
    assert_local_is_the_same(world.path, world.to_data(), case.kind, case.arguments(1))


@pytest.mark.timeout(200)
def test_times_of_nodes_follow_the_nodes(relabelled):
    compare(relabelled(2, "in", "node"), "collocated", {"worker_concurrency": 3}, NODE_TIMES)


def test_batches_lead_back_to_the_input(alone, relabelled, tmp_path):
    """Original seeds in, original ids out: every edge and every row of a batch is one of the input."""
    data = DistDataset().load(relabelled(1).path, 0)
    given = write_typed_world(tmp_path, 1)
    seeds = torch.tensor([59, 3, 3, 17])
    with glt.distributed.DistNeighborLoader(
        data, [-1, 3], ("item", data.map_from_original(seeds, "item")), batch_size=4, with_edge=True,
        collect_features=True, worker_options=CollocatedDistSamplingWorkerOptions(),
    ) as loader:  # fmt: skip
        (batch,) = list(loader)
    nodes = {t: data.map_to_original(batch[t].n_id, t) for t in NUM_NODES}
    assert nodes["item"][:4].tolist() == seeds.tolist()
    for node_type, table in given.node_feat.items():
        assert torch.equal(batch[node_type].x, table[nodes[node_type]])
    assert batch[RATES].e_id.numel() and batch[RATED].e_id.numel()
    for source, relation, target in SCHEMA.edge_types:
        store = batch[source, relation, target]
        edges = data.map_to_original(store.e_id, (source, relation, target))
        ends = torch.stack([nodes[source][store.edge_index[0]], nodes[target][store.edge_index[1]]])
        assert torch.equal(ends, given.edge_index[source, relation, target][:, edges])


def test_maps_of_a_dataset(relabelled, typed_world, tmp_path):
    part = load_partition(relabelled(2).path, 1)
    data = DistDataset().load(relabelled(2).path, 1)
    assert data.node_map.keys() == set(SCHEMA.node_types) and data.edge_map.keys() == set(SCHEMA.edge_types)
    assert data.node_map["user"].tolist() == part.nodes[0].id_map.original.tolist()
    assert data.edge_map[RATES].tolist() == part.edges[0].id_map.original.tolist()
    ids = torch.tensor([[5, 0], [89, 5]])
    assert torch.equal(data.map_from_original(data.map_to_original(ids, "user"), "user"), ids)
    with pytest.raises(IndexError, match=r"ids\[1, 0\] = 89 is outside \[0, 60\)"):
        data.map_to_original(ids, "item")
    with pytest.raises(KeyError, match="node type 'users' is not in the graph"):
        data.map_to_original(ids, "users")
    with pytest.raises(KeyError, match="no node type is named"):
        data.map_from_original(ids)

    plain = DistDataset().load(typed_world(2).path, 1)
    assert plain.node_map is None and plain.edge_map is None
    assert torch.equal(plain.map_to_original(ids, "user"), ids) and torch.equal(
        plain.map_from_original(ids, RATES), ids
    )
    with pytest.raises(IndexError, match=r"ids\[0\] = 700 is outside \[0, 700\)"):
        plain.map_to_original([700], RATES)


def test_a_label_file_is_read_by_original_ids(relabelled, tmp_path):
    torch.save(torch.arange(90) * 3, tmp_path / "users.pt")
    data = DistDataset().load(
        relabelled(2).path, 0, whole_node_label_file={"user": tmp_path / "users.pt"}, verify=False
    )
    ids = torch.arange(90)
    assert torch.equal(data.node_labels["user"][ids], data.map_to_original(ids, "user") * 3)
