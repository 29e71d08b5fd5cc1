"""``glt inspect``: what it reports, what it refuses, and its exit status."""

import json
import shutil

import numpy as np
import pytest
from partition_world import hetero_world

from glt import _deadlines as deadlines
from glt.cli import main
from glt.partition import FennelPartitioner, RandomPartitioner, inspect_partitions, load_partition
from glt.partition.inspect import MAX_VALUES


@pytest.fixture
def hetero(tmp_path):
    RandomPartitioner(tmp_path / "hetero", 3, **hetero_world()).partition()
    return tmp_path / "hetero"


def test_the_report_says_what_the_manifest_says(directory):
    manifest = load_partition(directory, 0).manifest
    report = inspect_partitions(directory)
    for name in ("run_id", "version", "glt_version", "strategy", "arguments", "edge_dir", "num_parts", "num_edges"):
        assert getattr(report, name) == getattr(manifest, name)
    assert report.parts == (0, 1) and report.is_complete and not report.bad and not report.unlisted
    assert (report.num_nodes, report.edge_cut_ratio, report.is_hetero) == (10, manifest.edge_cut_ratio, False)
    assert report.nodes[0].tables == {"feat": "float32 [3]", "label": "int64 []"}
    assert report.edges[0].tables == {"feat": "float64 []"}
    assert report.num_files == len(manifest.files)
    assert report.num_bytes == sum(path.stat().st_size for path in directory.rglob("*.npy"))


def test_labels_and_their_balance_are_counted_per_partition(directory):
    part_ids = [load_partition(directory, part).nodes[0].ids for part in range(2)]
    for each in inspect_partitions(directory).nodes[0].values:
        counts = tuple(int((9 - ids == each.value).sum()) for ids in part_ids)  # the label of node i is 9 - i
        assert (each.table, each.part_counts, each.balance_ratio) == ("label", counts, 0.5)


def test_named_tables_are_reported_and_what_counts_classes_is_counted(tmp_path):
    ids = np.arange(MAX_VALUES + 1)
    tables = {"train_mask": ids < 4, "none": ids < 0, "label": np.ones((len(ids), 2)), "class": ids % 3 - 1}
    tables |= {"many": ids, "enough": ids % MAX_VALUES}
    named = {"node_attrs": tables, "edge_attrs": {"kind": np.arange(2)}}
    RandomPartitioner(tmp_path / "parts", 2, len(ids), np.array([[0, 1], [1, 2]]), **named).partition()
    report = inspect_partitions(tmp_path / "parts")
    assert report.nodes[0].tables["attribute label"] == "float64 [2]" and report.nodes[0].tables["none"] == "bool []"
    assert report.edges[0].tables == {"kind": "int64 []"}
    parts = [load_partition(tmp_path / "parts", part).nodes[0].ids for part in range(2)]
    found = {}
    for each in report.nodes[0].values:
        counts = tuple(int((tables[each.table][ids] == each.value).sum()) for ids in parts)
        assert each.part_counts == counts
        assert each.balance_ratio == (sum(counts) / 2 / max(counts) if any(counts) else 1.0)
        found.setdefault(each.table, []).append(each.value)
    enough = list(range(MAX_VALUES))
    assert found == {"class": [-1, 0, 1], "enough": enough, "none": [True], "train_mask": [True]}


def test_what_the_partitioner_was_asked_to_balance_is_reported(world, tmp_path, capsys):
    RandomPartitioner(tmp_path / "parts", 2, **world.arguments(), balance_ntypes=np.arange(10) < 4).partition()
    balanced = inspect_partitions(tmp_path / "parts").nodes[0].balanced
    assert [(each.label, each.part_num_nodes, each.balance_ratio) for each in balanced] == [
        ((0,), (3, 3), 1.0),
        ((1,), (2, 2), 1.0),
    ]
    assert main(["inspect", str(tmp_path / "parts")]) == 0
    assert "  balanced 1: 4 (2 2), balance 1.000" in capsys.readouterr().out


def test_the_edges_that_were_balanced_by_labels_of_their_nodes_are_reported(tmp_path, capsys):
    ring, mask = np.stack([np.arange(40), (np.arange(40) + 1) % 40]), np.arange(40) < 8
    options = {"balance_ntypes": mask, "balance_edges": True, "edge_assign_strategy": "by_dst"}
    FennelPartitioner(tmp_path / "parts", 2, 40, ring, **options).partition()
    (edges,) = inspect_partitions(tmp_path / "parts").edges
    found = [(each.label, each.num_edges, each.balance_ratio) for each in edges.balanced]
    assert found == [((0,), 32, 1.0), ((1,), 8, 1.0)]
    assert main(["inspect", str(tmp_path / "parts")]) == 0
    assert "  balanced of nodes 1: 8 (4 4), balance 1.000" in capsys.readouterr().out


def test_relabelled_directories_say_so_and_are_sound(world, tmp_path, capsys):
    RandomPartitioner(tmp_path / "parts", 2, **world.arguments(), relabel=True).partition()
    report = inspect_partitions(tmp_path / "parts", verify=True)
    assert report.is_relabelled and not report.bad and report.nodes[0].part_cache_bytes == (0, 0)
    assert main(["inspect", str(tmp_path / "parts")]) == 0
    shown = capsys.readouterr().out
    assert "ids relabelled to be contiguous" in shown and "caches" not in shown


def test_bytes_per_host(directory):
    def size(pattern):
        return sum(path.stat().st_size for path in directory.glob(pattern) if path.is_file())

    shared = sum(size(f"{kind}/*") for kind in ("node_book", "node_row", "edge_book", "edge_row"))
    parts = [size(f"part{part}/**/*") for part in range(2)]
    assert [host.num_bytes for host in inspect_partitions(directory).hosts] == [shared + each for each in parts]
    hosts = inspect_partitions(directory, hosts={"big": [0, 1], "small": [1]}).hosts
    assert [(host.host, host.parts, host.num_bytes) for host in hosts] == [
        ("big", (0, 1), shared + sum(parts)),
        ("small", (1,), shared + parts[1]),
    ]


@pytest.mark.parametrize(
    "hosts, message",
    [({"a": [0]}, "hosts leaves out partition 1"), ({"a": [0, 1, 2]}, r"hosts\['a'\] holds 2: expected partitions 0")],
)
def test_hosts_that_do_not_fit_are_refused(directory, hosts, message):
    with pytest.raises(ValueError, match=message):
        inspect_partitions(directory, hosts=hosts)


def test_a_url_is_a_usage_error():
    with pytest.raises(ValueError, match=r"root_dir = 's3://bank/parts': expected a directory of this machine"):
        inspect_partitions("s3://bank/parts")


def test_a_copy_of_some_partitions_is_reported_as_such_and_is_sound(hetero, capsys):
    shutil.rmtree(hetero / "part1")
    report = inspect_partitions(hetero, verify=True)
    assert (report.parts, report.is_complete, report.bad) == ((0, 2), False, ())
    assert len(report.nodes[0].values[0].part_counts) == 2
    assert main(["inspect", str(hetero), "--verify"]) == 0
    assert "incomplete copy: partitions 0, 2 of 3 are here" in capsys.readouterr().out


def test_verify_names_every_bad_file_and_what_does_not_belong(hetero, capsys):
    data = bytearray((hetero / "node_book/paper.npy").read_bytes())
    data[-1] ^= 1
    (hetero / "node_book/paper.npy").write_bytes(data)
    (hetero / "part2/node_ids/author.npy").unlink()
    (hetero / "part0/notes.txt").write_text("mine")
    assert main(["inspect", str(hetero)]) == 1
    shown = capsys.readouterr()
    assert "author.npy is missing" in shown.err and "paper.npy" not in shown.err and "--verify reads" in shown.out
    assert main(["inspect", str(hetero), "--verify"]) == 1
    shown = capsys.readouterr()
    assert "author.npy is missing" in shown.err and "node_book/paper.npy was altered" in shown.err
    assert "contents verified, 2 bad" in shown.out and "never read: part0/notes.txt" in shown.out


def test_the_text_names_types_tables_cut_and_balance(hetero, capsys):
    assert main(["inspect", str(hetero), "--hosts", "n0=0,1", "n1=2"]) == 0
    out = capsys.readouterr().out
    for words in (
        "RandomPartitioner(random_seed=0): 3 partitions, edge_dir 'out', times of edges",
        "nodes paper: 23 (",
        "  feat: bfloat16 [2]",
        "edges author writes paper: 60 (",
        "  weight: uint64 []",
        "  n0: ",
        "(partitions 0, 1 and the books)",
        "sizes and headers checked",
    ):
        assert words in out


def test_json_is_the_report(hetero, capsys):
    assert main(["inspect", str(hetero), "--json", "--verify"]) == 0
    document = json.loads(capsys.readouterr().out)
    report = inspect_partitions(hetero)
    assert document["run_id"] == report.run_id and document["verified"] is True and document["bad"] == []
    assert [each["num_nodes"] for each in document["nodes"]] == [each.num_nodes for each in report.nodes]


def test_progress_counts_all_bytes(directory, capsys, monkeypatch):
    monkeypatch.setattr(deadlines, "SHOWN_S", 0.0)
    inspect_partitions(directory, verify=True, progress=True)
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_what_is_no_directory_of_glt_is_refused_by_name(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    assert main(["inspect", str(tmp_path)]) == 1
    assert f"glt inspect: {tmp_path}/manifest.json" in capsys.readouterr().err


@pytest.mark.parametrize("hosts", ["a", "a=x", "a=0,", "a=0"])
def test_wrong_hosts_are_usage_errors(directory, capsys, hosts):
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", str(directory), "--hosts", hosts])
    assert stopped.value.code == 2
    assert "hosts" in capsys.readouterr().err
