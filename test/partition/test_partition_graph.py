"""DGL's partition_graph and part_config, in glt."""

import json
import shutil

import numpy as np
import pytest
import torch
from partition_world import assert_union_is_the_input, hetero_world, load_all, needs_metis
from torch_geometric.data import Data, HeteroData

import glt
from glt.data import Dataset
from glt.distributed import node_split
from glt.errors import PartitionError
from glt.partition import (
    Manifest,
    RandomPartitioner,
    graph_arguments,
    inspect_partitions,
    load_partition,
    partition_graph,
    read_part_config,
)
from glt.partition.format.part_config import write_part_config
from glt.partition.importers.dgl import DglConfig


def homogeneous():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 60, (2, 300), generator=generator)
    edges = {"edge_index": edge_index, "edge_attr": torch.arange(300), "kind": torch.arange(300) % 2}
    masks = {"train_mask": torch.arange(60) % 3 == 0, "val_mask": torch.arange(60) % 3 == 1}
    return Data(x=torch.arange(120.0).view(60, 2), y=torch.arange(60) % 5, **edges, **masks, num_nodes=60)


def typed():
    given = hetero_world(None)
    data = HeteroData()
    for ntype, num_nodes in given["num_nodes"].items():
        data[ntype.replace("__", "_")].num_nodes = num_nodes  # PyG warns of two underscores
    data["paper"].x = given["node_feat"]["paper"]
    data["paper"].train_mask = torch.from_numpy(given["node_attrs"]["paper"]["train_mask"])
    for etype, edges in given["edge_index"].items():
        data[tuple(part.replace("__", "_") for part in etype)].edge_index = torch.from_numpy(edges)
    data["author", "writes", "paper"].edge_attr = torch.arange(60.0)
    return data


@pytest.mark.parametrize("part_method", ["random", "fennel", pytest.param("metis", marks=needs_metis)])
@pytest.mark.parametrize("make", [homogeneous, typed])
def test_all_that_the_graph_has_is_in_the_partitions(tmp_path, part_method, make):
    data = make()
    manifest = partition_graph(data, "toy", 3, tmp_path / "out", part_method=part_method, reshuffle=False)
    given = graph_arguments(data)
    assert manifest.num_parts == 3 and manifest.edge_dir == "in" and not manifest.is_relabelled
    as_arrays = {"edge_index": _arrays(given.pop("edge_index"))}
    assert_union_is_the_input(load_all(tmp_path / "out"), **given, **as_arrays)


def _arrays(edges):
    return {t: each.numpy() for t, each in edges.items()} if isinstance(edges, dict) else edges.numpy()


def test_new_ids_lead_back_to_the_old_ones(tmp_path):
    data = homogeneous()
    orig_nids, orig_eids = partition_graph(data, "toy", 3, tmp_path / "out", 1, "fennel", return_mapping=True)
    assert sorted(orig_nids.tolist()) == list(range(60)) and sorted(orig_eids.tolist()) == list(range(300))
    rebuilt, at = torch.zeros(60, 2), 0
    for part in load_all(tmp_path / "out"):
        nodes = part.nodes[0]
        original = orig_nids[torch.from_numpy(nodes.ids)].long()
        assert torch.equal(torch.as_tensor(nodes.attrs["train_mask"]), data.train_mask[original])
        rebuilt[original] = torch.as_tensor(nodes.feat)
        assert nodes.ids.tolist() == list(range(at, at + len(original)))
        at += len(original)
    assert torch.equal(rebuilt, data.x)
    emb = torch.rand(60, 4)
    orig_emb = torch.zeros_like(emb)
    orig_emb[orig_nids.long()] = emb  # as DGL's tutorial does
    assert torch.equal(orig_emb, glt.partition.to_original_order(emb, orig_nids))


def test_types_have_mappings_of_their_own(tmp_path):
    data = typed()
    orig_nids, orig_eids = partition_graph(data, "toy", 2, tmp_path / "out", part_method="random", return_mapping=True)
    assert {t: len(ids) for t, ids in orig_nids.items()} == {t: data[t].num_nodes for t in data.node_types}
    writes = ("author", "writes", "paper")
    for part in load_all(tmp_path / "out"):
        edges = part.edges[part.schema.edge_index(writes)]
        owned = edges.book.owners() == part.index
        assert torch.equal(
            torch.as_tensor(edges.feat), data[writes].edge_attr[orig_eids[writes].long()[torch.from_numpy(owned)]]
        )


@pytest.mark.parametrize("part_method", ["fennel", pytest.param("metis", marks=needs_metis)])
def test_masks_and_edges_are_balanced(tmp_path, part_method):
    balance = {"balance_ntypes": homogeneous().train_mask, "balance_edges": True, "imbalance": 0.1}
    manifest = partition_graph(homogeneous(), "toy", 3, tmp_path / "out", part_method=part_method, **balance)
    (nodes,) = manifest.node_types
    assert [label.label for label in nodes.balanced_labels] == [(0,), (1,)]
    assert all(label.balance_ratio > 0.85 for label in nodes.balanced_labels)


def timed(level):
    data = homogeneous()
    data.when = torch.arange(60).flip(0) if level == "node" else torch.arange(300) * 7 % 300
    data.weight = torch.rand(300, generator=torch.Generator().manual_seed(1)).double()
    return data


SAMPLED_BY = {"weight_attr": "weight", "time_attr": "when"}


@pytest.mark.parametrize(
    ("data", "options"),
    [(homogeneous(), {}), (typed(), {}), (timed("node"), SAMPLED_BY), (timed("edge"), SAMPLED_BY)],
)
def test_a_dataset_is_partitioned_as_the_data_that_it_was_made_of(tmp_path, data, options):
    of_data, of_dataset = tmp_path / "of_data", tmp_path / "of_dataset"
    partition_graph(data, "toy", 2, of_data, part_method="random", **options)
    partition_graph(Dataset.from_pyg(data, **options), "toy", 2, of_dataset, part_method="random", **options)
    assert Manifest.read(of_data).run_id == Manifest.read(of_dataset).run_id


def test_edge_ids_of_a_dataset_are_the_order_of_its_edges(tmp_path):
    ids = torch.tensor([2, 0, 1])
    dataset = Dataset.from_arrays(torch.tensor([[0, 1, 2], [1, 2, 0]]), edge_ids=ids)
    partition_graph(dataset, "ring", 1, tmp_path / "out", part_method="random", reshuffle=False)
    edges = load_partition(tmp_path / "out", 0).edges[0]
    assert edges.indices.tolist() == [2, 0, 1] and edges.edge_ids.tolist() == [1, 2, 0]
    sparse = Dataset.from_arrays(torch.tensor([[0, 1], [1, 0]]), edge_ids=torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="ids of the edges of g are not 0 to 1, each once"):
        partition_graph(sparse, "ring", 1, tmp_path / "other", part_method="random")


@pytest.mark.parametrize("part_method", ["random", "fennel", pytest.param("metis", marks=needs_metis)])
def test_several_trainers_take_the_pieces_of_a_partition(tmp_path, part_method):
    data = homogeneous()
    partition_graph(
        data, "toy", 2, tmp_path / "out", part_method=part_method, num_trainers_per_machine=2, random_seed=1
    )
    parts = load_all(tmp_path / "out")
    trainer_ids = torch.cat([torch.as_tensor(part.nodes[0].attrs["trainer_id"]) for part in parts])
    for part in parts:
        mine = torch.as_tensor(part.nodes[0].attrs["trainer_id"])
        assert set(mine.tolist()) == {2 * part.index, 2 * part.index + 1}, "part = trainer_id // 2"
        targets = np.repeat(part.nodes[0].ids, np.diff(part.edges[0].indptr))
        of_edges = np.empty(len(targets), np.int64)
        of_edges[np.argsort(np.argsort(part.edges[0].edge_ids))] = np.asarray(trainer_ids)[targets]
        assert np.asarray(part.edges[0].attrs["edge_trainer_id"]).tolist() == of_edges.tolist(), "that of the owner"
    book = parts[0].nodes[0].book
    shares = [
        node_split(torch.ones(60, dtype=torch.bool), book, rank=r, num_trainers=4, node_trainer_ids=trainer_ids)
        for r in range(4)
    ]
    near = sum((trainer_ids[share] == rank).sum() for rank, share in enumerate(shares))
    assert near >= 48, "but for what evens out, a trainer has its piece"
    assert json.loads((tmp_path / "out" / "toy.json").read_text())["num_trainers_per_machine"] == 2


def test_pieces_of_typed_partitions_and_what_goes_with_whole_ones(tmp_path):
    data, hotness = typed(), {t: np.ones(n) for t, n in typed().num_nodes_dict.items()}
    options = {"part_method": "fennel", "imbalance": 0.2, "balance_ntypes": True, "num_threads": 1}
    options |= {"num_trainers_per_machine": 3, "hotness": hotness, "cache_ratio": 0.2}
    manifest = partition_graph(data, "toy", 2, tmp_path / "out", **options)
    assert manifest.arguments["num_trainers_per_machine"] == 3 and manifest.arguments["imbalance"] == 0.2
    assert any(sum(entry.forecast.num_cached) for entry in manifest.node_types if entry.forecast), "caches are whole's"
    for part in load_all(tmp_path / "out"):
        for nodes in part.nodes:
            ids = np.asarray(nodes.attrs["trainer_id"])
            assert ids.dtype == np.int32 and set((ids // 3).tolist()) <= {part.index}
        assert all("edge_trainer_id" in edges.attrs for edges in part.edges)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_hops": 2}, ValueError, "num_hops = 2: expected 1; .* hotness and cache_ratio"),
        ({"use_graphbolt": True}, ValueError, "use_graphbolt = True: expected False"),
        ({"graph_formats": ["coo", "csc"]}, ValueError, r"graph_formats = \['coo', 'csc'\]: expected 'csc'"),
        ({"graph_formats": "csc", "edge_assign_strategy": "by_src"}, ValueError, "graph_formats = 'csc': expected 'cs"),
        ({"objtype": "vol"}, ValueError, "objtype = 'vol' is METIS's objective, but part_method = 'random'"),
        ({"part_method": ["random"]}, ValueError, r"part_method = \['random'\]: expected one of"),
        ({"out_path": None}, TypeError, "out_path = None: expected the path of the directory to create"),
        ({"part_method": "parmetis"}, ValueError, r"part_method = 'parmetis': expected one of \['random', "),
        ({"n_jobs": 4}, TypeError, "partition_graph has no argument n_jobs: say num_threads"),
        ({"store_eids": True}, TypeError, "partition_graph has no argument store_eids: partitions always have"),
        ({"relabel": True}, TypeError, "no argument relabel: it is called reshuffle"),
        ({"colour": 1}, TypeError, "RandomPartitioner has no argument colour"),
        ({"num_passes": 1}, TypeError, "RandomPartitioner has no argument num_passes"),
        ({"balance_edges": True}, ValueError, "balance_edges is given, but RandomPartitioner does not balance by it"),
        ({"return_mapping": True, "reshuffle": False}, ValueError, "return_mapping = True, but reshuffle is False"),
        ({"num_trainers_per_machine": 0}, ValueError, "num_trainers_per_machine = 0"),
        ({"num_trainers_per_machine": 2, "part_method": "assigned"}, ValueError, "but part_method = 'assigned'"),
        ({"graph_name": "a/b"}, ValueError, "graph_name = 'a/b': expected a name for the file"),
        ({"graph_name": "manifest"}, ValueError, "manifest.json is the manifest's file"),
        ({"graph_name": 3}, TypeError, "graph_name = 3: expected text"),
        ({"g": "graph"}, TypeError, "g has type str: expected a PyG Data or HeteroData, or a glt.data.Dataset"),
        ({"g": Dataset()}, ValueError, "g is a Dataset without a graph"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path, arguments, error, message):
    given = {"g": homogeneous(), "graph_name": "toy", "num_parts": 2, "out_path": tmp_path / "out"}
    arguments = given | {"part_method": "random"} | arguments
    with pytest.raises(error, match=message):
        partition_graph(**arguments)
    assert not (tmp_path / "out").exists()


def test_what_a_dataset_has_lost_is_refused(tmp_path):
    weighted = Dataset.from_arrays(torch.tensor([[0, 1], [1, 0]]), edge_weight=torch.ones(2))
    with pytest.raises(ValueError, match="have weights, of which a Dataset keeps sums only: name the table"):
        partition_graph(weighted, "toy", 1, tmp_path / "out", part_method="random")
    with pytest.raises(ValueError, match="time_attr = 'when', but g is a Dataset whose times are None"):
        partition_graph(Dataset.from_pyg(homogeneous()), "toy", 1, tmp_path / "out", time_attr="when")


@pytest.mark.parametrize("num_trainers", [1, 2])
def test_a_second_call_replaces_the_first_where_that_is_asked_for(tmp_path, num_trainers):
    given = {"part_method": "random", "num_trainers_per_machine": num_trainers}
    partition_graph(homogeneous(), "first", 2, tmp_path / "out", **given)
    partition_graph(homogeneous(), "second", 3, tmp_path / "out", **given, overwrite=True)
    assert read_part_config(tmp_path / "out") == (tmp_path / "out", "second") and len(load_all(tmp_path / "out")) == 3


def test_trainer_ids_of_the_graph_are_not_overwritten(tmp_path):
    data = homogeneous()
    data.trainer_id = torch.zeros(60)
    with pytest.raises(ValueError, match="g has an attribute 'trainer_id' of nodes"):
        partition_graph(data, "toy", 2, tmp_path / "out", part_method="random", num_trainers_per_machine=2)


def test_the_report_of_a_directory_knows_the_part_config(tmp_path):
    partition_graph(homogeneous(), "toy", 2, tmp_path / "out", part_method="random")
    (tmp_path / "out" / "notes.txt").write_text("")
    assert inspect_partitions(tmp_path / "out").unlisted == ("notes.txt",)
    assert read_part_config(tmp_path / "out") == (tmp_path / "out", "toy")


def test_it_goes_by_dgls_name_too():
    assert glt.distributed.partition_graph is partition_graph


@pytest.fixture
def hetero(tmp_path):
    RandomPartitioner(tmp_path / "typed", 3, relabel=True, **hetero_world()).partition()
    write_part_config(tmp_path / "typed", "typed", "random")
    return tmp_path / "typed"


def test_a_reader_of_dgls_files_finds_types_and_ranges(hetero):
    config, manifest = DglConfig.read(hetero / "typed.json"), Manifest.read(hetero)
    assert config.schema == manifest.schema and config.graph_name == "typed" and config.part_method == "random"
    assert config.nodes.totals == [entry.num_nodes for entry in manifest.node_types]
    assert config.edges.totals == [entry.num_edges for entry in manifest.edge_types]
    for at, entry in enumerate(manifest.node_types):
        assert tuple(config.nodes.sizes[:, at]) == entry.part_num_nodes
    assert config.num_parts == 3
    assert [path.name for path in config.files[2].values()] == ["node_feat", "edge_feat", "graph"]


def test_a_graph_without_types_has_dgls_names(tmp_path):
    RandomPartitioner(tmp_path / "out", 2, 5, np.array([[0, 1, 2], [1, 2, 3]]), relabel=True).partition()
    document = json.loads(write_part_config(tmp_path / "out", "one", "random").read_text())
    assert document["ntypes"] == {"_N": 0} and document["etypes"] == {"_N:_E:_N": 0}
    sizes = Manifest.read(tmp_path / "out").part_num_nodes
    assert document["node_map"] == {"_N": [[0, sizes[0]], [sizes[0], 5]]}
    assert (document["num_nodes"], document["num_edges"], document["num_parts"]) == (5, 3, 2)
    assert DglConfig.read(tmp_path / "out" / "one.json").nodes.totals == [5]


def test_without_new_ids_it_names_the_books(directory):
    document = json.loads(write_part_config(directory, "toy", "random").read_text())
    assert document["node_map"] == {"_N": "node_book/node.npy"}
    assert (directory / document["edge_map"]["_N:_E:_N"]).exists()


def test_the_file_and_the_directory_mean_the_same(hetero):
    assert read_part_config(hetero / "typed.json") == read_part_config(hetero) == (hetero, "typed")
    assert load_partition(hetero / "typed.json", 1).manifest == load_partition(hetero, 1).manifest
    (hetero / "other.json").write_text("{}")
    with pytest.raises(PartitionError, match=r"other\.json is no part_config: expected the JSON file"):
        load_partition(hetero / "other.json", 1)
    assert read_part_config(str(hetero)).graph_name == "typed"
    (hetero / "typed.json").unlink()
    assert read_part_config(hetero).graph_name == "typed", "the directory's own"


def test_two_names_are_one_too_many(hetero):
    write_part_config(hetero, "second", "random")
    with pytest.raises(PartitionError, match=r"has the part_configs of \['second', 'typed'\]: name one of them"):
        read_part_config(hetero)
    assert read_part_config(hetero / "second.json").graph_name == "second"


def test_a_file_of_another_run_is_refused(hetero, directory):
    shutil.copy(hetero / "typed.json", directory)
    with pytest.raises(PartitionError, match=r"typed.json is of run \w+, but the partitions beside it are of run"):
        read_part_config(directory / "typed.json")
    assert read_part_config(directory).graph_name == directory.name


def as_dgls(path):
    document = json.loads(path.read_text())
    del document["glt"]
    path.write_text(json.dumps(document))


def test_dgls_own_file_beside_what_was_imported_from_it(hetero, tmp_path):
    as_dgls(hetero / "typed.json")
    assert read_part_config(hetero / "typed.json") == (hetero, "typed")
    (tmp_path / "dgl").mkdir()
    shutil.copy(hetero / "typed.json", tmp_path / "dgl")
    with pytest.raises(PartitionError, match=r"is DGL's own, .* run 'glt import dgl \S+typed.json --out DIR'"):
        read_part_config(tmp_path / "dgl" / "typed.json")


def test_dgls_own_file_of_another_graph(hetero, directory):
    as_dgls(hetero / "typed.json")
    shutil.copy(hetero / "typed.json", directory)
    with pytest.raises(PartitionError, match=r"is of another graph than the manifest.json beside it: .* = \(3, 42, "):
        read_part_config(directory / "typed.json")


def test_what_is_none_is_refused(tmp_path, directory):
    with pytest.raises(PartitionError, match=r"missing\.json is missing: expected the part_config that"):
        read_part_config(tmp_path / "missing.json")
    with pytest.raises(PartitionError, match=f"{tmp_path}/manifest.json is missing: .*: expected a partition dir"):
        read_part_config(tmp_path)
    for text in ("[]", "{", json.dumps({"graph_name": "x"})):
        (directory / "bad.json").write_text(text)
        with pytest.raises(PartitionError, match=r"bad\.json is no part_config: expected the JSON file that"):
            read_part_config(directory / "bad.json")
    with pytest.raises(PartitionError, match="is not a directory"):
        write_part_config(tmp_path / "nowhere", "x", "random")


def test_colons_in_names_do_not_make_two_types_of_one(tmp_path):
    edges = np.zeros((2, 1), np.int64)
    types = {("a:b", "c", "d"): edges, ("a", "b:c", "d"): edges}
    RandomPartitioner(tmp_path / "out", 1, {"a:b": 1, "a": 1, "d": 1}, types, relabel=True).partition()
    document = json.loads(write_part_config(tmp_path / "out", "x", "random").read_text())
    assert list(document["etypes"]) == ["a%3Ab:c:d", "a:b%3Ac:d"]
