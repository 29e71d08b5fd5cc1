"""The batches of page ranks of a rank are those of the whole graph, wherever nodes are found."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from dist_typed_world import NUM_NODES, snapshot
from dist_world import NUM_NODES as NUM_PLAIN
from dist_world import join, options, run_cluster
from service import options as on_servers
from service import serve_or
from torch_geometric.data import Data

import glt
from glt.data import Dataset
from glt.loader import PageRankLoader
from glt.sampler import PageRankSampler

SEED = 5


@dataclass(frozen=True)
class RankCase:
    """A loader and its options, of seeds of a type; of a homogeneous graph None."""

    options: dict[str, Any] = field(default_factory=dict)
    seed_type: str | None = "user"
    num_neighbors: int = 7
    loader: dict[str, Any] = field(default_factory=lambda: {"batch_size": 32, "shuffle": True})

    def arguments(self, rank):
        ids = torch.arange(rank, NUM_PLAIN if self.seed_type is None else NUM_NODES[self.seed_type], 2)
        seeds = torch.cat([ids, ids[:7]])
        given = seeds if self.seed_type is None else (self.seed_type, seeds)
        return {"input_nodes": given, "random_seed": SEED + rank, **self.options, **self.loader}

    def reference(self, data, rank):
        """Two epochs, from the whole graph in this process."""
        loader = PageRankLoader(data, self.num_neighbors, **self.arguments(rank))
        return [snapshot(batch) for _ in range(2) for batch in loader]


CASES = [
    RankCase(),
    RankCase({"neighbor_type": "item", "epsilon": 1e-3}, num_neighbors=40),
    RankCase({"neighbor_type": "user", "alpha": 0.5}, "item", 3, {"batch_size": 30}),
    RankCase({"neighbor_type": "ghost"}, "tag"),
    RankCase({"epsilon": 0.01}, "item", loader={"batch_size": 9, "drop_last": True}),
]
PLAIN = [RankCase({"epsilon": 1e-3}, None, 10, {"batch_size": 90}), RankCase({"alpha": 0.4}, None, 400)]


def rank_nodes(data, rank, cases, make_options):
    """Two epochs of each case."""
    results = []
    for case in cases:
        with glt.distributed.DistPageRankLoader(
            data, case.num_neighbors, collect_features=True, worker_options=make_options(), **case.arguments(rank)
        ) as loader:
            results.append([snapshot(batch) for _ in range(2) for batch in loader])
            stats = loader.stats()
            assert stats["sampling_s"] > 0 and stats["num_edges"] == 0
    return results


def rank_as_trainer(trainer, path, mode, given, cases):
    data = join(trainer, path)
    return rank_nodes(data, trainer.rank, cases, lambda: options(trainer, mode, **given))


def rank_as_client(trainer, rank, given, cases):
    return rank_nodes(None, rank, cases, lambda: on_servers(**given))


def expect_equal(found, wanted, what):
    assert len(found) == len(wanted) > 1, what
    for ours, whole in zip(found, wanted, strict=True):
        assert ours.keys() == whole.keys(), what
        for name, value in whole.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(ours[name], value) and ours[name].dtype == value.dtype, (what, name)
            else:
                assert ours[name] == value, (what, name)


def expect_ranks(found, data, cases):
    for rank, results in enumerate(found):
        for case, batches in zip(cases, results, strict=True):
            expect_equal(batches, case.reference(data, rank), (case, rank))


def whole(world):
    """The graph with the tables that batches have."""
    data = world.to_data()
    for store in data.stores:
        for name in ("time", "weight"):
            if name in store:
                del store[name]
    return Dataset.from_pyg(data, edge_dir=world.edge_dir)


@pytest.mark.parametrize(
    ("parts", "mode", "given"),
    [
        (1, "collocated", {}),
        (2, "collocated", {"worker_concurrency": 4}),
        (3, "collocated", {"read_local": True}),
        (2, "mp", {"num_workers": 2, "worker_concurrency": 4}),
    ],
)
def test_ranks_are_those_of_the_whole_graph(typed_world, parts, mode, given):
    world = typed_world(parts)
    cases = CASES[:3] if mode == "mp" else CASES
    expect_ranks(run_cluster(parts, rank_as_trainer, world.path, mode, given, cases), whole(world), cases)


def test_ranks_along_out_edges(typed_world):
    world = typed_world(2, "out")
    expect_ranks(run_cluster(2, rank_as_trainer, world.path, "collocated", {}, CASES), whole(world), CASES)


@pytest.mark.parametrize("parts", [1, 3])
def test_ranks_of_one_type_of_nodes(world, parts):
    made = world(parts)
    data = Data(edge_index=made.graph.edge_index, x=made.x, y=made.y, num_nodes=NUM_PLAIN)
    found = run_cluster(parts, rank_as_trainer, made.path, "collocated", {}, PLAIN)
    expect_ranks(found, Dataset.from_pyg(data, edge_dir="in"), PLAIN)


@pytest.mark.parametrize(("servers", "clients", "given"), [(2, 2, {}), (2, 1, {"num_workers": 2})])
def test_ranks_on_servers(typed_world, servers, clients, given):
    world = typed_world(2)
    args = world.path, servers, clients, rank_as_client, {}, given, CASES[:3]
    expect_ranks(run_cluster(servers + clients, serve_or, *args)[servers:], whole(world), CASES[:3])


def ranks_alone(world, **given):
    data = glt.distributed.DistDataset().load(world.path, 0)
    where = glt.distributed.CollocatedDistSamplingWorkerOptions()
    arguments = CASES[0].arguments(0) | given
    size = arguments.pop("num_neighbors", 7)
    return glt.distributed.DistPageRankLoader(data, size, worker_options=where, **arguments)


def test_it_goes_on_where_another_stood(typed_world, alone):
    with ranks_alone(typed_world(2)) as loader:
        batches = iter(loader)
        first = [next(batches)]
        state = loader.state_dict()
        rest = [snapshot(batch) for batch in batches]
        assert len(first) == 1 and "num_neighbors=7, alpha=0.15, epsilon=0.0001" in repr(loader)
        assert "x" not in first[0]["user"]
    with ranks_alone(typed_world(2), random_seed=99) as other:
        other.load_state_dict(state)
        again = [snapshot(batch) for batch in other]
        assert len(again) == len(rest) > 0
        for ours, theirs in zip(again, rest, strict=True):
            assert all(torch.equal(ours[name], each) for name, each in theirs.items() if isinstance(each, torch.Tensor))
    for given, words in (
        ({"alpha": 0.5}, r"alpha is 0\.15, but of this loader 0\.5"),
        ({"num_neighbors": 8}, "num_neighbors is 7, but of this loader 8"),
    ):
        with ranks_alone(typed_world(2), **given) as other, pytest.raises(ValueError, match=words):
            other.load_state_dict(state)


def test_a_table_of_all_nodes(typed_world, alone):
    """What the docs say: the batches of an epoch are the rows of a table, those of a sampler in one process."""
    world = typed_world(2)
    with ranks_alone(world, input_nodes="user", shuffle=False, batch_size=40) as loader:
        stores = [(batch["user"], batch["user", "page_rank", "user"]) for batch in loader]
        table = [(users.n_id[edges.edge_index], edges.edge_weight) for users, edges in stores]
    ends, scores = (torch.cat(each, -1) for each in zip(*table, strict=True))
    found, expected = PageRankSampler(whole(world), 7, node_type="user").sample(torch.arange(90))
    assert torch.equal(ends[0], found.nbr) and torch.equal(scores, expected.float())
    assert torch.equal(ends[1], torch.arange(90).repeat_interleave(found.nbr_num)) and len(scores) > 100


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"num_neighbors": 0}, ValueError, "num_neighbors = 0"),
        ({"alpha": 0}, ValueError, "alpha = 0"),
        ({"epsilon": 3}, ValueError, r"epsilon = 3\.0: expected at most 1"),
        ({"neighbor_type": "shop"}, ValueError, "neighbor_type = 'shop': expected one of"),
        ({"input_nodes": ("user", [90])}, IndexError, "90"),
        ({"input_nodes": [3]}, ValueError, "input_nodes has no type"),
        ({"batch_size": 0}, ValueError, "batch_size = 0"),
        ({"collect_features": 3}, TypeError, "collect_features = 3"),
    ],
)
def test_what_does_not_fit_is_named(typed_world, alone, given, error, words):
    with pytest.raises(error, match=words):
        ranks_alone(typed_world(2), **given)
