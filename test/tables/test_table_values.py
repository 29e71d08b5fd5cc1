"""Values of tables that are seldom, and descriptions that do not fit them."""

import fcntl
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import glt
from glt.errors import TableError
from glt.tables import directory
from glt.tables.columns.files import readable
from glt.tables.columns.transforms import Bins


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Builds a graph of nodes ``n`` with a column ``v`` and one edge; returns its rows of ``n``."""
    monkeypatch.chdir(tmp_path)

    def made(values, out="out", node=(), edge=(), edges=None, overwrite=True, **options):
        if isinstance(values, str):
            (tmp_path / "n.csv").write_text("id,v\n" + "".join(f"k{i},{v}\n" for i, v in enumerate(values.split())))
        else:
            pq.write_table(pa.table({"id": [f"k{i}" for i in range(len(values))], "v": values}), "n.parquet")
        (tmp_path / "e.csv").write_text(edges or "s,d\nk0,k1\n")
        files = "n.csv" if isinstance(values, str) else "n.parquet"
        nodes = {"n": {"files": files, "key": "id", **dict(node)}}
        edge = {"type": ["n", "to", "n"], "files": "e.csv", "src": "s", "dst": "d", **dict(edge)}
        glt.tables.build({"node_types": nodes, "edge_types": [edge]}, out, overwrite=overwrite, **options)
        return pq.read_table(f"{out}/nodes/n") if dict(node).keys() & {"features", "label", "time"} else None

    return made


def number(scale="none", **more):
    return {"features": {"v": {"scale": scale, **more}}}


@pytest.mark.parametrize(
    "values, node, expected",
    [
        ("1 1e39", number(), r"n.csv, column 'v', row 1: '1e39': expected a finite number, at most 3.4e\+38"),
        ([1.0, -1e200], number("standardize"), r"row 1: -1e\+200: expected a finite number"),
        ([[1.0, 2.0], [3.0, np.inf]], number(kind="vector", length=2), "row 1: inf: expected a finite number"),
        ([None, [1.0, None]], number(kind="vector", length=2, missing="indicator"), "row 1: None: expected lists with"),
        ([b"a", b"\xff"], number(kind="category"), "column 'v' has type binary: expected categories"),
        ("1704067200000 1", {"time": "v"}, "row 0: 1704067200000: expected a time of the years 1 to 9999; as 's'"),
        ("2024-01-01 2024-01-02", {"time": "v", "split": {"time": ["2024-07-01", "2024-01-01"]}}, "in this order"),
        ("1 -2", number("log"), r"n\.csv, column 'v', row 1: '-2': expected a number of at least 0"),
        (
            "val x",
            {"split": {"column": "v"}},
            "column 'v', row 1: 'x': expected one of 'train', 'val', 'test', or null",
        ),
        ("1 2", number(max=3), "feature 'v' has max = 3: expected kind 'category', not 'number'; leave the max out"),
        ("1 2", number(kind="timestamp", scale="log"), "has scale = 'log': expected kind 'number', not 'timestamp'"),
        ("1 2", {"time": {"unit": "s"}}, "time: column = None: expected the name of a column"),
        ("1 2", {"label": {"column": ["v", "id"]}}, "label: column = .*: expected a text"),
        ("a b", {"key": ["id", "id"]}, r"key = \['id', 'id'\]: expected each column once"),
        (
            "a b",
            number(kind="text", length=1, function="test_table_values:no_number"),
            "returned .*nan.* for 'b': expected",
        ),
    ],
)
def test_what_is_no_value_is_named(build, monkeypatch, values, node, expected):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    with pytest.raises(TableError, match=expected):
        build(values, node=node)


def no_number(texts):
    return [[float("nan") if text == "b" else 0.0] for text in texts]


def test_weights_below_0_are_refused(build):
    with pytest.raises(TableError, match=r"e\.csv, column 'w', row 1: '-1': expected a number of at least 0"):
        build("1 2", edge={"weight": "w"}, edges="s,d,w\nk0,k1,1\nk1,k0,-1\n")


def test_columns_of_nulls_and_quoted_nulls_and_nanoseconds(build):
    kept = build(pa.nulls(2), node=number(missing="indicator"))
    assert kept["x"].to_pylist() == [[0.0, 1.0]] * 2
    kept = build('"3" ""', node=number(missing="indicator"))
    assert kept["x"].to_pylist() == [[3.0, 0.0], [3.0, 1.0]]
    kept = build("2024-01-01T00:00:01.123456789 2024-01-01", node={"time": "v"})
    assert kept["time"].to_pylist() == [1704067201, 1704067200]


def test_a_value_that_is_longer_than_a_block_is_named(build):
    with pytest.raises(TableError, match=r"n\.csv cannot be read: it has a value longer than 4.0 MB of CSV"):
        build(" ".join(["a", "b" * (9 << 20)]), node={"label": "v"})


def test_files_without_rows_say_nothing_of_keys(tmp_path):
    (tmp_path / "1.csv").write_text("s,d\n1,10\n2,1\n")
    (tmp_path / "2.csv").write_text("s,d\n")
    edge = {"type": ["n", "to", "n"], "files": str(tmp_path / "*.csv"), "src": "s", "dst": "d"}
    counted = glt.tables.build({"node_types": {"n": {}}, "edge_types": [edge]}, tmp_path / "out")
    assert counted["key_types"] == {"n": ["int"]}


def test_integers_that_pandas_made_floats_are_classes_and_categories(build):
    kept = build([2.0, None, 10.0, np.nan], node={"label": "v"} | number(kind="category", missing="indicator"))
    assert kept["label"].to_pylist() == [0, -1, 1, -1]
    assert kept["x"].to_pylist()[0] == [0, 1, 0, 0] and kept["x"].to_pylist()[2] == [1, 0, 0, 0]
    with pytest.raises(
        TableError, match=r"n\.parquet, column 'v', row 1: 0\.5: expected categories as texts, integers"
    ):
        build([2.0, 0.5], node={"label": "v"})


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00", "a zone in .*1.csv, and times without a zone in .*2.csv"),
        ("2024-01-01", "20240101", "times without a zone in .*1.csv, and numbers in .*2.csv"),
        ("2024-01-01", "2024-01-01 01:00:00", None),
        ("2024-01-01", "", None),
    ],
)
def test_times_of_several_files_are_alike(tmp_path, first, second, error):
    for i, each in enumerate((first, second), 1):
        (tmp_path / f"{i}.csv").write_text(f"id,at\n{i},{each}\n")
    feature = {"kind": "timestamp", "parts": ["age"], "missing": "indicator"}
    node = {"files": str(tmp_path / "[12].csv"), "key": "id", "features": {"at": feature}}
    (tmp_path / "edges.csv").write_text("s,d\n1,2\n")
    edge = {"type": ["n", "to", "n"], "files": str(tmp_path / "edges.csv"), "src": "s", "dst": "d"}
    told = {"node_types": {"n": node}, "edge_types": [edge]}
    if error is None:
        assert glt.tables.build(told, tmp_path / "out")["node_types"]["n"]["num_kept"] == 2
        return
    with pytest.raises(
        TableError, match=rf"node type 'n': column 'at' has {'times with ' if 'Z' in first else ''}{error}"
    ):
        glt.tables.build(told, tmp_path / "out")


@pytest.mark.parametrize(
    "values, classes",
    [("1.0 10.0 2.0", ["1.0", "2.0", "10.0"]), ("+1 01 2", ["+1", "01", "2"]), ("nan 2 10", ["10", "2", "nan"])],
)
def test_classes_are_in_the_order_of_numbers(build, values, classes):
    labels = build(values, node={"label": "v"})["label"].to_pylist()
    assert labels == [classes.index(each) for each in values.split()]


@pytest.mark.parametrize(
    "values",
    [
        1000 + 3 * np.random.default_rng(0).random(5000),
        np.random.default_rng(1).integers(1950, 2010, 5000).astype(float),
        np.random.default_rng(2).normal(0, 1, 200_000) ** 3,
        np.concatenate([[-1e300, 1e-300, 1e300], -np.random.default_rng(3).lognormal(0, 5, 300_000)]),
    ],
)
def test_quantiles_are_those_of_the_values_in_any_order(values):
    whole = Bins()
    whole.add(values)
    parts = [Bins(), Bins()]
    for i, each in enumerate(np.array_split(values[::-1], 7)):
        parts[i % 2].add(each)
    parts[1].merge(parts[0])
    found = whole.quantiles(100)
    assert found == parts[1].quantiles(100)
    ranks = np.searchsorted(np.sort(values), found, "right") / len(values)
    exact = np.searchsorted(
        np.sort(values), np.quantile(values, np.linspace(0, 1, 101), method="inverted_cdf"), "right"
    )
    assert np.abs(ranks - exact / len(values)).max() < 0.001
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", ["a/b", "..", "x" * 300, "\ud800"])
def test_a_type_that_names_no_directory_is_refused(tmp_path, name):
    edge = {"type": [name, "to", name], "files": "e.csv", "src": "s", "dst": "d"}
    with pytest.raises(TableError, match="cannot name a directory"):
        glt.tables.build({"node_types": {name: {}}, "edge_types": [edge]}, tmp_path / "out")


def test_types_of_one_directory_are_refused(tmp_path):
    edges = [
        {"type": type_, "files": "e.csv", "src": "s", "dst": "d"} for type_ in (["a__b", "c", "a"], ["a", "b__c", "a"])
    ]
    with pytest.raises(TableError, match="would both be in the directory 'a__b__c__a': rename one"):
        glt.tables.build({"node_types": {"a": {}, "a__b": {}}, "edge_types": edges}, tmp_path / "out")


def test_the_place_of_a_graph(build, tmp_path):
    """With a slash behind it, and a quote in it."""
    build("1 2", "it's/", node=number())
    build("3 4", "it's/", node=number())
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == ["it's"]
    assert pq.read_table("it's/nodes/n")["x"].to_pylist() == [[3.0], [4.0]]
    with pytest.raises(ValueError, match="expected a directory of this machine"):
        build("1 2", "s3://bucket/out")
    with pytest.raises(ValueError, match="num_threads = 0"):
        build("1 2", num_threads=0)
    with pytest.raises(ValueError, match="memory = '1MB'"):
        build("1 2", memory="1MB")
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == ["it's"]


@pytest.mark.parametrize("moment", ["the old one is aside", "the new one is there"])
def test_a_build_that_is_killed_while_its_graph_takes_the_place_of_another(build, tmp_path, monkeypatch, moment):
    build("1 2", node=number())
    is_there = moment == "the new one is there"

    def killed(path, *_, **__):
        raise KeyboardInterrupt

    def rename(path, to):
        if to == tmp_path / "out" and not is_there:
            killed(path)
        os.rename(path, to)

    monkeypatch.setattr(directory.Path, "rename", rename)
    rmtree = directory.shutil.rmtree
    monkeypatch.setattr(
        directory.shutil,
        "rmtree",
        lambda path, *a, **k: (killed if Path(path).name == "replaced" else rmtree)(path, *a, **k),
    )
    with pytest.raises(KeyboardInterrupt):
        build("3 4", node=number())
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileExistsError, match="has a graph already"):
        build("5 6", node=number(), overwrite=False)
    kept = pq.read_table("out/nodes/n")["x"].to_pylist()
    assert kept == ([[3.0], [4.0]] if is_there else [[1.0], [2.0]]) and not (tmp_path / "out/replaced").exists()
    build("5 6", node=number())
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_dir()) == ["out"]


def test_results_keep_the_keys(tmp_path):
    keys = glt.data.KeyMap.write(tmp_path / "ids", {"id": "text"}, lambda: iter([[["ann", "bob"]]]))
    with pytest.raises(ValueError, match="values has a column 'id', as the keys have"):
        glt.tables.write({"id": torch.zeros(2)}, tmp_path / "scores", keys=keys)
    with pytest.raises(TypeError, match="ids has dtype float64: expected integers"):
        keys.raw([1.0])
    assert keys.raw(1) == ["bob"]


def test_texts_are_seeds_however_many_and_keys_of_several_columns(tmp_path):
    keys = glt.data.KeyMap.write(tmp_path / "ids", {"name": "text"}, lambda: iter([[["ann", "bob", "carl"]]]))
    data = glt.Dataset.from_arrays(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3, node_keys=keys)
    for seeds in (["ann"], ["bob", "ann"], ("ann", "carl"), ["carl", "bob", "ann"]):
        (batch,) = glt.loader.NeighborLoader(data, [2], seeds, batch_size=3)
        assert batch.input_id.tolist() == list(range(len(seeds)))
        assert batch.n_id[: len(seeds)].tolist() == keys.lookup(list(seeds)).tolist()
    for ends in (
        (["ann"], ["bob"]),
        (["ann", "bob"], ["bob", "carl"]),
        (["ann", "bob", "carl"], ["bob", "carl", "ann"]),
    ):
        (batch,) = glt.loader.LinkNeighborLoader(data, [2], ends, batch_size=3)
        seeds = batch.n_id[batch.edge_label_index]
        assert seeds.tolist() == [keys.lookup(each).tolist() for each in ends]
    several = glt.data.KeyMap.write(
        tmp_path / "two", {"land": "text", "nr": "int"}, lambda: iter([[["DE", "DE", "FR"], [1, 3, 3]]])
    )
    data = glt.Dataset.from_arrays(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3, node_keys=several)
    (batch,) = glt.loader.NeighborLoader(data, [2], (["FR", "DE"], [3, 1]), batch_size=2)
    assert batch.n_id[:2].tolist() == [2, 0]


@pytest.mark.parametrize("above", ["id=3", "src=1", "dst=x", "key0=k1"])
def test_directories_above_are_no_columns(build, above):
    """Those that look like parts of a table by Hive's names, such as ``id=3``."""
    build("0 10 20 30 40 50", node=number())
    build("0 10 20 30 40 50", out=f"{above}/g", node=number())
    for kind in ("nodes/n", "edges/n__to__n"):
        names = sorted(path.name for path in Path("out", kind).iterdir())
        assert names and all(Path("out", kind, n).read_bytes() == Path(above, "g", kind, n).read_bytes() for n in names)
    degrees = [json.loads(Path(out, "build.json").read_text())["degrees"] for out in ("out", f"{above}/g")]
    assert degrees[0] == degrees[1]


@pytest.mark.parametrize(
    ("values", "node", "expected"),
    [
        (
            "1 99999999999999999999",
            {"time": "v"},
            r"n\.csv, column 'v', row 1: '9+': expected a time, or an integer below",
        )
    ],
)
def test_a_time_beyond_all_integers_is_named(build, values, node, expected):
    with pytest.raises(TableError, match=expected):
        build(values, node=node)


def test_an_end_that_is_two_columns_is_named(build):
    with pytest.raises(TableError, match=r"e\.csv has several columns 's': rename all but one"):
        build("1 2", edges="s,d,s\nk0,k1,k1\n")


def test_one_file_under_two_names_is_read_once(build, tmp_path):
    build("1 2", edge={"files": ["e.csv", f"../{tmp_path.name}/e.csv", str(tmp_path / "*e.csv")]})
    assert json.loads(Path("out/build.json").read_text())["edge_types"]["n__to__n"]["num_read"] == 1


def test_a_directory_of_the_users_is_not_removed(build):
    Path("out.partial").mkdir()
    Path("out.partial/mine.txt").write_text("precious")
    with pytest.raises(FileExistsError, match=r"out\.partial is there, and is no build that was ended: move it away"):
        build("1 2")
    assert Path("out.partial/mine.txt").read_text() == "precious"


def test_directories_at_urls_leave_out_hidden_ones(build, tmp_path):
    for folder in ("", "_temporary/0/", ".hidden/"):
        Path("parts", folder).mkdir(parents=True, exist_ok=True)
        Path("parts", folder, "p.csv").write_text("s,d\nk0,k1\n")
    build("1 2", edge={"files": f"file://{tmp_path}/parts"})
    assert json.loads(Path("out/build.json").read_text())["edge_types"]["n__to__n"]["num_read"] == 1


def test_whole_floats_in_csv_are_integers(build, tmp_path):
    """As keys, ends, categories and classes."""
    table = build("1.0 2 2.0 1 -3.00", node={"features": {"v": "category"}, "label": "v"})
    assert table["label"].to_pylist() == [1, 2, 2, 1, 0]
    names = json.loads((tmp_path / "out/build.json").read_text())["feature_names"]["node type 'n'"]
    assert names == ["v=1", "v=2", "v=-3", "v is other"]
    (tmp_path / "ints.csv").write_text("id\n1\n2\n3\n")
    (tmp_path / "floats.csv").write_text("s,d\n1.0,2.0\n3.0,\n2.0,3.0\n")
    edges = {"type": ["n", "to", "n"], "files": "floats.csv", "src": "s", "dst": "d", "missing": "drop"}
    told = {"node_types": {"n": {"files": "ints.csv", "key": "id"}}, "edge_types": [edges]}
    built = glt.tables.build(told, "floats")
    assert built["key_types"] == {"n": ["int"]} and built["edge_types"]["n__to__n"]["num_kept"] == 2


def test_quoted_nothing_is_null(build, tmp_path):
    (tmp_path / "q.csv").write_text('"id","v"\n"a","x"\n"b",""\n')
    (tmp_path / "e.csv").write_text("s,d\na,b\n")
    edge = {"type": ["n", "to", "n"], "files": "e.csv", "src": "s", "dst": "d"}
    told = {"node_types": {"n": {"files": "q.csv", "key": "id", "label": "v"}}, "edge_types": [edge]}
    assert glt.tables.build(told, "quoted")["classes"]["node type 'n'"] == ["x"]


@pytest.mark.parametrize("other", ["2024-01-01T10:00:00", "17"])
def test_times_as_texts_of_several_files_are_alike(build, tmp_path, other):
    for name, text in (("a", "2024-01-01T10:00:00Z"), ("b", other)):
        pq.write_table(pa.table({"s": ["k0"], "d": ["k1"], "t": [text]}), tmp_path / f"e-{name}.parquet")
    with pytest.raises(TableError, match=r"has times with a zone in .*e-a.parquet, and .* in .*e-b.parquet"):
        build([1.0, 2.0], edge={"files": "e-*.parquet", "time": "t"})


def test_sums_beyond_float32(build):
    edges = "s,d,w\nk0,k1,3e38\nk0,k1,3e38\n"
    with pytest.raises(TableError, match=r"column 'w': duplicates = 'sum' .* from id 0 to id 1 is 6e\+38"):
        build([1.0, 2.0], edge={"weight": "w", "duplicates": "sum"}, edges=edges)


def test_values_that_nothing_takes_are_named(build, tmp_path):
    texts = pa.array([b"fine", b"\xff\xfe"]).view(pa.string())
    with pytest.raises(TableError, match=r"column 'v', row 1: b'\\xff\\xfe': expected a text in UTF-8"):
        build(texts, node={"label": "v"})
    with open("n.csv", "wb") as file:
        file.write(b"id,v\nk0,fine\nk1,caf\xe9\n")
    for what in ({"label": "v"}, {"features": {"v": "category"}}, {"time": "v"}, number()):
        with pytest.raises(TableError, match=r"n\.csv, column 'v', row 1: b'caf\\xe9': expected a text in UTF-8"):
            build([], node={"files": "n.csv", **what})
    with pytest.raises(TableError, match="row 0: 18446744073709551615: expected integers below"):
        build(pa.array([2**64 - 1, 1], pa.uint64()), node={"time": "v"})
    for delimiter in ("\u00e9", "\0", '"'):
        with pytest.raises(TableError, match="delimiter"):
            build("1 2", node={"delimiter": delimiter})


def test_a_link_as_output(build, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    build("1 2", node={"label": "v"})
    assert (tmp_path / "out").is_symlink() and (tmp_path / "disk/graph.json").is_file()


def test_a_directory_whose_name_is_a_pattern(build, tmp_path):
    assert build([1.0, 2.0], "a[b]?*", number())["x"].to_pylist() == [[1.0], [2.0]]
    build([1.0, 2.0], "ab", number())  # which the pattern would find, too
    assert build([3.0, 4.0], "a[b]?*", number())["x"].to_pylist() == [[3.0], [4.0]]


def test_a_key_that_comes_twice_in_json(tmp_path):
    (tmp_path / "graph.json").write_text('{"node_types": {"n": {"key": "a"}, "n": {"key": "b"}}, "edge_types": []}')
    with pytest.raises(TableError, match=r"graph.json is no JSON: the key 'n' comes 2 times in one object"):
        glt.tables.build(tmp_path / "graph.json", tmp_path / "out")


def test_a_scaled_value_is_finite(tmp_path, monkeypatch):
    """The training rows are nearly equal, and one of the others is far from them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.csv").write_text("id,v,part\na,0,train\nb,1e-9,train\nc,1e38,test\n")
    (tmp_path / "e.csv").write_text("s,d\n")
    node = {"files": "n.csv", "key": "id", "features": {"v": "standardize"}, "split": {"column": "part"}}
    edge = {"type": ["n", "to", "n"], "files": "e.csv", "src": "s", "dst": "d"}
    with pytest.raises(TableError, match=r"feature 'v': 1e\+38 is no float32 when it is scaled as the training rows"):
        glt.tables.build({"node_types": {"n": node}, "edge_types": [edge]}, "out")


def test_what_signs_a_url_is_not_in_messages():
    with pytest.raises(TableError) as raised, readable("node type 'n'", "https://host/a.parquet"):
        raise OSError("403, url='https://host/a.parquet?sig=SECRET&se=1' and s3://b/c?X-Amz-Signature=SECRET, ended")
    assert "SECRET" not in str(raised.value) and "https://host/a.parquet' and s3://b/c ended" in str(raised.value)


@pytest.mark.parametrize("split", [{"column": "part"}, {"time": ["2024", "2025"]}])
def test_features_are_not_fitted_on_nothing(split, tmp_path, monkeypatch):
    """2024 is a second of 1970, before all of the rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.csv").write_text("id,v,part,t\na,1,val,2024-01-01\nb,2,test,2024-06-01\n")
    (tmp_path / "e.csv").write_text("s,d\n")
    node = {"files": "n.csv", "key": "id", "features": {"v": "standardize"}, "split": split, "time": "t"}
    edge = {"type": ["n", "to", "n"], "files": "e.csv", "src": "s", "dst": "d"}
    with pytest.raises(TableError, match=r"none of its 2 rows is in training, on which feature 'v' is fitted"):
        glt.tables.build({"node_types": {"n": node}, "edge_types": [edge]}, "out")


def test_booleans_are_one_class_in_csv_and_parquet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.csv").write_text("k,l\n1,True\n2,False\n")
    pq.write_table(pa.table({"k": [3, 4], "l": [True, False]}), "n.parquet")
    (tmp_path / "e.csv").write_text("s,d\n1,2\n")
    node = {"files": ["n.csv", "n.parquet"], "key": "k", "label": "l"}
    edge = {"type": ["n", "to", "n"], "files": "e.csv", "src": "s", "dst": "d"}
    built = glt.tables.build({"node_types": {"n": node}, "edge_types": [edge]}, "out")
    assert built["classes"]["node type 'n'"] == ["false", "true"]
    assert pq.read_table("out/nodes/n")["label"].to_pylist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    "code, expected",
    [
        (
            "def f(texts): raise KeyError('boom')",
            "fn:f failed for 2 texts, .* is 'a b': KeyError: 'boom'",
        ),
        ("def f(texts): return [[1.0], [1.0, 2.0]]", "fn:f failed for 2 texts.*ValueError"),
        ("f = 1", "fn:f is 1: expected a function"),
        ("1 / 0", "expected 'module:function' that can be imported here.*ZeroDivisionError"),
    ],
)
def test_functions_of_texts_that_fail_are_named(code, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fn.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fn", raising=False)
    (tmp_path / "n.csv").write_text("id,v\nk0,a b\nk1,c\n")
    (tmp_path / "e.csv").write_text("s,d\nk0,k1\n")
    feature = {"kind": "text", "function": "fn:f", "length": 1}
    node = {"files": "n.csv", "key": "id", "features": {"v": feature}}
    edge = {"type": ["n", "to", "n"], "files": "e.csv", "src": "s", "dst": "d"}
    with pytest.raises(TableError, match=f"node type 'n': feature 'v': .*{expected}"):
        glt.tables.build({"node_types": {"n": node}, "edge_types": [edge]}, "out")


def test_one_build_at_a_time_and_no_folder_of_others_is_removed(build, tmp_path):
    build([1.0, 2.0])
    (tmp_path / "out.partial/keys").mkdir(parents=True)
    (tmp_path / "out.partial/keys/precious.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"out.partial is there, and is no build that was ended"):
        build([3.0, 4.0])
    shutil.rmtree(tmp_path / "out.partial")
    (tmp_path / "out.partial").mkdir()
    held = os.open(tmp_path / "out.partial", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(FileExistsError, match=r"out.partial is written by another build"):
        build([3.0, 4.0])
    os.close(held)
    build([3.0, 4.0])


def test_files_under_two_names_and_odd_names(tmp_path):
    folder = tmp_path / "a[1]"
    (folder / "p.tsv.d").mkdir(parents=True)
    (folder / "p.tsv.d/1.csv").write_text("s,d\na,b\n")
    (folder / "p.tsv.d/latest.csv").symlink_to("1.csv")
    (folder / "p.tsv.d/_draft.csv").write_text("s,d\na,c\n")
    edge = {"type": ["n", "to", "n"], "files": "p.tsv.d/*.csv", "src": "s", "dst": "d"}
    (folder / "g.json").write_text(json.dumps({"node_types": {"n": {}}, "edge_types": [edge]}))
    built = glt.tables.build(folder / "g.json", tmp_path / "links")
    assert built["edge_types"]["n__to__n"]["num_kept"] == 1 and built["node_types"]["n"]["num_kept"] == 2


@pytest.mark.parametrize("files", ["http://127.0.0.1:1/a?sig=SECRET&token=SECRET", "ftpx://u:SECRET@h/e.csv"])
def test_secrets_of_urls_are_not_in_errors(files, build):
    if files.startswith("http"):
        pytest.importorskip("aiohttp")
    with pytest.raises(TableError) as raised:
        build([1.0], edge={"files": files})
    assert "SECRET" not in str(raised.value)
