"""Importers execute nothing, and name the file of whatever does not fit; also the command ``glt import``."""

import json
import os
import pickle
import random
import shutil

import numpy as np
import pytest
import torch
from partition_world import load_all
from peer_world import NUM_NODES, mapping, write_pyg, write_tensors
from torch_geometric.data import Data

from glt.cli import main
from glt.errors import PartitionError
from glt.partition import import_dgl, import_glt, import_pyg

IMPORTERS = {"glt": import_glt, "pyg": import_pyg, "dgl": import_dgl}


@pytest.fixture
def source_of(peers, tmp_path, monkeypatch):
    """Makes a directory of a library that may be changed."""

    def make(library, name="homo"):
        if library != "pyg":
            return shutil.copytree(peers / f"{library}_{name}", tmp_path / "source")
        edge_index = torch.randint(0, NUM_NODES, (2, 50), generator=torch.Generator().manual_seed(0))
        data = Data(x=torch.ones(NUM_NODES, 2), edge_index=edge_index, edge_attr=torch.ones(50, 1))
        write_pyg(tmp_path / "source", data, 2, monkeypatch)
        return tmp_path / "source"

    return make


@pytest.fixture
def dgl_source(source_of):
    return source_of("dgl")


def refused(importer, source, out, *words, **options):
    with pytest.raises(PartitionError) as error:
        importer(source, out, **options)
    for word in words:
        assert word in str(error.value)
    assert sorted(path.name for path in out.parent.iterdir()) == ["source"], "nothing is left behind"


class Malice:
    """What unpickles by calling ``os.mkdir``."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("library", "name", "file"),
    [
        *(("glt", "homo", file) for file in ("META", "node_pb.pt", "part0/node_feat/feats.pkl", "part1/graph/rows.pt")),
        ("pyg", "homo", "part_1/edge_feats.pt"),
        ("dgl", "homo_gb", "part0/fused_csc_sampling_graph.pt"),
    ],
)
def test_nothing_of_a_pickle_is_executed(source_of, tmp_path, library, name, file, legacy):
    source, malice = source_of(library, name), {"global_id": [Malice(tmp_path / "executed")]}
    if file.endswith(".pt"):
        torch.save(malice, source / file, _use_new_zipfile_serialization=not legacy)
    else:
        (source / file).write_bytes(pickle.dumps(malice, protocol=2 if legacy else 5))
    refused(IMPORTERS[library], source, tmp_path / "out", file, "mkdir")
    assert not (tmp_path / "executed").exists()


def test_a_pickle_cannot_change_what_pickles_may_call(source_of, tmp_path):
    """State set on a function or on a stand-in class must not reach the next file."""
    source = source_of("glt")
    feats = source / "part0/node_feat/feats.pkl"
    for name in ("torch._utils\n_rebuild_tensor_v2", "torch\nScriptObject", "collections\nOrderedDict"):
        attack = b"\x80\x02c" + name.encode() + b"\n(N}X\x04\x00\x00\x00nameX\x04\x00\x00\x00evilstb."
        kept = feats.read_bytes()
        feats.write_bytes(attack)
        refused(import_glt, source, tmp_path / "out", "feats.pkl")
        feats.write_bytes(kept)
    import_glt(source, tmp_path / "out")


@pytest.mark.parametrize("importer", [import_glt, import_pyg, import_dgl])
def test_what_is_no_directory_of_the_library_is_refused(tmp_path, importer):
    source = tmp_path / "source"
    source.mkdir()
    refused(importer, source, tmp_path / "out", str(source))
    refused(importer, source / "nowhere", tmp_path / "out", "nowhere")


@pytest.mark.parametrize(
    ("library", "file"),
    [
        *(("glt", file) for file in ("META", "node_pb.pt", "part1", "part1/graph/cols.pt", "part0/node_feat/ids.pkl")),
        *(("pyg", file) for file in ("META.json", "node_map.pt", "edge_map.pt", "part_1", "part_0/graph.pt")),
        *(("dgl", file) for file in ("part0/graph.dgl", "part1/node_feat.dgl", "part1/edge_feat.dgl")),
    ],
)
def test_what_is_missing_is_named(source_of, tmp_path, library, file):
    source = source_of(library)
    (shutil.rmtree if (source / file).is_dir() else os.remove)(source / file)
    refused(IMPORTERS[library], source, tmp_path / "out", file, "is missing")


def append_twice(source):
    for name in ("feats", "ids"):
        path = source / f"part0/node_feat/{name}.pkl"
        path.write_bytes(path.read_bytes() * 2)


def append_ids(source):
    path = source / "part0/node_feat/ids.pkl"
    path.write_bytes(path.read_bytes() + pickle.dumps(torch.arange(2)))


def empty_features(source):
    for name in ("feats", "ids"):
        (source / f"part1/node_feat/{name}.pkl").write_bytes(b"")


def change_book(change):
    return lambda source: torch.save(change(torch.load(source / "node_pb.pt")), source / "node_pb.pt")


def swap_parts(source):
    for name, other in (("part_0", "kept"), ("part_1", "part_0"), ("kept", "part_1")):
        (source / name).rename(source / other)


def name_a_type_of_a_path(source):
    meta = {"num_parts": 2, "is_hetero": True, "node_types": ["../../etc"], "edge_types": []}
    (source / "META.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    ("library", "change", "words"),
    [
        ("glt", append_twice, ["feats.pkl has node", "a second time", "run twice"]),
        ("glt", append_ids, ["ids.pkl", "different numbers of chunks"]),
        ("glt", empty_features, ["has no node 1", "are missing"]),
        ("glt", change_book(lambda book: book.roll(1)), ["neither to the partition of their source"]),
        ("glt", change_book(lambda book: book + 5), ["node_pb.pt names partition"]),
        ("pyg", swap_parts, ["part_0/node_feats.pt", "of partition 1: expected those of"]),
        ("pyg", name_a_type_of_a_path, ["META.json", "names no file"]),
    ],
)
def test_files_that_do_not_fit_together_are_refused(source_of, tmp_path, library, change, words):
    source = source_of(library)
    change(source)
    refused(IMPORTERS[library], source, tmp_path / "out", *words)


def test_a_strategy_that_the_edges_contradict_is_refused(peers, tmp_path):
    for importer, source, strategy, lie in (
        (import_glt, "glt_homo", "by_dst", "by_src"),
        (import_dgl, "dgl_homo", "by_src", "by_dst"),
        (import_pyg, "glt_homo", "by_src", "by_dst"),
    ):
        with pytest.raises(ValueError, match=rf"edge_assign_strategy = '{strategy}': the edges of .* lie {lie}"):
            importer(peers / source, tmp_path / "out", edge_assign_strategy=strategy)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"num_parts": 0}, "num_parts = 0"),
        ({"num_parts": 3}, "part-2"),
        ({"node_map": {"_N": [[0, 9], [10, 20]]}}, "ranges do not follow"),
        ({"etypes": {"_E": 0}}, "expected source:relation:destination"),
        ({"ntypes": {"_N": 1}}, "not numbered from 0"),
    ],
)
def test_a_partition_config_of_dgl_that_does_not_fit_is_refused(dgl_source, tmp_path, change, words):
    config = json.loads((dgl_source / "homo.json").read_text())
    (dgl_source / "homo.json").write_text(json.dumps({**config, **change}))
    refused(import_dgl, dgl_source, tmp_path / "out", "homo.json", words)


def test_arguments_of_import_dgl_that_do_not_fit_are_refused(peers, tmp_path):
    source, out = peers / "dgl_homo", tmp_path / "out"
    for options, error, message in (
        ({"tables": {"weights": "w"}}, ValueError, "tables names 'weights': expected one of node_feat"),
        ({"tables": {"edge_weight": "w"}}, ValueError, r"tables\['edge_weight'\] = 'w': .* only \['feat'\]"),
        ({"orig_nids": torch.zeros(20, dtype=torch.long)}, ValueError, "expected each of .* once"),
        ({"orig_nids": torch.arange(19)}, ValueError, "orig_nids of _N from orig_nids has 19 ids"),
        ({"node_label": torch.ones(20)}, ValueError, "node_label is given, but the imported directory holds it too"),
    ):
        with pytest.raises(error, match=message):
            import_dgl(source, out, **options)


@pytest.mark.parametrize(
    ("file", "table", "words"),
    [
        ("part0/orig_nids.dgl", "_N", "part1/orig_nids.dgl is missing"),
        ("part1/node_feat.dgl", "_N/other", "part1/node_feat.dgl holds ['other']"),
        ("part1/node_feat.dgl", "author/feat", "part1/node_feat.dgl holds 'author/feat': expected <type>/<name>"),
    ],
)
def test_tables_of_dgl_that_do_not_fit_together_are_refused(dgl_source, tmp_path, file, table, words):
    write_tensors(dgl_source / file, {table: np.arange(10)})
    refused(import_dgl, dgl_source, tmp_path / "out", words)


@pytest.mark.parametrize("name", ["glt_homo", "glt_hetero", "dgl_homo", "dgl_csc", "dgl_hetero_gb", "dgl_homo_gb"])
def test_a_damaged_file_is_never_anything_but_a_value_error(source_of, tmp_path, name):
    """Bytes flipped at random, with a fixed seed: the import succeeds (only a feature changed) or refuses by name."""
    source = source_of(*name.split("_", 1))
    files, generator = sorted(path for path in source.rglob("*") if path.is_file()), random.Random(name)
    outcomes = set()
    for trial in range(12):
        path = generator.choice(files)
        content = path.read_bytes()
        damaged = bytearray(content[: generator.randrange(len(content))] if trial % 4 == 0 else content)
        for _ in range(3 if damaged else 0):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            options = {"tables": {"edge_weight": "w"}} if name.startswith("dgl_hetero") else {}
            IMPORTERS[name[:3]](source, tmp_path / f"out{trial}", **options)
            outcomes.add("imported")
        except ValueError as error:
            outcomes.add("refused")
            assert isinstance(error, PartitionError) or "edge_weight" in str(error)
        path.write_bytes(content)
    assert "refused" in outcomes


def test_the_command_imports_and_says_what_came_of_it(peers, tmp_path, capsys):
    assert main(["import", "glt", str(peers / "glt_homo"), "--out", str(tmp_path / "a")]) == 0
    assert "AssignedPartitioner: 20 nodes and 60 edges in 2 partitions" in capsys.readouterr().out
    for kind in ("nids", "eids"):
        torch.save(mapping(peers, "dgl_hetero", kind), tmp_path / f"{kind}.pt")
    options = ["--orig-nids", str(tmp_path / "nids.pt"), "--orig-eids", str(tmp_path / "eids.pt")]
    source = str(peers / "dgl_hetero/hetero.json")
    assert main(["import", "dgl", source, "--out", str(tmp_path / "b"), "--table", "edge_weight=w", *options]) == 0
    assert load_all(tmp_path / "b")[0].edges[0].weight_sum is not None
    assert main(["import", "glt", str(peers / "glt_homo"), "--out", str(tmp_path / "a")]) == 1
    assert "is not empty" in capsys.readouterr().err
    for wrong in (["--table", "w"], ["--table", "edge_weight=nothing"]):
        with pytest.raises(SystemExit) as stopped:
            main(["import", "dgl", source, "--out", str(tmp_path / "c"), *wrong])
        assert stopped.value.code == 2


def test_the_command_imports_pyg(source_of, tmp_path, capsys):
    assert main(["import", "pyg", str(source_of("pyg")), "--out", str(tmp_path / "out"), "--relabel"]) == 0
    assert "edge_dir 'in'" in capsys.readouterr().out
    assert load_all(tmp_path / "out")[0].manifest.is_relabelled
