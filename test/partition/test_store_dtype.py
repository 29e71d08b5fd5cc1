"""Partitions that store features smaller: which tables, what files hold, what the manifest says, what is refused."""

import json
import re
from dataclasses import asdict

import numpy as np
import pytest
import torch
from distributed_run import slice_of
from local_exchange import in_ranks, use_threads

from glt.data import Feature
from glt.partition import (
    FrequencyPartitioner,
    Manifest,
    RandomPartitioner,
    inspect_partitions,
    load_partition,
    partition_distributed,
)
from glt.partition.command import _store_dtype
from glt.testing import random_graph

GRAPH = random_graph(60, 400, seed=1)
HOT = torch.arange(60.0)


def partitioned(path, **given):
    tables = {"node_feat": GRAPH.x, "edge_feat": GRAPH.edge_attr, "node_attrs": {"pos": GRAPH.x[:, :3].double()}}
    return RandomPartitioner(path, 3, 60, GRAPH.edge_index, **(tables | given)).partition()


def rows_by_id(root, manifest, of=lambda part: (part.nodes[0].ids, part.nodes[0].feat)):
    parts = [of(load_partition(root, p)) for p in range(manifest.num_parts)]
    ids, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
    return rows[np.argsort(ids)]


@pytest.mark.parametrize("store_dtype", ["float16", "bfloat16", "int8", "int4", torch.float16])
@pytest.mark.parametrize("chunk_size", [7, 10_000])
def test_files_hold_packed_rows(tmp_path, store_dtype, chunk_size):
    manifest = partitioned(tmp_path / "parts", store_dtype=store_dtype, chunk_size=chunk_size)
    name = str(store_dtype).removeprefix("torch.")
    feature = Feature(GRAPH.x, store_dtype=store_dtype)
    assert np.array_equal(rows_by_id(tmp_path / "parts", manifest), feature.tensor.numpy())
    entry = Manifest.read(tmp_path / "parts").node_types[0].feat
    assert (entry.dtype, entry.shape, entry.store_dtype) == ("float32", tuple(GRAPH.x.shape[1:]), name)
    off = (feature.dense() - GRAPH.x).double()
    assert entry.error.rms_ratio == pytest.approx(float(off.norm() / GRAPH.x.double().norm()), rel=5e-3)
    assert entry.error.largest == pytest.approx(float(off.abs().max()), rel=5e-3)
    assert manifest.edge_types[0].feat.store_dtype == name and manifest.node_types[0].attrs["pos"].store_dtype is None
    shown = inspect_partitions(tmp_path / "parts", verify=True)
    assert not shown.bad and f"stored as {name}, off by" in shown.nodes[0].tables["feat"]


def test_tables_are_chosen_by_name(tmp_path):
    manifest = partitioned(tmp_path / "parts", store_dtype={"pos": "int8", "edge_attr": "int4"})
    nodes, edges = manifest.node_types[0], manifest.edge_types[0]
    assert nodes.feat.store_dtype is None
    assert (nodes.attrs["pos"].store_dtype, edges.feat.store_dtype) == ("int8", "int4")
    pos = rows_by_id(tmp_path / "parts", manifest, lambda part: (part.nodes[0].ids, part.nodes[0].attrs["pos"]))
    assert np.array_equal(pos, Feature(GRAPH.x[:, :3], store_dtype="int8").tensor.numpy())


def test_types_are_chosen_by_name(tmp_path):
    follows, likes = ("user", "follows", "user"), ("user", "likes", "item")
    edges = {follows: GRAPH.edge_index % 20, likes: GRAPH.edge_index % 20}
    feats = {"user": GRAPH.x[:20], "item": GRAPH.x[:30]}
    given = {
        "node_feat": feats,
        "node_attrs": {"item": {"price": torch.rand(30)}},
        "edge_feat": {likes: torch.rand(400, 2)},
    }
    wanted = {"item": {"x": "int8", "price": "float16"}, likes: "bfloat16"}
    made = RandomPartitioner(
        tmp_path / "a", 2, {"user": 20, "item": 30}, edges, store_dtype=wanted, **given
    ).partition()
    user, item = made.node_types
    assert user.feat.store_dtype is None
    assert (item.feat.store_dtype, item.attrs["price"].store_dtype) == ("int8", "float16")
    assert [each.feat and each.feat.store_dtype for each in made.edge_types] == [None, "bfloat16"]
    made = RandomPartitioner(
        tmp_path / "b", 2, {"user": 20, "item": 30}, edges, store_dtype="int8", **given
    ).partition()
    assert [each.feat.store_dtype for each in made.node_types] == ["int8", "int8"]


def test_caches_hold_copies_of_packed_rows(tmp_path):
    given = {"probs": [HOT, HOT.flip(0), HOT], "cache_ratio": 0.3, "store_dtype": "int8", "node_feat": GRAPH.x}
    FrequencyPartitioner(tmp_path / "parts", 3, 60, GRAPH.edge_index, **given).partition()
    packed = Feature(GRAPH.x, store_dtype="int8").tensor.numpy()
    for p in range(3):
        cache = load_partition(tmp_path / "parts", p).nodes[0].cache
        assert len(cache.ids) > 0 and np.array_equal(cache.feat, packed[cache.ids])


@pytest.mark.parametrize("relabel", [False, True])
def test_ranks_write_what_one_machine_writes(tmp_path, monkeypatch, relabel):
    use_threads(monkeypatch)
    arguments = {"num_parts": 3, "num_nodes": 60, "edge_index": GRAPH.edge_index.numpy(), "node_feat": GRAPH.x.numpy()}
    arguments |= {"edge_feat": GRAPH.edge_attr.numpy(), "hotness": [HOT.numpy()] * 3, "cache_ratio": 0.2}
    arguments |= {"relabel": relabel}
    more = {"store_dtype": "int8"}
    alone = RandomPartitioner(tmp_path / "alone", **arguments, **more).partition()

    def run(exchange):
        mine = slice_of(arguments, exchange.rank, 3)
        return partition_distributed(RandomPartitioner, tmp_path / "ranks", **mine, **more, group=exchange)

    found = in_ranks(3, run)
    assert [each.run_id for each in found] == [alone.run_id] * 3


@pytest.mark.parametrize(
    ("store_dtype", "error", "message"),
    [
        ("int3", ValueError, "store_dtype = 'int3': expected one of"),
        ({"y": "int8"}, KeyError, "store_dtype names the table 'y': expected features or an attribute, one of"),
        (
            {"x": {"y": "int8"}},
            ValueError,
            "store_dtype names tables ['y'] of 'x': tables of a type (TYPE:TABLE=DTYPE)",
        ),
        ({"kind": "int8"}, TypeError, "store_dtype = 'int8' of kind, which is int64: expected a table of floats"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path, store_dtype, error, message):
    attrs = {"kind": torch.arange(60)}
    with pytest.raises(error, match=re.escape(message)):
        partitioned(tmp_path / "parts", store_dtype=store_dtype, node_attrs=attrs)
    with pytest.raises(ValueError, match="the graph has no features"):
        RandomPartitioner(tmp_path / "parts", 2, 60, GRAPH.edge_index, store_dtype="int8")


def test_ranks_whose_rows_differ_are_refused_however_they_are_packed(tmp_path, monkeypatch):
    use_threads(monkeypatch)

    def run(exchange):
        width = 97 + 3 * (exchange.rank == 1)  # as many bytes of int8
        x, edges = np.zeros((20, width), np.float32), np.zeros((2, 0), np.int64)
        given = {"store_dtype": "int8", "node_feat": x, "group": exchange}
        return partition_distributed(RandomPartitioner, tmp_path / "ranks", 2, 60, edges, **given)

    assert all("node_feat" in str(error) for error in in_ranks(3, run))


@pytest.mark.parametrize("damage", ["label", "error", "dtype"])
def test_manifests_that_say_nonsense_are_refused(tmp_path, damage):
    manifest = partitioned(tmp_path / "parts", store_dtype="int8", node_label=GRAPH.y)
    document = json.loads(json.dumps(asdict(manifest)))
    nodes = document["node_types"][0]
    if damage == "label":
        nodes["label"] |= {"dtype": "float32", "store_dtype": "int8", "error": nodes["feat"]["error"]}
    else:
        nodes["feat"][damage] = {"error": None, "dtype": "int64"}[damage]
    with pytest.raises(ValueError, match=r"stored as int8"):
        Manifest.from_json(document)


def test_a_mapped_table_is_packed(tmp_path):
    np.save(tmp_path / "x.npy", GRAPH.x.numpy())
    manifest = partitioned(tmp_path / "parts", node_feat=np.load(tmp_path / "x.npy", mmap_mode="r"), store_dtype="int8")
    assert np.array_equal(rows_by_id(tmp_path / "parts", manifest), Feature(GRAPH.x, store_dtype="int8").tensor.numpy())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["int8"], "int8"),
        (["x=int8", "e=int4"], {"x": "int8", "e": "int4"}),
        (["a:x=int8", "a:y=int4", "a__to__b=float16"], {"a": {"x": "int8", "y": "int4"}, ("a", "to", "b"): "float16"}),
    ],
)
def test_flags(flags, expected):
    assert _store_dtype(flags) == expected


@pytest.mark.parametrize(
    "flags", [["a=int8", "a=int4"], ["a:x=int8", "a=int4"], ["a=int8", "a:x=int4"], ["a:x=int8"] * 2]
)
def test_flags_that_say_it_twice_are_refused(flags):
    with pytest.raises(ValueError, match=f"--store-dtype {flags[1]}: a is given before"):
        _store_dtype(flags)


def test_a_number_that_cannot_be_stored_leaves_nothing_behind(tmp_path):
    x = GRAPH.x.clone()
    x[41, 2] = torch.nan
    with pytest.raises(ValueError, match=r"x\[41\] has nan at position 2: it is to be stored as int8"):
        partitioned(tmp_path / "parts", node_feat=x, store_dtype="int8", chunk_size=7)
    assert list(tmp_path.iterdir()) == []
