"""A distributed graph says what the arrays say that it was made of, whatever the partitions."""

import shutil

import numpy as np
import pytest
import torch
from dist_typed_world import FOLLOWS, RATES, SCHEMA, write_typed_world
from dist_typed_world import NUM_NODES as TYPED
from dist_world import NUM_EDGES, NUM_NODES, write_world

import glt
from glt import _core
from glt.data import Topology
from glt.distributed.graph.blocks import to_block
from glt.distributed.graph.graph import DistGraph
from glt.distributed.job.worlds import StandaloneWorld
from glt.distributed.tensors.tensor import DistTensor
from glt.errors import PartitionError
from glt.partition import load_id_map

PARTS = [(1, "in"), (2, "in"), (4, "out"), (4, "in"), (2, "out")]


def open_graph(path, part=0):
    data = glt.distributed.DistDataset().load(path, part)
    return DistGraph("small", world=StandaloneWorld(data))


@pytest.fixture(params=PARTS, ids=lambda p: f"{p[0]} by {p[1]}")
def small(request, world):
    return world(*request.param, "xye")


@pytest.fixture
def graph(small):
    return open_graph(small.path, small.num_parts - 1)


def test_counts_types_and_ends_of_edges(graph, small):
    assert (graph.num_nodes(), graph.num_edges(), graph.is_hetero) == (NUM_NODES, NUM_EDGES, False)
    assert (graph.ntypes, graph.etypes, graph.rank()) == (["node"], [("node", "to", "node")], 0)
    ends = small.graph.edge_index
    ids = torch.randint(NUM_EDGES, (500,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(graph.find_edges(ids), ends[:, ids])
    u, v = graph.find_edges([5])
    assert (int(u), int(v)) == tuple(ends[:, 5].tolist())
    assert graph.find_edges(torch.empty(0, dtype=torch.int64)).shape == (2, 0)
    with pytest.raises(IndexError, match=rf"edge_ids\[1\] = {NUM_EDGES} is outside"):
        graph.find_edges([0, NUM_EDGES])


def test_damage_of_a_partition_that_nobody_loaded_is_noticed(world, tmp_path, alone):
    path = shutil.copytree(world(2).path, tmp_path / "parts")
    with open(path / "part1/node_feat/node.npy", "r+b") as file:
        file.seek(1000)
        file.write(bytes(64))
    with pytest.raises(PartitionError, match=r"part1/node_feat/node\.npy was altered"):
        _ = open_graph(path).ndata["x"][torch.arange(NUM_NODES)]
    with pytest.raises(ValueError, match=r"part1/node_feat/node\.npy was altered"):
        glt.distributed.DistNeighborLoader(glt.distributed.DistDataset().load(path, 0), [2], torch.arange(NUM_NODES))


def test_edges_without_a_book_are_found(world):
    for num_parts in (1, 4):
        made = world(num_parts, "in", "x")
        graph = open_graph(made.path)
        ids = torch.randperm(NUM_EDGES, generator=torch.Generator().manual_seed(2))
        assert torch.equal(graph.find_edges(ids), made.graph.edge_index[:, ids])
        book = graph.get_partition_book()
        owners = book.node_owners(made.graph.edge_index[1][ids])
        assert torch.equal(book.edge_owners(ids), owners), "by_dst: edges are with their destinations"


def test_degrees_in_both_directions(graph, small):
    ends = small.graph.edge_index
    whole_in, whole_out = (torch.bincount(ends[side], minlength=NUM_NODES) for side in (1, 0))
    assert torch.equal(graph.in_degrees(), whole_in)
    assert torch.equal(graph.out_degrees(), whole_out)
    some = torch.tensor([7, 7, 599, 0, 311])
    assert torch.equal(graph.in_degrees(some), whole_in[some])
    assert torch.equal(graph.out_degrees(some), whole_out[some])
    for degrees in (graph.in_degrees, graph.out_degrees):
        with pytest.raises(IndexError, match=rf"{NUM_NODES}"):
            degrees([3, NUM_NODES])


def test_pairs(graph, small):
    ends = small.graph.edge_index
    rng = torch.Generator().manual_seed(3)
    source = torch.cat([ends[0, ::50], torch.randint(NUM_NODES, (300,), generator=rng)])
    target = torch.cat([ends[1, ::50], torch.randint(NUM_NODES, (300,), generator=rng)])
    known = set(map(tuple, ends.t().tolist()))
    expected = [pair in known for pair in zip(source.tolist(), target.tolist(), strict=True)]
    assert graph.has_edges_between(source, target).tolist() == expected
    with pytest.raises(ValueError, match="2 sources and 1 targets"):
        graph.has_edges_between([1, 2], [3])
    for wrong in ([[NUM_NODES], [0]], [[0], [-1]]):
        with pytest.raises(IndexError, match="outside"):
            graph.has_edges_between(*wrong)


def test_a_mask_is_of_all_nodes_or_edges(world):
    made = world(2, "in", "x")
    graph = open_graph(made.path)
    nodes, edges = torch.arange(NUM_NODES) % 7 == 0, torch.arange(NUM_EDGES) % 50 == 0
    assert torch.equal(graph.in_degrees(nodes), graph.in_degrees(nodes.nonzero().view(-1)))
    assert torch.equal(graph.find_edges(edges), made.graph.edge_index[:, edges])
    assert torch.equal(graph.in_degrees(nodes.to(torch.uint8)), graph.in_degrees(nodes))
    assert torch.equal(graph.find_edges(edges.to(torch.uint8)), graph.find_edges(edges))
    book = graph.get_partition_book()
    of_nodes = (graph.in_degrees, graph.out_degrees, book.node_owners, lambda mask: graph.sample_neighbors(mask, 2))
    of_edges = (graph.find_edges, graph.edge_subgraph, book.edge_owners)
    for ask, length in [*((each, NUM_NODES) for each in of_nodes), *((each, NUM_EDGES) for each in of_edges)]:
        for wrong in (length - 1, length + 1):
            with pytest.raises(ValueError, match=f"is a mask of {wrong} elements: expected {length}, one for each id"):
                ask(torch.zeros(wrong, dtype=torch.bool))
        with pytest.raises(ValueError, match=r"\w+ is a mask of 2 elements: .*uint8 is a mask: convert ids"):
            ask(torch.tensor([1, 0], dtype=torch.uint8))


def test_a_barrier_says_what_went_wrong_with_a_write(world):
    graph = open_graph(world(2, "in", "x").path)
    tensor = DistTensor((NUM_NODES, 2), torch.float32, "h", world=graph.world)
    tensor.delete()
    assert isinstance(tensor.write_async([1], 1.0).exception(), LookupError)
    with pytest.raises(LookupError, match="'h' was deleted"):
        graph.barrier()
    graph.barrier()


def one_hop(ends, seeds, fanout, edge_dir, replace, seed):
    """What the native core samples from the whole graph."""
    whole = Topology(ends, NUM_NODES, layout="CSC" if edge_dir == "in" else "CSR")
    hop = _core.OneHop(whole.csr, seeds.numpy(), fanout, replace, _core.batch_key(seed, 0, 0), 0, 0)
    count = np.empty(len(seeds), np.uint32)
    neighbor, edge = (np.empty(hop.num_edges, np.int64) for _ in range(2))
    hop.copy_out(count, neighbor, edge)
    return ends[:, torch.from_numpy(edge)], torch.from_numpy(edge)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_hop_is_that_of_the_whole_graph(graph, small, edge_dir):
    ends = small.graph.edge_index
    seeds = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(4))[:200]
    for fanout, replace in ((5, False), (3, True), (-1, False), (0, False)):
        found = graph.sample_neighbors(seeds, fanout, edge_dir, replace, random_seed=17)
        expected_ends, expected_ids = one_hop(ends, seeds, fanout, edge_dir, replace, 17)
        assert torch.equal(found.e_id, expected_ids) and torch.equal(found.edge_index, expected_ends)
        assert found.num_nodes == NUM_NODES
    once = graph.sample_neighbors([9, 4, 30], 4, edge_dir, random_seed=1)
    assert torch.equal(graph.sample_neighbors([9, 4, 9, 30, 4], 4, edge_dir, random_seed=1).e_id, once.e_id)
    assert graph.sample_neighbors(torch.empty(0, dtype=torch.int64), 4, edge_dir).num_edges == 0
    torch.manual_seed(0)
    first, second = (graph.sample_neighbors(seeds, 2, edge_dir) for _ in range(2))
    assert not torch.equal(first.e_id, second.e_id)
    torch.manual_seed(0)
    assert torch.equal(graph.sample_neighbors(seeds, 2, edge_dir).e_id, first.e_id)


def test_the_graph_of_some_edges(graph, small):
    ends = small.graph.edge_index
    ids = torch.tensor([4000, 3, 77, 3])
    found = graph.edge_subgraph(ids)
    assert torch.equal(found.n_id[found.edge_index], ends[:, ids]) and torch.equal(found.e_id, ids)
    assert torch.equal(found.n_id, ends[:, ids].unique()) and found.num_nodes == len(found.n_id)
    assert torch.equal(graph.edge_subgraph(ids, relabel_nodes=False).edge_index, ends[:, ids])


def test_owners(graph, small):
    book = graph.get_partition_book()
    parts = [book.nodes_of(part) for part in range(small.num_parts)]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(NUM_NODES))
    for part, ids in enumerate(parts):
        assert (book.node_owners(ids) == part).all() and (ids.diff() > 0).all()
    edges = [book.edges_of(part) for part in range(small.num_parts)]
    assert torch.equal(torch.cat(edges).sort().values, torch.arange(NUM_EDGES))
    for part, ids in enumerate(edges):
        assert (book.edge_owners(ids) == part).all()
    assert book.node_offsets() is None and book.edge_offsets() is None and not book.is_relabelled
    with pytest.raises(ValueError, match="partition = 9"):
        book.nodes_of(9)


def test_data_that_partitions_have(graph, small):
    assert list(graph.ndata) == ["x", "y"] and list(graph.edata) == ["edge_attr"]
    ids = torch.tensor([599, 0, 17, 17])
    assert torch.equal(graph.ndata["x"][ids], small.x[ids]) and torch.equal(graph.ndata["feat"][ids], small.x[ids])
    assert torch.equal(graph.ndata["labels"][ids], small.y[ids])
    assert torch.equal(graph.edata["edge_attr"][ids], small.edge_attr[ids])
    assert graph.ndata["x"].shape == small.x.shape and graph.ndata["x"].dtype == small.x.dtype
    assert graph.ndata["feat"] is graph.ndata["x"]
    with pytest.raises(KeyError, match=r"no 'z': there are \['x', 'y'\]"):
        graph.ndata["z"]
    graph.ndata["x"][[3, 500]] = torch.full((2, small.x.shape[1]), -1.0)
    assert (DistGraph("again", world=graph.world).ndata["x"][[3, 500]] == -1).all(), "for all"
    assert torch.equal(open_graph(small.path).ndata["x"][:], small.x), "files stay"


def test_names_are_assigned_and_deleted(graph):
    made = DistTensor((NUM_NODES, 2), torch.float32, "h", part="node", world=graph.world)
    graph.ndata["h"] = made
    assert graph.ndata["h"] is made and "h" in graph.ndata and len(graph.ndata) == 3
    del graph.ndata["h"]
    assert "h" not in graph.ndata
    del graph.ndata["y"]
    assert list(graph.ndata) == ["x"] and "labels" not in graph.ndata
    graph.ndata["y"] = made
    assert graph.ndata["y"] is made
    with pytest.raises(TypeError, match=r"expected a DistTensor; make one with DistTensor\(shape, dtype, part='node'"):
        graph.ndata["h"] = torch.zeros(NUM_NODES)
    with pytest.raises(ValueError, match=f"has {NUM_NODES} rows: expected {NUM_EDGES}"):
        graph.edata["h"] = made
    with pytest.raises(KeyError):
        del graph.ndata["nothing"]


def test_a_relabelled_graph(tmp_path):
    made = write_world(tmp_path, 3, "in", "xye", relabel=True)
    graph, ends = open_graph(made.path), made.graph.edge_index
    maps = [load_id_map(made.path, t).original for t in ("node", ("node", "to", "node"))]
    nodes, edges = (torch.from_numpy(np.asarray(each)).long() for each in maps)
    assert torch.equal(nodes[graph.find_edges(torch.arange(NUM_EDGES))], ends[:, edges])
    assert torch.equal(graph.in_degrees(), torch.bincount(ends[1], minlength=NUM_NODES)[nodes])
    assert torch.equal(graph.out_degrees(), torch.bincount(ends[0], minlength=NUM_NODES)[nodes])
    assert torch.equal(graph.ndata["x"][torch.arange(NUM_NODES)], made.x[nodes])
    assert torch.equal(graph.edata["feat"][torch.arange(NUM_EDGES)], made.edge_attr[edges])
    book = graph.get_partition_book()
    offsets = book.node_offsets()
    assert torch.equal(book.nodes_of(1), torch.arange(int(offsets[1]), int(offsets[2])))
    for edge_dir in ("in", "out"):
        every = graph.sample_neighbors(torch.arange(NUM_NODES), -1, edge_dir)
        assert torch.equal(every.e_id.sort().values, torch.arange(NUM_EDGES))
        assert torch.equal(nodes[every.edge_index], ends[:, edges[every.e_id]])


@pytest.fixture(scope="module", params=[(1, "in"), (3, "in"), (2, "out")], ids=lambda p: f"{p[0]} by {p[1]}")
def typed(request, tmp_path_factory):
    yield write_typed_world(tmp_path_factory.mktemp("typed"), *request.param)


def test_a_heterogeneous_graph(typed):
    graph = open_graph(typed.path)
    assert graph.is_hetero and graph.ntypes == list(TYPED) and graph.etypes == list(SCHEMA.edge_types)
    assert graph.num_nodes("item") == 60 and graph.num_nodes() == sum(TYPED.values())
    for edge_type, ends in typed.edge_index.items():
        assert graph.num_edges(edge_type) == ends.shape[1]
        assert torch.equal(graph.find_edges(torch.arange(ends.shape[1]), edge_type), ends)
        for side, degrees in ((1, graph.in_degrees), (0, graph.out_degrees)):
            expected = torch.bincount(ends[side], minlength=TYPED[edge_type[2 * side]])
            assert torch.equal(degrees(None, edge_type), expected)
    assert torch.equal(graph.ndata["item"]["x"][torch.arange(60)], typed.node_feat["item"])
    assert torch.equal(graph.ndata["tag"]["label"][torch.arange(7)], torch.arange(7))
    assert torch.equal(graph.edata[FOLLOWS]["edge_attr"][torch.arange(400)], typed.edge_feat[FOLLOWS])
    assert "x" not in graph.ndata["tag"] and list(graph.ndata) == graph.ntypes and len(graph.edata) == len(graph.etypes)
    with pytest.raises(KeyError, match="'x' is no node type of the graph: expected one of"):
        graph.ndata["x"]
    with pytest.raises(TypeError, match=r"'h' is assigned to none: expected such as g.ndata\['"):
        graph.ndata["h"] = graph.ndata["item"]["x"]
    with pytest.raises(TypeError, match=r"expected such as g.edata\[\("):
        graph.edata["h"] = graph.edata[FOLLOWS]["edge_attr"]
    with pytest.raises(KeyError, match="expected one of"):
        graph.find_edges([0])
    with pytest.raises(KeyError, match="expected one of"):
        graph.sample_neighbors([0], 3)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_typed_hop(typed, edge_dir):
    graph = open_graph(typed.path)
    assert (graph.number_of_nodes("item"), graph.number_of_edges(RATES)) == (
        graph.num_nodes("item"),
        graph.num_edges(RATES),
    )
    found = graph.sample_neighbors({"item": torch.arange(60), "user": [5, 2, 80]}, {RATES: 3, FOLLOWS: -1}, edge_dir)
    assert set(found.edge_types) == {RATES, FOLLOWS}
    side = 1 if edge_dir == "in" else 0
    for edge_type in (RATES, FOLLOWS):
        ends, ids = found[edge_type].edge_index, found[edge_type].e_id
        assert torch.equal(ends, typed.edge_index[edge_type][:, ids])
        seeds = torch.arange(60) if edge_type[2 * side] == "item" else torch.tensor([2, 5, 80])
        degrees = torch.bincount(typed.edge_index[edge_type][side], minlength=90)[seeds]
        expected = degrees.clamp(max=3) if edge_type == RATES else degrees
        assert torch.equal(torch.bincount(ends[side], minlength=90)[seeds], expected)
        assert len(ids.unique()) == len(ids) == int(expected.sum())


def test_a_typed_graph_of_some_edges(typed):
    graph = open_graph(typed.path)
    found = graph.edge_subgraph({RATES: [600, 2], FOLLOWS: torch.tensor([8])})
    for edge_type, ids in ((RATES, [600, 2]), (FOLLOWS, [8])):
        ends = found[edge_type].edge_index
        original = torch.stack([found[edge_type[2 * side]].n_id[ends[side]] for side in (0, 1)])
        assert torch.equal(original, typed.edge_index[edge_type][:, torch.tensor(ids)])
        assert found[edge_type].e_id.tolist() == ids


def test_weighted_hops(typed):
    graph, other = open_graph(typed.path), "out" if typed.edge_dir == "in" else "in"
    seeds = {t: torch.arange(n) for t, n in TYPED.items()}
    found = graph.sample_neighbors(seeds, {RATES: 2}, typed.edge_dir, prob="weight", random_seed=5)
    # DGL's function, with its arguments in its order.
    same = glt.distributed.sample_neighbors(graph, seeds, {RATES: 2}, typed.edge_dir, "weight", False, random_seed=5)
    assert torch.equal(same[RATES].e_id, found[RATES].e_id)
    with pytest.raises(TypeError, match="g is a dict: expected a DistGraph"):
        glt.distributed.sample_neighbors({}, seeds, 2)
    weight = typed.edge_weight[RATES]
    side = 1 if typed.edge_dir == "in" else 0
    center = typed.edge_index[RATES][side]
    has_positive = torch.zeros(90).index_add(0, center, (weight > 0).float()) >= 2
    taken = found[RATES].e_id
    assert (weight[taken][has_positive[center[taken]]] > 0).all(), "weight 0 is taken where nothing else is left only"
    with pytest.raises(ValueError, match=f"partitions keep the weights of '{typed.edge_dir}' edges only"):
        graph.sample_neighbors(seeds, 2, other, prob="weight")


def test_wrong_arguments_are_named(world):
    graph = open_graph(world(2).path)
    for wrong, match in (
        ({"prob": "w"}, "no weights"),
        ({"fanout": -2}, "fanout = -2"),
        ({"fanout": 2.5}, "fanout = 2.5"),
        ({"seeds": [-1]}, r"seeds\[0\] = -1"),
        ({"seeds": {"node": [0]}}, "being homogeneous"),
        ({"random_seed": -1}, "random_seed = "),
        ({"random_seed": 2**63}, "random_seed = "),
        ({"random_seed": "a"}, "random_seed = "),
    ):
        with pytest.raises((ValueError, TypeError, IndexError), match=match):
            graph.sample_neighbors(**{"seeds": [0], "fanout": 2, **wrong})
    with pytest.raises(TypeError, match="name = 3"):
        DistGraph(3, world=graph.world)
    found = graph.sample_neighbors([1, 2], {})  # along no type
    assert found.edge_index.shape == (2, 0) and found.e_id.dtype == torch.int64 and found.num_nodes == NUM_NODES


def test_typed_layers(typed_world):
    made = typed_world(2)
    graph = open_graph(made.path)
    seeds = {"item": torch.tensor([3, 1, 40]), "user": torch.tensor([9])}
    block = to_block(graph.sample_neighbors(seeds, {RATES: 4, FOLLOWS: -1}), seeds)
    for node_type, ids in seeds.items():
        assert torch.equal(block.src_id[node_type][: len(ids)], ids) and block.num_dst[node_type] == len(ids)
        assert len(block.src_id[node_type].unique()) == block.num_src[node_type]
    for edge_type in (RATES, FOLLOWS):
        source, target = block.edge_index[edge_type]
        known = made.edge_index[edge_type][:, block.e_id[edge_type]]
        assert torch.equal(block.src_id[edge_type[0]][source], known[0])
        assert torch.equal(seeds[edge_type[2]][target], known[1])
    assert block.num_src["ghost"] == 0
    every = to_block(graph.sample_neighbors(seeds, {RATES: 4, FOLLOWS: -1}))
    assert torch.equal(every.src_id["ghost"], block.src_id["ghost"])
    assert set(every.dst_id["item"].tolist()) <= set(seeds["item"].tolist())
    with pytest.raises(TypeError, match="expected a dict by node type"):
        to_block(graph.sample_neighbors({"item": [1]}, 2), [1])
