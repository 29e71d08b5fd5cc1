"""A heterogeneous graph with everything awkward in it, and the batches that the whole of it gives in this process."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dist_world import EVERYTHING
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

import glt
from glt import _core
from glt.data import Topology
from glt.data.schema import Schema, reverse_edge_type
from glt.distributed.engine.seeds import BatchStart
from glt.partition import RandomPartitioner
from glt.sampler.link import exclusions, link_batch
from glt.sampler.negatives import Endpoint, LocalCheck, earliest_node, negative_rounds, run_rounds

NUM_NODES = {"user": 90, "item": 60, "tag": 7, "ghost": 0}
RATES, RATED, FOLLOWS = ("user", "rates", "item"), ("item", "rev_rates", "user"), ("user", "follows", "user")
SCHEMA = Schema(
    tuple(NUM_NODES), (RATES, RATED, FOLLOWS, ("tag", "on", "item"), ("item", "in", "tag"), ("ghost", "sees", "user"))
)
SEED = 91
TABLES = ("node_feat", "node_label", "node_time", "edge_feat", "edge_weight", "edge_time")


@dataclass(frozen=True)
class TypedWorld:
    """A partition directory and its arrays: ``rev_rates`` reverses ``rates``, tags are empty, ghosts are none."""

    path: Path
    num_parts: int
    edge_dir: str
    time_level: str
    edge_index: dict[Any, Tensor]
    node_feat: dict[Any, Tensor]
    node_label: dict[Any, Tensor]
    edge_feat: dict[Any, Tensor]
    edge_weight: dict[Any, Tensor]
    edge_time: dict[Any, Tensor]
    node_time: dict[Any, Tensor]

    def to_data(self):
        """The same for the local loaders: along out-edges they need :meth:`to_dataset`."""
        data = HeteroData()
        for node_type, num_nodes in NUM_NODES.items():
            data[node_type].num_nodes = num_nodes
            for name, table in (("x", self.node_feat), ("y", self.node_label), ("time", self.node_time)):
                if node_type in table:
                    data[node_type][name] = table[node_type]
        for edge_type, ends in self.edge_index.items():
            data[edge_type].edge_index = ends
            tables = {"edge_attr": self.edge_feat, "weight": self.edge_weight, "time": self.edge_time}
            for name, table in tables.items():
                if edge_type in table:
                    data[edge_type][name] = table[edge_type]
        return data

    def topologies(self, weighted=False):
        """The whole graph, by edge type."""
        found = []
        for edge_type, (_, neighbor) in zip(SCHEMA.edge_types, SCHEMA.ends(self.edge_dir), strict=True):
            ends = self.edge_index[edge_type]
            time = self.edge_time.get(edge_type)
            at_node = self.node_time.get(SCHEMA.node_types[neighbor])
            if at_node is not None:
                time = at_node[ends[0 if self.edge_dir == "in" else 1]]
            size = NUM_NODES[edge_type[0]], NUM_NODES[edge_type[2]]
            weight = self.edge_weight.get(edge_type) if weighted else None
            layout = "CSC" if self.edge_dir == "in" else "CSR"
            found.append(Topology(ends, size, layout=layout, edge_weight=weight, edge_time=time))
        return found


def edges_of(seed):
    rng = np.random.default_rng(seed)

    def edges(source, target, num_edges):
        # Squares make hubs; the last nodes of each type have no edges.
        ends = [(0.9 * NUM_NODES[t] * rng.random(num_edges) ** 2).astype(np.int64) for t in (source, target)]
        return torch.from_numpy(np.stack(ends))

    rates, none = edges("user", "item", 700), torch.empty(2, 0, dtype=torch.int64)
    found = {RATES: rates, RATED: rates.flip(0), FOLLOWS: edges("user", "user", 400)}
    found["tag", "on", "item"] = edges("tag", "item", 80)
    return found | {("item", "in", "tag"): none, ("ghost", "sees", "user"): none}


def write_typed_world(root, num_parts, edge_dir="in", time_level="edge", **given):
    rng = np.random.default_rng(6)
    edge_index = edges_of(5)
    weight = torch.from_numpy(rng.random(700))
    weight[::7] = 0
    x = torch.arange(90.0).view(-1, 1).repeat(1, 3)
    time = torch.from_numpy(rng.integers(0, 50, 700))
    of_edges = {RATES: time, RATED: time, FOLLOWS: torch.from_numpy(rng.integers(0, 50, 400))}
    of_nodes = {"user": torch.from_numpy(rng.integers(0, 50, 90)), "item": torch.from_numpy(rng.integers(0, 50, 60))}
    world = TypedWorld(
        *(root / "parts", num_parts, edge_dir, time_level, edge_index),
        node_feat=given.pop("node_feat", {"user": x, "item": torch.arange(60).view(-1, 1).bfloat16()}),
        node_label={"item": torch.arange(120).view(60, 2), "tag": torch.arange(7)},
        edge_feat={RATES: torch.arange(700.0), FOLLOWS: torch.arange(800).view(400, 2)},
        edge_weight={RATES: weight, FOLLOWS: torch.from_numpy(rng.random(400).astype(np.float32))},
        edge_time=of_edges if time_level == "edge" else {},
        node_time=of_nodes if time_level == "node" else {},
    )
    given |= {name: getattr(world, name) or None for name in TABLES}
    strategy = "by_dst" if edge_dir == "in" else "by_src"
    RandomPartitioner(world.path, num_parts, NUM_NODES, edge_index, edge_assign_strategy=strategy, **given).partition()
    return world


def snapshot(batch):
    """All of a batch, in memory of its own, by ``type/attribute``."""
    found = {}
    for store in batch.stores:
        for name, value in store.items():
            found[f"{store._key}/{name}"] = value.clone() if isinstance(value, Tensor) else value
    return found


@dataclass(frozen=True)
class Case:
    """A loader and its options. Seeds are of a node type, or for links of an edge type; ``times``: each has a time."""

    name: str
    num_neighbors: Any = (4, 3)
    seed_type: Any = "item"
    loader: dict[str, Any] = field(default_factory=dict)
    times: bool = False
    kind: str = "DistNeighborLoader"
    load = {}  # noqa: RUF012  of no case
    snapshot = staticmethod(snapshot)

    @property
    def is_link(self):
        return self.kind == "DistLinkNeighborLoader"

    def seeds(self, rank):
        """Uneven between ranks, with duplicates."""
        if self.is_link:
            ends = torch.stack([torch.arange(rank, 40 + rank, 2) % NUM_NODES[self.seed_type[e]] for e in (0, 2)])
            known = edges_of(5)[self.seed_type][:, rank::97]
            return torch.cat([known, ends, known[:, :2]], dim=1)
        ids = torch.arange(rank, NUM_NODES[self.seed_type], 3)[: 14 + 3 * rank]
        return torch.cat([ids, ids[:3], ids[1:2]])

    def given_times(self, rank):
        return (torch.arange(self.seeds(rank).shape[-1]) * 7 + 11) % 50 if self.times else None

    def arguments(self, rank):
        """What the loader is called with, apart from the data and where it samples."""
        seeds, times = self.seeds(rank), self.given_times(rank)
        name, late = ("edge_label_index", "edge_label_time") if self.is_link else ("input_nodes", "input_time")
        given = {"num_neighbors": self.num_neighbors, name: (self.seed_type, seeds), "batch_size": 5}
        return given | {"random_seed": SEED + rank} | ({} if times is None else {late: times}) | self.loader

    def reference(self, world, rank):
        """Two epochs of batches, sampled from the whole graph by the native core."""
        flags = self.loader
        temporal = flags.get("time_attr") is not None
        disjoint = flags.get("disjoint", False) or temporal
        times = {name: flags[name] for name in ("time_bound", "time_window", "half_life") if name in flags}
        times["temporal"] = flags.get("temporal_strategy", "uniform") if temporal else None
        times |= {name: flags[name] for name in ("sampler", "batch_dependency", "replace") if name in flags}
        config = glt.sampler.SamplingConfig.checked(self.num_neighbors, SCHEMA, **times)
        graphs = world.topologies(flags.get("weight_attr") is not None)
        csrs = [g.csr_by_time if temporal and g.by_time is not None else g.csr for g in graphs]
        seeds, times = self.seeds(rank), self.given_times(rank)
        kept = flags.get("shuffle", False), flags.get("drop_last", False)
        order = glt.sampler.SeedOrder(seeds.shape[-1], 5, *kept, SEED + rank)
        batch = _core.Batch(list(NUM_NODES.values()), SCHEMA.ends(world.edge_dir))
        batches = []
        for index in (index for epoch in range(2) for index in order.batches(epoch)):
            late = None if times is None else times[index.input_id]
            begin = start_links if self.is_link else start_nodes
            start = begin(world, self, seeds[..., index.input_id], late, index.input_id, index.key)
            time = None if start.seed_time is None else config.latest(start.seed_time.numpy())
            batch.start([(t, nodes.numpy()) for t, nodes in start.seeds], True, disjoint, time)
            excluded = [
                _core.Exclusions(*(side.numpy() for side in start.exclusions[r])) if r in start.exclusions else None
                for r in range(len(SCHEMA.edge_types))
            ]
            how = {"replace": config.replace, "last": config.last, **config.native_times}
            how |= config.numbers(index.key, index.shared_key(config.batch_dependency))
            batch.sample(csrs, config.num_neighbors, batch_key=index.key, exclusions=excluded, **how)
            if self.kind == "DistSubGraphLoader" or flags.get("subgraph_type") == "induced":
                batch.induce(csrs)
            found = read(world, batch, flags, disjoint)
            if start.example is not None:
                found |= {name: start.example[tree] for name, tree in found.items() if name.endswith("/batch")}
            batches.append(found | start.known)
        return batches


def start_nodes(world, case, nodes, late, input_id, key):
    store = f"{case.seed_type}/"
    known = {f"{store}input_id": input_id, f"{store}batch_size": len(nodes)}
    if late is not None:
        known[f"{store}seed_time"] = late
    elif case.loader.get("time_attr") is not None:
        late = world.node_time[case.seed_type][nodes]
    if case.kind == "DistSubGraphLoader":
        known[f"{store}mapping"] = torch.arange(len(nodes))
    return BatchStart([(SCHEMA.node_index(case.seed_type), nodes)], late, known=known)


def start_links(world, case, edges, late, input_id, key):
    flags = case.loader
    temporal = flags.get("time_attr") is not None
    source, _, target = case.seed_type
    ends = SCHEMA.node_index(source), SCHEMA.node_index(target)
    drawn = NegativeSampling.cast(flags.get("neg_sampling"))
    index = EdgeSamplerInput(input_id, edges[0], edges[1], None, late, case.seed_type)
    negatives = None
    if drawn is not None:
        time = [world.node_time.get(t) if temporal else None for t in (source, target)]
        drawn_from = [
            Endpoint.of(side, NUM_NODES[t], drawn, earliest_node(of))
            for side, t, of in zip(("src", "dst"), (source, target), time, strict=True)
        ]
        csr = world.topologies()[SCHEMA.edge_index(case.seed_type)].csr
        at = None if late is None else late.numpy() - (flags.get("time_bound") == "<")
        rounds = negative_rounds(key, drawn, *drawn_from, edges[0].numpy(), at)
        run_rounds(rounds, LocalCheck(csr, world.edge_dir, *(None if of is None else of.numpy() for of in time)))
        negatives = None if drawn.is_triplet() else torch.from_numpy(rounds.src), torch.from_numpy(rounds.dst)
    disjoint = flags.get("disjoint", False) or temporal
    made = link_batch(index, ends, disjoint, drawn, negatives)
    r = SCHEMA.edge_index(case.seed_type)
    excluded = exclusions(index, r, SCHEMA, world.edge_dir, flags.get("exclude_edges"))
    known = {f"{case.seed_type}/input_id": input_id}
    places = {"src_index": [source], "seed_time": [source, target]}
    places |= {name: [target] for name in ("dst_pos_index", "dst_neg_index")}
    for name, value in made.links.items():
        known |= {f"{store}/{name}": value for store in places.get(name, [case.seed_type])}
    return BatchStart(made.seeds, made.seed_time, made.example, excluded, known)


def read(world, batch, flags, disjoint):
    """What a batch holds, all but its seeds."""
    found = {}
    collect = flags.get("collect_features", False)
    for t, node_type in enumerate(SCHEMA.node_types):
        node = torch.from_numpy(batch.nodes(t))
        found |= {f"{node_type}/n_id": node, f"{node_type}/num_nodes": len(node)}
        if batch.num_sampled_edges(0):
            found[f"{node_type}/num_sampled_nodes"] = batch.num_sampled_nodes(t)
        if disjoint:
            found[f"{node_type}/batch"] = torch.from_numpy(batch.trees(t).astype(np.int64))
        tables = {"x": world.node_feat, "y": world.node_label, "time": world.node_time}
        found |= {
            f"{node_type}/{n}": table[node_type][node] for n, table in tables.items() if collect and node_type in table
        }
    for r, edge_type in enumerate(SCHEMA.edge_types):
        ends = np.empty((2, batch.num_edges(r)), np.int64)
        batch.copy_edges(r, ends[0], ends[1])
        edge = torch.from_numpy(batch.edges(r))
        store = edge_type if world.edge_dir == "in" else reverse_edge_type(edge_type)
        found[f"{store}/edge_index"] = torch.from_numpy(ends)
        if batch.num_sampled_edges(r):
            found[f"{store}/num_sampled_edges"] = batch.num_sampled_edges(r)
        if flags.get("with_edge", False):
            found[f"{store}/e_id"] = edge
        if collect and edge_type in world.edge_feat:
            found[f"{store}/edge_attr"] = world.edge_feat[edge_type][edge]
    return found


FAN_OUT = {edge_type: [2, 2] for edge_type in SCHEMA.edge_types} | {RATES: [3, -1], RATED: [4, 0], FOLLOWS: [0, 3]}
CASES = [
    Case("features and edges", loader=EVERYTHING),
    Case("counts per edge type", FAN_OUT, "user", {"with_edge": True, "drop_last": True}),
    Case("replace", [3, 3, 2], "user", {"replace": True, "collect_features": True}),
    Case("seeds without edges", [3, 3], "tag", EVERYTHING),
]

DISJOINT = {"disjoint": True, "with_edge": True}
OPTIONS = [
    Case("disjoint", [3, 2], "user", DISJOINT | {"collect_features": True}),
    Case("disjoint, replace", [3, 2], "item", DISJOINT | {"replace": True, "shuffle": True}),
    Case("weighted", [4, 3], "user", EVERYTHING | {"weight_attr": "weight"}),
    Case("weighted, replace", [4, 3], "item", {"weight_attr": "weight", "replace": True}),
    Case("temporal", [4, 3], "item", EVERYTHING | {"time_attr": "time"}, times=True),
    Case("last", [4, 3], "user", {"time_attr": "time", "temporal_strategy": "last"}, times=True),
]
OPTIONS += [
    Case("subgraph", [4, 3], "user", EVERYTHING, kind="DistSubGraphLoader"),
    Case("induced", [3, 2], "item", {"subgraph_type": "induced"}),
    Case("labor", [3, 2], "user", EVERYTHING | {"sampler": "labor"}),
    Case("labor, by weight", [3, 2], "item", {"sampler": "labor", "weight_attr": "weight", "batch_dependency": 2}),
    Case("window", [4, 3], "item", {"time_attr": "time", "time_window": 15, "time_bound": "<"}, times=True),
    Case("decay", [4, 3], "user", {"time_attr": "time", "temporal_strategy": "decay", "half_life": 4}, times=True),
]
WEIGHTED = {"mode": "binary", "amount": 1.5, "src_weight": torch.arange(90.0), "dst_weight": torch.ones(60)}
LINK = "DistLinkNeighborLoader"
TWO, TRIPLET = {"neg_sampling": {"mode": "triplet", "amount": 2}}, {"neg_sampling": "triplet"}
LINKS = [
    Case("links", [3, 2], RATES, EVERYTHING, kind=LINK),
    Case("binary", [3, 2], RATES, EVERYTHING | {"neg_sampling": WEIGHTED, "exclude_edges": "reverse"}, kind=LINK),
    Case("triplet", [-1, 2], FOLLOWS, TWO | {"exclude_edges": "self"}, kind=LINK),
    Case("disjoint triplet", [3, 2], RATED, DISJOINT | TRIPLET | {"exclude_edges": "reverse"}, kind=LINK),
    Case("temporal links", [3, 2], RATES, {"neg_sampling": "binary", "time_attr": "time"}, True, LINK),
]
NODE_TIMES = [
    Case("as of the seeds", [4, 3], "item", {"time_attr": "time", "collect_features": True}),
    Case("as of input_time", [4, 3], "user", {"time_attr": "time", "temporal_strategy": "last"}, times=True),
    Case("negatives in time", [3, 2], RATES, {"neg_sampling": "binary", "time_attr": "time"}, True, LINK),
    Case("triplets in time", [3, 2], FOLLOWS, {"neg_sampling": "triplet", "time_attr": "time"}, True, LINK),
    Case("before the seeds", [4, 3], "item", {"time_attr": "time", "time_bound": "<", "time_window": 9}),
    Case("none later", [3], RATES, {"neg_sampling": "binary", "time_attr": "time", "time_bound": "<"}, True, LINK),
]
