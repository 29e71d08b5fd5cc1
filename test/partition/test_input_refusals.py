"""What cannot be read is refused by file, column and row, or by the key of a description."""

import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt.partition import read_graph
from glt.partition.inputs.tables import Field, TableFiles, read_fields

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ENDS = {"src": "a", "dst": "b"}


def edges_in(tmp_path, **columns):
    table = pa.table({"a": [0, 1, 2], "b": [1, 2, 0], **columns})
    pq.write_table(table, tmp_path / "e.parquet", row_group_size=2)
    return tmp_path / "e.parquet"


def refused(path, *words, **options):
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        read_graph(path, path.parent, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": ["x", "y", "z"]}, ["e.parquet: column 'a'", "holds string", "expected numbers"]),
        ({"a": [0, 1, None]}, ["e.parquet: column 'a', row 2", "has no value"]),
        ({"a": [0.0, 1.0, 2.0]}, ["src", "rows of float64", "expected integers"]),
        ({"w": [1.0, None, 2.0]}, ["column 'w', row 1", "has no value"]),
        ({"w": [[1.0], [2.0], [1.0, 2.0]]}, ["column 'w', row 2", "has 2 elements: expected 1"]),
        ({"w": [[1.0, None], [2.0, 3.0], [1.0, 2.0]]}, ["column 'w', row 0", "element 1", "has no value"]),
        ({"w": np.array([1, 2, 3], "datetime64[s]")}, ["column 'w'", "timestamp", "state a dtype"]),
    ],
)
def test_values_that_are_no_numbers(tmp_path, columns, words):
    refused(edges_in(tmp_path, **columns), *words, edges=ENDS | ({"feat": "w"} if "w" in columns else {}))


def test_times_have_the_ticks_of_their_unit_where_that_is_asked_for(tmp_path):
    path = edges_in(tmp_path, t=np.array([1, 2, 3], "datetime64[ms]"))
    got = read_graph(path, tmp_path, edges=ENDS | {"time": {"column": "t", "dtype": "int64"}})
    assert got["edge_time"].tolist() == [1, 2, 3]


def test_text_that_is_damaged(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("a,b\n0,1\n1,\n")
    refused(path, "e.csv: column 'b', row 1", "has no value", edges=ENDS)
    path.write_text("a,b\n0,1\n1,2,3\n")
    refused(path, "e.csv cannot be read", edges=ENDS)
    path.write_text("a,b\n0,x\n")
    refused(path, "e.csv: column 'b'", "string", edges=ENDS)
    path.write_text("")
    refused(path, "e.csv cannot be read", edges=ENDS)
    path.write_text("a,a,b\n0,1,2\n")
    refused(path, "several columns 'a'", edges=ENDS)
    (tmp_path / "e.parquet").write_bytes(b"PAR1 nothing")
    refused(tmp_path / "e.parquet", "e.parquet cannot be read", edges=ENDS)


def test_columns_of_several_dtypes_need_one_to_be_stated(tmp_path):
    path = edges_in(tmp_path, i=[1, 2, 3], f=[0.5, 1.0, 1e300])
    refused(path, "the columns of", "feat", "float64, int64", "state the dtype", edges=ENDS | {"feat": ["i", "f"]})
    feat = {"columns": ["i", "f"], "dtype": "float64"}
    assert read_graph(path, tmp_path, edges=ENDS | {"feat": feat})["edge_feat"][:2].tolist() == [[1.0, 0.5], [2.0, 1.0]]
    for dtype, row in (("int32", "row 0"), ("float32", "row 2"), ("uint8", "row 0")):
        refused(path, row, dtype, "does not hold", edges=ENDS | {"feat": {"column": "f", "dtype": dtype}})


def test_files_of_several_dtypes_are_not_mixed(tmp_path):
    for i, values in enumerate(([1, 2], [0.5, 1.5])):
        pq.write_table(pa.table({"a": [0, 1], "b": [1, 0], "w": values}), tmp_path / f"{i}.parquet")
    refused(tmp_path, "1.parquet", "feat", "float64", "int64", "state one dtype", edges=ENDS | {"feat": "w"})


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([0, 1, 3], ["id: row 2 has id 3", "expected the ids 0 to 2"]),
        ([0, -1, 2], ["id: row 1 has id -1"]),
        ([2, 1, 2], ["id: row 2 has id 2 again"]),
    ],
)
def test_ids_of_nodes_are_each_there_once(tmp_path, ids, words):
    path = edges_in(tmp_path)
    pq.write_table(pa.table({"id": ids, "x": [1.0, 2.0, 3.0]}), tmp_path / "n.parquet")
    refused(path, *words, edges=ENDS, nodes={"files": str(tmp_path / "n.parquet"), "id": "id", "feat": "x"})


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], ["expected an object"]),
        ({}, ["has no edges"]),
        ({"edges": 3}, ["edges = 3: expected an object"]),
        ({"edge": {}}, ["edge is unknown"]),
        ({"node_types": []}, ["node_types = []: expected an object"]),
        ({"edge_types": {}}, ["edge_types = {}: expected a list of objects"]),
        ({"edges": {"src": "a"}}, ["edges: expected either src and dst, or edge_index"]),
        ({"edges": {**ENDS, "sources": "a"}}, ["edges: sources is unknown"]),
        ({"edges": ENDS}, ["edges: src names the column 'a', but", "has no files"]),
        ({"edges": {**ENDS, "files": 3}}, ["edges: files = 3"]),
        ({"edges": {**ENDS, "files": "nothing-*"}}, ["edges: files = 'nothing-*'", "found none"]),
        ({"edges": {**ENDS, "files": "g.json"}}, ["edges: files", "g.json is of no known kind"]),
        ({"edges": {**ENDS, "files": "e.parquet", "feat": "no"}}, ["e.parquet has no column 'no': it has 'a', 'b'"]),
        ({"edges": {**ENDS, "files": "e.parquet", "feat": 3}}, ["edges: feat = 3: expected"]),
        ({"edges": {**ENDS, "files": "e.parquet", "feat": {"column": "a", "dtype": "str"}}}, ["dtype = 'str'"]),
        ({"edges": {**ENDS, "files": "e.parquet", "attrs": 3}}, ["edges: attrs = 3"]),
        ({"edges": {**ENDS, "files": "e.parquet", "header": 1}}, ["edges: header = 1"]),
        ({"edges": {"edge_index": {"npy": "no.npy"}}}, ["edge_index: npy = 'no.npy'"]),
        ({"edges": {"edge_index": "a", "files": "e.parquet"}}, ["edge_index = 'a': expected"]),
        ({"edges": {"edge_index": {"npy": "bad.npy"}}}, ["bad.npy is not a readable .npy file"]),
        ({"nodes": {"num_nodes": "3"}, "edges": {**ENDS, "files": "e.parquet"}}, ["nodes: num_nodes = '3'"]),
        (
            {"nodes": {"num_nodes": 2, "files": "e.parquet"}, "edges": {**ENDS, "files": "e.parquet"}},
            ["nodes: num_nodes = 2, but its table has 3 rows"],
        ),
        ({"node_types": {"a": {}}, "edge_types": [{"type": ["a", "b"]}]}, ["edge_types[0]: type = ['a', 'b']"]),
        (
            {"node_types": {"a": {}}, "edge_types": [{"type": ["a", "to", "c"], **ENDS}]},
            ["edge_types[0]: type ends in 'c': expected one of node_types, ['a']"],
        ),
        ({"node_types": {"a": {"feet": 1}}}, ["node_types.a: feet is unknown"]),
        (
            {"node_types": {"a": {}}, "edge_types": [{"type": ["a", "t", "a"], "edge_index": {"npy": "ok.npy"}}] * 2},
            ["edge_types has a type twice"],
        ),
    ],
)
def test_descriptions_name_the_key_that_is_wrong(tmp_path, document, words):
    edges_in(tmp_path)
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    np.save(tmp_path / "ok.npy", np.zeros((2, 1), np.int64))
    (tmp_path / "g.json").write_text(json.dumps(document))
    refused(tmp_path / "g.json", *words)


def test_descriptions_that_cannot_be_parsed(tmp_path):
    for name, text in (("g.json", "{"), ("g.toml", "= 3")):
        (tmp_path / name).write_text(text)
        refused(tmp_path / name, name, "is no")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("edge_index/a__b.npy", ["a__b.npy is of no edge type"]),
        ("node_feats.npy", ["node_feats.npy is of no known name", "node_feat"]),
        ("edge_feat/a__to__c.npy", ["edge_feat has ('a', 'to', 'c')", "graph.json does not list"]),
    ],
)
def test_arrays_of_other_names(tmp_path, name, words):
    for path in ("edge_index/a__to__a.npy", name):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        np.save(tmp_path / path, np.zeros((2, 1), np.int64))
    refused(tmp_path, *words)
    (tmp_path / name).unlink()
    for document, words in (
        ('{"nodes": 1}', ["graph.json holds"]),
        ('{"num_nodes": 1}', ["num_nodes = 1"]),
        ('{"edge_types": [["a"]]}', ["edge_types = [['a']]"]),
        ('{"edge_types": [["a", "of", "a"]]}', ["does not list"]),
        ("{", ["is no JSON"]),
    ):
        (tmp_path / "graph.json").write_text(document)
        refused(tmp_path, "graph.json", *words)


def test_files_that_are_no_graphs(tmp_path):
    torch.save({"a": torch.optim.SGD}, tmp_path / "code.pt")
    refused(tmp_path / "code.pt", "code.pt is damaged, or not what torch.save made of", "expected a Data or HeteroData")
    refused(tmp_path / "nothing", "nothing", "found none", edges=ENDS)
    np.save(tmp_path / "edge_index.npy", np.zeros((2, 1), np.int64))
    refused(tmp_path, "edges = {'src': 'a', 'dst': 'b'} does not apply", edges=ENDS)
    refused(tmp_path, "weight_attr = 'w' does not apply", weight_attr="w")


def test_damaged_files_of_torch_are_named_and_torch_speaks_last(tmp_path):
    torch.save(Data(x=torch.ones(20, 4), edge_index=torch.zeros(2, 50, dtype=torch.int64)), tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    rng = np.random.default_rng(0)
    altered = [whole[:n] for n in (0, 1, 100, len(whole) // 2, len(whole) - 1)]
    for at in rng.integers(0, len(whole), 150):
        altered.append(whole[:at] + bytes([rng.integers(256)]) + whole[at + 1 :])
    num_refused = 0
    for data in altered:
        (tmp_path / "g.pt").write_bytes(data)
        try:
            read_graph(tmp_path / "g.pt", tmp_path)  # what was altered may mean nothing
        except ValueError as error:
            words = str(error)
            assert words.startswith(f"{tmp_path}/g.pt is damaged, or not what torch.save made of that: expected a Data")
            assert "copy the file again, or save it again (" in words and "\n" not in words
            num_refused += 1
    assert num_refused >= 5


def test_an_altered_value_in_a_file_of_torch_is_noticed(tmp_path):
    data = Data(x=torch.full((200, 4), 7.0), edge_index=torch.full((2, 50), 9))
    torch.save(data, tmp_path / "g.pt")
    whole = (tmp_path / "g.pt").read_bytes()
    for value in (b"\x00\x00\xe0\x40", b"\x09" + bytes(7)):
        at = whole.index(value * 20) + 40
        (tmp_path / "g.pt").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(tmp_path / "g.pt", f"{tmp_path}/g.pt is damaged", "does not match its checksum")
    torch.save(data, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    read_graph(tmp_path / "old.pt", tmp_path)


def test_no_more_than_a_batch_of_a_table_is_in_memory(tmp_path):
    values = np.random.default_rng(0).random((1 << 19, 8))  # 32 MiB
    columns = {f"f{i}": values[:, i] for i in range(8)}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=1 << 17, use_dictionary=False)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        field = Field("x", tuple(columns), side_by_side=True)
        got = read_fields(TableFiles.of("t", "t.parquet", tmp_path), {"x": field}, tmp_path)
    finally:
        pa.set_memory_pool(before)
    np.testing.assert_array_equal(got["x"], values)
    assert pool.max_memory() < 16 << 20  # a batch of 2**16 rows is 4 MiB
