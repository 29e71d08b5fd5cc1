"""Batches of anchors and their labels are those of the whole graph, wherever they are made."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from dist_typed_world import FOLLOWS, NUM_NODES, RATED, RATES, SCHEMA
from dist_world import EVERYTHING, join, options, run_cluster
from dist_world import NUM_NODES as NUM_UNTYPED
from gpus import DEVICES
from service import options as on_servers
from service import serve_or
from torch import Tensor

import glt
from glt.data import Dataset
from glt.data.schema import reverse_edge_type
from glt.loader import ABLPLoader
from glt.loader.anchors import supervision_of
from glt.sampler import NeighborSampler, SeedOrder
from glt.sampler.anchors import label_lists

SEED = 5


@dataclass(frozen=True)
class AnchorCase:
    """A loader of anchors and its options; without ``supervised`` of the graph without types."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    supervised: Any = RATES
    num_neighbors: Any = (4, 3)
    negatives: bool = True
    times: bool = False
    batch_size: int = 6
    kind = "DistABLPLoader"

    def sizes(self):
        return [NUM_UNTYPED] * 2 if self.supervised is None else [NUM_NODES[self.supervised[end]] for end in (0, 2)]

    def labels(self, seed, num_edges):
        draw = torch.Generator().manual_seed(seed)
        return torch.stack([torch.randint(size, (num_edges,), generator=draw) for size in self.sizes()])

    def arguments(self, rank, known):
        """``known``: edges of the graph. Anchors are uneven between ranks, with duplicates; some have no positives."""
        ids = torch.arange(rank, self.sizes()[0], 4)[: 16 + 5 * rank]
        anchors = torch.cat([ids, ids[:3]])
        given = {"batch_size": self.batch_size, "random_seed": SEED + rank, **self.options}
        given["positives"] = torch.cat([known[:, ::2], self.labels(1, 30), known[:, :40:8]], 1)
        if self.negatives:
            given["negatives"] = self.labels(2, 150)
        if self.supervised is not None:
            anchors = self.supervised[0], anchors
            given["supervision_edge_type"] = self.supervised
        if self.times:
            given["input_time"] = (torch.arange(len(ids) + 3) * 7 + 11) % 50
        return {"num_neighbors": list(self.num_neighbors), "input_nodes": anchors, **given}


TYPED = [
    AnchorCase("features and edges", EVERYTHING),
    AnchorCase("of one type", {"shuffle": True, "with_edge": True, "exclude_edges": "self"}, FOLLOWS),
    AnchorCase("against the stream", {"exclude_edges": RATES, "drop_last": True}, RATED, negatives=False),
    AnchorCase("labor", {"sampler": "labor", "batch_dependency": 2}, FOLLOWS, (3, -1)),
    AnchorCase("weighted, replace", {"weight_attr": "weight", "replace": True}, RATES),
    AnchorCase("trees", {"disjoint": True, "with_edge": True, "shuffle": True}, FOLLOWS, (3, 2)),
    AnchorCase("temporal", EVERYTHING | {"time_attr": "time"}, RATES, times=True),
    AnchorCase("induced", {"subgraph_type": "induced", "exclude_edges": None}, FOLLOWS, (3,)),
    AnchorCase("edges out", {"use_label_edge_index_output": True}, RATED, negatives=False),
]
NODE_TIMES = [AnchorCase("as of the anchors", {"time_attr": "time", "collect_features": True}, RATES)]
UNTYPED = [
    AnchorCase("features and edges", EVERYTHING, None, (5, 3, 2), batch_size=16),
    AnchorCase("all neighbours", {"shuffle": True}, None, (-1, 2), negatives=False, batch_size=16),
    AnchorCase("trees", {"disjoint": True}, None, (3, 2)),
]


def parts_of(batch):
    """All of a batch in memory of its own, by store and name; lists of labels as pairs of where they are."""
    found = {}
    for store in batch.stores:
        for name, value in store.items():
            kept = value.clone() if isinstance(value, Tensor) else value
            if isinstance(value, dict):
                assert list(value) == list(range(len(value)))
                kept = [each.tolist() for each in value.values()]
            found[f"{store._key}/{name}"] = kept
    return found


def known_edges(world, case):
    return world.graph.edge_index if case.supervised is None else world.edge_index[case.supervised]


def reference(world, case, rank):
    """Two epochs, from the whole graph in this process."""
    given = case.arguments(rank, known_edges(world, case))
    unknown = ("with_edge", "collect_features")
    given = {name: value for name, value in given.items() if name not in unknown}
    named = {name: name.removesuffix("_attr") for name in ("weight_attr", "time_attr") if name in given}
    data = world.graph.to_dataset("in") if case.supervised is None else Dataset.from_pyg(world.to_data(), **named)
    loader = ABLPLoader(data, **given)
    return [parts_of(batch) for _ in range(2) for batch in loader]


def sample(data, rank, cases, edges, make_options):
    """Two epochs of each case."""
    results = []
    for case, known in zip(cases, edges, strict=True):
        given = case.arguments(rank, known)
        with glt.distributed.DistABLPLoader(data, worker_options=make_options(), **given) as loader:
            results.append([parts_of(batch.to("cpu")) for _ in range(2) for batch in loader])
            assert len(results[-1]) == 2 * len(loader)
    return results


def sample_as_trainer(trainer, path, mode, given, cases, edges, load=None):
    data = join(trainer, path, **load or {})
    return sample(data, trainer.rank, cases, edges, lambda: options(trainer, mode, **given))


def sample_as_client(trainer, rank, given, cases, edges):
    return sample(None, rank, cases, edges, lambda: on_servers(**given))


def expect_equal(got, wanted, what):
    if isinstance(wanted, Tensor):
        assert got.dtype == wanted.dtype and torch.equal(got, wanted), what
    else:
        assert got == wanted, what


SAMPLED = {"n_id", "edge_index", "num_sampled_nodes", "num_sampled_edges", "batch", "batch_size", "input_id"}


def expect_law(found, world, cases):
    """All that a distributed batch has; one in process also has what is not asked for."""
    for rank, results in enumerate(found):
        for case, batches in zip(cases, results, strict=True):
            wanted = reference(world, case, rank)
            assert len(batches) == len(wanted) > 3, case.name
            num_labels = 0
            for got, whole in zip(batches, wanted, strict=True):
                missing = {name for name in whole.keys() - got.keys() if name.rpartition("/")[2] in SAMPLED}
                extra = {name for name in got.keys() - whole.keys() if not name.endswith("/num_nodes")}
                assert not missing and not extra, (case.name, missing, extra)
                assert ("None/y_negative" in got) == case.negatives
                for name in whole.keys() & got.keys():
                    expect_equal(got[name], whole[name], f"{case.name}, rank {rank}, {name}")
                num_labels += sum(map(len, got["None/y_positive"]))
            assert num_labels > 20, case.name


FEW = [TYPED[0], TYPED[1], TYPED[5]]


@pytest.mark.parametrize(
    ("parts", "mode", "given", "cases"),
    [
        (1, "collocated", {}, TYPED),
        (2, "collocated", {"worker_concurrency": 4}, TYPED),
        (3, "collocated", {"read_local": True}, TYPED),
        (2, "mp", {"num_workers": 2, "worker_concurrency": 4}, FEW),
    ],
)
def test_batches_are_those_of_the_whole_graph(typed_world, parts, mode, given, cases):
    world = typed_world(parts)
    edges = [known_edges(world, case) for case in cases]
    expect_law(run_cluster(parts, sample_as_trainer, world.path, mode, given, cases, edges), world, cases)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("read_local", [True, False])
def test_samplers_on_gpus(typed_world, device, read_local):
    """The host plays the GPU where there is none."""
    world = typed_world(2)
    edges = [known_edges(world, case) for case in TYPED]
    load = {"graph_mode": "CUDA", "device": device, "split_ratio": 0.4}
    given = {"read_local": read_local}
    found = run_cluster(2, sample_as_trainer, world.path, "collocated", given, TYPED, edges, load)
    expect_law(found, world, TYPED)


@pytest.mark.parametrize(("servers", "clients", "given"), [(2, 2, {}), (2, 1, {"num_workers": 2})])
def test_batches_of_servers(typed_world, servers, clients, given):
    world = typed_world(2)
    edges = [known_edges(world, case) for case in TYPED]
    args = world.path, servers, clients, sample_as_client, {}, given, TYPED, edges
    expect_law(run_cluster(servers + clients, serve_or, *args)[servers:], world, TYPED)


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_a_graph_without_types(world, mode):
    world = world(2)
    cases = UNTYPED if mode == "collocated" else UNTYPED[:1]
    edges = [known_edges(world, case) for case in cases]
    expect_law(run_cluster(2, sample_as_trainer, world.path, mode, {}, cases, edges), world, cases)


def test_times_of_nodes(typed_world):
    world = typed_world(2, "in", "node")
    edges = [known_edges(world, case) for case in NODE_TIMES]
    found = run_cluster(2, sample_as_trainer, world.path, "collocated", {}, NODE_TIMES, edges)
    expect_law(found, world, NODE_TIMES)


def test_batches_along_out_edges(typed_world):
    """Against the sampler of this process: its loaders are PyG's, which go along in-edges."""
    world = typed_world(2, "out")
    cases = TYPED[1:3]
    edges = [known_edges(world, case) for case in cases]
    for rank, results in enumerate(run_cluster(2, sample_as_trainer, world.path, "collocated", {}, cases, edges)):
        for case, known, batches in zip(cases, edges, results, strict=True):
            given = case.arguments(rank, known)
            anchor_type, anchors = given["input_nodes"]
            exclude = given["exclude_edges"]
            data = Dataset.from_pyg(world.to_data(), edge_dir="out")
            sampler = NeighborSampler(data, given["num_neighbors"], exclude_edges=exclude)
            labels = {"positive": given["positives"], "negative": given.get("negatives")}
            sizes, at = list(NUM_NODES.values()), SCHEMA.node_index(anchor_type)
            supervision, bounds = supervision_of(labels, anchors, at, SCHEMA, sizes, case.supervised, exclude, {})
            flags = given.get("shuffle", False), given.get("drop_last", False)
            order = SeedOrder(len(anchors), case.batch_size, *flags, SEED + rank)
            indices = [index for epoch in range(2) for index in order.batches(epoch)]
            for index, got in zip(indices, batches, strict=True):
                asked = anchors[index.input_id]
                part = {kind: each[index.input_id] for kind, each in bounds.items()}
                out = supervision.begin(sampler, asked, index.input_id, None, part, batch_key=index.key)()
                for node_type, node in out.node.items():
                    assert torch.equal(got[f"{node_type}/n_id"], node)
                num_edges = 0
                for edge_type, row in out.row.items():
                    store = edge_type if f"{edge_type}/edge_index" in got else reverse_edge_type(edge_type)
                    assert torch.equal(got[f"{store}/edge_index"], torch.stack([row, out.col[edge_type]]))
                    num_edges += len(row)
                y = [[each.tolist() for each in label_lists(y, len(asked)).values()] for y in out.metadata[2:]]
                assert got["None/y_positive"] == y[0] and num_edges > 0
                # Of the sampled edges of the type to predict, none runs from an anchor to one of its positives.
                name = f"{reverse_edge_type(case.supervised)}/edge_index"
                label, anchor = got[name]
                pairs = {(a, place) for a, places in enumerate(got["None/y_positive"]) for place in places}
                assert not pairs & set(zip(anchor.tolist(), label.tolist(), strict=True))


def alone_with(world, case=TYPED[0], **given):
    data = glt.distributed.DistDataset().load(world.path, 0)
    where = glt.distributed.CollocatedDistSamplingWorkerOptions()
    arguments = case.arguments(0, known_edges(world, case)) | given
    return glt.distributed.DistABLPLoader(data, worker_options=where, **arguments)


def test_it_goes_on_where_another_stood(typed_world, alone):
    world = typed_world(2)
    with alone_with(world) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [parts_of(batch) for batch in batches]
        told = repr(loader)
        assert told.startswith("DistABLPLoader(") and "exclude_edges='reverse'" in told, told
        assert loader.stats()["num_seeds"] == 19
    with alone_with(world, random_seed=99) as other:
        other.load_state_dict(state)
        again = [parts_of(batch) for batch in other]
    for ours, theirs in zip(again, rest, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            expect_equal(ours[name], value, name)
    known = known_edges(world, TYPED[0])
    with alone_with(world, positives=known) as other, pytest.raises(ValueError, match="seeds_crc32"):
        other.load_state_dict(state)


def steps(world, epochs):
    """A batch of anchors and one of random negatives for each step."""
    data = glt.distributed.DistDataset().load(world.path, 0)
    where = glt.distributed.CollocatedDistSamplingWorkerOptions
    given = TYPED[0].arguments(0, known_edges(world, TYPED[0]))
    main = glt.distributed.DistABLPLoader(data, worker_options=where(), **given)
    others = glt.distributed.DistNeighborLoader(
        data, [3], "item", 25, shuffle=True, random_seed=3, worker_options=where()
    )
    with main, others:
        endless = (random for epoch in iter(int, 1) for random in others)
        for _ in range(epochs):
            yield from zip(main, endless, strict=False)


def test_random_negatives_come_from_a_loader_of_their_own(typed_world, alone):
    """It begins again when all items had their turn; the steps of a job are the same each time."""
    world = typed_world(2)
    found = [[(a["user"].n_id.tolist(), b["item"].n_id.tolist()) for a, b in steps(world, 3)] for _ in range(2)]
    assert found[0] == found[1] and len(found[0]) == 12
    first = [items[:25] for _, items in found[0][:3]]
    assert sorted(first[0] + first[1] + first[2][:10]) == list(range(60))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"positives": [[0], [60]]}, IndexError, r"positives\[1, 0\] = 60.*'item'"),
        ({"negatives": [[0, 1]]}, ValueError, r"negatives has shape \[1, 2\]"),
        ({"supervision_edge_type": None}, ValueError, "supervision_edge_type = None: expected the type of edges from"),
        ({"input_nodes": ("item", [0])}, ValueError, "input_nodes is of type 'item': expected 'user'"),
        ({"exclude_edges": FOLLOWS}, ValueError, "exclude_edges = .*expected 'self', 'reverse' or an edge type from"),
        ({"subgraph_type": "induced"}, ValueError, "exclude_edges = 'reverse' and subgraph_type = 'induced'"),
        ({"subgraph_type": "induced", "disjoint": True}, ValueError, "subgraph_type = 'induced' and disjoint = True"),
        ({"time_attr": "time"}, ValueError, "input_time"),
        ({"use_label_edge_index_output": "yes"}, TypeError, "use_label_edge_index_output = 'yes'"),
        ({"neg_sampling": "binary"}, TypeError, "neg_sampling"),
    ],
)
def test_what_does_not_fit_is_named(typed_world, alone, given, error, words):
    with pytest.raises(error, match=words):
        alone_with(typed_world(2), **given)


def one_without_negatives(trainer, path, known):
    data = join(trainer, path)
    case = AnchorCase("", negatives=trainer.rank == 0)
    with pytest.raises(glt.errors.RendezvousError) as raised:
        glt.distributed.DistABLPLoader(
            data, worker_options=options(trainer, "collocated"), **case.arguments(trainer.rank, known)
        )
    return str(raised.value)


def test_trainers_give_the_same_kinds_of_labels(typed_world):
    world = typed_world(2)
    for text in run_cluster(2, one_without_negatives, world.path, world.edge_index[RATES]):
        assert "negative_at" in text, text
