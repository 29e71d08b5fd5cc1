"""Heterogeneous graphs, weights, times and named tables: what was partitioned comes back, for every type."""

from pathlib import Path

import numpy as np
import pytest
import torch
from covering import covering
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_world import PARTITIONERS, assert_union_is_the_input, hetero_world, load_all
from torch_geometric.data import Data, HeteroData

from glt import _core
from glt.data.schema import Schema
from glt.partition import Manifest, PartitionerBase, RandomPartitioner, graph_arguments, load_partition
from glt.partition.format import layout
from glt.partition.format.book import id_dtype

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


@covering(time_level=[None, "edge", "node"], strategy=["by_src", "by_dst"], num_parts=[1, 2, 4])
def test_union_of_partitions_is_the_input(tmp_path, num_parts, strategy, time_level):
    world = hetero_world(time_level)
    manifest = RandomPartitioner(
        tmp_path / "parts", num_parts, **world, edge_assign_strategy=strategy, chunk_size=7
    ).partition()
    parts = load_all(tmp_path / "parts")
    assert_union_is_the_input(parts, **world)
    assert manifest == parts[0].manifest and manifest.time_level == time_level
    timed = {
        (None, "by_src"): set(),
        (None, "by_dst"): set(),
        ("edge", "by_src"): {"writes", "haunts"},
        ("edge", "by_dst"): {"writes", "haunts"},
        ("node", "by_src"): {"cites", "writes", "reads", "in"},  # those that lead to papers or sizes
        ("node", "by_dst"): {"cites", "in", "to"},  # those that come from papers
    }[time_level, strategy]
    assert {entry.edge_type[1] for entry in manifest.edge_types if entry.has_time} == timed
    assert {entry.edge_type[1] for entry in manifest.edge_types if entry.has_weight} == {"cites", "in"}
    for entry in manifest.node_types:
        assert max(entry.part_num_nodes) - min(entry.part_num_nodes) <= 1


@st.composite
def graphs(draw, always_typed=True):
    """Any types, or none, any relations, any of the tables given."""
    is_hetero, ids = always_typed or draw(st.booleans()), draw(st.sampled_from([np.int32, np.int64]))
    if is_hetero:
        num_nodes = draw(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 6), min_size=1, max_size=3))
        node_type = st.sampled_from(list(num_nodes))
        edge_types = draw(st.lists(st.tuples(node_type, st.sampled_from(["to", "of__"]), node_type), unique=True))[:4]
    else:
        num_nodes, edge_types = {"node": draw(st.integers(1, 12))}, [("node", "to", "node")]
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    edge_index = {}
    for src, rel, dst in edge_types:
        num_edges = draw(st.integers(0, 30)) if num_nodes[src] and num_nodes[dst] else 0
        ends = [generator.integers(0, max(num_nodes[end], 1), num_edges) for end in (src, dst)]
        edge_index[src, rel, dst] = np.stack(ends).astype(ids)

    def table(counts, make):
        return {key: make(count) for key, count in counts.items() if draw(st.booleans())}

    num_edges = {key: edges.shape[1] for key, edges in edge_index.items()}
    world = {
        "num_nodes": num_nodes,
        "edge_index": edge_index,
        "node_feat": table(num_nodes, lambda n: generator.random((n, 2))),
        "node_label": table(num_nodes, np.arange),
        "edge_feat": table(num_edges, np.arange),
        "edge_weight": table(num_edges, lambda n: generator.integers(0, 3, n).astype(np.float32)),
    }
    level = draw(st.sampled_from(["edge_time", "node_time"]))
    world[level] = table(num_edges if level == "edge_time" else num_nodes, lambda n: generator.integers(0, 5, n))
    return world if is_hetero else {name: value for name, each in world.items() for value in each.values()}


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@settings(max_examples=40, deadline=None)
@given(
    world=graphs(always_typed=False),
    num_parts=st.integers(1, 4),
    strategy=st.sampled_from(["by_src", "by_dst"]),
    chunk_size=st.sampled_from([1, 3, 100]),
    random_seed=st.integers(0, 2**31 - 1),
)
def test_union_of_partitions_of_any_graph_is_the_input(
    tmp_path_factory, partitioner, world, num_parts, strategy, chunk_size, random_seed
):
    parent = tmp_path_factory.mktemp("example")  # left to pytest: removing directories is slow
    options = {"edge_assign_strategy": strategy, "chunk_size": chunk_size, "random_seed": random_seed}
    manifest = partitioner(parent / "parts", num_parts, **world, **options).partition()
    parts = load_all(parent / "parts")
    assert_union_is_the_input(parts, **world)
    assert [path.name for path in parent.iterdir()] == ["parts"]
    edges_of = list(world["edge_index"].values()) if manifest.is_hetero else [world["edge_index"]]
    assert manifest.num_edges == sum(edges.shape[1] for edges in edges_of)
    assert manifest.part_num_nodes == tuple(sum(nodes.ids.size for nodes in part.nodes) for part in parts)
    assert manifest.part_num_edges == tuple(sum(edges.edge_ids.size for edges in part.edges) for part in parts)
    for entry in manifest.node_types:
        if partitioner is RandomPartitioner:
            assert max(entry.part_num_nodes) - min(entry.part_num_nodes) <= 1
        elif not manifest.is_hetero:  # 5% of the mean are less than a node here
            assert max(entry.part_num_nodes) <= -(-entry.num_nodes // num_parts)
    books = manifest.schema.by_node_type(node.book.owners() for node in parts[0].nodes)
    for entry, edges in zip(manifest.edge_types, edges_of, strict=True):
        src, _, dst = entry.edge_type
        assert entry.num_cut_edges == np.count_nonzero(books[src][edges[0]] != books[dst][edges[1]])
        assert entry.edge_cut_ratio == entry.num_cut_edges / max(entry.num_edges, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("strategy", ["by_src", "by_dst"])
def test_weights_are_those_of_the_whole_rows(tmp_path, dtype, strategy):
    """A row is drawn from in the same way wherever it lies, so its integers are the same too."""
    generator = np.random.default_rng(5)
    num_nodes, num_edges = 40, 3000
    edge_index = generator.integers(0, num_nodes, (2, num_edges)) ** 2 // num_nodes
    weight = (generator.random(num_edges) ** 8).astype(dtype)
    weight[generator.integers(0, num_edges, 300)] = 0
    weight[edge_index[0] == 0] = 0
    RandomPartitioner(
        tmp_path / "parts", 4, num_nodes, edge_index, edge_weight=weight, edge_assign_strategy=strategy
    ).partition()

    rows, cols = edge_index if strategy == "by_src" else edge_index[::-1]
    indptr, indices = np.empty(num_nodes + 1, np.int64), np.empty(num_edges, id_dtype(num_nodes))
    edge_ids = np.empty(num_edges, id_dtype(num_edges))
    _core.build_csr(rows, cols, num_nodes, num_nodes, indptr, indices, edge_ids)
    whole_sum = np.empty(num_edges, np.uint64)
    whole_guide = np.empty(_core.weight_guide_size(num_nodes, num_edges), np.uint32)
    _core.build_weights(indptr, weight[edge_ids], whole_sum, whole_guide)

    for part in load_all(tmp_path / "parts"):
        edges = part.edges[0]
        assert edges.weight_sum is not None and edges.weight_guide is not None
        for row, node in enumerate(part.nodes[0].ids):
            np.testing.assert_array_equal(
                edges.weight_sum[edges.indptr[row] : edges.indptr[row + 1]], whole_sum[indptr[node] : indptr[node + 1]]
            )
        guide = np.empty(_core.weight_guide_size(part.nodes[0].ids.size, edges.indices.size), np.uint32)
        _core.build_weights(edges.indptr, weight[edges.edge_ids], np.empty(edges.indices.size, np.uint64), guide)
        np.testing.assert_array_equal(edges.weight_guide, guide)
        book, arrays = part.nodes[0].book, (edges.indptr, edges.indices, edges.edge_ids)
        of_book = (book.row_of.numpy(), num_nodes, num_nodes, True, book.native, part.index)
        _core.Csr(*arrays, *of_book, edges.weight_sum, edges.weight_guide)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "float64"])
def test_weights_of_any_dtype_are_the_numbers_that_they_stand_for(world, tmp_path, dtype):
    weight = torch.arange(15).to(getattr(torch, dtype)).view(-1, 1)
    files = []
    for name, each in (("given", weight), ("double", weight.double())):
        manifest = RandomPartitioner(tmp_path / name, 2, 10, world.edge_index, edge_weight=each).partition()
        files.append(manifest.files)
    assert files[0] == files[1]


def test_weights_and_times_change_no_other_file(world, tmp_path):
    plain = RandomPartitioner(tmp_path / "plain", 2, **world.arguments()).partition()
    more = {"edge_weight": np.ones(15), "edge_time": np.arange(15)[::-1].copy()}
    rich = RandomPartitioner(tmp_path / "rich", 2, **world.arguments(), **more).partition()
    assert plain.files.items() < rich.files.items()
    more = {Path(path).stem for path in rich.files.keys() - plain.files.keys()}
    assert more == {"weight_sum", "weight_guide", "indices", "edge_ids", "time"}


def test_a_graph_of_one_type_has_the_files_of_a_homogeneous_one(world, tmp_path):
    one = RandomPartitioner(tmp_path / "one", 3, **world.arguments(), random_seed=3).partition()
    edge_type = ("node", "to", "node")
    typed = {key: {edge_type if "edge" in key else "node": value} for key, value in world.arguments().items()}
    same = RandomPartitioner(tmp_path / "same", 3, **typed, random_seed=3).partition()
    assert same.files == one.files
    assert same.schema.is_hetero and not one.schema.is_hetero and same.run_id != one.run_id


def test_node_types_are_partitioned_independently(tmp_path):
    world = hetero_world()
    RandomPartitioner(tmp_path / "all", 4, **world, random_seed=9).partition()
    books = [node.book.owners() for node in load_partition(tmp_path / "all", 0).nodes]
    assert not np.array_equal(books[0][:11], books[1])
    equal = {"num_nodes": {"a": 500, "b": 500}, "edge_index": {}}
    RandomPartitioner(tmp_path / "equal", 2, **equal).partition()
    first, second = (node.book.owners() for node in load_partition(tmp_path / "equal", 0).nodes)
    # Two even random splits of 500 agree on 250 nodes, give or take 11.2; 6 standard deviations: P < 2e-9.
    assert abs(int((first == second).sum()) - 250) < 68
    fewer = {"num_nodes": {"paper": 23, "author": 11}, "edge_index": {CITES: world["edge_index"][CITES]}}
    RandomPartitioner(tmp_path / "fewer", 4, **fewer, random_seed=9).partition()
    for book, node in zip(books, load_partition(tmp_path / "fewer", 0).nodes, strict=False):
        np.testing.assert_array_equal(node.book.owners(), book)


def test_the_order_of_types_is_the_users_and_part_of_the_run_id(tmp_path):
    world = hetero_world()
    first = RandomPartitioner(tmp_path / "first", 2, **world).partition()
    assert first.schema == Schema(tuple(world["num_nodes"]), tuple(world["edge_index"]))
    again = RandomPartitioner(tmp_path / "again", 2, **hetero_world(), chunk_size=3).partition()
    assert again == first
    world["edge_index"] = dict(reversed(world["edge_index"].items()))
    turned = RandomPartitioner(tmp_path / "turned", 2, **world).partition()
    assert turned.schema.edge_types == first.schema.edge_types[::-1]
    assert turned.files == first.files and turned.run_id != first.run_id
    assert load_partition(tmp_path / "turned", 1).manifest == turned


def test_the_summary_speaks_of_types(tmp_path):
    manifest = RandomPartitioner(tmp_path / "parts", 2, **hetero_world()).partition()
    assert "42 nodes and 251 edges of 5 and 6 types in 2 partitions" in manifest.summary()
    within = manifest.edge_types[3]
    assert within.remote_bytes_per_edge == within.edge_cut_ratio * 8  # one float64 of the destination
    nothing = RandomPartitioner(tmp_path / "nothing", 2, {"a": 0}, {}).partition()
    assert "0 nodes and 0 edges of 1 and 0 types" in nothing.summary()
    assert (nothing.part_num_nodes, nothing.part_num_edges, nothing.edge_cut_ratio) == ((0, 0), (0, 0), 0)


def test_a_partitioner_of_ones_own_is_asked_for_each_type(tmp_path):
    asked = []

    class ByTypePartitioner(PartitionerBase):
        def assign_nodes(self, node_type, num_nodes):
            asked.append((self.graph.schema.node_types[node_type], num_nodes))
            return np.full(num_nodes, node_type % self.num_parts)

    world = hetero_world()
    manifest = ByTypePartitioner(tmp_path / "parts", 2, **world).partition()
    assert asked == list(world["num_nodes"].items())
    assert manifest.part_num_nodes == (23 + 3 + 5, 11)
    assert_union_is_the_input(load_all(tmp_path / "parts"), **world)


def test_a_bad_assignment_is_refused_with_its_type(tmp_path):
    class Bad(PartitionerBase):
        def assign_nodes(self, node_type, num_nodes):
            return np.full(num_nodes, node_type)

    with pytest.raises(ValueError, match=r"Bad\.assign_nodes returned of node type 'ven/ue'\[0\] = 2: expected"):
        Bad(tmp_path / "parts", 2, **hetero_world()).partition()
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(*3 * [st.text("ab_/.%é ", min_size=1, max_size=4)]), min_size=2, max_size=9, unique=True))
def test_names_of_types_become_names_of_files_that_never_meet(edge_types):
    names = {layout.edge_type_name(edge_type) for edge_type in edge_types}
    assert len(names) == len(edge_types)
    for name, edge_type in zip(map(layout.edge_type_name, edge_types), edge_types, strict=True):
        assert name.isascii() and "/" not in name and name.split("__") == list(map(layout.node_type_name, edge_type))


def test_plain_names_stand_for_themselves():
    assert layout.edge_type_name(("node", "to", "node")) == "node__to__node"
    assert layout.node_type_name("field_of-study.2") == "field_of-study.2"
    assert layout.node_type_name("../__a") == "..%2F%5F%5Fa"
    assert layout.node_type_name("\0\ud800") == "%00%ED%A0%80"


@pytest.mark.parametrize("name", ["a\ud800", "\udc80"])
def test_names_that_are_no_text_are_refused(tmp_path, name):
    edges = np.zeros((2, 1), np.int64)
    for what, arguments in (
        ("node type", {"num_nodes": {name: 1}, "edge_index": {(name, "to", name): edges}}),
        ("edge type", {"num_nodes": {"a": 1}, "edge_index": {("a", name, "a"): edges}}),
        (r"node_attrs key", {"num_nodes": 1, "edge_index": edges, "node_attrs": {name: np.ones(1)}}),
        (r"edge_attrs key", {"num_nodes": 1, "edge_index": edges, "edge_attrs": {name: np.ones(1)}}),
    ):
        with pytest.raises(ValueError, match=rf"{what} .* has '\\ud[8c][08]0', half of a character.*rename it"):
            RandomPartitioner(tmp_path / "parts", 2, **arguments)


def test_names_that_file_systems_give_a_meaning_of_their_own(tmp_path):
    """Of a type called "..", files lay a directory higher; one called "." wrote what it did not find again."""
    names = (".", "..", "%2E", "...")
    tables = {name: {name: np.arange(4) + at} for at, name in enumerate(names)}
    edge_index = {(src, "..", dst): np.array([[0, 1], [2, 3]]) for src, dst in zip(names, names[::-1], strict=True)}
    world = {
        "num_nodes": dict.fromkeys(names, 4),
        "edge_index": edge_index,
        "node_feat": {name: np.arange(4.0) * at for at, name in enumerate(names)},
        "node_attrs": tables,
        "edge_attrs": {edge_type: {".": np.arange(2)} for edge_type in edge_index},
    }
    hotness = dict.fromkeys(names, np.ones(4))
    RandomPartitioner(tmp_path / "parts", 2, **world, hotness=hotness, cache_ratio=0.5).partition()
    parts = load_all(tmp_path / "parts")
    assert_union_is_the_input(parts, **world)
    assert all(nodes.cache.ids.size == 2 for part in parts for nodes in part.nodes)


EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
TYPED = {"num_nodes": {"a": 4}, "edge_index": {("a", "to", "a"): EDGES}}


@pytest.mark.parametrize("strategy", ["by_src", "by_dst"])
def test_named_tables_come_back_and_are_listed(world, tmp_path, strategy):
    named = {
        "node_attrs": {"train_mask": np.arange(10) % 2 == 0, "p/q__r ü": torch.arange(20).view(10, 2).bfloat16()},
        "edge_attrs": {"time": np.arange(15, dtype=np.int32)},
    }
    more = {"edge_feat": None, "edge_weight": np.ones(15), "node_time": np.arange(10) // 3}
    given = world.arguments() | more | named  # the book of edges is there without features
    RandomPartitioner(tmp_path / "parts", 3, **given, edge_assign_strategy=strategy, chunk_size=4).partition()
    parts = load_all(tmp_path / "parts")
    assert_union_is_the_input(parts, **given)
    (nodes,), (edges,) = parts[0].manifest.node_types, parts[0].manifest.edge_types
    assert {name: (entry.dtype, entry.shape) for name, entry in nodes.attrs.items()} == {
        "train_mask": ("bool", ()),
        "p/q__r ü": ("bfloat16", (2,)),
    }
    assert edges.attrs["time"].dtype == "int32" and edges.has_rows and nodes.has_time and edges.has_time
    assert layout.attr(1, "node_attr", "node", "p/q__r ü") == "part1/node_attr/node/p%2Fq%5F%5Fr%20%C3%BC.npy"
    assert (tmp_path / "parts" / layout.attr(1, "node_attr", "node", "p/q__r ü")).exists()


def test_the_order_of_names_is_nobodys_business(tmp_path):
    tables = {"b": np.arange(4), "a": np.ones(4)}
    runs = [
        RandomPartitioner(tmp_path / str(i), 2, 4, EDGES, node_attrs=each, edge_attrs={"c": tables["a"]}).partition()
        for i, each in enumerate((tables, dict(reversed(tables.items()))))
    ]
    assert runs[0].run_id == runs[1].run_id == Manifest.read(tmp_path / "0").run_id


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"node_attrs": {"x": np.ones(4)}}, ValueError, "node_attrs names 'x': pass it as node_feat"),
        ({"edge_attrs": {"edge_attr": np.ones(4)}}, ValueError, "pass it as edge_feat"),
        ({"node_attrs": {"n_id": np.ones(4)}}, ValueError, "a loader gives that name itself"),
        ({"node_attrs": {"a\nb": np.ones(4)}}, ValueError, "without line breaks"),
        ({"node_attrs": {"": np.ones(4)}}, ValueError, "empty name"),
        ({"node_attrs": {"ü" * 50: np.ones(4)}}, ValueError, "needs a file name of 304 bytes"),
        ({"node_attrs": {3: np.ones(4)}}, TypeError, "has the key 3"),
        ({"node_attrs": np.ones(4)}, TypeError, "node_attrs is a ndarray: expected a dict"),
        ({"node_attrs": {"m": [1, 2]}}, TypeError, r"node_attrs\['m'\] is a list"),
        ({"edge_attrs": {"m": np.ones(3)}}, ValueError, r"edge_attrs\['m'\] has shape \[3\]: .* 4 rows"),
        ({"node_attrs": {"m": np.ones(4)}, "edge_attrs": {"m": np.ones(4)}}, ValueError, "both name 'm'"),
        ({"node_attrs": {"time": np.ones(4)}, "node_time": np.arange(4)}, ValueError, "names 'time', but node_time"),
        ({**TYPED, "node_attrs": {"b": {"m": np.ones(4)}}}, KeyError, "node_attrs names node type 'b'"),
        ({**TYPED, "node_attrs": {"a": np.ones(4)}}, TypeError, r"node_attrs\['a'\] is a ndarray"),
    ],
)
def test_what_cannot_be_an_attribute_is_refused(tmp_path, given, error, words):
    with pytest.raises(error, match=words):
        RandomPartitioner(tmp_path / "parts", **{"num_parts": 2, "num_nodes": 4, "edge_index": EDGES, **given})


def test_a_graph_of_pyg_is_the_same_run_as_its_arrays(world, tmp_path):
    weight, mask = torch.arange(15.0), torch.arange(10) % 3 == 0
    x, edge_index, y = (torch.from_numpy(each) for each in (world.node_feat, world.edge_index, world.node_label))
    data = Data(x=x, edge_index=edge_index, y=y, edge_attr=torch.from_numpy(world.edge_feat))
    data.name, data.edge_weight, data.train_mask, data.seen = "a graph", weight, mask, np.arange(10)
    data.edge_label_index = torch.zeros(2, 3, dtype=torch.int64)
    one = RandomPartitioner(tmp_path / "1", 2, **graph_arguments(data, weight_attr="edge_weight", time_attr="seen"))
    named = {
        "node_attrs": {"train_mask": mask, "seen": np.arange(10)},
        "edge_attrs": {"edge_weight": weight},
        "edge_weight": weight,
        "node_time": np.arange(10),
    }
    two = RandomPartitioner(tmp_path / "2", 2, **world.arguments(), **named)
    assert one.partition().run_id == two.partition().run_id


def test_types_of_pyg_keep_their_order_and_their_gaps(tmp_path):
    data = HeteroData()
    data["b"].x = torch.ones(3, 2)
    data["a"].num_nodes = 2
    data["b"].train_mask = torch.tensor([True, False, True])
    data["b", "to", "a"].edge_index = torch.tensor([[0, 2], [1, 0]])
    data["b", "to", "a"].time = torch.tensor([3, 4])
    data["a", "of", "b"].edge_index = torch.tensor([[1], [1]])
    given = graph_arguments(data, time_attr="time")
    assert list(given["num_nodes"].items()) == [("b", 3), ("a", 2)]
    assert list(given["edge_index"]) == [("b", "to", "a"), ("a", "of", "b")]
    assert given["node_attrs"].keys() == {"b"} and given["edge_attrs"].keys() == {("b", "to", "a")}
    assert given["edge_time"].keys() == {("b", "to", "a")} and "node_label" not in given
    RandomPartitioner(tmp_path / "parts", 2, **given).partition()


def test_what_stays_behind_is_said(caplog):
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, name="g", edge_label_index=torch.zeros(2, 3))
    data.hop_index, data.rank_index = torch.zeros(3, 2), torch.arange(2)
    with caplog.at_level("INFO"):
        assert list(graph_arguments(data)["node_attrs"]) == ["rank_index"]
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("WARNING", "left out, the first dimension not being that of the rows: hop_index"),
        ("INFO", "left out, being of no node or edge: edge_label_index, name"),
    ]
