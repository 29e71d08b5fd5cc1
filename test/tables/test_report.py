"""What a build warns of, and what its report shows."""

import json

import pytest

import glt
from glt.tables.reports.checks import _stability

USERS = "id,when,fraud,same,part\n" + "".join(
    f"u{i:02d},{100 + i},{int(i % 5 == 0)},7,{'train' if i < 12 else 'val' if i < 16 else 'test'}\n" for i in range(20)
)
PAYS = "a,b,t,part\nu00,u01,105,train\nu00,u01,90,test\nu02,u03,50,train\nu02,gone,50,train\nu04,u04,1,val\n"


def build(folder, users=USERS, pays=PAYS, **options):
    (folder / "users.csv").write_text(users)
    (folder / "pays.csv").write_text(pays)
    user = {"files": "users.csv", "key": "id", "label": "fraud", "time": "when", "split": {"column": "part"}}
    user["features"] = {"same": "number", "when": "standardize"}
    pay = {
        "type": ["user", "pays", "user"],
        "files": "pays.csv",
        "src": "a",
        "dst": "b",
        "time": "t",
        "missing": "drop",
    }
    pay["split"] = {"column": "part"}
    told = glt.tables.Description.of({"node_types": {"user": user}, "edge_types": [pay]}, folder)
    return glt.tables.build(told, folder / "out", overwrite=True, **options)


def test_warnings_name_what_matters(tmp_path):
    counts = build(tmp_path)
    found = counts["warnings"]
    assert any("'same' is 7 in all rows" in each for each in found)
    assert any("1 of 5 edges were dropped" in each and "['b']" in each and "'gone' (1 edges)" in each for each in found)
    # u00 pays at 105, its label is of 100, u01's of 101
    assert sum("1 edges are later than the label" in each for each in found) == 2
    assert any("1 pairs of nodes have edges in training and in 'test'" in each for each in found)
    assert not any("population" in each for each in found)
    assert counts["degrees"]["user__pays__user"] == {"src": {"1": 2, "2": 1}, "dst": {"1": 2, "2": 1}}
    report = (tmp_path / "out/report.html").read_text()
    assert "&#x27;gone&#x27;" in report and "<script" not in report
    assert counts == json.loads((tmp_path / "out/build.json").read_text())


def test_a_split_without_a_class_and_a_column_without_labels(tmp_path):
    users = USERS.replace("train", "val", 12).replace("u00,100,1,7,val", "u00,100,0,7,train")
    assert any("class '1' has no rows in training" in each for each in build(tmp_path, users)["warnings"])
    users = "\n".join(
        ",".join(["" if i == 2 and n else c for i, c in enumerate(line.split(","))])
        for n, line in enumerate(USERS.splitlines())
    )
    assert any("no row has a label" in each for each in build(tmp_path, users + "\n")["warnings"])


def test_drift_since_the_graph_before(tmp_path):
    build(tmp_path)
    same = build(tmp_path)
    assert max(same["drift"]["node type 'user'"].values()) == 0
    users = "\n".join(line.replace(",7,", f",{n % 9 + 1},") for n, line in enumerate(USERS.splitlines()))
    changed = build(tmp_path, users + "\n")
    assert any("'same' is not distributed as in the graph before" in each for each in changed["warnings"])
    assert changed["drift"]["node type 'user'"]["label"] == 0
    assert _stability({"a": 3, "b": 1}, {"a": 1, "b": 3}) > 1


def test_drift_of_labels_is_that_of_their_values_not_of_their_numbers(tmp_path):
    def words(**names):
        return USERS.replace(",1,7,", f",{names['one']},7,").replace(",0,7,", f",{names['zero']},7,")

    build(tmp_path, words(one="fraud", zero="honest"))
    swapped = build(tmp_path, words(one="honest", zero="fraud"))
    assert swapped["drift"]["node type 'user'"]["label"] > 1
    renamed = build(tmp_path, words(one="also fraud", zero="fraud"))
    assert renamed["classes"]["node type 'user'"] == ["also fraud", "fraud"]
    assert renamed["drift"]["node type 'user'"]["label"] > 1
    assert "<td>also fraud</td>" in (tmp_path / "out/report.html").read_text()


def test_dates_that_are_numbers_are_warned_of(tmp_path):
    pays = "a,b,t,part\nu00,u01,20240531,train\nu00,u01,20231201,test\nu02,u03,20240601,val\n"
    (warning,) = [each for each in build(tmp_path, pays=pays)["warnings"] if "1970" in each]
    assert "times are the numbers 20231201 to 20240601" in warning and "write 2024-05-31" in warning


def test_a_graph_without_anything_has_a_report_too(tmp_path):
    build(tmp_path, USERS.splitlines()[0] + "\n", PAYS.splitlines()[0] + "\n")
    assert "<h1>Graph report</h1>" in (tmp_path / "out/report.html").read_text()


def test_drift_is_by_name_and_of_tables_without_rows(tmp_path, monkeypatch):
    """Categories are in the order of their counts, which changes; a table that was empty is compared with none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.csv").write_text("s,d\n")
    edge = {"type": ["n", "to", "n"], "files": "e.csv", "src": "s", "dst": "d"}
    node = {"files": "n.csv", "key": "id", "features": {"v": "category"}}
    found = []
    for values in ("", "aaab", "abbb", ""):
        (tmp_path / "n.csv").write_text("id,v\n" + "".join(f"k{i},{v}\n" for i, v in enumerate(values)))
        told = {"node_types": {"n": node}, "edge_types": [edge]}
        found.append(glt.tables.build(told, "out", overwrite=True)["drift"].get("node type 'n'", {}))
    assert found[0] == found[1] == found[3] == {}
    assert found[2]["v=a"] > 0.2 and found[2]["v=b"] > 0.2 and found[2]["v is other"] == 0


@pytest.mark.parametrize("scale", ["standardize", "log", "min_max", "quantile"])
def test_drift_of_numbers_whose_scale_is_fitted_anew(scale, tmp_path, monkeypatch):
    """The model sees the same shape; what it is of has moved."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.csv").write_text("s,d\n")
    edge = {"type": ["n", "to", "n"], "files": "e.csv", "src": "s", "dst": "d"}
    node = {"files": "n.csv", "key": "id", "features": {"v": {"scale": scale}, "w": {"scale": scale}}}
    found = []
    for factor in (1, 1, 3, 0):
        rows = "".join(f"k{i},{factor * (i + 1)},{i}\n" for i in range(50))
        (tmp_path / "n.csv").write_text("id,v,w\n" + rows)
        built = glt.tables.build({"node_types": {"n": node}, "edge_types": [edge]}, "out", overwrite=True)
        found.append((built["drift"].get("node type 'n'"), built["warnings"]))
    assert found[1][0] == {"v": 0, "w": 0}
    assert found[2][0]["v"] > 0.2 and found[3][0]["v"] == 100 and found[2][0]["w"] == found[3][0]["w"] == 0
    assert any("'v' is not distributed as in the graph before" in each for each in found[2][1])
