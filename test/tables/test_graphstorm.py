"""A configuration of GraphStorm's gconstruct is a description; what it has beside that is named."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import glt
from glt.errors import TableError
from glt.tables import Description, describe


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(random.random(40)), 4)
    papers = {"nid": [f"p{i}" for i in range(10)], "year": random.integers(1990, 2020, 10), "embed": embedding}
    pq.write_table(pa.table(papers | {"venue": ["a", "b"] * 5, "class": [0, 1, 2, 1, 0] * 2}), "papers.parquet")
    (tmp_path / "cites.csv").write_text("a|b|cnt\np0|p1|3\np1|p2|4\np3|p99|1\n")
    return tmp_path


PAPER = {
    "node_type": "paper",
    "node_id_col": "nid",
    "format": {"name": "parquet"},
    "files": "papers*.parquet",
    "features": [
        {"feature_col": "year", "feature_name": "age", "transform": {"name": "max_min_norm"}},
        {"feature_col": ["venue"], "transform": {"name": "to_categorical"}},
        {"feature_col": "embed", "out_dtype": "float32"},
    ],
    "labels": [{"label_col": "class", "task_type": "classification", "split_pct": [0.6, 0.2, 0.2]}],
}
CITES = {
    "relation": ["paper", "cites", "paper"],
    "source_id_col": "a",
    "dest_id_col": "b",
    "format": {"name": "csv", "separator": "|"},
    "files": ["cites.csv"],
    "labels": [{"task_type": "regression", "label_col": "cnt"}],
}


def written(paper=PAPER, cites=CITES, **others):
    config = {"version": "gconstruct-v0.1", "nodes": [paper], "edges": [cites], **others}
    with open("config.json", "w") as file:
        json.dump(config, file)
    return "config.json"


def test_it_is_built_as_it_is(here, command):
    paper = {"files": "papers*.parquet", "key": "nid", "label": "class", "split": {"ratio": [0.6, 0.2, 0.2]}}
    features = {"age": {"column": "year", "scale": "min_max"}, "venue": {"kind": "category", "max": 1000}}
    paper["features"] = features | {"embed": {"kind": "vector", "length": 4}}
    cites = {"type": ["paper", "cites", "paper"], "files": "cites.csv", "delimiter": "|", "src": "a", "dst": "b"}
    cites |= {"label": {"column": "cnt", "kind": "number"}, "split": {"ratio": [0.8, 0.1, 0.1]}, "missing": "drop"}
    expected = Description.of({"node_types": {"paper": paper}, "edge_types": [cites]})
    assert describe(written()) == expected
    assert command("build", "config.json", "--out", "out")[0] == 0
    counts = json.loads((here / "out/build.json").read_text())
    assert counts["edge_types"]["paper__cites__paper"]["num_dropped"] == 1
    assert glt.partition.read_graph("out/graph.json", ".").num_edges == 2


@pytest.mark.parametrize(
    ("paper", "what"),
    [
        ({"features": [{"feature_col": "venue", "transform": {"name": "bert_hf", "bert_model": "b"}}]}, "'bert_hf'"),
        ({"features": [{"feature_col": "year", "transform": {"name": "standard"}}]}, "divides by the sum"),
        (
            {"features": [{"feature_col": "year", "transform": {"name": "max_min_norm", "max_val": 3}}]},
            "feature 'year': max_val = 3 of transform 'max_min_norm'",
        ),
        ({"labels": [{"label_col": "class", "task_type": "classification", "custom_split_filenames": {}}]}, "custom_"),
        ({"labels": [*PAPER["labels"], {"label_col": "year", "task_type": "regression"}]}, "a further label, 'year'"),
        ({"labels": [{"task_type": "reconstruct_node_feat"}]}, "reconstruct_node_feat"),
        ({"labels": [PAPER["labels"][0] | {"split_pct": [0.5, 0.1, 0.1]}]}, "whose sum is not 1"),
        ({"format": {"name": "HDF5"}}, "of format 'HDF5'"),
        ({"node_id_col": None, "edge_weight": 1}, "edge_weight = 1"),
    ],
)
def test_what_is_not_taken_over_is_named(here, command, paper, what):
    changed = {key: value for key, value in (PAPER | paper).items() if value is not None}
    with pytest.raises(TableError) as refused:
        glt.tables.build(written(changed), "out")
    assert what in str(refused.value) and "glt describe config.json" in str(refused.value)
    status, _, said = command("describe", "config.json", "--out", "graph.json", "--overwrite")
    assert status == 0 and what in said
    Description.read("graph.json")


def test_what_every_graph_needs(here):
    with pytest.raises(TableError, match=r"config.json: edges .* has no dest_id_col"):
        describe(written(cites={key: value for key, value in CITES.items() if key != "dest_id_col"}))
    for wrong, message in (
        ({"format": "parquet"}, "paper: format = .'parquet'.: expected a list of objects"),
        ({"files": None}, "paper: files = None: expected a path"),
        ({"features": {"feature_col": "year"}}, "paper: features = .* expected a list of objects"),
        ({"features": [{"feature_name": "a"}]}, "features: .* has no feature_col"),
        ({"features": [{"feature_col": "year", "transform": "no-op"}]}, "paper: transform"),
        ({"labels": [PAPER["labels"][0] | {"split_pct": [0.8]}]}, r"paper: split_pct = \[0.8\]: expected fractions"),
    ):
        with pytest.raises(TableError, match=message):
            describe(written(PAPER | wrong))
    twice = [{"feature_col": "year", "feature_name": "a"}, {"feature_col": "year", "feature_name": "a"}]
    with pytest.raises(TableError, match="a second feature of the name 'a'"):
        glt.tables.build(written(PAPER | {"features": twice}), "out")
    with pytest.raises(TableError, match="is_homogeneous = True"):
        glt.tables.build(written(is_homogeneous=True), "out")
