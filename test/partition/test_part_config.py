"""The JSON file that names a partitioned graph: written with DGL's keys, read from wherever it may come."""

import json
import shutil

import numpy as np
import pytest
from partition_world import hetero_world

from glt.errors import PartitionError
from glt.partition import Manifest, RandomPartitioner, load_partition, read_part_config
from glt.partition.format.manifest import write_part_config
from glt.partition.importers.dgl import DglConfig


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


def as_dgls(path) -> None:
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
    with pytest.raises(PartitionError, match=f"there is no manifest.json in {tmp_path}: expected a partition dir"):
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
