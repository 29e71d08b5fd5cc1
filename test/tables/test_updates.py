"""New files of tables are added to a graph that was built: ids, features and classes of it stay; and a build that was
ended goes on."""

import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

import glt
from glt.errors import TableError
from glt.partition import read_graph

DESCRIPTION = {
    "node_types": {
        "user": {
            "files": "users*.csv",
            "key": "id",
            "label": "tier",
            "features": {"age": {"scale": "standardize"}, "city": {"kind": "category", "max": 2}},
        },
        "item": {},
    },
    "edge_types": [
        {
            "type": ["user", "buys", "item"],
            "files": "buys*.csv",
            "src": "user",
            "dst": "item",
            "time": "at",
            "weight": "price",
            "features": {"price": "log"},
            "reverse": "bought_by",
        }
    ],
}
FIRST = "id,age,city,tier\nm,30,A,gold\nb,50,B,tin\nz,40,A,tin\n", "user,item,at,price\nm,q,5,1\nz,q,3,2\nb,c,9,4\n"
SECOND = "id,age,city,tier\na,60,C,tin\nb,70,A,gold\n", "user,item,at,price\nm,a,1,8\nm,q,4,16\nz,zz,2,32\n"


@pytest.fixture
def built(tmp_path):
    """A graph of the first files; the second ones are there then."""
    (tmp_path / "graph.json").write_text(json.dumps(DESCRIPTION))
    for name, text in zip(("users-1.csv", "buys-1.csv"), FIRST, strict=True):
        (tmp_path / name).write_text(text)
    glt.tables.build(tmp_path / "graph.json", tmp_path / "old")
    for name, text in zip(("users-2.csv", "buys-2.csv"), SECOND, strict=True):
        (tmp_path / name).write_text(text)
    return tmp_path


def keys(folder, name):
    table = pq.read_table(folder / "keys" / name)
    assert table["id"].to_pylist() == list(range(len(table)))
    return table["key0"].to_pylist()


def test_old_ids_features_and_classes_stay(built):
    counts = glt.tables.build(built / "graph.json", built / "new", update=built / "old")
    old, new = (read_graph(built / name / "graph.json", built) for name in ("old", "new"))
    assert keys(built / "new", "user") == ["b", "m", "z", "a"] and keys(built / "new", "item") == ["c", "q", "a", "zz"]
    transforms = [json.loads((built / name / "transforms.json").read_text()) for name in ("old", "new")]
    assert transforms[0] == transforms[1]
    before, after = (graph["node_feat"]["user"] for graph in (old, new))
    np.testing.assert_array_equal(after[1:3], before[1:3])
    ages = np.array([30.0, 50.0, 40.0])
    np.testing.assert_allclose(after[[0, 3], 0], (np.array([70.0, 60.0]) - ages.mean()) / ages.std(), rtol=1e-6)
    assert after[[0, 3], 1:].tolist() == [[1, 0, 0], [0, 0, 1]]  # b has moved to A; C is none of the categories
    assert new["node_label"]["user"].tolist() == [0, 0, 1, 1]
    key = "user", "buys", "item"
    assert new["edge_index"][key].tolist() == [[0, 1, 1, 2, 1, 2], [0, 1, 1, 1, 2, 3]]
    assert new["edge_time"][key].tolist() == [9, 4, 5, 3, 1, 2]
    assert new["edge_weight"][key].tolist() == [4, 16, 1, 2, 8, 32]
    turned = new["edge_index"]["item", "bought_by", "user"]
    assert sorted(map(tuple, turned.T.tolist())) == sorted((d, s) for s, d in new["edge_index"][key].T.tolist())
    planned = glt.tables.build(built / "graph.json", built / "newer", update=built / "old", dry_run=True)
    assert planned["edge_types"]["user__buys__item"]["num_sampled_without_end"] == 0
    user = counts["node_types"]["user"]
    assert (user["num_read"], user["num_kept"], user["num_replaced"]) == (2, 4, 1)
    assert counts["edge_types"]["user__buys__item"]["num_kept"] == 6


def test_an_update_of_an_update_and_of_nothing(built):
    glt.tables.build(built / "graph.json", built / "new", update=built / "old")
    with pytest.raises(TableError, match=r"no files that .*new has not read"):
        glt.tables.build(built / "graph.json", built / "newest", update=built / "new")
    (built / "buys-3.csv").write_text("user,item,at,price\na,q,7,1\n")
    glt.tables.build(built / "graph.json", built / "new", update=built / "new", overwrite=True)
    assert read_graph(built / "new/graph.json", built).num_edges == 14  # 7 each way


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "buys-1.csv").write_text(FIRST[1] + "m,c,1,1\n"), "buys-1.csv was written since"),
        (
            lambda folder: (folder / "buys-1.csv").rename(folder / "buys-0.csv"),
            "buys-0.csv has the size of .*buys-1.csv, and its name or time, which .*old was built of and which is gone",
        ),
        (lambda folder: (folder / "users-2.csv").write_text(SECOND[0].replace("gold", "iron")), "'iron'.*'gold'"),
        (
            lambda folder: (folder / "buys-2.csv").write_text("user,item,at,price\nm,a,2024-05-31,8\n"),
            "column 'at' has numbers in .*old, and times without a zone in .*buys-2.csv",
        ),
        (lambda folder: (folder / "old" / "build.json").write_text("{}"), "update = .*old'.* is damaged .KeyError"),
        (lambda folder: (folder / "old" / "build.json").write_text('{"format": 1}'), "damaged .expected objects desc"),
        (lambda folder: (folder / "old" / "build.json").write_text('{"format": 9}'), "of another version of glt"),
        (lambda folder: (folder / "old" / "transforms.json").unlink(), "damaged .FileNotFoundError"),
        (
            lambda folder: (folder / "buys-2.csv").write_text(SECOND[1] + "unknown,q,1,1\n"),
            "'unknown'.*buys-2.csv, row 3",
        ),
        (lambda folder: (folder / "users-3.csv").write_text(SECOND[0]), "'a' .2 times.*users-2.csv, row 0"),
        (
            lambda folder: (folder / "graph.json").write_text(
                json.dumps(DESCRIPTION | {"node_types": {**DESCRIPTION["node_types"], "shop": {}}})
            ),
            "shop",
        ),
    ],
)
def test_what_does_not_fit_is_named(built, spoil, words):
    spoil(built)
    with pytest.raises(TableError, match=words):
        glt.tables.build(built / "graph.json", built / "new", update=built / "old")
    assert not (built / "new").exists() and not (built / "new.partial").exists()


def test_a_graph_of_which_not_all_can_be_read_is_replaced_knowingly(built):
    (built / "users-2.csv").unlink()  # has a key again
    (built / "old" / "transforms.json").write_text("{")
    with pytest.raises(TableError, match=r"out = .*old'.* is damaged .*: remove it to build anew"):
        glt.tables.build(built / "graph.json", built / "old", overwrite=True)
    (built / "old" / "transforms.json").write_text("{}")
    (built / "old" / "build.json").write_text('{"format": 0}')  # of another version: there is nothing to compare with
    glt.tables.build(built / "graph.json", built / "old", overwrite=True)
    assert json.loads((built / "old" / "build.json").read_text())["format"] == 1


def test_a_killed_build_goes_on(built, monkeypatch):
    """After each step in turn; what comes of it is what an undisturbed build makes, and no step is done twice."""
    (built / "users-2.csv").unlink()
    flags = [str(built / "graph.json"), "--out", str(built / "new")]
    program = (
        "import os, signal, sys\n"
        "from glt.tables.building import Journal\n"
        "real, left = Journal.step, [int(sys.argv[1])]\n"
        "def step(self, name, folders, do):\n"
        "    found = real(self, name, folders, do)\n"
        "    left[0] -= 1\n"
        "    if not left[0]: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return found\n"
        "Journal.step = step\n"
        "from glt.cli import main\n"
        "sys.exit(main(['build', *sys.argv[2:]]))\n"
    )
    glt.tables.build(built / "graph.json", built / "whole")
    for num_steps in (1, 2, 3, 4):
        shutil.rmtree(built / "new.partial", ignore_errors=True)
        killed = subprocess.run([sys.executable, "-c", program, str(num_steps), *flags], timeout=120)
        assert killed.returncode == -signal.SIGKILL and not (built / "new").exists()
        done = json.loads((built / "new.partial/progress.json").read_text())["steps"]
        assert len(done) == num_steps
        stamps = {p: p.stat().st_mtime_ns for p in (built / "new.partial").rglob("part-*.parquet")}
        resumed = subprocess.run(
            [sys.executable, "-m", "glt", "build", *flags, "--resume"], capture_output=True, timeout=120
        )
        assert resumed.returncode == 0, resumed.stderr
        for path, stamp in stamps.items():
            assert (built / "new" / path.relative_to(built / "new.partial")).stat().st_mtime_ns == stamp
        for path in (built / "whole").rglob("*"):
            if path.is_file():
                assert (built / "new" / path.relative_to(built / "whole")).read_bytes() == path.read_bytes(), path
        shutil.rmtree(built / "new")


def test_a_build_of_other_files_does_not_go_on(built):
    (built / "users-2.csv").unlink()
    old = built / "new.partial"
    shutil.copytree(built / "old", old)
    (old / "progress.json").write_text(json.dumps({"of": {"description": {}}, "steps": {}}))
    with pytest.raises(TableError, match="begun with other description"):
        glt.tables.build(built / "graph.json", built / "new", resume=True)
    glt.tables.build(built / "graph.json", built / "new")
    assert not old.exists()


def test_what_an_update_cannot_take(built):
    """A value that is too far away, a new class, a copy of a file that is gone; and what it says it leaves out."""
    new = built / "users-2.csv"
    new.write_text("id,age,city,tier\na,1e39,C,tin\n")
    with pytest.raises(TableError, match=r"users-2.csv, column 'age', row 0: '1e39'"):
        glt.tables.build(built / "graph.json", built / "new", update=built / "old")
    new.write_text("id,age,city,tier\na,60,C,lead\n")
    with pytest.raises(TableError, match=r"users-2.csv, column 'tier', row 0: 'lead': expected one of the classes"):
        glt.tables.build(built / "graph.json", built / "new", update=built / "old")


def test_a_copy_in_another_directory_is_no_new_file(built):
    (built / "more").mkdir()
    shutil.copyfile(built / "users-1.csv", built / "more/users-1.csv")
    (built / "users-1.csv").unlink()
    told = DESCRIPTION | {"node_types": {**DESCRIPTION["node_types"]}}
    told["node_types"]["user"] = DESCRIPTION["node_types"]["user"] | {"files": ["users*.csv", "more"]}
    (built / "graph.json").write_text(json.dumps(told))
    with pytest.raises(TableError, match=r"has the size of .*users-1.csv, and its name or time"):
        glt.tables.build(built / "graph.json", built / "new", update=built / "old")


def test_dropped_edges_are_spoken_of(built):
    told = json.loads(json.dumps(DESCRIPTION))
    told["edge_types"][0] |= {"missing": "drop"}
    (built / "graph.json").write_text(json.dumps(told))
    (built / "buys-1.csv").write_text("user,item,at,price\nm,q,5,1\na,q,3,2\n")
    for name in ("users-2.csv", "buys-2.csv"):
        (built / name).rename(built / f"later-{name}")
    glt.tables.build(built / "graph.json", built / "old", overwrite=True)
    (built / "later-users-2.csv").rename(built / "users-2.csv")
    counts = glt.tables.build(built / "graph.json", built / "new", update=built / "old")
    assert any("1 edges that" in each and "not looked at again" in each for each in counts["warnings"])
