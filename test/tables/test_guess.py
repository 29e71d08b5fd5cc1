"""``glt describe`` guesses from names, types and values; what it writes builds, and editors can check it."""

import importlib.util
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import glt
from glt.errors import TableError
from glt.tables import Description, describe
from glt.tables.descriptions.text import json_schema, to_toml
from glt.tables.guesses.guess import guess


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parquet(name, **columns):
    pq.write_table(pa.table(columns), f"{name}.parquet")


def as_dict(*files):
    return describe(*files).to_dict()


def test_accounts_and_payments(here):
    """Text keys, ends by their values, several files, a label, nulls, and a key that is no node."""
    (here / "accounts.csv").write_text(
        "account_id,country,balance,opened_at,is_fraud\n"
        "ann,DE,120.5,2023-02-01,false\nbob,FR,,2023-05-14,true\ncarl,DE,7,2024-01-30,false\ndora,IT,81,2022-11-03,\n"
    )
    for i in (1, 2):
        (here / f"payments-{i}.csv").write_text(
            f"payment_id;from;to;amount;paid_at\n{i}1;ann;bob;10;2024-02-01T10:00:00\n{i}2;bob;carl;3;2024-02-03\n"
        )
    described, remarks = guess(["accounts.csv", "payments-1.csv", "payments-2.csv"])
    assert described.to_dict() == {
        "node_types": {
            "accounts": {
                "files": "accounts.csv",
                "key": "account_id",
                "features": {
                    "country": {"kind": "category", "max": 8},
                    "balance": {"scale": "standardize", "missing": "indicator"},
                    "opened_at": "timestamp",
                },
                "label": "is_fraud",
                "split": {"ratio": [0.8, 0.1, 0.1]},
            }
        },
        "edge_types": [
            {
                "type": ["accounts", "payments", "accounts"],
                "files": "payments-*.csv",
                "delimiter": ";",
                "src": "from",
                "dst": "to",
                "features": {"amount": "standardize"},
                "time": "paid_at",
                "reverse": "rev_payments",
            }
        ],
    }
    assert "payment_id" in remarks["payments"][0]
    counts = glt.tables.build(described, "out")
    assert counts["edge_types"]["accounts__payments__accounts"]["num_kept"] == 4


def test_a_database_of_several_tables(here):
    """Foreign keys by name, also of the table itself, with nulls as pandas writes them; a table that others name is of
    nodes; time in integers; a vector; what has one value, or is no feature, is left out with a remark."""
    random = np.random.default_rng(0)
    parquet("teams", id=list(range(10)), city=["Rome", "Oslo"] * 5, league=["A"] * 10)
    parquet(
        "players",
        player_id=[f"p{i}" for i in range(50)],
        home_team_id=[None if i % 7 == 0 else float(i % 10) for i in range(50)],
        parent_id=[None if i < 5 else f"p{i // 2}" for i in range(50)],
        skill=pa.FixedSizeListArray.from_arrays(pa.array(random.random(150)), 3),
        biography=[f"born in {i}" for i in range(50)],
        wage=random.lognormal(5, 3, 50),
    )
    parquet(
        "goals",
        scorer=[f"p{i % 50}" for i in range(200)],
        teamId=random.integers(0, 10, 200),
        scored_at=1_600_000_000_000 + np.arange(200),
        minute=random.integers(0, 90, 200),
    )
    described, remarks = guess(["teams.parquet", "players.parquet", "goals.parquet"])
    found = described.to_dict()
    assert list(found["node_types"]) == ["teams", "players"]
    assert found["node_types"]["players"]["features"] == {
        "skill": {"kind": "vector", "length": 3},
        "wage": "log",
    }
    assert found["node_types"]["teams"]["features"] == {"city": {"kind": "category", "max": 8}}
    assert "'league' is left out: it is 'A'" in remarks["teams"][0]
    assert "'biography' is left out: it has 50 texts" in " ".join(remarks["players"])
    by_type = {tuple(each["type"]): each for each in found["edge_types"]}
    assert set(by_type) == {
        ("players", "hometeam", "teams"),
        ("players", "parent", "players"),
        ("players", "goals", "teams"),
    }
    goals = by_type["players", "goals", "teams"]
    assert (goals["src"], goals["dst"], goals["time"]) == ("scorer", "teamId", {"column": "scored_at", "unit": "ms"})
    counts = glt.tables.build(described, "out")
    assert counts["edge_types"]["players__hometeam__teams"]["num_dropped"] == 8
    assert counts["edge_types"]["players__goals__teams"]["num_kept"] == 200


def test_ids_of_what_no_table_has_are_nodes_without_a_table(here):
    (here / "movies.csv").write_text("movieId,title\n10,Heat\n11,Tron\n")
    (here / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n1,10,4.0,964982703\n2,11,3.5,964981247\n1,11,2,964981250\n"
    )
    described, remarks = guess(["movies.csv", "ratings.csv"])
    assert described.edge_types[0].type == ("user", "ratings", "movies")
    assert described.node_type("user").files is None and "No table has these nodes" in remarks["user"][0]
    assert described.edge_types[0].time.unit == "s"


def test_folders_of_parts_and_lists_without_a_header(here):
    for day in ("2024-05-30", "2024-05-31"):
        (here / f"clicks/day={day}").mkdir(parents=True)
        for i in range(2):
            table = pa.table({"from_page": ["a", "b"], "to_page": ["b", "c"]})
            pq.write_table(table, here / f"clicks/day={day}/part-{i:05d}-c0ffee.parquet")
    (here / "links.txt").write_text("0\t1\n1\t2\n2\t0\n")
    found = as_dict("clicks")
    assert found["edge_types"][0]["files"] == "clicks" and found["edge_types"][0]["type"] == ["page", "clicks", "page"]
    assert glt.tables.build(found, "out")["node_types"]["page"]["num_kept"] == 3
    with pytest.raises(TableError, match=r"links.txt: no columns look like the ends.*found links \('f0', 'f1'\)"):
        describe("links.txt")


def test_a_table_of_many_columns(here):
    parquet(
        "things", thing_id=list(range(100)), **{f"c{i}": np.random.default_rng(i).normal(size=100) for i in range(1000)}
    )
    parquet("pairs", source=pa.array([0, 1], pa.int64()), target=pa.array([5, 99], pa.int64()))
    found = as_dict("things.parquet", "pairs.parquet")
    assert len(found["node_types"]["things"]["features"]) == 1000
    assert found["edge_types"][0]["type"] == ["things", "pairs", "things"]
    with pytest.raises(TableError, match=r"'c10' and 989 more"):
        describe("things.parquet")


@pytest.mark.parametrize("form", ["toml", "json"])
def test_the_command_writes_what_builds(here, command, form):
    (here / "data").mkdir()
    (here / "data/follows.csv").write_text("follower,followee,note\nann,bob,x\nbob,carl,y\nann,carl,z\n")
    done = command("describe", "data/follows.csv", "--out", f"data/graph.{form}")
    assert done[0] == 0 and f"glt build data/graph.{form}" in done[2]
    described = Description.read(here / f"data/graph.{form}")
    assert described.edge_types[0].files.paths == ("follows.csv",)
    assert command("build", f"data/graph.{form}", "--out", "out")[0] == 0
    again = command("describe", "data/follows.csv", "--out", f"data/graph.{form}")
    assert again[0] == 2 and "is there already" in again[2]
    if form == "toml":
        assert "# 'note' is left out" in (here / "data/graph.toml").read_text()
    nothing = command("describe", "nothing.csv")
    assert nothing[0] == 1 and "there are none" in nothing[2]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib of Python 3.11")
def test_toml_says_the_same(here):
    import tomllib

    names = {'odd "name"\\': {"files": "a.csv", "key": ["a", "b c"], "features": {"x y": "log", "z": "boolean"}}}
    edges = {"type": ['odd "name"\\', "r", "q"], "files": ["b.csv", "c.csv"], "src": ["a", "b"], "dst": "c"}
    described = Description.of({"node_types": names | {"q": {}}, "edge_types": [edges | {"features": {"w": "log"}}]})
    assert Description.of(tomllib.loads(to_toml(described, {"r": ["a remark\nof two lines"]}))) == described


@pytest.mark.skipif(importlib.util.find_spec("jsonschema") is None, reason="no jsonschema: pip install jsonschema")
def test_the_schema_knows_what_a_description_may_have(here, command):
    import jsonschema

    schema = json.loads(command("describe", "--schema")[1])
    assert schema == json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema).is_valid
    node = {"files": ["a.csv"], "key": "k", "key_type": "int", "label": {"column": "y", "kind": "number"}}
    node |= {"split": {"time": ["2024", "2025"]}, "time": {"column": "t", "unit": "ms"}, "header": False}
    features = {"a": "log", "b": {"kind": "timestamp", "parts": ["age", "hour"]}, "c": {"kind": "vector", "length": 3}}
    edge = {"type": ["n", "r", "n"], "files": "b.csv", "src": "s", "dst": ["d"], "weight": "w", "duplicates": "sum"}
    whole = {"$schema": "graph.schema.json", "node_types": {"n": node | {"features": features}}, "edge_types": [edge]}
    assert check(whole)
    Description.of(whole)
    for wrong in (
        {"node_types": {}, "edge_types": []},
        whole | {"edge_types": [edge | {"missing": "ignore"}]},
        whole | {"node_types": {"n": node | {"features": {"a": "logarithm"}}}},
        whole | {"node_types": {"n": node | {"keys": "k"}}},
    ):
        assert not check(wrong)
        with pytest.raises(TableError):
            Description.of(wrong)


def test_the_schema_and_the_dataclasses_have_the_same_keys():
    from dataclasses import fields

    from glt.tables.descriptions.description import EdgeTable, Feature, NodeTable

    def names(of, *but):
        return {each.name for each in fields(of)} - set(but)

    properties = json_schema()["properties"]
    node, edge = properties["node_types"]["additionalProperties"], properties["edge_types"]["items"]
    assert set(node["properties"]) == names(NodeTable, "name") | {"header", "delimiter"}
    assert set(edge["properties"]) == names(EdgeTable) | {"header", "delimiter"}
    feature = node["properties"]["features"]["additionalProperties"]["anyOf"][1]
    assert set(feature["properties"]) == names(Feature, "name")


def test_names_of_any_alphabet_dictionaries_and_nan(here):
    """Categories of pandas are dictionaries in Parquet, and NaN counts as null."""
    kinds = pa.array(["a", "b", "a", "b"] * 5).dictionary_encode()
    keys = pa.array([f"k{i}" for i in range(20)]).dictionary_encode()
    parquet("konto", konto_id=keys, länd=kinds, 名前=list(range(20)))
    parquet("pays", source=[f"k{i}" for i in range(10)], target=[f"k{i}" for i in range(10, 20)], v=[1.0, np.nan] * 5)
    found = as_dict("konto.parquet", "pays.parquet")
    assert found["node_types"]["konto"]["key"] == "konto_id"
    assert found["node_types"]["konto"]["features"]["länd"] == {"kind": "category", "max": 8}
    (edges,) = found["edge_types"]
    assert edges["type"] == ["konto", "pays", "konto"]
    assert "v" not in edges.get("features", {}), "it is 1 wherever it is something"
    glt.tables.build(found, "out")


def test_a_column_that_comes_twice_is_named(here):
    (here / "a.csv").write_text("x,y,x\n1,2,3\n")
    with pytest.raises(TableError, match=r"a.csv has several columns 'x': rename all but one"):
        describe("a.csv")
