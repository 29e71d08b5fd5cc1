"""Seeds that servers have and clients name: splits in exact shares, and files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from dist_typed_world import RATES
from dist_world import NUM_EDGES, NUM_NODES, run_cluster, write_world
from service import options, serve_or
from torch_geometric.data import HeteroData

import glt
from glt.partition import RandomPartitioner, graph_arguments

SPLIT = {
    "train": torch.arange(NUM_NODES) ** 2 % 7 < 3,
    "valid": torch.arange(NUM_NODES) % 97 == 5,  # seven nodes
    "test": torch.arange(NUM_NODES) == 311,  # fewer than clients
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """The same graph in 1, 2 and 3 partitions."""
    masks = {f"{name}_mask": mask for name, mask in SPLIT.items() if name != "valid"} | {"val_mask": SPLIT["valid"]}
    return {
        parts: write_world(tmp_path_factory.mktemp("masks"), parts, tables="x", node_attrs=masks) for parts in (1, 2, 3)
    }


def seeds_of(given, **more):
    """The seeds of a client, in the order of its batches."""
    with glt.distributed.DistNeighborLoader(None, [2], given, batch_size=50, worker_options=options(**more)) as loader:
        batches = list(loader)
    seeds, input_id = (
        [int(each) for batch in batches for each in found(batch)]
        for found in (lambda batch: batch.n_id[: batch.batch_size], lambda batch: batch.input_id)
    )
    # Named seeds are as seeds that are given: input_id is their position, or of a mask the node.
    assert input_id == (seeds if given == "mask.pt" else list(range(len(seeds))))
    return seeds


def refusal(given, error=ValueError):
    """What is said of seeds that are none."""
    with pytest.raises(error) as raised:
        seeds_of(given)
    return str(raised.value)


def splits(trainer, rank):
    return {name: seeds_of(name) for name in (*SPLIT, "val")}


@pytest.mark.parametrize(
    ("servers", "clients", "parts", "read_local"),
    [(1, 3, 1, True), (2, 3, 2, False), (3, 2, 2, False), (1, 2, 3, True)],
)
def test_splits_are_shared_exactly(worlds, servers, clients, parts, read_local):
    given = {"read_local": read_local}
    by_client = run_cluster(servers + clients, serve_or, worlds[parts].path, servers, clients, splits, given)[servers:]
    for name, mask in SPLIT.items():
        whole = mask.nonzero().flatten()
        shares = [found[name] for found in by_client]
        # Whatever the partitions and servers: nodes by id, cut into pieces whose lengths differ by one at most.
        assert shares == [
            whole[len(whole) * rank // clients : len(whole) * (rank + 1) // clients].tolist() for rank in range(clients)
        ]
        lengths = [len(share) for share in shares]
        assert sum(lengths) == len(whole) and max(lengths) - min(lengths) <= 1
    assert all(found["val"] == found["valid"] for found in by_client)


def named_types(trainer, rank):
    where = options()
    with glt.distributed.DistNeighborLoader(None, [2], ("user", "train"), batch_size=8, worker_options=where) as loader:
        found = [int(node) for batch in loader for node in batch["user"].n_id[: batch["user"].batch_size]]
    return found, [refusal(given) for given in (("item", "train"), ("user", "trian"), "usr")]


def test_splits_of_a_node_type(tmp_path):
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 40, 30
    data["user"].train_mask = torch.arange(40) % 3 == 0
    data[RATES].edge_index = torch.stack([torch.arange(60) % 40, torch.arange(60) % 30])
    RandomPartitioner(tmp_path / "parts", 2, **graph_arguments(data), edge_assign_strategy="by_dst").partition()
    (first, (refused, split, type_)), (second, _) = run_cluster(4, serve_or, tmp_path / "parts", 2, 2, named_types, {})[
        2:
    ]
    assert first + second == list(range(0, 40, 3))
    assert "no 'train_mask' of 'item' nodes" in refused and "node_attrs={'train_mask'" in refused
    assert "('user', 'trian')" in split and "'train'" in split
    assert "'usr'" in type_ and "'user'" in type_ and "'train'" in type_


def files(trainer, rank, folder):
    """What files hold, and what is said of those that hold nothing of use."""
    found = [seeds_of(name) for name in ("ids.pt", "sub/ids.npy", "mask.pt", Path("ids.pt"))]
    with glt.distributed.DistLinkNeighborLoader(
        None, [2], "edges.pt", batch_size=4, worker_options=options()
    ) as loader:
        found.append(len(list(loader)))
    names = ("absent.pt", "../outside.pt", str(folder / "outside.pt"), "dict.pt", "broken.npy", "object.npy")
    found += [refusal(name) for name in names]
    return [*found, refusal("beyond.pt", error=IndexError)]  # checked like seeds that are given


def test_files_below_one_directory(worlds, tmp_path):
    folder = tmp_path / "seeds"
    (folder / "sub").mkdir(parents=True)
    ids = torch.tensor([5, 3, 3, 599])
    torch.save(ids, folder / "ids.pt")
    np.save(folder / "sub" / "ids.npy", ids.numpy())
    torch.save(SPLIT["valid"], folder / "mask.pt")
    torch.save(torch.arange(20).view(2, 10), folder / "edges.pt")
    torch.save(torch.tensor([NUM_NODES]), folder / "beyond.pt")
    torch.save({"ids": ids}, folder / "dict.pt")
    (folder / "broken.npy").write_bytes(b"no array")
    np.save(folder / "object.npy", np.array([{}], object), allow_pickle=True)  # would run code when it is read
    torch.save(ids, tmp_path / "outside.pt")
    given = {"seed_dir": str(folder)}
    found = run_cluster(2, serve_or, worlds[2].path, 1, 1, files, given | {"read_local": True}, tmp_path)[1]
    assert found[:5] == [ids.tolist(), ids.tolist(), SPLIT["valid"].nonzero().flatten().tolist(), ids.tolist(), 3]
    wanted = [
        "there is no such file",
        "outside of the server's seed_dir",
        "outside of the server's seed_dir",
        "holds a dict: expected a tensor",
        "'broken.npy' is not a readable .npy file",
        "Python objects, which are not read",
        "600",
    ]
    for text, part in zip(found[5:], wanted, strict=True):
        assert part in text, text


def refusals(trainer, rank):
    return [refusal(name, error=(ValueError, TypeError)) for name in ("train", "ids.pt", "trane")]


def test_names_that_the_server_does_not_know(tmp_path):
    here = write_world(tmp_path, 1, tables="x")
    assert here.graph.edge_index.shape[1] == NUM_EDGES
    split, file, neither = run_cluster(2, serve_or, here.path, 1, 1, refusals, {})[1]
    assert "no 'train_mask'" in split and "partition with node_attrs" in split
    assert "start it with seed_dir" in file
    assert "input_nodes = 'trane'" in neither and "'train', 'valid', 'val', 'test'" in neither and ".npy" in neither
