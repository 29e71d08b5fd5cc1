"""Tables become a graph with dense ids: the same as a plain program makes, whatever the order of rows and files."""

import hashlib
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import glt
from glt.errors import TableError
from glt.partition import RandomPartitioner, read_graph

NUM_ACCOUNTS, NUM_PAYMENTS = 300, 4000
COUNTRIES = ["DE", "FR", "IT", "NO"]


@pytest.fixture(scope="module")
def tables():
    """Accounts and payments as rows of Python: keys are texts in no order."""
    random = np.random.default_rng(5)
    keys = [f"acc-{i:03d}" for i in random.permutation(NUM_ACCOUNTS)]
    accounts = {
        "id": keys,
        "balance": [None if random.random() < 0.1 else float(x) for x in random.lognormal(3, 2, NUM_ACCOUNTS)],
        "country": random.choice(COUNTRIES, NUM_ACCOUNTS, p=[0.5, 0.3, 0.15, 0.05]).tolist(),
        "opened": random.integers(1_400_000_000, 1_700_000_000, NUM_ACCOUNTS).astype("datetime64[s]"),
        "profile": list(random.normal(size=(NUM_ACCOUNTS, 3)).astype(np.float32)),
        "fraud": (random.random(NUM_ACCOUNTS) < 0.2).tolist(),
    }
    payments = {
        "from": random.choice(keys, NUM_PAYMENTS).tolist(),
        "to": random.choice(keys[:100], NUM_PAYMENTS).tolist(),
        "amount": random.lognormal(2, 1, NUM_PAYMENTS).tolist(),
        "at": random.integers(1_600_000_000, 1_700_000_000, NUM_PAYMENTS).astype("datetime64[s]").astype(str).tolist(),
    }
    return pa.table(accounts), pa.table(payments)


FEATURES = {
    "balance": {"scale": "log", "missing": "indicator"},
    "country": {"kind": "category", "max": 2},
    "opened": {"kind": "timestamp", "parts": ["age", "month"]},
    "profile": {"kind": "vector", "length": 3},
}


def description(folder, **edges):
    account = {"files": str(folder / "accounts*"), "key": "id", "label": "fraud", "features": FEATURES}
    pays = {"type": ["account", "pays", "account"], "files": str(folder / "payments*"), "src": "from", "dst": "to"}
    pays |= {"time": "at", "weight": "amount", "features": {"amount": "standardize"}, "reverse": "paid_by", **edges}
    return {"node_types": {"account": account | {"split": {"ratio": [0.5, 0.25, 0.25]}}}, "edge_types": [pays]}


def write(folder, tables, order=None):
    """As Parquet and several CSV files, with rows in this order."""
    folder.mkdir()
    accounts, payments = tables
    if order is not None:
        accounts, payments = (t.take(pa.array(order.permutation(t.num_rows))) for t in tables)
    pq.write_table(accounts, folder / "accounts.parquet")
    cut = 1000 if order is None else 3100
    pyarrow.csv.write_csv(payments.slice(0, cut), folder / "payments-1.csv")
    pyarrow.csv.write_csv(payments.slice(cut), folder / "payments-2.csv")
    return folder


@pytest.fixture(scope="module")
def built(tables, tmp_path_factory):
    root = tmp_path_factory.mktemp("built")
    counts = glt.tables.build(description(write(root / "in", tables)), root / "out")
    return root / "out", counts


def test_it_is_what_a_plain_program_makes(tables, built, tmp_path):
    out, counts = built
    accounts, payments = (t.to_pylist() for t in tables)
    ids = {key: i for i, key in enumerate(sorted(row["id"] for row in accounts))}
    graph = read_graph(out / "graph.json", tmp_path)
    assert graph["num_nodes"] == {"account": NUM_ACCOUNTS}
    assert [row["key0"] for row in pq.read_table(out / "keys/account").to_pylist()] == list(ids)
    by_id = sorted(accounts, key=lambda row: row["id"])

    fractions = [int(hashlib.md5(row["id"].encode()).hexdigest()[:8], 16) / 2**32 for row in by_id]
    part = np.searchsorted([0.5, 0.75], fractions, "right")
    for code, name in enumerate(("train", "val", "test")):
        np.testing.assert_array_equal(graph["node_attrs"]["account"][f"{name}_mask"], part == code)
    assert np.bincount(part).min() > 40
    np.testing.assert_array_equal(graph["node_label"]["account"], [row["fraud"] for row in by_id])

    train = [row for row, code in zip(by_id, part, strict=True) if code == 0]
    logs = np.array([math.log1p(row["balance"]) for row in train if row["balance"] is not None])
    counted = {c: sum(row["country"] == c for row in train) for c in COUNTRIES}
    frequent = sorted(COUNTRIES, key=lambda c: (-counted[c], c))[:2]
    seconds = np.array([row["opened"].timestamp() for row in train])
    rows = []
    for row in by_id:
        is_missing = row["balance"] is None
        scaled = 0.0 if is_missing else (math.log1p(row["balance"]) - logs.mean()) / logs.std()
        which = [float(row["country"] == c) for c in frequent]
        angle = 2 * math.pi * (row["opened"].month - 1) / 12
        age = -(row["opened"].timestamp() - seconds.mean()) / seconds.std()
        time = [age, math.sin(angle), math.cos(angle)]
        rows.append([scaled, float(is_missing), *which, float(sum(which) == 0), *time, *row["profile"]])
    np.testing.assert_allclose(graph["node_feat"]["account"], rows, rtol=2e-5, atol=2e-5)
    fitted = json.loads((out / "transforms.json").read_text())["tables"]["node type 'account'"]["features"]
    names = [name for each in fitted for name in each["names"]]
    assert names[:5] == ["balance", "balance is missing", *(f"country={c}" for c in frequent), "country is other"]

    amounts = np.array([row["amount"] for row in payments])
    edges = sorted(
        (ids[row["to"]], ids[row["from"]], int(np.datetime64(row["at"], "s").astype(int)), row["amount"])
        for row in payments
    )
    pays, paid_by = graph["edge_index"].values()
    np.testing.assert_array_equal(pays, [[edge[1] for edge in edges], [edge[0] for edge in edges]])
    key = "account", "pays", "account"
    np.testing.assert_array_equal(graph["edge_time"][key], [edge[2] for edge in edges])
    np.testing.assert_array_equal(graph["edge_weight"][key], np.array([edge[3] for edge in edges], np.float32))
    wanted = (np.array([edge[3] for edge in edges]) - amounts.mean()) / amounts.std()
    np.testing.assert_allclose(graph["edge_feat"][key][:, 0], wanted, rtol=1e-5, atol=1e-6)
    assert sorted(map(tuple, np.asarray(paid_by).T.tolist())) == sorted((d, s) for d, s, *_ in edges)
    assert counts["edge_types"]["account__pays__account"]["num_read"] == NUM_PAYMENTS
    assert RandomPartitioner(tmp_path / "parts", 2, graph).partition().num_parts == 2


def test_the_same_tables_give_the_same_bytes(tables, built, tmp_path):
    """In another order of rows and files, with other memory and threads."""
    folder = write(tmp_path / "in", tables, np.random.default_rng(1))
    glt.tables.build(description(folder), tmp_path / "out", memory="600MB", num_threads=1)
    files = {p.relative_to(built[0]) for p in built[0].rglob("*") if p.is_file() and p.name != "build.json"}
    assert len(files) == 11 and files == {
        p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*") if p.is_file() and p.name != "build.json"
    }
    for path in files:
        assert (built[0] / path).read_bytes() == (tmp_path / "out" / path).read_bytes(), path


EDGES = "src,dst,w,t\na,b,1,5\na,b,2,3\nb,a,4,1\na,x,8,2\n"


@pytest.fixture
def small(tmp_path):
    """Builds from two small CSV tables."""
    (tmp_path / "nodes.csv").write_text("key\na\nb\n")

    def build(edges=EDGES, nodes="key\na\nb\n", node=None, **options):
        (tmp_path / "nodes.csv").write_text(nodes)
        (tmp_path / "edges.csv").write_text(edges)
        node = {"files": "nodes.csv", "key": "key"} if node is None else node
        edge = {"type": ["n", "to", "n"], "files": "edges.csv", "src": "src", "dst": "dst", **options}
        told = glt.tables.Description.of({"node_types": {"n": node}, "edge_types": [edge]}, tmp_path)
        glt.tables.build(told, tmp_path / "out", overwrite=True)
        return read_graph(tmp_path / "out/graph.json", tmp_path)

    return build


@pytest.mark.parametrize(
    ("options", "index", "weight"),
    [
        ({"missing": "drop"}, [[1, 0, 0], [0, 1, 1]], [4, 2, 1]),
        ({"missing": "add"}, [[1, 0, 0, 0], [0, 1, 1, 2]], [4, 2, 1, 8]),
        ({"missing": "drop", "duplicates": "last"}, [[1, 0], [0, 1]], [4, 1]),
        ({"missing": "drop", "duplicates": "sum"}, [[1, 0], [0, 1]], [4, 3]),
    ],
)
def test_missing_ends_and_duplicates(small, options, index, weight):
    graph = small(time="t", weight="w", **options)
    (edge_index,), (weights,) = graph["edge_index"].values(), graph["edge_weight"].values()
    assert edge_index.tolist() == index and weights.tolist() == weight
    assert graph["num_nodes"] == {"n": 3 if options["missing"] == "add" else 2}


@pytest.mark.parametrize(("duplicates", "values"), [("sum", [[3.0, 5.0, None], [3.0]]), ("last", [[9.0, 2.0], [4.0]])])
def test_features_are_fitted_on_what_comes_of_duplicates(small, duplicates, values):
    """A sum of nulls alone is null; ``last`` is by time."""
    rows = [f"a,b,{t},{'' if v is None else v}" for t, v in enumerate(values[0])]
    rows += [f"b,a,{t},{v}" for t, v in enumerate(values[1])] + ["b,b,0,"]
    value = {"scale": "standardize", "missing": "indicator"}
    given = "\n".join(["src,dst,t,v", *rows, ""])
    graph = small(given, time="t", duplicates=duplicates, missing="drop", features={"v": value})
    (edge_index,), (x,) = graph["edge_index"].values(), graph["edge_feat"].values()
    assert edge_index.tolist() == [[1, 0, 1], [0, 1, 1]]
    kept = np.array([values[1][0], 8.0 if duplicates == "sum" else values[0][-1]])
    np.testing.assert_allclose(x[:2, 0], (kept - kept.mean()) / kept.std(), rtol=1e-6)
    assert x[:, 1].tolist() == [0, 0, 1] and x[2, 0] == 0


def test_a_type_without_a_table_has_the_keys_of_its_edges(small):
    assert small(node={})["num_nodes"] == {"n": 3}


def test_an_edge_with_a_null_end_is_dropped_with_others_without_an_end(tmp_path):
    """Integers with nulls are floats where pandas wrote them."""
    pq.write_table(pa.table({"id": [7, 8, 9]}), tmp_path / "teams.parquet")
    pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "team": [9.0, None, 7.0, 5.0]}), tmp_path / "players.parquet")
    team = {"files": str(tmp_path / "teams.parquet"), "key": "id"}
    player = {"files": str(tmp_path / "players.parquet"), "key": "id"}
    plays = {"type": ["player", "plays", "team"], "files": player["files"], "src": "id", "dst": "team"}
    described = {"node_types": {"team": team, "player": player}, "edge_types": [plays | {"missing": "drop"}]}
    plan = glt.tables.build(described, tmp_path / "out", dry_run=True)
    assert plan["edge_types"]["player__plays__team"]["num_sampled_without_end"] == 2
    counts = glt.tables.build(described, tmp_path / "out")["edge_types"]["player__plays__team"]
    assert (counts["num_read"], counts["num_kept"], counts["num_dropped"]) == (4, 2, 2)
    edges = pq.read_table(tmp_path / "out/edges/player__plays__team").to_pydict()
    assert list(zip(edges["src"], edges["dst"], strict=True)) == [(2, 0), (0, 2)]

    described["node_types"]["team"] = {}  # its keys are those that edges name
    counts = glt.tables.build(described, tmp_path / "named")
    assert (
        counts["node_types"]["team"]["num_kept"] == 3 and counts["edge_types"]["player__plays__team"]["num_kept"] == 3
    )
    described["edge_types"] = [plays]
    with pytest.raises(TableError, match=r"column 'team', row 1: None: expected a key in every row.* missing = 'drop'"):
        glt.tables.build(described, tmp_path / "refused")


def test_keys_of_several_columns(small, tmp_path):
    nodes = "bank,number\nx,2\nx,1\ny,1\n"
    edges = "b1,n1,b2,n2\nx,1,y,1\ny,1,x,2\n"
    graph = small(edges, nodes, {"files": "nodes.csv", "key": ["bank", "number"]}, src=["b1", "n1"], dst=["b2", "n2"])
    keys = pq.read_table(tmp_path / "out/keys/n", columns=["key0", "key1"]).to_pylist()
    assert keys == [{"key0": "x", "key1": 1}, {"key0": "x", "key1": 2}, {"key0": "y", "key1": 1}]
    assert next(iter(graph["edge_index"].values())).tolist() == [[2, 0], [1, 2]]


@pytest.mark.parametrize(
    ("given", "unit", "seconds"),
    [
        ("2023-02-01", "s", 1675209600),
        ("2023-02-01T01:00:00+01:00", "s", 1675209600),
        ("2023-02-01 00:00:00.750", "s", 1675209600),
        ("1675209600999", "ms", 1675209600),
        ("-1", "ms", -1),
    ],
)
def test_times_are_seconds_in_utc(small, given, unit, seconds):
    graph = small(f"src,dst,t\na,b,{given}\n", time={"column": "t", "unit": unit})
    assert next(iter(graph["edge_time"].values())).tolist() == [seconds]


def test_integers_are_ordered_as_integers_and_leading_zeros_are_texts(small, tmp_path):
    small("src,dst\n10,9\n", "key\n10\n9\n")
    assert pq.read_table(tmp_path / "out/keys/n")["key0"].to_pylist() == [9, 10]
    small("src,dst\n010,9\n", "key\n010\n9\n")
    assert pq.read_table(tmp_path / "out/keys/n")["key0"].to_pylist() == ["010", "9"]


MISTAKES = {
    "dangling": ({}, ["1 edges", "['dst'] is 'x'", "edges.csv, row 3", "missing = 'drop'"]),
    "repeated": ({"nodes": "key\na\nb\na\n"}, ["'a' (2 times)", "nodes.csv, row 0"]),
    "null key": ({"nodes": "key,v\na,1\n,2\n"}, ["column 'key'", "row 1", "None"]),
    "no column": ({"src": "source"}, ["has no column 'source'", "'src', 'dst', 'w', 't'"]),
    "no number": ({"edges": "src,dst,w\na,b,1\na,b,x1\n", "weight": "w"}, ["column 'w', row 1: 'x1'", "a number"]),
    "infinite": ({"edges": "src,dst,w\na,b,inf\n", "weight": "w"}, ["row 0: 'inf'", "finite"]),
    "no time": ({"edges": "src,dst,t\na,b,2024-02-30\n", "time": "t"}, ["row 0: '2024-02-30'", "a time"]),
    "zones": (
        {"edges": "src,dst,t\na,b,2024-01-01T00:00:00Z\na,b,2024-01-01T00:00:00\n", "time": "t"},
        ["with a zone"],
    ),
    "text among integers": (
        {
            "nodes": "key\n1\n2\n",
            "edges": "src,dst\n1,2\n1,b2\n",
            "node": {"files": "nodes.csv", "key": "key", "key_type": "int"},
        },
        ["edges.csv, column 'dst', row 1: 'b2'", "key_type = 'text'"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_name_table_file_column_row_and_value(small, tmp_path, name):
    options, words = MISTAKES[name]
    with pytest.raises(TableError) as raised:
        small(**options)
    assert all(word in str(raised.value) for word in words), raised.value
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_another_directory_is_left_alone(small, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    with pytest.raises(FileExistsError, match="no graph that glt built"):
        small(missing="drop")
    assert (tmp_path / "out/mine").read_text() == "mine"


def test_a_plan_writes_nothing_and_says_what_is_dropped(tables, tmp_path, command):
    folder = write(tmp_path / "in", tables)
    with open(folder / "payments-2.csv", "a") as file:
        file.write("acc-001,stranger,1,2020-01-01T00:00:00\n")
    told = description(folder, missing="drop")
    plan = glt.tables.build(told, tmp_path / "out", dry_run=True, memory="1GB")
    (edges,) = plan["edge_types"].values()
    assert plan["node_types"]["account"]["num_rows"] == NUM_ACCOUNTS and edges["num_files"] == 2
    assert abs(edges["num_rows"] - NUM_PAYMENTS) < 0.05 * NUM_PAYMENTS and not edges["num_rows_is_exact"]
    assert (edges["num_sampled"], edges["num_sampled_without_end"]) == (NUM_PAYMENTS + 1, 1)
    assert not list(tmp_path.glob("out*")) and 0 < plan["disk_bytes"] < plan["free_bytes"]
    (tmp_path / "graph.json").write_text(json.dumps(told))
    status, out, _ = command("build", str(tmp_path / "graph.json"), "--out", str(tmp_path / "out"), "--dry-run")
    assert status == 0 and "1 of 4,001 edges that were looked at have an end that no table has: such are dropped" in out
    assert "account: 300 rows in 1 files" in out and not list(tmp_path.glob("out*"))


def test_the_command(tables, tmp_path, command):
    folder = write(tmp_path / "in", tables)
    (tmp_path / "graph.json").write_text(json.dumps(description(folder)))
    flags = tmp_path / "graph.json", "--out", tmp_path / "out", "--memory", "600MB", "--threads", 1
    status, out, _ = command("build", *map(str, flags))
    assert (
        status == 0
        and "account: 300 rows read, 300 kept" in out
        and "pays__account: 4,000 rows read, 4,000 kept" in out
    )
    assert "glt partition" in out
    status, _, err = command("build", *map(str, flags))
    assert status == 1 and "--overwrite" in err
    status, _, err = command("build", str(tmp_path / "graph.toml"), "--out", str(tmp_path / "other"))
    assert status == 1 and "does not exist" in err
