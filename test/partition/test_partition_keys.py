"""Partition directories carry the keys of users: as they are, or by the new ids of a relabelled graph; loaders take
them as seeds, and batches tell them."""

import json

import numpy as np
import pytest
import torch

import glt
from glt.data import KeyMap
from glt.errors import PartitionError
from glt.partition import Manifest, RandomPartitioner, load_partition, read_graph

USERS, ITEMS = [f"u{i:02d}" for i in range(30)], np.arange(20) * 7 + 3
BUYS = torch.stack([torch.arange(120) % 30, torch.arange(120) * 3 % 20])


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    root = tmp_path_factory.mktemp("keys")
    return {
        "user": KeyMap.write(root / "user", {"account": "text"}, lambda: iter([[USERS]])),
        "item": KeyMap.write(root / "item", {"sku": "int"}, lambda: iter([[ITEMS]])),
    }


def partitioned(root, keys, **options):
    features = {"user": torch.arange(30.0)[:, None], "item": torch.arange(20.0)[:, None]}
    edges = {("user", "buys", "item"): BUYS, ("item", "sold_to", "user"): BUYS.flip(0)}
    counts = {"user": 30, "item": 20}
    RandomPartitioner(root, 2, counts, edges, node_feat=features, node_keys=keys, **options).partition()
    return root


@pytest.mark.parametrize("relabel", [False, True])
def test_each_host_has_them_by_the_ids_of_the_directory(tmp_path, keys, relabel):
    root = partitioned(tmp_path / "parts", keys, relabel=relabel)
    for index in range(2):
        part = load_partition(root, index)
        rows = {
            t: node.keys.lookup(raw) for t, node, raw in zip(("user", "item"), part.nodes, (USERS, ITEMS), strict=True)
        }
        assert part.nodes[1].keys.raw(rows["item"]).tolist() == ITEMS.tolist()
        assert (rows["user"].tolist() == list(range(30))) is not relabel
        for node, ids in zip(part.nodes, rows.values(), strict=True):
            original = np.arange(len(ids)) if node.id_map is None else node.id_map.original[ids.numpy()]
            assert original.tolist() == list(range(len(ids)))
    files = [path for path in Manifest.read(root).files if path.startswith("keys/")]
    assert sorted(files) == [
        *("keys/item/column0.npy", "keys/item/index.npy"),
        *(f"keys/user/{name}.npy" for name in ("column0_bytes", "column0_offsets", "index")),
    ]
    path = root / "keys/user/column0_bytes.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(PartitionError, match="column0_bytes"):
        load_partition(root, 0)


def test_seeds_and_batches_in_one_process(keys):
    dataset = glt.Dataset.from_arrays(
        {("user", "buys", "item"): BUYS, ("item", "sold_to", "user"): BUYS.flip(0)},
        {"user": 30, "item": 20},
        node_keys=keys,
    )
    seeds = ["u05", "u00", "u29"]
    loader = glt.loader.NeighborLoader(
        dataset, [2], ("user", seeds), batch_size=3, disjoint=False, transform=dataset.ids
    )
    (batch,) = loader
    assert batch["user"].raw_id[:3] == seeds and len(batch["user"].raw_id) == len(batch["user"].n_id)
    assert batch["item"].raw_id.tolist() == ITEMS[batch["item"].n_id.numpy()].tolist()
    with pytest.raises(KeyError, match="'u99' is no key of 'user'"):
        glt.loader.NeighborLoader(dataset, [2], ("user", ["u99"]), batch_size=3)
    with pytest.raises(ValueError, match="30 keys: expected one per node, 31"):
        glt.Dataset.from_arrays(torch.tensor([[0], [30]]), 31, node_keys=keys["user"])


def test_a_description_names_them(tmp_path, keys):
    document = {
        "nodes": {"num_nodes": 30, "keys": str(keys["user"].folder)},
        "edges": {"files": "edges.csv", "src": "a", "dst": "b"},
    }
    (tmp_path / "graph.json").write_text(json.dumps(document))
    (tmp_path / "edges.csv").write_text("a,b\n0,1\n1,2\n")
    RandomPartitioner(tmp_path / "parts", 2, read_graph(tmp_path / "graph.json", tmp_path)).partition()
    assert load_partition(tmp_path / "parts", 1).nodes[0].keys.lookup(["u07"]).tolist() == [7]
    document["nodes"]["num_nodes"] = 31
    (tmp_path / "graph.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="node_keys has 30 keys: expected one per node, 31"):
        RandomPartitioner(tmp_path / "more", 2, read_graph(tmp_path / "graph.json", tmp_path))
    document["nodes"]["keys"] = 7
    (tmp_path / "graph.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="keys = 7: expected the folder"):
        read_graph(tmp_path / "graph.json", tmp_path)
