"""The batches of walks of a rank are those of the whole graph, wherever the walks are made."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from dist_typed_world import FOLLOWS, NUM_NODES, RATED, RATES
from dist_world import join, options, run_cluster, standalone_job
from service import options as on_servers
from service import serve_or
from torch_geometric.data import HeteroData
from torch_geometric.nn import Node2Vec

import glt
from glt.data import Dataset
from glt.loader import RandomWalkLoader
from glt.partition import RandomPartitioner

SEED = 5


@dataclass(frozen=True)
class WalkCase:
    """A loader of walks and its options; ``times``: each seed has one."""

    options: dict[str, Any]
    seed_type: str = "user"
    walk_length: int = 6
    times: bool = False
    loader: dict[str, Any] = field(default_factory=lambda: {"batch_size": 32, "shuffle": True})

    def arguments(self, rank):
        ids = torch.arange(rank, NUM_NODES[self.seed_type], 2)
        seeds = self.seed_type, torch.cat([ids, ids[:7]])
        time = {"input_time": torch.arange(len(seeds[1])) % 50} if self.times else {}
        return {"input_nodes": seeds, "random_seed": SEED + rank, **self.options, **self.loader, **time}

    def reference(self, world, rank):
        """Two epochs, from the whole graph in this process."""
        given = self.arguments(rank)
        named = {name: name.removesuffix("_attr") for name in ("weight_attr", "time_attr")}
        named = {name: attr for name, attr in named.items() if name in given}
        data = Dataset.from_pyg(world.to_data(), edge_dir=world.edge_dir, **named)
        given |= named
        loader = RandomWalkLoader(data, self.walk_length, 4, **given)
        return [batch for _ in range(2) for batch in loader]


IN = [
    WalkCase({"metapath": [RATES, RATED]}, "item", walk_length=7),
    WalkCase({"metapath": [FOLLOWS], "p": 0.25, "q": 3.0, "walks_per_node": 3}),
    WalkCase({"metapath": [FOLLOWS], "restart_prob": 0.4, "num_negative_samples": 4}),
    WalkCase({"metapath": [FOLLOWS, RATED, RATES], "weight_attr": "any", "walks_per_node": 2}, walk_length=9),
    WalkCase({"metapath": [FOLLOWS], "time_attr": "any", "walks_per_node": 4}, times=True),
    WalkCase({"metapath": [RATES, RATED], "time_attr": "any", "time_bound": "<"}, "item", times=True),
]
OUT = [WalkCase({"metapath": [RATED, RATES]}, "item"), WalkCase({"metapath": [FOLLOWS], "q": 2.0})]


def walk(data, rank, cases, make_options):
    """Two epochs of each case."""
    results = []
    for case in cases:
        with glt.distributed.DistRandomWalkLoader(
            data, case.walk_length, 4, worker_options=make_options(), **case.arguments(rank)
        ) as loader:
            results.append([batch for _ in range(2) for batch in loader])
            stats = loader.stats()
            assert stats["num_seeds"] == 2 * len(case.arguments(rank)["input_nodes"][1])
            assert stats["sampling_s"] > 0
    return results


def walk_as_trainer(trainer, path, mode, given, cases):
    data = join(trainer, path)
    return walk(data, trainer.rank, cases, lambda: options(trainer, mode, **given))


def walk_as_client(trainer, rank, given, cases):
    return walk(None, rank, cases, lambda: on_servers(**given))


def expect_walks(found, world, cases):
    for rank, results in enumerate(found):
        for case, batches in zip(cases, results, strict=True):
            wanted = case.reference(world, rank)
            assert len(batches) == len(wanted) > 2, case
            for ours, whole in zip(batches, wanted, strict=True):
                assert torch.equal(ours[0], whole[0]) and torch.equal(ours[1], whole[1]), (case, rank)
            assert sum(len(positive) for positive, _ in batches) > 20, case


@pytest.mark.parametrize(
    ("parts", "mode", "given", "cases"),
    [
        (1, "collocated", {}, IN),
        (2, "collocated", {"worker_concurrency": 4}, IN),
        (3, "collocated", {"read_local": True}, IN),
        (2, "mp", {"num_workers": 2, "worker_concurrency": 4}, [IN[1], IN[4]]),
    ],
)
def test_walks_are_those_of_the_whole_graph(typed_world, parts, mode, given, cases):
    world = typed_world(parts)
    expect_walks(run_cluster(parts, walk_as_trainer, world.path, mode, given, cases), world, cases)


def test_walks_along_out_edges(typed_world):
    world = typed_world(2, "out")
    expect_walks(run_cluster(2, walk_as_trainer, world.path, "collocated", {}, OUT), world, OUT)


@pytest.mark.parametrize(("servers", "clients", "given"), [(2, 2, {}), (2, 1, {"num_workers": 2})])
def test_walks_on_servers(typed_world, servers, clients, given):
    world = typed_world(2)
    args = world.path, servers, clients, walk_as_client, {}, given, IN
    expect_walks(run_cluster(servers + clients, serve_or, *args)[servers:], world, IN)


def walks_alone(world, **given):
    data = glt.distributed.DistDataset().load(world.path, 0)
    where = glt.distributed.CollocatedDistSamplingWorkerOptions()
    arguments = IN[1].arguments(0) | given
    size = arguments.pop("walk_length", 6), arguments.pop("context_size", 4)
    return glt.distributed.DistRandomWalkLoader(data, *size, worker_options=where, **arguments)


def test_it_goes_on_where_another_stood(typed_world, alone):
    with walks_alone(typed_world(2)) as loader:
        batches = iter(loader)
        first = [next(batches)]
        state = loader.state_dict()
        rest = list(batches)
        assert loader.offsets == {"user": 0} and loader.num_nodes == 90
        told = repr(loader)
        assert "walk_length=6" in told and "walks_per_node=3" in told and "p=0.25" in told, told
    with walks_alone(typed_world(2), random_seed=99) as other:
        other.load_state_dict(state)
        again = list(other)
        assert len(first) == 1 and len(again) == len(rest) > 0
        for ours, theirs in zip(again, rest, strict=True):
            assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    with (
        walks_alone(typed_world(2), q=2.0) as other,
        pytest.raises(ValueError, match=r"q is 3\.0, but of this loader 2\.0"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"input_nodes": ("item", [0])}, ValueError, "input_nodes is of type 'item': expected 'user'"),
        ({"context_size": 8}, ValueError, "context_size = 8: expected at most the nodes of a walk"),
        ({"walks_per_node": 0}, ValueError, "walks_per_node = 0"),
        ({"input_time": torch.zeros(52)}, ValueError, "input_time and time_attr: expected both"),
        ({"time_attr": "t"}, ValueError, "p or q and time_attr are set"),
        ({"metapath": None}, ValueError, "metapath is not given"),
        ({"input_nodes": ("user", [90])}, IndexError, "90"),
        ({"p": -1}, ValueError, "p = -1"),
    ],
)
def test_what_does_not_fit_is_named(typed_world, alone, given, error, words):
    with pytest.raises(error, match=words):
        walks_alone(typed_world(2), **given)


def test_times_of_nodes_are_none_of_walks(typed_world, alone):
    with pytest.raises(ValueError, match="the partitions have times of nodes; expected those of edges"):
        walks_alone(typed_world(2, "in", "node"), time_attr="t")


class Pairs(torch.nn.Module):
    """What PyG's loss of Node2Vec reads."""

    EPS, loss, embedding_dim = 1e-15, Node2Vec.loss, 16

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding


def test_embeddings_on_servers_learn_from_walks(tmp_path):
    """Two halves with many edges inside and few between."""
    half = torch.arange(60) // 30
    chance = torch.where(half[:, None] == half[None], 0.3, 0.01)
    ends = (torch.rand(60, 60, generator=torch.Generator().manual_seed(0)).triu(1) > 1 - chance).nonzero().T
    RandomPartitioner(tmp_path / "parts", 2, 60, torch.cat([ends, ends.flip(0)], 1)).partition()
    with standalone_job(tmp_path / "parts") as graph:
        embedding = glt.distributed.DistEmbedding(60, 16, "nodes", ("uniform", -0.2, 0.2), part="node")
        optimizer = glt.distributed.SparseAdam([embedding], lr=0.02)
        with glt.distributed.DistRandomWalkLoader(
            graph.world.data,
            10,
            5,
            torch.arange(60),
            batch_size=30,
            walks_per_node=5,
            shuffle=True,
            random_seed=0,
            worker_options=graph.world.worker_options(0),
        ) as loader:
            for positive, negative in (batch for _ in range(25) for batch in loader):
                optimizer.zero_grad()
                Pairs.loss(Pairs(embedding), positive, negative).backward()
                optimizer.step()
        z = embedding.weight[:]
    nearest = torch.cdist(z, z).fill_diagonal_(float("inf")).argmin(1)
    assert (half[nearest] == half).double().mean() > 0.9


def test_a_dataset_of_this_process_goes_the_same_way():
    """Against the edges of one that has them by destination, as partitions that are assigned so."""
    data = HeteroData({"user": {"num_nodes": 3}, FOLLOWS: {"edge_index": torch.tensor([[0, 1], [1, 2]])}})
    for edge_dir, seed, walked in (("in", 2, [2, 1, 0]), ("out", 0, [0, 1, 2])):
        loader = RandomWalkLoader(Dataset.from_pyg(data, edge_dir=edge_dir), 2, 3, input_nodes=("user", [seed]))
        assert next(iter(loader))[0].tolist() == [walked]
