"""TensorFrames of PyTorch Frame are features like others: every kind of column, in process and in partitions."""

import json
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data, HeteroData

import glt
from glt.data import Schema
from glt.data.frames import split_frame
from glt.partition import Manifest, RandomPartitioner, graph_arguments, load_partition
from glt.partition.inputs.read import dataset_arguments
from glt.testing.cluster import Cluster

torch_frame = pytest.importorskip("torch_frame", reason="no PyTorch Frame here: pip install pytorch-frame")

from torch_frame import TensorFrame, stype  # noqa: E402
from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor  # noqa: E402


def frame(num_rows, with_y=False):
    """All that a TensorFrame may hold; lists of 0 to 4 numbers."""

    def lists(*sizes):
        return MultiNestedTensor.from_tensor_mat(
            [[torch.arange(i % size) + 10 * i for size in sizes] for i in range(num_rows)]
        )

    feats = {
        stype.numerical: torch.arange(2.0 * num_rows).view(num_rows, 2),
        stype.categorical: torch.arange(num_rows).view(num_rows, 1),
        stype.timestamp: torch.arange(7 * num_rows).view(num_rows, 1, 7),
        stype.multicategorical: lists(3, 4),
        stype.sequence_numerical: lists(1),
        stype.embedding: MultiEmbeddingTensor.from_tensor_list(
            [torch.arange(width * num_rows).view(num_rows, width).float() for width in (2, 3)]
        ),
        stype.text_tokenized: {"input_ids": lists(5), "mask": lists(5)},
    }
    columns = {each: [f"{each.value}{i}" for i in range(_width(feat))] for each, feat in feats.items()}
    return TensorFrame(feats, columns, torch.arange(num_rows) if with_y else None)


def _width(feat):
    return next(iter(feat.values())).size(1) if isinstance(feat, dict) else feat.size(1)


def expect_frame(got, whole, ids):
    wanted = whole[ids]
    assert got == wanted and got.col_names_dict == wanted.col_names_dict
    for each in got.feat_dict:
        parts = zip(_tensors(got.feat_dict[each]), _tensors(wanted.feat_dict[each]), strict=True)
        assert all(torch.equal(one, other) for one, other in parts)
    assert (got.y is None) == (wanted.y is None) and (got.y is None or torch.equal(got.y, wanted.y))


def _tensors(feat):
    if isinstance(feat, dict):
        return [tensor for each in feat.values() for tensor in _tensors(each)]
    return [feat] if isinstance(feat, torch.Tensor) else [feat.values, feat.offset]


def relational():
    """As RelBench makes it: nothing but frames and times tells how many nodes there are."""
    data = HeteroData()
    data["user"].tf, data["item"].tf = frame(40, with_y=True), frame(60)
    data["user"].time = torch.arange(40)
    edges = torch.stack([torch.arange(300) * 7 % 60, torch.arange(300) * 11 % 40])
    data["item", "f2p_user", "user"].edge_index = edges
    data["user", "rev_f2p_user", "item"].edge_index = edges.flip(0)
    data["item", "f2p_user", "user"].link = frame(300)
    return data


@pytest.mark.parametrize("rows", [1, 5])
def test_a_frame_that_is_taken_apart_and_put_together_is_the_same(rows):
    whole = frame(rows, with_y=True)
    split, tables = split_frame(whole, "node", 0, "tf")
    assert sorted(split.tables()) == sorted(tables) and all(len(each) == rows for each in tables.values())
    expect_frame(split.join(tables), whole, torch.arange(rows))


def test_a_schema_with_frames_survives_json():
    schema = glt.Dataset.from_pyg(relational()).schema
    assert len(schema.frames) == 3 and Schema(**json.loads(json.dumps(asdict(schema)))) == schema


@pytest.mark.parametrize("is_dataset", [False, True])
def test_batches_in_process(is_dataset):
    data = relational()
    source = glt.Dataset.from_pyg(data, time_attr="time") if is_dataset else data
    if is_dataset:
        assert source.num_nodes == {"user": 40, "item": 60}
    seeds = {"input_nodes": ("user", torch.arange(40)), "batch_size": 8}
    for batch in glt.loader.NeighborLoader(source, [3, 3], **seeds):
        for node_type in ("user", "item"):
            expect_frame(batch[node_type].tf, data[node_type].tf, batch[node_type].n_id)
            assert not any(name.startswith("tf.") for name in batch[node_type])
        edges = batch["item", "f2p_user", "user"]
        expect_frame(edges.link, data["item", "f2p_user", "user"].link, edges.e_id)


def homogeneous():
    graph = glt.testing.ring_graph(20)
    return Data(edge_index=graph.edge_index, num_nodes=20, tf=frame(20), etf=frame(graph.edge_index.shape[1]))


def test_a_homogeneous_graph():
    data = homogeneous()
    for batch in glt.loader.NeighborLoader(glt.Dataset.from_pyg(data), [2], batch_size=4):
        expect_frame(batch.tf, data.tf, batch.n_id)
        expect_frame(batch.etf, data.etf, batch.e_id)


@pytest.mark.parametrize("arguments", [graph_arguments, lambda data: dataset_arguments(glt.Dataset.from_pyg(data))])
@pytest.mark.parametrize("make", [homogeneous, relational])
def test_partitions(arguments, make, tmp_path):
    data = make()
    manifest = RandomPartitioner(tmp_path / "parts", 2, **arguments(data)).partition()
    levels = ["node", "edge"] if make is homogeneous else ["node", "node", "edge"]
    assert [each.level for each in manifest.frames] == levels
    for number in range(2):
        part = load_partition(tmp_path / "parts", number)
        assert part.schema.frames == manifest.frames
        for split in manifest.frames:
            store = (data.node_stores if split.level == "node" else data.edge_stores)[split.type_index]
            rows = (part.nodes if split.level == "node" else part.edges)[split.type_index]
            ids = np.flatnonzero(rows.book.owners() == number)
            tables = {name: torch.as_tensor(np.asarray(rows.attrs[name])) for name in split.tables()}
            expect_frame(split.join(tables), store[split.name], torch.from_numpy(ids))


def slice_of_partitions(trainer, path):
    """Lists are longer on the second rank."""
    dist.init_process_group("gloo", store=dist.FileStore(f"{path}-store", 2), rank=trainer.rank, world_size=2)
    mine = torch.arange(20) + 20 * trainer.rank
    edges = glt.testing.ring_graph(40).edge_index[:, trainer.rank :: 2]
    given = {"node_attrs": {"tf": longer()[mine]}}
    made = glt.partition.partition_distributed(RandomPartitioner, f"{path}/parts", 2, 40, edges, **given)
    dist.destroy_process_group()
    return made.frames


def longer():
    """A frame of 40 rows in the order of the lengths of one of its lists."""
    return frame(40)[torch.tensor(sorted(range(40), key=lambda i: i % 5))]


def test_slices_of_many_processes(tmp_path):
    with Cluster(2, slice_of_partitions, tmp_path) as cluster:
        frames, others = cluster.results()
    assert frames == others and [each.name for each in frames] == ["tf"]
    for number in range(2):
        nodes = load_partition(tmp_path / "parts", number).nodes[0]
        ids = np.flatnonzero(nodes.book.owners() == number)
        tables = {name: torch.as_tensor(np.asarray(nodes.attrs[name])) for name in frames[0].tables()}
        expect_frame(frames[0].join(tables), longer(), torch.from_numpy(ids))


def test_a_file_of_torch_save(tmp_path):
    data = relational()
    torch.save(data, tmp_path / "data.pt")
    read = glt.partition.read_graph(tmp_path / "data.pt", tmp_path)
    expect_frame(read["node_attrs"]["user"]["tf"], data["user"].tf, torch.arange(40))
    data["user"].tf.feat_dict.pop(stype.numerical)
    torch.save(data, tmp_path / "damaged.pt")
    with pytest.raises(ValueError, match=r"damaged.pt is damaged, or not what torch.save made"):
        glt.partition.read_graph(tmp_path / "damaged.pt", tmp_path)


def test_a_name_that_is_taken_is_refused():
    data = relational()
    data["user"]["tf.numerical"] = torch.arange(40)
    with pytest.raises(ValueError, match=r"'tf.numerical' is a name that a table of the TensorFrame 'tf' gets"):
        glt.Dataset.from_pyg(data)


def test_a_manifest_whose_frames_have_no_tables_is_refused(tmp_path):
    document = RandomPartitioner(tmp_path / "parts", 1, **graph_arguments(homogeneous())).partition().to_json()
    assert len(Manifest.from_json(document).frames) == 2
    for change in ({"type_index": 3}, {"name": "other"}, {"level": "graph"}):
        frames = [{**document["frames"][0], **change}]
        with pytest.raises(ValueError, match=r"frame .* has no table|level = 'graph'"):
            Manifest.from_json({**document, "frames": frames})


def test_without_pytorch_frame_it_says_what_to_install(monkeypatch):
    split, tables = split_frame(frame(3), "node", 0, "tf")
    monkeypatch.setitem(sys.modules, "torch_frame", None)
    with pytest.raises(ImportError, match="tf is a TensorFrame of PyTorch Frame: pip install pytorch-frame"):
        split.join(tables)
