"""Tensors without data are refused by the name of the argument, wherever they are given."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from glt.data import Dataset, Topology
from glt.loader import LinkNeighborLoader, NeighborLoader
from glt.partition import AssignedPartitioner, IdMap, PartitionerBase, RandomPartitioner, to_original_order
from glt.sampler import NeighborSampler

EDGES = torch.arange(40).reshape(2, 20) % 10
TIMED = Data(edge_index=EDGES, num_nodes=10, time=torch.arange(10))


def meta(*shape, dtype=torch.int64):
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    "name",
    [
        "edge_index", "node_feat", "edge_feat", "node_label", "edge_weight", "edge_time", "node_time", "node_attrs",
        "hotness", "balance_ntypes",
    ],
)  # fmt: skip
def test_of_partitioners(tmp_path, name):
    given = meta(2, 20) if name == "edge_index" else meta(20 if name.startswith("edge") else 10)
    given = {"a": given} if name == "node_attrs" else given
    words = "node_attrs['a']" if name == "node_attrs" else name
    with pytest.raises(ValueError) as caught:
        RandomPartitioner(tmp_path / "parts", 2, **({"num_nodes": 10, "edge_index": EDGES} | {name: given}))
    assert str(caught.value).startswith(f"{words} is a tensor [") and "on the meta device" in str(caught.value)


class Nowhere(PartitionerBase):
    def assign_nodes(self, node_type, num_nodes):
        return meta(num_nodes)


SEEDS = {"edge_label_index": EDGES[:, :4]}


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("owners", lambda root: AssignedPartitioner(root, 2, 10, EDGES, owners=meta(10))),
        ("what Nowhere.assign_nodes returned", lambda root: Nowhere(root, 2, 10, EDGES).partition()),
        ("rows", lambda _: to_original_order(meta(10, 2), torch.arange(10))),
        ("node_map", lambda _: to_original_order(torch.ones(10), meta(10))),
        ("ids", lambda _: IdMap(torch.arange(10).numpy(), torch.arange(10).numpy()).to_new(meta(3))),
        ("edge_index", lambda _: Topology(meta(2, 20), num_nodes=10)),
        ("edge_ids", lambda _: Topology(EDGES, num_nodes=10, edge_ids=meta(20))),
        ("edge_weight", lambda _: Topology(EDGES, num_nodes=10, edge_weight=meta(20))),
        ("edge_index", lambda _: Dataset().init_graph(meta(2, 20))),
        ("node_features", lambda _: Dataset.from_arrays(EDGES, 10).init_node_features(meta(10, 3))),
        ("input_nodes", lambda _: NeighborLoader(TIMED, [2], input_nodes=meta(4))),
        ("x of data", lambda _: NeighborLoader(Data(edge_index=EDGES, x=meta(10, 3), num_nodes=10), [2])),
        ("input_nodes", lambda _: NeighborLoader(TIMED, [2], input_nodes=meta(10, dtype=torch.bool))),
        (
            "input_time",
            lambda _: NeighborLoader(TIMED, [2], input_nodes=torch.arange(4), input_time=meta(4), time_attr="time"),
        ),
        ("edge_label_index", lambda _: LinkNeighborLoader(TIMED, [2], edge_label_index=meta(2, 4))),
        ("edge_label", lambda _: LinkNeighborLoader(TIMED, [2], **SEEDS, edge_label=meta(4))),
        (
            "src_weight of neg_sampling",
            lambda _: LinkNeighborLoader(
                TIMED, [2], **SEEDS, neg_sampling=NegativeSampling("binary", 1.0, src_weight=meta(10))
            ),
        ),
        ("seeds", lambda _: NeighborSampler(TIMED, [2]).sample_prob(meta(4), 10)),
    ],
)
def test_of_everything_else(tmp_path, name, make):
    with pytest.raises(ValueError) as caught:
        make(tmp_path / "parts")
    assert str(caught.value).startswith(f"{name} is a tensor [") and "on the meta device" in str(caught.value)
