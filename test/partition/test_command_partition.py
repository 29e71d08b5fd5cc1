"""``glt partition``: what the flags mean, and how it ends."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from input_world import plain, run_id, typed
from partition_world import needs_metis

from glt.cli import main
from glt.data import Dataset
from glt.partition import (
    AssignedPartitioner,
    FennelPartitioner,
    FrequencyPartitioner,
    Manifest,
    MetisPartitioner,
    RandomPartitioner,
    read_part_config,
)
from glt.partition.methods import METHODS
from glt.sampler import NeighborSampler

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def arrays_in(root, arguments):
    """A directory of ``.npy`` files of a graph without types."""
    named = {f"node_attr/{name}": table for name, table in arguments["node_attrs"].items()}
    named |= {f"edge_attr/{name}": table for name, table in arguments["edge_attrs"].items()}
    for name, array in {**arguments, **named}.items():
        if isinstance(array, np.ndarray):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            np.save(root / name, array)
    return root


def glt_partition(*flags):
    return main(["partition", *map(str, flags)])


def refused(capsys, status, words, *flags):
    assert glt_partition(*flags) == status
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and captured.err.startswith("glt partition: ")
    for word in words:
        assert word in captured.err


def test_a_program_of_its_own(tmp_path):
    """All else is tested in this process."""
    arrays_in(tmp_path / "in", plain())
    command = [sys.executable, "-m", "glt", "partition", "in", "--out", "parts", "--num-parts", "3", "--seed", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    manifest = Manifest.read(tmp_path / "parts")
    assert manifest.run_id in done.stdout and "forecast: 50 nodes and 400 edges" in done.stdout
    assert (manifest.num_parts, manifest.edge_dir, manifest.arguments) == (3, "in", {"random_seed": 4})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "parts"]


def test_partitions_are_replaced_where_that_is_asked_for(tmp_path, capsys):
    source, out = arrays_in(tmp_path / "in", plain()), tmp_path / "parts"
    command = (source, "--out", out, "--graph-name", "toy")
    assert glt_partition(*command, "--num-parts", 2) == 0
    capsys.readouterr()
    refused(capsys, 2, ["is not empty", "overwrite=True"], *command, "--num-parts", 3)
    assert glt_partition(*command, "--num-parts", 3, "--overwrite") == 0
    assert Manifest.read(out).num_parts == 3 and read_part_config(out) == (out, "toy")


def test_flags_of_tables_name_columns(tmp_path, capsys):
    arguments = plain()
    feat = arguments["node_feat"]
    nodes = {"a": feat[:, 0], "b": feat[:, 1], "c": feat[:, 2], "y": arguments["node_label"], **arguments["node_attrs"]}
    src, dst = arguments["edge_index"]
    edges = {"u": src, "v": dst, "g": arguments["edge_feat"][:, 0], "h": arguments["edge_feat"][:, 1]}
    edges |= {"w": arguments["edge_weight"], "t": arguments["edge_time"], "kind": arguments["edge_attrs"]["kind"]}
    pq.write_table(pa.table(nodes), tmp_path / "n.parquet")
    pq.write_table(pa.table(edges), tmp_path / "e.parquet")
    flags = (
        "--src u --dst v --edge-feat g,h --edge-weight w --edge-time t --edge-attr kind:int64 --edge-dir out --seed 4"
    )
    flags += " --node-feat a,b,c:float32 --node-label y --node-attr train_mask --node-attr year --chunk-size 7"
    given = [*flags.split(), "--nodes", tmp_path / "n.parquet"]
    assert glt_partition(tmp_path / "e.parquet", "--out", tmp_path / "out/parts", "--num-parts", 3, *given) == 0
    assert Manifest.read(tmp_path / "out/parts").run_id == run_id(tmp_path / "wanted", arguments)
    assert run_id(tmp_path / "again", arguments) in capsys.readouterr().out


PLAIN, OWNERS, BY_DST = plain(), np.arange(50) % 2, {"edge_assign_strategy": "by_dst"}
BALANCE = {"balance_ntypes": [PLAIN["node_label"], PLAIN["node_attrs"]["train_mask"]], "balance_edges": True}


@pytest.mark.parametrize(
    ("flags", "partitioner", "options"),
    [
        (
            "--method fennel --imbalance 0.1 --passes 3 --balance label --balance train_mask --balance-edges",
            FennelPartitioner,
            {"imbalance": 0.1, "num_passes": 3, **BALANCE, **BY_DST},
        ),
        ("--method assigned --owners owners.npy --edge-dir out", AssignedPartitioner, {"owners": OWNERS}),
        ("--relabel --edge-dir out", RandomPartitioner, {"relabel": True}),
        pytest.param("--method metis --objtype vol", MetisPartitioner, {"objtype": "vol", **BY_DST}, marks=needs_metis),
    ],
)
def test_methods_are_the_partitioners(tmp_path, capsys, monkeypatch, flags, partitioner, options):
    monkeypatch.chdir(tmp_path)
    np.save("owners.npy", OWNERS)
    source = arrays_in(tmp_path / "in", PLAIN)
    assert glt_partition(source, "--out", "got", "--num-parts", 2, *flags.split()) == 0
    wanted = partitioner(tmp_path / "wanted", 2, **PLAIN, **options).partition()
    assert Manifest.read(tmp_path / "got").run_id == wanted.run_id
    out = capsys.readouterr().out
    assert f"{partitioner.__name__}: 50 nodes" in out and ("  node, 0, 1: " in out) == ("--balance" in flags)
    assert ("  node to node, 0, 1: " in out) == ("--balance-edges" in flags), "of edges, too"


def test_hotness_is_that_of_degrees_or_of_equal_pieces_of_the_seeds(tmp_path, capsys):
    arguments = plain()
    source = arrays_in(tmp_path / "in", arguments)
    common = ["--num-parts", 2, "--method", "frequency", "--cache-ratio", 0.1]
    flags = ["--hotness", "seeds", "--seeds", "train_mask", "--num-neighbors", "3,2", "--batch-size", 4]
    assert glt_partition(source, "--out", tmp_path / "seeds", *common, *flags) == 0
    assert glt_partition(source, "--out", tmp_path / "degree", *common, "--hotness", "degree") == 0
    dataset = Dataset.from_arrays(arguments["edge_index"], 50, edge_weight=arguments["edge_weight"])
    sampler = NeighborSampler(dataset, [3, 2], weight_attr="weight")
    seeds = torch.from_numpy(np.flatnonzero(arguments["node_attrs"]["train_mask"]))
    half = len(seeds) // 2
    probs = [sampler.sample_prob(piece, batch_size=4) for piece in (seeds[:half], seeds[half:])]
    degrees = np.bincount(arguments["edge_index"][0], minlength=50) / 400
    for name, hotness in (("seeds", probs), ("degree", degrees.astype(np.float32))):
        wanted = FrequencyPartitioner(
            tmp_path / f"wanted {name}", 2, **arguments, probs=hotness, cache_ratio=0.1, edge_assign_strategy="by_dst"
        ).partition()
        assert Manifest.read(tmp_path / name).run_id == wanted.run_id
    refused(capsys, 2, ["add --hotness"], source, "--out", tmp_path / "no", *common)
    flags[3] = "colour"
    refused(capsys, 2, ["--seeds colour: no nodes have that"], source, "--out", tmp_path / "no", *common, *flags)


def test_inputs_that_are_not_there_or_have_no_rows(tmp_path, capsys):
    out = ["--out", tmp_path / "parts", "--num-parts", 2]
    for name, words in (("g.pt", "a PyG graph"), ("g.toml", "a description of tables")):
        refused(capsys, 2, [f"{tmp_path / name} does not exist: expected {words}"], tmp_path / name, *out)
    refused(capsys, 2, ["no.csv'", "expected Parquet or CSV files, found none"], tmp_path / "no.csv", *out)
    (tmp_path / "edges.csv").write_text("src,dst\n")
    for dry in ([], ["--dry-run"]):
        refused(capsys, 2, [f"{tmp_path}/edges.csv has no rows", "--num-nodes"], tmp_path / "edges.csv", *out, *dry)
    assert glt_partition(tmp_path / "edges.csv", *out, "--num-nodes", 3) == 0


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    source = arrays_in(tmp_path / "in", plain())
    assert glt_partition(source, "--out", tmp_path / "parts", "--num-parts", 2, "--dry-run") == 0
    assert capsys.readouterr().out.startswith("forecast: 50 nodes and 400 edges")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_report_of_types(tmp_path, capsys):
    arguments = typed()
    document = {"node_types": {"paper": {}, "au/thor": {"num_nodes": 20}}, "edge_types": []}
    for i, (edge_type, edges) in enumerate(arguments["edge_index"].items()):
        np.save(tmp_path / f"{i}.npy", edges)
        document["edge_types"].append({"type": list(edge_type), "edge_index": {"npy": f"{i}.npy"}})
    (tmp_path / "g.json").write_text(json.dumps(document))
    assert glt_partition(tmp_path / "g.json", "--out", tmp_path / "parts", "--num-parts", 2) == 0
    out = capsys.readouterr().out
    assert "au/thor: 20 nodes, balance 1.000" in out and "paper cites paper: 90 edges, cut" in out
    assert "at most" in out and "of memory" in out


@pytest.mark.parametrize("target", ["/proc/x", "/proc/x/y", "/dev/null/x"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(capsys, target):
    words = [f"output_dir {target} cannot be created: /", "choose a place"]
    refused(capsys, 2, words, "no such input", "--out", target, "--num-parts", 2)


def test_what_cannot_be_done_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "few.npy", np.array([3]))
    source = arrays_in(tmp_path / "in", plain())
    out = ["--out", tmp_path / "parts", "--num-parts", 2]
    refused(capsys, 2, ["nothing", "found none"], tmp_path / "nothing", *out)
    refused(capsys, 2, ["path is empty"], "", *out)  # not the working directory
    refused(capsys, 2, ["num_parts = 0"], source, "--out", tmp_path / "parts", "--num-parts", 0)
    for flags, *words in (
        ("--imbalance 0.1", "imbalance = 0.1 is not for --method random", "metis, fennel"),
        ("--cache-memory lots", "'lots'", "512KB"),
        ("--balance colour", "--balance colour", "label, train_mask, year"),
        ("--method assigned", "needs --owners"),
        ("--method assigned --owners a --owners b", "--owners a: expected TYPE"),
        ("--seeds train_mask", "--seeds is for --hotness seeds"),
        ("--hotness seeds", "needs --seeds and --num-neighbors"),
        (f"--scratch {tmp_path}/no", "--scratch", "is not a directory"),
        ("--src a", "edges", "does not apply"),
        (
            "--hotness seeds --num-neighbors 2 --seeds few.npy",
            "--seeds few.npy holds 1 seeds for --num-parts 2",
            "--hotness degree",
        ),
    ):
        refused(capsys, 2, words, source, *out, *flags.split())
    (tmp_path / "file").touch()
    refused(capsys, 2, ["output_dir", "is not empty"], source, "--out", tmp_path, "--num-parts", 2)
    refused(capsys, 2, ["is not glt's"], source, "--out", tmp_path, "--num-parts", 2, "--overwrite")
    refused(capsys, 2, ["output_dir", "is a file"], source, "--out", tmp_path / "file", "--num-parts", 2)
    np.save(source / "edge_index.npy", np.array([[0, 50], [0, 0]]))
    refused(capsys, 2, ["edge_index[0][1] = 50 is outside [0, 50)"], source, *out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.npy", "file", "in"]


def test_wrong_flags_are_argparses(tmp_path, capsys):
    for flags, words in (
        (["partition"], "the following arguments are required: input, --out, --num-parts"),
        (["partition", "in", "--out", "x", "--num-parts", "many"], "argument --num-parts: invalid int value: 'many'"),
        (["partition", "in", "--out", "x", "--num-neighbors", "a"], "argument --num-neighbors: 'a': expected whole"),
        (["partition", "in", "--method", "x"], "argument --method: invalid choice: 'x' (choose from"),
        (["inspect"], "the following arguments are required: dir"),
        (["inspect", "x", "--hosts", "a"], "argument --hosts: 'a': expected HOST=PARTS"),
        (["import", "x"], "argument library: invalid choice: 'x' (choose from"),
        (["import", "glt", "x", "--out", "y", "--edge-assign-strategy", "z"], "invalid choice: 'z' (choose from"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(flags)
        assert caught.value.code == 2
        err = capsys.readouterr().err
        assert err.startswith(f"glt {flags[0]}") and words in err and err.count("\n") == 1
        assert err.rstrip().endswith("--help")
    with pytest.raises(SystemExit) as caught:
        main(["partition", "--help"])
    assert caught.value.code == 0 and "Exit status" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (OSError(28, "No space left on device"), 1, "No space left"),
        (MemoryError(), 1, "MemoryError"),
        (KeyboardInterrupt(), 130, "stopped; nothing is left behind"),
    ],
)
def test_what_fails_on_the_way_leaves_nothing(tmp_path, capsys, monkeypatch, error, status, words):
    source = arrays_in(tmp_path / "in", plain())
    partitioner = METHODS["random"].load()

    def fail(*_):
        raise error

    monkeypatch.setattr(partitioner, "assign_nodes", fail)
    refused(capsys, status, [words], source, "--out", tmp_path / "parts", "--num-parts", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_graph_may_be_given_its_name(tmp_path, capsys):
    source = arrays_in(tmp_path / "in", plain())
    flags = ["--out", tmp_path / "out", "--num-parts", 2]
    refused(capsys, 2, ["graph_name = 'a/b': expected a name for the file"], source, *flags, "--graph-name", "a/b")
    assert not (tmp_path / "out").exists()
    assert glt_partition(source, *flags, "--graph-name", "toy") == 0
    assert read_part_config(tmp_path / "out" / "toy.json") == read_part_config(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "toy.json").read_text())["part_method"] == "random"
