"""Results are written under the users' own keys, from every rank, whole or not at all."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.nn import GraphSAGE

import glt
from glt.data import KeyMap
from glt.partition import RandomPartitioner


@pytest.fixture
def keys(tmp_path):
    return KeyMap.write(
        tmp_path / "keys", {"bank": "text", "account": "int"}, lambda: iter([[["x", "y", "x"], [1, 2, 3]]])
    )


def test_each_rank_writes_its_rows(tmp_path, keys):
    scores, vectors = torch.tensor([0.5, 0.25]), torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16)
    values = {"score": scores, "vector": vectors, "ok": np.array([True, False])}
    path = glt.tables.write(values, tmp_path / "out", ids=[2, 0], keys=keys, rank=0, num_ranks=2)
    glt.tables.write(
        {name: each[:0] for name, each in values.items()}, tmp_path / "out", keys=keys, rank=1, num_ranks=2
    )
    assert path == str(tmp_path / "out/part-00000-of-00002.parquet")
    assert pq.read_table(tmp_path / "out").to_pylist() == [
        {"bank": "x", "account": 3, "score": 0.5, "vector": [1, 2], "ok": True},
        {"bank": "x", "account": 1, "score": 0.25, "vector": [3, 4], "ok": False},
    ]
    assert not list((tmp_path / "out").glob("*.new"))


def test_without_keys_rows_have_ids(tmp_path):
    glt.tables.write(np.arange(200_000), tmp_path / "out")
    table = pq.read_table(tmp_path / "out")
    assert table.column_names == ["id", "value"] and table["id"].to_pylist() == table["value"].to_pylist()


def test_what_is_there_is_replaced_when_asked(tmp_path):
    for rank in range(3):
        glt.tables.write([rank], tmp_path / "out", rank=rank, num_ranks=3)
    for rank, count in ((0, 3), (0, 1)):
        with pytest.raises(FileExistsError, match=r"of-00003.parquet already.*overwrite=True"):
            glt.tables.write([7], tmp_path / "out", rank=rank, num_ranks=count)
    glt.tables.write([7], tmp_path / "out", rank=0, num_ranks=1, overwrite=True)
    assert pq.read_table(tmp_path / "out")["value"].to_pylist() == [7]


@pytest.mark.parametrize(
    ("values", "given", "words"),
    [
        (torch.zeros(2, 0), {}, r"value has shape \[2, 0\]: expected at least one number in each row"),
        ({"a": np.array(["x", 1, None], object)}, {}, "a is an array of objects .*of type int, str: expected numbers"),
        ({"a": [1, 2], "b": [1]}, {}, "different numbers of rows"),
        ({}, {}, "values is empty"),
        ([1, 2], {"ids": [1]}, "expected 2 integers"),
        ([1], {"ids": [0.5]}, "float64"),
        (torch.zeros(1, 2, 3), {}, "expected numbers"),
        ([1], {"rank": 0}, "expected both"),
        ([1], {"rank": 2, "num_ranks": 2}, "rank < num_ranks"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, values, given, words):
    with pytest.raises((TypeError, ValueError), match=words):
        glt.tables.write(values, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_an_id_that_there_is_not_leaves_nothing(tmp_path, keys):
    with pytest.raises(IndexError, match="ids has 9"):
        glt.tables.write([1, 2], tmp_path / "out", ids=[0, 9], keys=keys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("relabel", [False, True])
def test_a_model_over_all_nodes(tmp_path, relabel):
    graph = glt.testing.ring_graph()
    raw = [f"n{i * 7 % 40:02d}" for i in range(40)]
    keys = KeyMap.write(tmp_path / "keys", {"name": "text"}, lambda: iter([[raw]]))
    given = {"node_feat": graph.x, "node_keys": keys, "relabel": relabel}
    RandomPartitioner(tmp_path / "parts", 2, 40, graph.edge_index, **given).partition()
    model = GraphSAGE(in_channels=4, hidden_channels=8, num_layers=2, out_channels=3)
    glt.distributed.initialize(part_config=tmp_path / "parts")
    try:
        rows = glt.distributed.infer_layerwise(model, out=tmp_path / "out")[:]
        assert glt.distributed.node_keys()["node"].lookup(raw[:2]).shape == (2,)
    finally:
        glt.distributed.finalize()
    table = pq.read_table(tmp_path / "out")
    found = dict(zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True))
    np.testing.assert_allclose([found[name] for name in raw], rows.numpy(), rtol=1e-6)


def test_what_killed_ranks_left_is_removed_and_stops_nobody(tmp_path):
    glt.tables.write([1], tmp_path / "out", rank=2, num_ranks=3)
    for rank in range(3):
        (tmp_path / "out" / f"part-0000{rank}-of-00003.parquet.new").write_text("half")
    left = tmp_path / "out" / "part-00000-of-00002.parquet.new"  # of yet another number of ranks: rank 0 removes it
    left.write_text("half")
    glt.tables.write([1], tmp_path / "out", rank=1, num_ranks=3)
    assert left.exists()
    glt.tables.write([0], tmp_path / "out", rank=0, num_ranks=3)
    assert not left.exists() and not (tmp_path / "out" / "part-00000-of-00003.parquet.new").exists()
    glt.tables.write([7], tmp_path / "out", rank=0, num_ranks=1, overwrite=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["part-00000-of-00001.parquet"]


def test_what_is_there_stays_until_what_is_new_is_whole(tmp_path, keys):
    for rank in range(2):
        glt.tables.write([rank], tmp_path / "out", rank=rank, num_ranks=2)
    with pytest.raises(IndexError, match="ids has 9"):
        glt.tables.write([1, 2], tmp_path / "out", ids=[0, 9], keys=keys, overwrite=True)
    long = np.zeros(1 << 17)
    with pytest.raises(IndexError, match="ids has 9"):  # after the first rows are written
        glt.tables.write(long, tmp_path / "out", ids=np.r_[long[1:].astype(int), 9], keys=keys, overwrite=True)
    assert pq.read_table(tmp_path / "out")["value"].to_pylist() == [0, 1]
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_texts_are_texts_wherever_there_are_some(tmp_path):
    texts = np.empty(1 << 17, object)
    texts[-1] = "x"
    glt.tables.write(texts, tmp_path / "out", rank=0, num_ranks=2)
    glt.tables.write(np.empty(2, object), tmp_path / "out", rank=1, num_ranks=2)
    assert pq.read_table(tmp_path / "out")["value"].null_count == (1 << 17) + 1
    glt.tables.write(np.array([1, 2], ">i4"), tmp_path / "swapped")
    assert pq.read_table(tmp_path / "swapped")["value"].to_pylist() == [1, 2]
    for values, words in ({1: [2]}, "column 1: expected texts"), (np.zeros(1, np.longdouble), "at most 64 bits"):
        with pytest.raises(TypeError, match=words):
            glt.tables.write(values, tmp_path / "none")
    with pytest.raises(TypeError, match=r"torch.sparse_coo: expected a dense one"):
        glt.tables.write(torch.eye(3).to_sparse(), tmp_path / "none")
