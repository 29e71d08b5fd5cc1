"""Cases of distributed loaders on awkward graphs: without edges, without tables, with more partitions than nodes."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

import glt
from glt.partition import RandomPartitioner

NODES, LINKS = "NeighborLoader", "LinkNeighborLoader"
BATCH_SIZE = 4
NO_EDGES = torch.empty(2, 0, dtype=torch.int64)


def dense(times=None, weights=False):
    """30 nodes and 200 edges, some parallel; a fifth of the weights are 0."""
    generator = torch.Generator().manual_seed(4)
    data = Data(num_nodes=30, edge_index=torch.randint(0, 28, (2, 200), generator=generator))  # two nodes have none
    data.x = torch.arange(60.0).view(30, 2)
    data.y = torch.arange(30) % 3
    data.edge_attr = torch.arange(200) * 2
    if times == "node":
        data.time = torch.randint(0, 20, (30,), generator=generator)
    if times == "edge":
        data.edge_time = torch.randint(0, 20, (200,), generator=generator)
    if weights:
        data.weight = torch.rand(200, generator=generator) + 0.1
        data.weight[::5] = 0
    return data


GRAPHS = {
    "dense": dense,
    "weights": lambda: dense(weights=True),
    "node times": lambda: dense("node"),
    "edge times": lambda: dense("edge"),
    "no edges": lambda: Data(num_nodes=9, edge_index=NO_EDGES, x=torch.arange(9)),
    "no tables": lambda: Data(num_nodes=30, edge_index=dense().edge_index),
    "one node": lambda: Data(num_nodes=1, edge_index=torch.zeros(2, 3, dtype=torch.int64), edge_attr=torch.arange(3)),
}


def write(data, path):
    """Two partitions."""
    times = {name: data.get(name.removeprefix("node_")) for name in ("node_time", "edge_time")}
    given = {"node_label": data.get("y"), "edge_weight": data.get("weight"), "edge_assign_strategy": "by_dst", **times}
    of_nodes = data.num_nodes, data.edge_index, data.get("x"), data.get("edge_attr")
    RandomPartitioner(path, 2, *of_nodes, **given).partition()


@dataclass(frozen=True)
class Case:
    """One of the graphs, a loader and its arguments."""

    graph: str
    loader: dict[str, Any] = field(default_factory=dict)
    kind: str = NODES
    fan_out: tuple[int, ...] = (3, 2)

    def __str__(self):
        return f"{self.graph}, {self.kind.lower()}, {', '.join(map(str, self.loader.values()))}"

    def seeds(self):
        """With duplicates; of links also pairs that are no edges."""
        data = GRAPHS[self.graph]()
        if self.kind == NODES:
            return torch.tensor([0, 0, 0]) if data.num_nodes == 1 else torch.tensor([7, 1, 7, 3, 8, 8, 0])
        return torch.cat([data.edge_index[:, 30:34], torch.tensor([[7, 1, 7], [8, 2, 8]])], dim=1)

    def arguments(self):
        name = "input_nodes" if self.kind == NODES else "edge_label_index"
        given = {name: self.seeds(), "num_neighbors": list(self.fan_out), "batch_size": BATCH_SIZE, "random_seed": 3}
        return given | self.loader


TIMES = torch.tensor([9, 4, 19, 0, 7, 12, 3])
CASES = [
    Case("dense"),
    Case("dense", {"replace": True}),
    Case("dense", {"disjoint": True}),
    Case("dense", {"subgraph_type": "induced"}),
    Case("dense", {"subgraph_type": "bidirectional"}),
    Case("dense", {"drop_last": True}, fan_out=(-1,)),
    Case("dense", fan_out=()),
    Case("weights", {"weight_attr": "weight"}),
    Case("weights", {"weight_attr": "weight", "replace": True}),
    Case("node times", {"time_attr": "time"}),
    Case("node times", {"time_attr": "time", "input_time": TIMES, "temporal_strategy": "last"}),
    Case("edge times", {"time_attr": "edge_time", "input_time": TIMES}),
    Case("no edges"),
    Case("no tables"),
    Case("one node"),
    Case("dense", {}, LINKS),
    Case("dense", {"neg_sampling": "binary"}, LINKS),
    Case("dense", {"neg_sampling": {"mode": "binary", "amount": 0.5}, "edge_label": torch.arange(7) % 3}, LINKS),
    Case("dense", {"neg_sampling": {"mode": "triplet", "amount": 2}, "disjoint": True}, LINKS),
    Case("dense", {"neg_sampling": "triplet"}, LINKS),
    Case("node times", {"neg_sampling": "binary", "time_attr": "time", "edge_label_time": TIMES + 10}, LINKS),
    Case("edge times", {"time_attr": "edge_time", "edge_label_time": TIMES}, LINKS),
    Case("no tables", {"subgraph_type": "bidirectional"}, LINKS),
]


def epoch(loader):
    """All batches, in memory of their own."""
    return [
        {name: value.clone() if isinstance(value, Tensor) else value for name, value in batch.to_dict().items()}
        for batch in loader
    ]


NOT_COLLECTED = {"weight", "edge_time"}  # partitions sample by them, and batches do not have them


def assert_kept(case, batches, *others):
    """Checks an epoch of a case against the graph, and that it is the local one, whose tests hold it to PyG's contract;
    and those of others, who had the same seeds."""
    data, seeds = GRAPHS[case.graph](), case.seeds()
    local = epoch(getattr(glt.loader, case.kind)(data, **case.arguments()))
    num_seeds = seeds.shape[-1]
    assert len(batches) == (num_seeds // BATCH_SIZE if case.loader.get("drop_last") else -(-num_seeds // BATCH_SIZE))
    for i, (batch, wanted, *same) in enumerate(zip(batches, local, *others, strict=True)):
        where = str(case), i
        assert batch.keys() | {"num_nodes"} == wanted.keys() - NOT_COLLECTED | {"num_nodes"}, where
        assert all(batch.keys() == its.keys() for its in same), where
        for name, value in batch.items():
            for its in (wanted, *same):
                equal = torch.equal(value, its[name]) if isinstance(value, Tensor) else value == its[name]
                assert equal, (*where, name, value, its[name])
        n_id, e_id = batch["n_id"], batch["e_id"]
        assert torch.equal(batch["input_id"], torch.arange(num_seeds)[i * BATCH_SIZE :][:BATCH_SIZE]), where
        if case.kind == NODES:
            assert torch.equal(n_id[: batch["batch_size"]], seeds[batch["input_id"]]), where
        if case.loader.get("subgraph_type") != "bidirectional":  # whose edges have the id of one that they reverse
            assert torch.equal(n_id[batch["edge_index"]], data.edge_index[:, e_id]), where
        for name, ids in {"x": n_id, "y": n_id, "time": n_id, "edge_attr": e_id}.items():
            assert name not in batch or torch.equal(batch[name], data[name][ids]), (*where, name)
