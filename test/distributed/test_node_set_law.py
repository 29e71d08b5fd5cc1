"""Subgraphs of node sets over partitions are those of the whole graph, wherever they are sampled."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from dist_typed_world import NUM_NODES as OF_TYPE
from dist_world import NUM_NODES, join, options, run_cluster
from service import options as on_servers
from service import serve_or
from torch_geometric.data import HeteroData

import glt
from glt.data import Dataset
from glt.sampler import NeighborSampler
from glt.sampler.order import SeedOrder

SEED = 5
FIELDS = ("n_id", "edge_index", "e_id", "x", "y", "edge_attr", "batch", "input_id", "batch_size")


def clusters_of(num_nodes):
    return torch.arange(num_nodes) * 7 % 11


@dataclass(frozen=True)
class SetCase:
    """A loader over partitions, and what the whole graph gives in this process."""

    kind: str
    given: dict[str, Any]
    loader: dict[str, Any] = field(default_factory=lambda: {"with_edge": True, "collect_features": True})

    def arguments(self, rank, is_hetero):
        given = dict(self.given) | self.loader | {"random_seed": SEED + rank}
        if self.kind == "DistClusterLoader":
            sizes = OF_TYPE if is_hetero else {None: NUM_NODES}
            clusters = {node_type: clusters_of(count) for node_type, count in sizes.items()}
            return given | {"cluster": clusters if is_hetero else clusters[None]}
        if self.kind == "DistGraphSAINTRandomWalkSampler":
            return given
        ids = torch.arange(rank, OF_TYPE["user"] if is_hetero else NUM_NODES, 2)[:60]
        ids = torch.cat([ids, ids[:5]])
        return given | {"input_nodes": ("user", ids) if is_hetero else ids}

    def reference(self, world, rank, is_hetero):
        """Two epochs."""
        given = self.arguments(rank, is_hetero)
        for name in ("with_edge", "collect_features"):
            given.pop(name, None)
        data = world.to_data() if is_hetero else world.graph.to_data()
        if self.kind == "DistClusterLoader":
            return self.clusters(data, world.edge_dir, given)
        if self.kind == "DistGraphSAINTRandomWalkSampler":
            dataset = Dataset.from_pyg(data, edge_dir=world.edge_dir)
            loader = glt.loader.GraphSAINTRandomWalkSampler(dataset, log=False, **given)
        elif self.kind == "DistHGTLoader":
            loader = glt.loader.HGTLoader(data, **given)
        else:
            loader = glt.NeighborLoader(data, **given)
        return [batch for _ in range(2) for batch in loader]

    def clusters(self, data, edge_dir, given):
        dataset = Dataset.from_pyg(data, edge_dir=edge_dir)
        direction = "backward" if edge_dir == "out" else "forward"
        sampler = NeighborSampler(dataset, [], subgraph_type="induced", sample_direction=direction)
        features = glt.loader.batches.BatchFeatures(dataset)
        clusters = list(given["cluster"].values()) if isinstance(given["cluster"], dict) else [given["cluster"]]
        order, batches = SeedOrder(11, given["batch_size"], given["shuffle"], False, given["random_seed"]), []
        for index in [index for epoch in range(2) for index in order.batches(epoch)]:
            nodes = [torch.cat([(each == c).nonzero().view(-1) for c in index.input_id]) for each in clusters]
            batches.append(features.batch(sampler.sample(list(enumerate(nodes)))))
        return batches


HGT = SetCase("DistHGTLoader", {"num_samples": [9, 4, 6], "batch_size": 16, "shuffle": True})
CLUSTERS = SetCase("DistClusterLoader", {"batch_size": 3, "shuffle": True})
TREES = SetCase(
    "DistNeighborLoader",
    {"num_neighbors": [4, 3], "batch_size": 16, "shuffle": True, "disjoint": True, "subgraph_type": "induced"},
)
SAINT = SetCase("DistGraphSAINTRandomWalkSampler", {"batch_size": 20, "walk_length": 4, "num_steps": 5})
BY_TYPE = {name: [3, 2] if name == "tag" else [7, 5] for name in OF_TYPE}
TYPED = [HGT, SetCase("DistHGTLoader", {"num_samples": BY_TYPE, "batch_size": 9}), CLUSTERS, TREES]
UNTYPED = [HGT, CLUSTERS, TREES, SAINT]


def kept(batch):
    """Its tensors, by store and name, in memory of their own."""
    return {
        (store._key, name): value.clone() if isinstance(value, torch.Tensor) else value
        for store in batch.stores
        for name, value in store.items()
        if name in FIELDS
    }


def sample_sets(data, rank, is_hetero, cases, make_options):
    results = []
    for case in cases:
        make = getattr(glt.distributed, case.kind)
        with make(data, worker_options=make_options(), **case.arguments(rank, is_hetero)) as loader:
            results.append([kept(batch) for _ in range(2) for batch in loader])
            stats = loader.stats()
            assert stats["num_batches"] == len(results[-1]) and stats["num_edges"] > 0
    return results


def sample_as_trainer(trainer, path, is_hetero, mode, given, cases):
    data = join(trainer, path)
    return sample_sets(data, trainer.rank, is_hetero, cases, lambda: options(trainer, mode, **given))


def sample_as_client(trainer, rank, is_hetero, given, cases):
    return sample_sets(None, rank, is_hetero, cases, lambda: on_servers(**given))


def expect_sets(found, world, is_hetero, cases):
    for rank, results in enumerate(found):
        for case, batches in zip(cases, results, strict=True):
            wanted = [kept(batch) for batch in case.reference(world, rank, is_hetero)]
            assert len(batches) == len(wanted) > 2, case
            for ours, whole in zip(batches, wanted, strict=True):
                assert {key for key in whole if key[1] in ("n_id", "edge_index", "e_id")} <= ours.keys(), case
                for key in ours.keys() & whole.keys():
                    equal = torch.equal if isinstance(whole[key], torch.Tensor) else lambda a, b: a == b
                    assert equal(ours[key], whole[key]), (case.kind, rank, key)
            assert sum(batch[key].size(1) for batch in batches for key in batch if key[1] == "edge_index") > 20, case


@pytest.mark.parametrize(
    ("parts", "mode", "given", "cases"),
    [
        (1, "collocated", {}, TYPED),
        (2, "collocated", {"worker_concurrency": 4}, TYPED),
        (3, "collocated", {"read_local": True}, TYPED),
        (2, "mp", {"num_workers": 2, "worker_concurrency": 4}, [HGT, CLUSTERS, TREES]),
    ],
)
def test_sets_of_several_types(typed_world, parts, mode, given, cases):
    world = typed_world(parts)
    expect_sets(run_cluster(parts, sample_as_trainer, world.path, True, mode, given, cases), world, True, cases)


@pytest.mark.parametrize(
    ("parts", "mode", "given"), [(2, "collocated", {"worker_concurrency": 4}), (2, "mp", {"num_workers": 2})]
)
def test_sets_of_one_type(world, parts, mode, given):
    found = world(parts)
    expect_sets(run_cluster(parts, sample_as_trainer, found.path, False, mode, given, UNTYPED), found, False, UNTYPED)


def test_sets_along_out_edges(world):
    found, cases = world(2, "out"), [CLUSTERS, SAINT]
    given = {"worker_concurrency": 4}
    by_rank = run_cluster(2, sample_as_trainer, found.path, False, "collocated", given, cases)
    expect_sets(by_rank, found, False, cases)


def test_sets_on_servers(typed_world):
    world, cases = typed_world(2), [HGT, CLUSTERS, TREES]
    args = world.path, 2, 2, sample_as_client, {}, True, {}, cases
    expect_sets(run_cluster(4, serve_or, *args)[2:], world, True, cases)


def test_walks_on_servers_make_subgraphs(world):
    found, cases = world(2), [SAINT]
    args = found.path, 2, 1, sample_as_client, {}, False, {}, cases
    expect_sets(run_cluster(3, serve_or, *args)[2:], found, False, cases)


def alone_with(world, kind, *given, **options):
    data = glt.distributed.DistDataset().load(world.path, 0)
    where = glt.distributed.CollocatedDistSamplingWorkerOptions(read_local=True)
    return getattr(glt.distributed, kind)(data, *given, worker_options=where, **options)


def test_it_goes_on_where_another_stood(world, alone):
    for kind, given in (
        ("DistHGTLoader", {"num_samples": [5, 5], "input_nodes": torch.arange(40), "batch_size": 10}),
        ("DistClusterLoader", {"cluster": clusters_of(NUM_NODES), "batch_size": 3, "shuffle": True}),
        ("DistGraphSAINTRandomWalkSampler", {"batch_size": 9, "walk_length": 3, "num_steps": 4}),
    ):
        with alone_with(world(1), kind, random_seed=3, **given) as loader:
            batches = iter(loader)
            next(batches)
            state = loader.state_dict()
            rest = [kept(batch) for batch in batches]
            assert kind in repr(loader) and "random_seed=3" in repr(loader)
        with alone_with(world(1), kind, random_seed=99, **given) as other:
            other.load_state_dict(state)
            again = [kept(batch) for batch in other]
        assert len(again) == len(rest) == 3
        for ours, theirs in zip(again, rest, strict=True):
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs if key[1] in ("n_id", "edge_index"))


@pytest.mark.parametrize(
    ("kind", "given", "error", "words"),
    [
        ("DistHGTLoader", {"num_samples": [5, -1], "input_nodes": [0]}, ValueError, r"num_samples\[1\] = -1"),
        ("DistHGTLoader", {"num_samples": 5, "input_nodes": [0]}, TypeError, "num_samples = 5: expected a list"),
        ("DistHGTLoader", {"num_samples": [5], "input_nodes": [NUM_NODES]}, IndexError, str(NUM_NODES)),
        ("DistClusterLoader", {"cluster": torch.zeros(3)}, TypeError, "cluster"),
        ("DistClusterLoader", {"cluster": torch.zeros(3, dtype=torch.int64)}, ValueError, "expected one per node"),
        (
            "DistClusterLoader",
            {"cluster": torch.arange(NUM_NODES) - 1},
            IndexError,
            r"cluster\[0\] = -1 is outside \[0, 600\) \(number of nodes",
        ),
        ("DistClusterLoader", {"cluster": clusters_of(NUM_NODES), "input_clusters": [11]}, IndexError, "11"),
        ("DistGraphSAINTRandomWalkSampler", {"batch_size": 0, "walk_length": 2}, ValueError, "batch_size = 0"),
        ("DistGraphSAINTRandomWalkSampler", {"batch_size": 2, "walk_length": 0}, ValueError, "walk_length = 0"),
        (
            "DistGraphSAINTRandomWalkSampler",
            {"batch_size": 2, "walk_length": 2, "num_steps": 0},
            ValueError,
            "num_steps",
        ),
    ],
)
def test_what_does_not_fit_is_named(world, alone, kind, given, error, words):
    with pytest.raises(error, match=words):
        alone_with(world(1), kind, **given)


def test_walks_of_several_types_are_refused(typed_world, alone):
    with pytest.raises(ValueError, match="data has several types"):
        alone_with(typed_world(1), "DistGraphSAINTRandomWalkSampler", batch_size=2, walk_length=2)


def test_trees_have_all_edges_among_their_own_nodes():
    """Of a triangle and a tail, seeds 0 and 1 have a tree each: the same nodes, and the edges between them twice."""
    ends = torch.tensor([[1, 2, 0, 3], [0, 0, 1, 2]])
    data = HeteroData({"n": {"num_nodes": 4}, ("n", "to", "n"): {"edge_index": ends}})
    given = {"disjoint": True, "subgraph_type": "induced", "batch_size": 2}
    batch = next(iter(glt.NeighborLoader(data, [-1], ("n", torch.tensor([0, 1])), **given)))
    assert batch["n"].n_id.tolist() == [0, 1, 1, 2, 0] and batch["n"].batch.tolist() == [0, 1, 0, 0, 1]
    pairs = batch["n", "to", "n"].edge_index.T.tolist()
    assert sorted(pairs) == [[0, 2], [1, 4], [2, 0], [3, 0], [4, 1]]
