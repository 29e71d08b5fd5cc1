"""Contiguous ids: what a relabelled directory holds is the input under the maps that it holds too."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from covering import covering
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_world import assert_damage_is_named, assert_union_is_the_input, hetero_world, load_all
from test_hetero import graphs

from glt.data.schema import HOMOGENEOUS
from glt.errors import PartitionError
from glt.partition import Manifest, PartitionerBase, RandomPartitioner, load_id_map, load_partition, to_original_order
from glt.partition.format.book import id_dtype
from glt.partition.format.manifest import digest_of


class Given(PartitionerBase):
    """Takes the owners as they are, by position of the node type."""

    owners: list[np.ndarray]

    def assign_nodes(self, node_type, num_nodes):
        return self.owners[node_type]


def write(root, owners, num_parts, world, **options):
    partitioner = Given(root, num_parts, **world, **options)
    partitioner.owners = owners
    partitioner.partition()


def in_new_ids(world, owners, edge_dir):
    """The input with nodes and edges in the order of their owners; and the original ids of both, by type."""
    is_hetero = isinstance(world["num_nodes"], dict)
    nodes, edges = ({None: world[name]} if not is_hetero else world[name] for name in ("num_nodes", "edge_index"))
    node_maps = {t: np.argsort(owner, kind="stable") for t, owner in zip(nodes, owners, strict=True)}
    owner_of = dict(zip(nodes, owners, strict=True))
    edge_maps, edge_index = {}, {}
    for edge_type, ends in edges.items():
        source, _, target = edge_type or (None, None, None)
        by = owner_of[source][ends[0]] if edge_dir == "out" else owner_of[target][ends[1]]
        edge_maps[edge_type] = np.argsort(by, kind="stable")
        new = [np.argsort(node_maps[t])[end] for t, end in ((source, ends[0]), (target, ends[1]))]
        edge_index[edge_type] = np.stack(new)[:, edge_maps[edge_type]]
    relabelled = {"num_nodes": world["num_nodes"], "edge_index": edge_index if is_hetero else edge_index[None]}
    for name in world.keys() - relabelled.keys():
        maps = node_maps if name.startswith("node") else edge_maps
        tables = world[name] if is_hetero else {None: world[name]}
        named = name.endswith("attrs")
        moved = {}
        for t, table in tables.items():
            moved[t] = {n: rows[maps[t]] for n, rows in table.items()} if named else table[maps[t]]
        relabelled[name] = moved if is_hetero else moved[None]
    return relabelled, list(node_maps.values()), list(edge_maps.values())


def assert_maps(maps, originals):
    for of, original in zip(maps, originals, strict=True):
        assert of is not None and of.original.dtype == of.new.dtype == id_dtype(len(original))
        np.testing.assert_array_equal(of.original, original)
        np.testing.assert_array_equal(of.new, np.argsort(original))


def assert_relabelled(root, owners, world):
    parts = load_all(root)
    manifest = parts[0].manifest
    relabelled, node_maps, edge_maps = in_new_ids(world, owners, manifest.edge_dir)
    assert_union_is_the_input(parts, **relabelled)
    assert manifest.is_relabelled
    for part in parts:
        assert_maps([nodes.id_map for nodes in part.nodes], node_maps)
        assert_maps([edges.id_map for edges in part.edges], edge_maps)
        for entry, nodes in zip(manifest.node_types, part.nodes, strict=True):
            assert nodes.book.has_ranges and tuple(nodes.book.offset.tolist()) == entry.offsets
            assert nodes.ids.dtype == np.int64
            assert nodes.ids.tolist() == list(range(*entry.offsets[part.index : part.index + 2]))
        for entry, edges in zip(manifest.edge_types, part.edges, strict=True):
            assert edges.book.has_ranges and tuple(edges.book.offset.tolist()) == entry.offsets
            ids = np.sort(edges.edge_ids)
            assert ids.tolist() == list(range(*entry.offsets[part.index : part.index + 2]))
    names = {path.parts[0] for path in map(Path, manifest.files) if not path.parts[0].startswith("part")}
    assert names == {"node_map", "node_map_inverse"} | ({"edge_map", "edge_map_inverse"} if part.edges else set())
    assert not any("node_ids" in path for path in manifest.files)
    return parts


@covering(time_level=["edge", "node"], strategy=["by_src", "by_dst"], num_parts=[1, 2, 4])
def test_partitions_are_the_input_in_new_ids(tmp_path, num_parts, strategy, time_level):
    world = hetero_world(time_level)
    rng = np.random.default_rng(num_parts)
    owners = [rng.integers(0, num_parts, count) for count in world["num_nodes"].values()]
    write(tmp_path / "parts", owners, num_parts, world, edge_assign_strategy=strategy, chunk_size=7, relabel=True)
    assert_relabelled(tmp_path / "parts", owners, world)


@settings(max_examples=40, deadline=None)
@given(
    world=graphs(),
    num_parts=st.integers(1, 5),
    strategy=st.sampled_from(["by_src", "by_dst"]),
    seed=st.integers(0, 2**32),
)
def test_partitions_of_any_graph_are_the_input_in_new_ids(tmp_path_factory, world, num_parts, strategy, seed):
    root, rng = tmp_path_factory.mktemp("example") / "parts", np.random.default_rng(seed)
    owners = [rng.integers(0, num_parts, count) for count in world["num_nodes"].values()]
    write(root, owners, num_parts, world, edge_assign_strategy=strategy, relabel=True)
    assert_relabelled(root, owners, world)


def test_pieces_of_a_pass_fit_together(tmp_path, monkeypatch):
    """Streams of many pieces write what a single piece would."""
    world = hetero_world("node")
    owners = [np.arange(count) * 7 % 3 for count in world["num_nodes"].values()]
    write(tmp_path / "whole", owners, 3, world, relabel=True)
    for name in ("format.rows.CHUNK_IDS", "methods.writer.CHUNK_IDS", "methods.writer.CHUNK_EDGES"):
        monkeypatch.setattr(f"glt.partition.{name}", 5)
    write(tmp_path / "pieces", owners, 3, world, relabel=True, num_threads=3, sort_memory_bytes=1 << 20)
    assert_relabelled(tmp_path / "pieces", owners, world)
    assert Manifest.read(tmp_path / "whole").run_id == Manifest.read(tmp_path / "pieces").run_id


@pytest.fixture
def relabelled(world, tmp_path):
    RandomPartitioner(tmp_path / "relabelled", 3, **world.arguments(), relabel=True).partition()
    return tmp_path / "relabelled"


def test_mappings_are_returned_as_dgl_does(world, tmp_path):
    manifest, nodes, edges = RandomPartitioner(tmp_path / "a", 3, **world.arguments(), relabel=True).partition(
        return_mapping=True
    )
    assert manifest == Manifest.read(tmp_path / "a")
    assert nodes.tolist() == load_id_map(tmp_path / "a").original.tolist()
    assert edges.tolist() == load_id_map(tmp_path / "a", ("node", "to", "node")).original.tolist()
    parts = load_all(tmp_path / "a")
    new_feat = torch.cat([torch.from_numpy(np.asarray(part.nodes[0].feat)) for part in parts])
    assert torch.equal(torch.from_numpy(world.node_feat)[nodes], new_feat)
    typed = hetero_world()
    manifest, nodes, edges = RandomPartitioner(tmp_path / "b", 3, **typed, relabel=True).partition(return_mapping=True)
    assert {t: len(ids) for t, ids in nodes.items()} == typed["num_nodes"]
    assert {t: len(ids) for t, ids in edges.items()} == {t: e.shape[1] for t, e in typed["edge_index"].items()}
    assert torch.equal(nodes["paper"].sort()[0], torch.arange(23))


def test_a_mapping_of_what_is_not_relabelled_is_refused(world, directory, tmp_path):
    with pytest.raises(ValueError, match="return_mapping = True: expected relabel=True too"):
        RandomPartitioner(tmp_path / "a", 2, **world.arguments()).partition(return_mapping=True)
    assert not (tmp_path / "a").exists()
    with pytest.raises(PartitionError, match="was written without relabel=True"):
        load_id_map(directory)
    with pytest.raises(TypeError, match="relabel = 1: expected True or False"):
        RandomPartitioner(tmp_path / "a", 2, **world.arguments(), relabel=1)


def test_ids_go_to_and_from_the_originals(relabelled):
    ids = load_id_map(relabelled)
    given = torch.tensor([[0, 9, 4], [4, 4, 2]], dtype=torch.int32)
    there = ids.to_original(given)
    assert there.dtype == torch.int64 and there.tolist() == ids.original[given.numpy()].tolist()
    assert torch.equal(ids.to_new(there), given.long())
    assert ids.to_new([]).tolist() == [] and ids.to_original(3).tolist() == ids.original[3]
    with pytest.raises(IndexError, match=r"ids\[1, 0\] = 10 is outside \[0, 10\)"):
        ids.to_original(np.array([[1, 2], [10, -1]]))
    with pytest.raises(IndexError, match=r"ids\[0\] = -1 is outside"):
        ids.to_new([-1])
    with pytest.raises(TypeError, match=r"ids has dtype torch\.float32: expected integers"):
        ids.to_original(torch.ones(2))
    with pytest.raises(KeyError, match="node type 'user' is not in the graph"):
        load_id_map(relabelled, "user")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.uint16, torch.bool])
def test_rows_go_back_into_the_original_order(relabelled, tmp_path, dtype, monkeypatch):
    monkeypatch.setattr("glt.partition.format.book.CHUNK_IDS", 3)
    node_map = torch.from_numpy(load_id_map(relabelled).original)
    wanted = (torch.arange(20).view(10, 2) % 13).to(dtype)
    bits = wanted.view(torch.uint8)
    rows = bits[node_map.long()].view(dtype)
    assert torch.equal(to_original_order(rows, node_map).view(torch.uint8), bits)
    offsets = Manifest.read(relabelled).node_types[0].offsets
    shards = [rows[a:b] for a, b in pairwise(offsets)]
    assert len(shards) == 3
    assert torch.equal(to_original_order(shards, node_map.numpy()).view(torch.uint8), bits)


def test_rows_may_be_mapped_files(relabelled, tmp_path):
    node_map = load_id_map(relabelled).original
    np.save(tmp_path / "rows.npy", np.arange(30.0).reshape(10, 3)[node_map])
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float64, (10, 3))
    assert to_original_order(np.load(tmp_path / "rows.npy", mmap_mode="r"), node_map, out) is out
    out.flush()
    assert np.load(tmp_path / "out.npy").tolist() == np.arange(30.0).reshape(10, 3).tolist()


def test_rows_and_maps_that_do_not_fit_are_named():
    rows, ids = torch.zeros(4, 2), np.array([1, 0, 3, 2])
    for table, node_map, error, message in [
        (rows[:3], ids, ValueError, "rows has 3 rows: expected one per id of node_map, 4"),
        ([rows, rows], ids, ValueError, "rows has 2 shards with 8 rows: expected one per id of node_map, 4"),
        ([rows[:2], rows[2:].double()], ids, ValueError, r"rows\[1\] has dtype torch\.float64 and shape \[2, 2\]"),
        ([rows[:2], rows[2:, :1]], ids, ValueError, r"rows\[1\] has dtype torch\.float32 and shape \[2, 1\]"),
        ([], ids, ValueError, "rows is empty"),
        ("rows", ids, TypeError, "rows is a str: expected a tensor or an array"),
        (rows, ids * 1.0, TypeError, r"node_map is float64 \[4\]: expected integers"),
        (rows, np.array([1, 0, 4, 2]), ValueError, r"node_map\[2\] = 4 is outside \[0, 4\)"),
        (rows, np.array([1, 0, -1, 2]), ValueError, r"node_map\[2\] = -1 is outside"),
        (rows, np.array([1, 0, 1, 2]), ValueError, "node_map lacks the original id 3, so it has another one twice"),
    ]:
        with pytest.raises(error, match=message):
            to_original_order(table, node_map)
    with pytest.raises(ValueError, match=r"out is torch\.float32 \[4, 1\]: expected torch\.float32 \[4, 2\]"):
        to_original_order(rows, ids, torch.zeros(4, 1))


MAPS = {"node_map": "node", "edge_map": "node__to__node"}
FILES = [f"{each}{suffix}/{name}.npy" for each, name in MAPS.items() for suffix in ("", "_inverse")]


@pytest.mark.parametrize("path", FILES)
def test_maps_are_verified(relabelled, path):
    assert_damage_is_named(relabelled / path, path, lambda: load_partition(relabelled, 0))
    with pytest.raises(PartitionError, match=f"{path} is missing"):
        load_id_map(relabelled, None if "/node.npy" in path else HOMOGENEOUS.edge_types[0])


@pytest.mark.parametrize("change", ["shifted", "too few", "of nodes only", "colour"])
def test_ranges_that_contradict_the_counts_and_unknown_fields_are_refused(relabelled, change):
    manifest = Manifest.read(relabelled)
    document = json.loads((relabelled / "manifest.json").read_text())
    entry = document["edge_types" if change == "of nodes only" else "node_types"][0]
    field = "colour" if change == "colour" else "offsets"
    entry[field] = {
        "shifted": [0, *(n + 1 for n in entry["offsets"][1:-1]), entry["offsets"][-1]],
        "too few": entry["offsets"][:-1],
        "of nodes only": None,
        "colour": "red",
    }[change]
    document["run_id"] = digest_of(document)
    (relabelled / "manifest.json").write_text(json.dumps(document, indent=1) + "\n")
    with pytest.raises(PartitionError, match=f"manifest.json does not follow version {manifest.version} .*{field}"):
        load_partition(relabelled, 0)


def test_caches_speak_of_new_ids(tmp_path):
    rng = np.random.default_rng(5)
    feat, time = rng.random((60, 3)), rng.integers(0, 9, 60)
    owners = [rng.integers(0, 3, 60)]
    world = {"num_nodes": 60, "edge_index": rng.integers(0, 60, (2, 200)), "node_feat": feat, "node_time": time}
    hotness = [rng.random(60).astype(np.float32) for _ in range(3)]
    write(tmp_path / "parts", owners, 3, world, relabel=True, hotness=hotness, cache_ratio=0.2)
    for part in load_all(tmp_path / "parts"):
        nodes = part.nodes[0]
        ids, original = nodes.cache.ids, nodes.id_map.original[nodes.cache.ids]
        assert ids.size == 12 and (np.diff(ids) > 0).all()
        assert (nodes.book.owners(ids) != part.index).all()
        np.testing.assert_array_equal(nodes.cache.feat, feat[original])
        np.testing.assert_array_equal(nodes.cache.time, time[original])
        kept = hotness[part.index][original].min()
        elsewhere = np.setdiff1d(np.flatnonzero(owners[0] != part.index), original)
        assert hotness[part.index][elsewhere].max() <= kept
