"""PyG's contract of a batch, checked without a second implementation to compare with.

Batches are held against the graph itself, and the graphs are the awkward ones: without edges, without tables, with more
partitions than nodes.
"""

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


def assert_kept(case, batches, *others):
    """Checks an epoch of a case, and that it is the local one; and those of others, who had the same seeds."""
    local = epoch(getattr(glt.loader, case.kind)(GRAPHS[case.graph](), **case.arguments()))
    num_seeds = case.seeds().shape[-1]
    assert len(batches) == (num_seeds // BATCH_SIZE if case.loader.get("drop_last") else -(-num_seeds // BATCH_SIZE))
    for i, (batch, wanted, *same) in enumerate(zip(batches, local, *others, strict=True)):
        assert batch.keys() <= wanted.keys() | {"num_nodes"}, (str(case), i)
        assert all(batch.keys() == its.keys() for its in same), (str(case), i)
        for name, value in batch.items():
            for its in (wanted, *same):
                equal = torch.equal(value, its[name]) if isinstance(value, Tensor) else value == its[name]
                assert equal, (str(case), i, name, value, its[name])
        check(batch, case, torch.arange(num_seeds)[i * BATCH_SIZE :][:BATCH_SIZE])


def check(batch, case, input_id):
    """Holds a batch around the seeds ``input_id`` against the graph."""
    data, loader, where = GRAPHS[case.graph](), case.loader, str(case)
    n_id, (row, col), e_id = batch["n_id"], batch["edge_index"], batch["e_id"]
    shape = loader.get("subgraph_type", "directional")
    disjoint = bool(loader.get("disjoint") or loader.get("time_attr"))
    assert batch.keys() == expected_names(case, data), where
    assert torch.equal(batch["input_id"], input_id), where

    ends = n_id[batch["edge_index"]]
    if shape == "bidirectional":
        pairs = set(map(tuple, batch["edge_index"].T.tolist()))
        assert {(b, a) for a, b in pairs} == pairs and len(pairs) == len(row), where
        assert torch.equal(torch.stack([col, row]).T.unique(dim=0).T, torch.stack([col, row])), where
        known = (ends == data.edge_index[:, e_id]).all(0) | (ends.flip(0) == data.edge_index[:, e_id]).all(0)
        assert known.all(), where
    else:
        assert torch.equal(ends, data.edge_index[:, e_id]), where
    if shape == "directional":
        assert (col.diff() >= 0).all(), where
        nodes, edges = batch["num_sampled_nodes"], batch["num_sampled_edges"]
        assert [type(c) for c in nodes + edges] == [int] * (2 * len(case.fan_out) + 1), where
        assert sum(nodes) == len(n_id) and sum(edges) == len(row) and len(nodes) == len(case.fan_out) + 1, where
        check_fan_out(batch, case, data, input_id)
    if shape == "induced":
        inside = torch.isin(data.edge_index, n_id).all(0).nonzero().view(-1)
        rows = torch.bincount(n_id, minlength=data.num_nodes)[data.edge_index[1, inside]]  # of a seed given twice, two
        assert torch.equal(e_id.sort().values, inside.repeat_interleave(rows)), where

    tables = {"x": n_id, "y": n_id, "time": n_id, "edge_attr": e_id}
    for name in tables.keys() & batch.keys():
        assert torch.equal(batch[name], data[name][tables[name]]), (where, name)
    if disjoint:
        assert torch.equal(batch["batch"][row], batch["batch"][col]), where
        assert len(set(zip(batch["batch"].tolist(), n_id.tolist(), strict=True))) == len(n_id) or case.kind == LINKS
    if case.kind == LINKS:
        check_links(batch, case, data, input_id, disjoint)
    else:
        seeds = case.seeds()[input_id]
        assert batch["batch_size"] == len(seeds) and torch.equal(n_id[: len(seeds)], seeds), where
        if disjoint:
            assert torch.equal(batch["batch"][: len(seeds)], torch.arange(len(seeds))), where


def expected_names(case, data):
    """What a batch has, and nothing besides."""
    names = {"n_id", "e_id", "edge_index", "input_id", "num_nodes"}
    names |= {"x", "y", "time", "edge_attr"} & set(data.keys())
    shape, drawn = case.loader.get("subgraph_type", "directional"), case.loader.get("neg_sampling")
    triplet = drawn == "triplet" or (isinstance(drawn, dict) and drawn["mode"] == "triplet")
    if shape == "directional":
        names |= {"num_sampled_nodes", "num_sampled_edges"}
    if case.loader.get("disjoint") or case.loader.get("time_attr"):
        names.add("batch")
    if case.kind == NODES:
        return names | {"batch_size"} | ({"seed_time"} if "input_time" in case.loader else set())
    if triplet:
        return names | {"src_index", "dst_pos_index", "dst_neg_index"}
    names |= {"edge_label"} if drawn is not None or "edge_label" in case.loader else set()
    return names | {"edge_label_index"} | ({"edge_label_time"} if "edge_label_time" in case.loader else set())


def check_fan_out(batch, case, data, input_id):
    """Each node is expanded once: to as many edges as there are to be had, and to the right ones."""
    loader, where = case.loader, str(case)
    time, until = times(batch, case, data, input_id)
    weight = data.weight if "weight_attr" in loader else torch.ones(data.num_edges)
    asked = torch.repeat_interleave(torch.tensor([*case.fan_out, 0]), torch.tensor(batch["num_sampled_nodes"]))
    for at, (node, k) in enumerate(zip(batch["n_id"], asked.tolist(), strict=True)):
        known = ((data.edge_index[1] == node) & (time <= until[at])).nonzero().view(-1)
        taken = batch["e_id"][batch["edge_index"][1] == at]
        assert torch.isin(taken, known).all(), f"{where}: of another node, or later than the seed"
        k = len(known) if k < 0 else k
        if loader.get("replace"):
            assert len(taken) == (k if len(known) else 0), where
        else:
            assert len(taken) == min(k, len(known)) == len(taken.unique()), where
        left = known[~torch.isin(known, taken)]
        if (weight[taken] == 0).any():
            positive = weight[known] > 0
            assert not (positive.any() if loader.get("replace") else (weight[left] > 0).any()), f"{where}: weight 0"
        if loader.get("temporal_strategy") == "last" and len(taken) and len(left):
            assert time[taken].min() >= time[left].max(), f"{where}: not the last edges"


def times(batch, case, data, input_id):
    """The time of each edge of the graph, and the time until which each node of the batch may look."""
    attr, n_id = case.loader.get("time_attr"), batch["n_id"]
    if attr is None:
        return torch.zeros(data.num_edges), torch.zeros(len(n_id))
    given = case.loader.get("input_time", case.loader.get("edge_label_time"))
    until = data.time[case.seeds()[input_id]] if given is None else given[input_id]
    if "input_time" in case.loader:
        assert torch.equal(batch["seed_time"], until)
    return data.time[data.edge_index[0]] if attr == "time" else data.edge_time, until[batch["batch"]]


def check_links(batch, case, data, input_id, disjoint):
    n_id, wanted, where = batch["n_id"], case.seeds()[:, input_id], str(case)
    num_positives = len(input_id)
    edges = set(map(tuple, data.edge_index.T.tolist()))
    if "src_index" in batch:
        assert torch.equal(n_id[torch.stack([batch["src_index"], batch["dst_pos_index"]])], wanted), where
        negatives = batch["dst_neg_index"].view(num_positives, -1)
        assert negatives.shape[1] == (2 if disjoint else 1) and batch["dst_neg_index"].dim() == negatives.shape[1], (
            where
        )
        drawn = [(int(s), int(d)) for s, ds in zip(wanted[0], n_id[negatives], strict=True) for d in ds]
        assert not edges & set(drawn), where
        if disjoint:
            src, pos = batch["src_index"], batch["dst_pos_index"]
            assert torch.equal(src, torch.arange(num_positives)) and torch.equal(pos, src + num_positives), where
            assert (batch["batch"][negatives] == torch.arange(num_positives).view(-1, 1)).all(), where
        return
    assert torch.equal(n_id[batch["edge_label_index"][:, :num_positives]], wanted), where
    negatives = n_id[batch["edge_label_index"][:, num_positives:]]
    spec = case.loader.get("neg_sampling")
    amount = spec["amount"] if isinstance(spec, dict) else int(spec is not None)
    assert negatives.shape[1] == -int(-num_positives * amount // 1), where
    assert not edges & set(map(tuple, negatives.T.tolist())), where
    if "time" in data:
        _, until = times(batch, case, data, input_id)
        assert (data.time[negatives] <= until[batch["edge_label_index"][:, num_positives:]]).all(), where
    if "edge_label" in batch:
        label = batch["edge_label"]
        given = case.loader.get("edge_label")
        positives = torch.ones(num_positives) if given is None else given[input_id] + 1  # from 0 on: one up
        assert torch.equal(label[:num_positives], positives) and (label[num_positives:] == 0).all(), where
        assert len(label) == num_positives + negatives.shape[1], where
    if not disjoint:
        seeds = batch["n_id"][: len(batch["edge_label_index"].unique())]
        assert torch.equal(seeds, seeds.unique()), f"{where}: seed nodes come first, each once, ascending"
