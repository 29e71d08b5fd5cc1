"""The local loaders on the whole graph give the batches of the distributed ones, whatever graph was partitioned."""

import functools
from dataclasses import replace

import pytest
import torch
from dist_typed_world import (
    CASES,
    LINKS,
    NODE_TIMES,
    NUM_NODES,
    OPTIONS,
    RATED,
    RATES,
    SCHEMA,
    TABLES,
    Case,
    snapshot,
    write_typed_world,
)
from dist_world import NUM_EDGES, assert_same, expect_law, join, options, run_cluster
from dist_world import NUM_NODES as NUM_PLAIN

import glt
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset
from glt.distributed.engine.partitions import copied
from glt.distributed.engine.requests import OneHopRequest
from glt.partition import RandomPartitioner, graph_arguments, load_partition
from glt.testing import random_graph

ONLY_DISTRIBUTED = ("with_edge", "collect_features")
WITH_ALL = {"with_edge": True, "collect_features": True}


def batches(loader, epochs=2):
    return [snapshot(batch) for _ in range(epochs) for batch in loader]


def distributed(path, kind, **arguments):
    """A loader of this process, the only trainer."""
    where = CollocatedDistSamplingWorkerOptions()
    return getattr(glt.distributed, kind)(DistDataset().load(path, 0), worker_options=where, **arguments)


def assert_local_is_the_same(path, data, kind, arguments):
    with distributed(path, kind, **arguments) as loader:
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


BIDIRECTIONAL = Case("bidirectional", [3, 2], "item", {"subgraph_type": "bidirectional", **WITH_ALL})
OF_EDGE_TIMES = [((1,), case) for case in [*CASES, *OPTIONS, BIDIRECTIONAL, *LINKS]]
OF_NODE_TIMES = [((1, "in", "node"), case) for case in NODE_TIMES]


@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
@pytest.mark.parametrize(
    ("world_of", "case"), OF_EDGE_TIMES + OF_NODE_TIMES, ids=lambda each: getattr(each, "name", "")
)
def test_graphs_of_types(typed_world, alone, world_of, case):
    world = typed_world(*world_of)
    assert_local_is_the_same(world.path, world.to_data(), case.kind, case.arguments(1))


def labelled(batch):
    batch.label = batch.y[: batch.batch_size]
    return batch


TRIPLET = {"mode": "triplet", "amount": 3, "dst_weight": torch.arange(600.0)}


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"input_id": torch.arange(60) * 3},
        {"input_nodes": torch.arange(600) % 7 == 1, "transform": labelled},
        {"disjoint": True, "replace": True},
        {"subgraph_type": "bidirectional"},
        {"subgraph_type": "induced"},
        {"neg_sampling": "binary", "exclude_edges": "reverse", "edge_label": torch.arange(60) % 3},
        {"neg_sampling": TRIPLET, "disjoint": True},
    ],
    ids=lambda flags: ", ".join(flags),
)
def test_graphs_without_types(world, alone, flags):
    made = world(1)
    kind, name = ("DistNeighborLoader", "input_nodes")
    seeds = torch.cat([torch.arange(0, 600, 11), torch.arange(5)])  # 60
    if "neg_sampling" in flags:
        kind, name, seeds = "DistLinkNeighborLoader", "edge_label_index", made.graph.edge_index[:, :60]
    given = {"num_neighbors": [4, 3], name: seeds, "batch_size": 16, "random_seed": 7, "shuffle": True}
    assert_local_is_the_same(made.path, made.graph.to_data(), kind, given | flags | WITH_ALL)


# Relabelled partitions: batches are those of the whole graph in the new ids.


def in_new_ids(world):
    """The input of a relabelled directory under the maps that it holds."""
    part = load_partition(world.path, 0)
    nodes = {t: n.id_map for t, n in zip(SCHEMA.node_types, part.nodes, strict=True)}
    edges = {t: e.id_map for t, e in zip(SCHEMA.edge_types, part.edges, strict=True)}

    def moved(tables, maps):
        return {t: table[torch.from_numpy(maps[t].original).long()] for t, table in tables.items()}

    ends = {
        (s, r, t): torch.stack([nodes[s].to_new(ends[0]), nodes[t].to_new(ends[1])]).T
        for (s, r, t), ends in world.edge_index.items()
    }
    tables = {name: moved(getattr(world, name), nodes if name.startswith("node") else edges) for name in TABLES}
    return replace(world, edge_index={t: each.T for t, each in moved(ends, edges).items()}, **tables)


@pytest.fixture(scope="module")
def relabelled(tmp_path_factory):
    """Returns the relabelled directory of the graph of :mod:`dist_typed_world`, and the whole graph in its ids."""
    make = tmp_path_factory.mktemp
    return functools.cache(lambda *key: in_new_ids(write_typed_world(make("relabelled"), *key, relabel=True)))


FEW = [CASES[0], OPTIONS[4], OPTIONS[7], LINKS[1]]  # features and edges, temporal, induced, binary


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("world_of", "mode", "read_local", "cases"),
    [
        ((2, "in"), "collocated", False, [*CASES, *OPTIONS, *LINKS]),
        ((2, "out"), "mp", False, FEW[:2]),
        ((4, "out"), "collocated", True, FEW),
        ((1, "in"), "mp", False, FEW[:1]),
        ((2, "in", "node"), "collocated", False, NODE_TIMES),
    ],
)
def test_relabelled_batches_are_those_of_the_whole_graph(relabelled, world_of, mode, read_local, cases):
    expect_law(relabelled(*world_of), mode, {"read_local": read_local}, cases)


def test_batches_lead_back_to_the_input(alone, relabelled, tmp_path):
    """Original seeds in, original ids out: every edge and every row of a batch is one of the input."""
    data, given = DistDataset().load(relabelled(1).path, 0), write_typed_world(tmp_path, 1)
    seeds = torch.tensor([59, 3, 3, 17])
    flags = {"batch_size": 4, "worker_options": CollocatedDistSamplingWorkerOptions(), **WITH_ALL}
    asked = "item", data.map_from_original(seeds, "item")
    with glt.distributed.DistNeighborLoader(data, [-1, 3], asked, **flags) as loader:
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


def test_maps_of_a_dataset_and_label_files_by_original_ids(relabelled, typed_world, tmp_path):
    part = load_partition(relabelled(2).path, 1)
    torch.save(torch.arange(90) * 3, tmp_path / "users.pt")
    data = DistDataset().load(relabelled(2).path, 1, whole_node_label_file={"user": tmp_path / "users.pt"})
    assert data.node_map.keys() == set(SCHEMA.node_types) and data.edge_map.keys() == set(SCHEMA.edge_types)
    assert data.node_map["user"].tolist() == part.nodes[0].id_map.original.tolist()
    assert data.edge_map[RATES].tolist() == part.edges[0].id_map.original.tolist()
    users = torch.arange(90)
    assert torch.equal(data.node_labels["user"][users], data.map_to_original(users, "user") * 3)
    ids = torch.tensor([[5, 0], [89, 5]])
    assert torch.equal(data.map_from_original(data.map_to_original(ids, "user"), "user"), ids)
    plain = DistDataset().load(typed_world(2).path, 1)
    assert plain.node_map is None and plain.edge_map is None
    for mapped in (plain.map_to_original(ids, "user"), plain.map_from_original(ids, RATES)):
        assert torch.equal(mapped, ids)
    for map_ids, args, error, words in (
        (data.map_to_original, (ids, "item"), IndexError, r"ids\[1, 0\] = 89 is outside \[0, 60\)"),
        (data.map_to_original, (ids, "users"), KeyError, "node type 'users' is not in the graph"),
        (data.map_from_original, (ids,), KeyError, "no node type is named"),
        (plain.map_to_original, ([700], RATES), IndexError, r"ids\[0\] = 700 is outside \[0, 700\)"),
    ):
        with pytest.raises(error, match=words):
            map_ids(*args)


# Attributes: batches of a partitioned PyG graph have all that local batches have.
LOADER = {"num_neighbors": [4, 3], "batch_size": 16, "random_seed": 5, "shuffle": True}


def plain_graph():
    data = random_graph(NUM_PLAIN, NUM_EDGES, seed=3).to_data()
    data.train_mask = torch.arange(NUM_PLAIN) % 3 == 0
    data.embedding = torch.arange(NUM_PLAIN * 6).view(NUM_PLAIN, 2, 3).bfloat16()
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


def partitioned(path, data, num_parts=2, **given):
    given = graph_arguments(data, **given)
    RandomPartitioner(path, num_parts, **given, edge_assign_strategy="by_dst").partition()
    return path


def sampled(trainer, path, mode, given):
    data, results = join(trainer, path), []
    for each in given:
        flags = {"worker_options": options(trainer, mode), **LOADER, **WITH_ALL, **each}
        with glt.distributed.DistNeighborLoader(data, **flags) as loader:
            results.append(batches(loader, 1))
    return results


def expect_attributes(data, path, mode, given):
    by_rank = run_cluster(2, sampled, path, mode, given, deadline_s=120.0)
    for flags, got in zip(given, by_rank[0], strict=True):
        local = glt.loader.NeighborLoader(data, **LOADER, **flags)
        # PyG takes ids out of the batch where nothing asks for them; ours were asked for.
        assert_same(*([tensors_of(each) for each in side] for side in (got, batches(local, 1))), str(flags))


def tensors_of(batch):
    return {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_attributes_of_a_graph_without_types(tmp_path, mode):
    data = plain_graph()
    path = partitioned(tmp_path / "parts", data, weight_attr="edge_weight")
    seeds = {"input_nodes": torch.arange(0, NUM_PLAIN, 11)}
    given = [seeds, seeds | {"weight_attr": "edge_weight"}, seeds | {"subgraph_type": "bidirectional"}]
    expect_attributes(data, path, mode, given[: 1 if mode == "mp" else 3])


@pytest.mark.timeout(150)
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
def test_attributes_of_a_graph_of_types(tmp_path):
    data = typed_graph(tmp_path)
    path = partitioned(tmp_path / "typed", data, weight_attr="weight", time_attr="time")
    seeds = {"input_nodes": ("item", torch.arange(0, 60, 7))}
    flags = {}, {"weight_attr": "weight"}, {"time_attr": "time", "disjoint": True}, {"subgraph_type": "bidirectional"}
    expect_attributes(data, path, "collocated", [seeds | each for each in flags])


def test_a_dataset_offers_the_tables_of_its_partition(tmp_path):
    data = typed_graph(tmp_path)
    own = DistDataset().load(partitioned(tmp_path / "typed", data, time_attr="time"), 1)
    assert own.node_attrs.keys() == {"user", "item", "ghost"} and own.node_attrs["user"].keys() == {"train_mask"}
    assert own.edge_attrs[RATES].keys() == {"kind", "kind/e0", "weight"}
    nodes = torch.from_numpy(own.own.nodes[0].ids)
    assert torch.equal(own.node_attrs["user"]["train_mask"][nodes], data["user"].train_mask[nodes])
    own = DistDataset().load(partitioned(tmp_path / "plain", plain_graph()), 0)
    assert own.node_attrs.keys() == {"train_mask", "embedding"}
    assert own.edge_attrs.keys() == {"edge_weight", "kind", "edge/kind"}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("level", ["edge", "node"])
def test_times_before_the_epoch_of_any_integers(tmp_path, alone, level, dtype):
    size, seeds = NUM_EDGES if level == "edge" else NUM_PLAIN, torch.arange(0, NUM_PLAIN, 7)
    times = torch.randint(-100, 28, (size,), generator=torch.Generator().manual_seed(1))
    given = {"num_neighbors": [4, 3], "batch_size": 16, "random_seed": 5, "time_attr": "time", "disjoint": True}
    given |= {"input_nodes": seeds, "input_time": torch.arange(len(seeds)) % 120 - 95}

    def timed(of):
        data = random_graph(NUM_PLAIN, NUM_EDGES, seed=3).to_data()
        data["time"] = times.to(of)
        return data

    def of_partitions(of):
        path = partitioned(tmp_path / str(of), timed(of), 1, time_attr="time")
        with distributed(path, "DistNeighborLoader", **given, **WITH_ALL) as loader:
            return batches(loader, 1)

    got = of_partitions(dtype)
    local = batches(glt.loader.NeighborLoader(timed(dtype), **given), 1)
    assert any(value.numel() for batch in local for name, value in batch.items() if name.endswith("edge_index"))
    for wanted in (local, of_partitions(torch.int64) if dtype != torch.int64 else got):
        assert len(got) == len(wanted) > 0
        for a, b in zip(got, wanted, strict=True):
            for name in tensors_of(a).keys() & b.keys():
                assert torch.equal(a[name], b[name]), name


# All edges of a type as seeds: of each trainer, those of its partition.


def seeds_of_all(trainer, path):
    """Of each seed edge: its id, ends, label and time. Three trainers load two partitions."""
    data, found = join(trainer, path, trainer.rank % 2), []
    label, time = torch.arange(700) % 5 + 1, 40 + torch.arange(700) % 3
    given = {"edge_label": label, "edge_label_time": time, "time_attr": "time", "shuffle": True, "batch_size": 100}
    where = options(trainer, "collocated")
    with glt.distributed.DistLinkNeighborLoader(data, [2], RATES, worker_options=where, **given) as loader:
        for batch in loader:
            store = batch[RATES]
            ends = torch.stack([batch[t].n_id[store.edge_label_index[i]] for i, t in ((0, "user"), (1, "item"))])
            columns = store.input_id, ends.t(), store.edge_label, store.edge_label_time
            found += zip(*(each.tolist() for each in columns), strict=True)
    return found


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_each_edge_is_a_seed_of_one_trainer(typed_world, edge_dir):
    world = typed_world(2, edge_dir)
    by_rank = run_cluster(3, seeds_of_all, world.path)
    assert abs(len(by_rank[0]) - len(by_rank[2])) <= 1  # they share a partition
    found = sorted(each for found in by_rank for each in found)
    assert [each[0] for each in found] == list(range(700))
    assert torch.equal(torch.tensor([each[1] for each in found]).t(), world.edge_index[RATES])
    assert [each[2:] for each in found] == [(i % 5 + 1, 40 + i % 3) for i in range(700)]


def links(path, edges, **given):
    given = {"num_neighbors": [2, 1], "edge_label_index": edges, "batch_size": 200, "random_seed": 3} | given
    return distributed(path, "DistLinkNeighborLoader", **given)


def test_all_edges_are_those_of_the_local_loader(typed_world, world, alone):
    typed, given = typed_world(1), {"batch_size": 200, "random_seed": 3}
    wanted = batches(glt.loader.LinkNeighborLoader(typed.to_data(), [2, 1], (RATES, None), **given), 1)
    for edges in ((RATES, None), RATES, (("user", "item"), None)):
        with links(typed.path, edges, **WITH_ALL) as loader:
            for got, other in zip(batches(loader, 1), wanted, strict=True):
                assert_same([got], [{name: other[name] for name in got}], str(edges))
    with links(world(1).path, None) as loader:
        assert torch.equal(torch.cat([batch.input_id for batch in loader]), torch.arange(6000))
    with links(typed.path, ("item", "in", "tag")) as loader:  # a type without edges
        assert len(loader) == 0 and list(loader) == []


def test_what_does_not_fit_all_edges(typed_world, alone):
    for edges, given, text in (
        (RATES, {"edge_label": torch.ones(5)}, r"edge_label has shape \[5\].*each edge of the whole graph, 700"),
        (("user", "likes", "item"), {}, "'likes'.*expected one of .*partitioned with none"),
        ((("user", "likes", "item"), None), {}, "'likes'.*expected one of .*partitioned with none"),
        (("user", "rates", 3), {}, "has 3 elements: expected an edge type, or a pair of it"),
        (None, {}, "has no edge type, but is None: expected an edge type, or a pair"),
    ):
        with pytest.raises(ValueError, match=text):
            links(typed_world(1).path, edges, **given)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_ids_of_sorted_edges_are_counted_and_not_read(tmp_path, is_sorted):
    graph = random_graph(60, 600, seed=2)
    order = torch.sort(graph.edge_index[0], stable=True).indices if is_sorted else torch.arange(600)
    RandomPartitioner(tmp_path, 2, 60, graph.edge_index[:, order], relabel=True).partition()
    for p in range(2):
        own, edges = DistDataset().load(tmp_path, p).own, load_partition(tmp_path, p).edges[0]
        topology = own.graphs[0].topology
        assert (topology.edge_ids is None) == is_sorted
        assert topology.all_edge_ids().tolist() == edges.edge_ids.tolist()
        nodes = torch.from_numpy(own.expanded(0))
        asked = OneHopRequest(0, nodes, -1, False, 0, 0, with_edge=True)
        assert copied(own.one_hop(asked), len(nodes))[2].tolist() == edges.edge_ids.tolist()
