"""Loaders resume where they were."""

import json
import subprocess
import sys
import warnings
from inspect import signature
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch_geometric.sampler
from equal_batches import plain
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler

import glt
from glt.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from glt.sampler import NeighborSampler
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph

GRAPH = random_graph(200, 1600, seed=4)
DATA = GRAPH.to_data()
SEEDS = torch.arange(0, 200, 2)
EPOCHS = 2


def make(kind="node", **given):
    options = {"batch_size": 24, "shuffle": True, "random_seed": 11} | given
    if kind == "link":
        return LinkNeighborLoader(
            DATA, [3, 2], DATA.edge_index[:, :100], torch.arange(100), neg_sampling="binary", **options
        )
    return (SubGraphLoader if kind == "subgraph" else NeighborLoader)(DATA, [3, 2], SEEDS, **options)


def written(state):
    """A state that has been in a file."""
    return json.loads(json.dumps(state))


def rest(state, num_epochs, kind="node", **given):
    """What a loader of another random seed makes of the state: the rest of its epoch, and those after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch counts the cores
        loader = make(kind, **({"random_seed": 99} | given))
    loader.load_state_dict(written(state))
    assert loader.state_dict() == state
    return [[plain(batch) for batch in loader] for _ in range(num_epochs)]


@pytest.mark.parametrize("kind", ["node", "link", "subgraph"])
def test_stopped_at_any_batch_what_is_left_is_what_was_missing(kind):
    whole = [[plain(batch) for batch in each] for each in [make(kind)] * (EPOCHS + 1)]
    loader = make(kind)
    states = [(0, 0, loader.state_dict())]
    for epoch in range(EPOCHS):
        for index, batch in enumerate(loader):
            assert plain(batch) == whole[epoch][index]
            states.append((epoch, index + 1, loader.state_dict()))
    assert len(loader) == 5 and len(states) == 11
    for epoch, num_delivered, state in states:
        assert (state["epoch"], state["next_batch"]) == divmod(epoch * 5 + num_delivered, 5)
        expected = whole[epoch][num_delivered:]
        left = rest(state, 2, kind)
        assert left == [expected, whole[epoch + 1]] if expected else [whole[epoch + 1]] == left[:1]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3)])
def test_what_workers_have_prefetched_was_not_delivered(before, after):
    whole = [[plain(batch) for batch in each] for each in [make()] * 2]
    options = {"num_workers": before} | ({"prefetch_factor": 4, "filter_per_worker": False} if before else {})
    loader = make(**options)
    for batch in islice(loader, 2):
        plain(batch)
    state = loader.state_dict()
    assert (state["epoch"], state["next_batch"]) == (0, 2)
    assert rest(state, 2, num_workers=after) == [whole[0][2:], whole[1]]


def test_a_state_loaded_into_a_loader_that_has_run_already():
    """Its persistent workers were forked with another random seed, and its running iteration does not count."""
    stopped = make()
    next(iter(stopped))
    state = stopped.state_dict()
    expected = rest(state, 2)
    loader = make(random_seed=99, num_workers=1, persistent_workers=True)
    list(loader)
    loader.load_state_dict(state)
    assert [[plain(batch) for batch in loader] for _ in range(2)] == expected
    loader._iterator._shutdown_workers()
    other = make(random_seed=99)
    running = iter(other)
    first = plain(next(running))
    other.load_state_dict(state)
    next(running)
    assert other.state_dict() == state and other.random_seed == 11 and len(other) == 5
    assert [plain(batch) for batch in other] == expected[0]
    other.load_state_dict(state)
    other.set_epoch(0)
    assert [len(list(other)), len(list(other))] == [5, 5]
    other.load_state_dict({**state, "random_seed": 99, "next_batch": 0})
    assert plain(next(iter(other))) == first


def test_breaking_off_and_beginning_anew():
    loader = make()
    whole = [[plain(batch) for batch in loader] for _ in range(2)]
    loader.set_epoch(0)
    for _ in loader:
        break
    state = loader.state_dict()
    assert rest(state, 2) == [whole[0][1:], whole[1]]
    assert [plain(batch) for batch in loader] == whole[1], "the loader itself begins the next"
    together = iter(loader), iter(loader)
    next(together[1]), next(together[0]), next(together[0])
    assert (loader.state_dict()["epoch"], loader.state_dict()["next_batch"]) == (3, 1), "the newest counts"


def test_a_batch_that_fails_was_not_delivered():
    calls = []

    def transform(batch):
        calls.append(1)
        if len(calls) == 2:
            raise ArithmeticError("second")
        return batch

    loader = make(transform=transform)
    batches = iter(loader)
    next(batches)
    with pytest.raises(ArithmeticError):
        next(batches)
    assert loader.state_dict()["next_batch"] == 1
    next(batches)
    assert loader.state_dict()["next_batch"] == 3


PROGRAM = """
import json, sys
sys.path.insert(0, {here!r})
from test_resuming import rest
print(json.dumps(rest(json.loads(sys.stdin.read()), 2)))
"""


def test_in_a_new_process(tmp_path):
    loader = make()
    next(iter(loader))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state == loader.state_dict()
    program = PROGRAM.format(here=str(Path(__file__).parent))
    options = {"text": True, "timeout": 100, "check": True}
    done = subprocess.run([sys.executable, "-c", program], input=json.dumps(state), capture_output=True, **options)
    assert json.loads(done.stdout) == written(rest(state, 2))


def orders():
    """Orders of the user's own that can be repeated: each made anew, as in a new process."""
    return {
        "batch_sampler": lambda: {"batch_sampler": [[3, 1], [5, 9], [2], [7, 7, 7]]},
        "sampler": lambda: {"sampler": DistributedSampler(range(100), 2, 1, seed=3), "batch_size": 16},
        "generator": lambda: {"generator": torch.Generator().manual_seed(5), "shuffle": True, "batch_size": 30},
        "batches": lambda: {"sampler": BatchSampler(range(100), 40, False), "batch_size": None},
    }


def brought(name, random_seed):
    return NeighborLoader(DATA, [3, 2], SEEDS, random_seed=random_seed, **orders()[name]())


@pytest.mark.parametrize("name", list(orders()))
def test_orders_of_the_user_are_gone_through_again(name):
    whole = [plain(batch) for batch in brought(name, 11)]
    loader = brought(name, 11)
    batches = iter(loader)
    for index in range(len(whole) - 1):
        next(batches)
        state = loader.state_dict()
        assert state["next_batch"] == index + 1 and state["order_crc32"] is not None
        other = brought(name, 99)
        other.load_state_dict(written(state))
        assert other.state_dict() == state
        left = iter(other)
        assert other.state_dict() == state, "and not when the iteration has begun either"
        assert [plain(batch) for batch in left] == whole[index + 1 :]


class WithoutLength(Sampler):
    def __iter__(self):
        return iter(range(10))


def test_an_order_without_a_length_ends_when_it_ends():
    def loader():
        return NeighborLoader(DATA, [3], SEEDS, sampler=WithoutLength(), batch_size=4, random_seed=3)

    stopped = loader()
    assert len(list(stopped)) == 3 and stopped.state_dict()["epoch"] == 1
    assert len(list(islice(stopped, 3))) == 3
    state = stopped.state_dict()
    assert (state["epoch"], state["next_batch"]) == (1, 3)
    other = loader()
    other.load_state_dict(state)
    assert len(list(other)) == 0 and other.state_dict()["epoch"] == 2


def test_an_order_that_comes_out_otherwise_is_noticed():
    def loader(seed, size=25):
        sampler = RandomSampler(range(100), generator=torch.Generator().manual_seed(seed))
        return NeighborLoader(DATA, [3, 2], SEEDS, sampler=sampler, batch_size=size)

    stopped = loader(1)
    next(iter(stopped))
    other = loader(2)
    other.load_state_dict(stopped.state_dict())
    with pytest.raises(RuntimeError, match="epoch 0 was to go on with batch 1, but the sampler now gives other seeds"):
        next(iter(other))
    sampler = [[1, 2], [3], [4]]
    stopped = NeighborLoader(DATA, [3], SEEDS, batch_sampler=sampler, random_seed=1)
    list(islice(stopped, 2))
    shrunk = NeighborLoader(DATA, [3], SEEDS, batch_sampler=sampler[:1], random_seed=1)
    with pytest.raises(ValueError, match="next_batch = 2, but an epoch of this loader has 1 batches"):
        shrunk.load_state_dict(stopped.state_dict())


@pytest.mark.skipif("in_order" not in signature(DataLoader).parameters, reason="torch before 2.6 has no in_order")
def test_without_an_order_there_is_no_state():
    loader = make(num_workers=1, in_order=False)
    with pytest.raises(ValueError, match="in_order = False"):
        loader.state_dict()
    assert make(in_order=False).state_dict()["next_batch"] == 0  # without workers there is nothing to overtake


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch_size": 25}, "batch_size is 24, but of this loader 25: create it as"),
        ({"shuffle": False}, "shuffle is True, but of this loader False"),
        ({"drop_last": True}, "drop_last is False, but of this loader True"),
        ({"replace": True}, "replace is False, but of this loader True"),
        ({"input_id": torch.arange(100) + 1}, r"seeds_crc32 \(a checksum of the seeds .*\) is \d+, but of this loader"),
        ({"sampler": RandomSampler(SEEDS), "shuffle": None}, "order is None, but of this loader 'RandomSampler'"),
        ({"kind": "subgraph"}, "loader is 'NeighborLoader', but of this loader 'SubGraphLoader'"),
        ({"kind": "link"}, "loader is 'NeighborLoader', but of this loader 'LinkNeighborLoader'"),
    ],
)
def test_a_state_of_another_loader_is_refused_by_name(given, text):
    state = make().state_dict()
    other = make(**given)
    before = other.state_dict()
    with pytest.raises(ValueError, match=text):
        other.load_state_dict(state)
    assert other.state_dict() == before and other.random_seed == 11


def test_seeds_and_graphs_are_told_apart():
    state = make().state_dict()
    for data, fanout, seeds, text in (
        (DATA, [3, 2], SEEDS[:-1], "num_seeds is 100, but of this loader 99"),
        (DATA, [3, 2], SEEDS + 1, "seeds_crc32"),
        (DATA, [3, 3], SEEDS, r"num_neighbors is \[\[3, 2\]\], but of this loader \[\[3, 3\]\]"),
        (
            random_graph(200, 1601, seed=4).to_data(),
            [3, 2],
            SEEDS,
            r"num_edges is \[1600\], but of this loader \[1601\]",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            NeighborLoader(data, fanout, seeds, batch_size=24, shuffle=True).load_state_dict(state)


def test_negatives_are_part_of_what_must_agree():
    def loader(**drawn):
        return LinkNeighborLoader(DATA, [2], DATA.edge_index[:, :40], neg_sampling=drawn, batch_size=10)

    weights = torch.rand(200, generator=torch.Generator().manual_seed(1))
    state = loader(mode="binary", amount=2, dst_weight=weights).state_dict()
    loader(mode="binary", amount=2.0, dst_weight=weights.clone()).load_state_dict(written(state))
    with pytest.raises(ValueError, match=r"neg_sampling is .*'amount': 2.0.* but of this loader .*'amount': 1.0"):
        loader(mode="binary", amount=1, dst_weight=weights).load_state_dict(state)
    with pytest.raises(ValueError, match="seeds_crc32"):
        loader(mode="binary", amount=2, dst_weight=weights + 1).load_state_dict(state)


STATE = make().state_dict()


@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        ([], TypeError, "state has type list: expected the dict"),
        ({}, ValueError, "state has no version"),
        (STATE | {"version": 2}, ValueError, "version = 2, but this glt reads version 1"),
        ({name: STATE[name] for name in STATE if name != "random_seed"}, ValueError, "state has no random_seed"),
        (STATE | {"index": 3}, ValueError, "field 'index' that is not a loader's"),
        (STATE | {"epoch": -1}, ValueError, "epoch = -1"),
        (STATE | {"epoch": 1.0}, TypeError, "epoch = 1.0"),
        (STATE | {"next_batch": True}, TypeError, "next_batch = True"),
        (STATE | {"next_batch": 5}, ValueError, "next_batch = 5, but an epoch of this loader has 5 batches"),
        (STATE | {"random_seed": 2**63}, ValueError, "random_seed"),
        (STATE | {"order_crc32": "x"}, TypeError, "order_crc32 = 'x'"),
        (STATE | {"loader": None}, TypeError, "loader has type NoneType"),
    ],
)
def test_what_is_no_state_is_refused(state, kind, text):
    with pytest.raises(kind, match=text):
        make().load_state_dict(state)


def test_an_empty_loader_has_epochs_too():
    loader = NeighborLoader(DATA, [2], torch.empty(0, dtype=torch.int64), batch_size=4)
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == [] and loader.state_dict()["epoch"] == 1


def test_a_sampler_that_was_brought_is_described():
    def loader(random_seed):
        sampler = NeighborSampler(DATA, [3, 2], random_seed=random_seed)
        return NeighborLoader(DATA, [3, 2], SEEDS, neighbor_sampler=sampler, batch_size=24, shuffle=True)

    stopped = loader(11)
    list(islice(stopped, 3))
    other = loader(12)
    other.load_state_dict(stopped.state_dict())
    assert other.random_seed == 11
    assert [plain(batch) for batch in other] == rest(stopped.state_dict(), 1)[0]


TYPED = random_hetero_graph(seed=2)
HOMO = random_graph(120, 900, seed=5).to_data()
USERS = ("user", torch.arange(30))
EDGE_TYPE = TYPED.edge_types[0]
LINKS = (EDGE_TYPE, TYPED[EDGE_TYPE].edge_index[:, :40])


def of_nodes(data=TYPED, seeds=USERS, **given):
    return NeighborLoader(data, [3, 2], seeds, batch_size=8, shuffle=True, **given)


def of_links(**given):
    return LinkNeighborLoader(TYPED, [3, 2], LINKS, neg_sampling="triplet", batch_size=8, shuffle=True, **given)


CASES = {
    "types": (of_nodes, {}),
    "counts by type": (
        lambda **given: NeighborLoader(TYPED, {t: [2, 1] for t in TYPED.edge_types}, USERS, batch_size=8, **given),
        {},
    ),
    "times": (of_nodes, {"time_attr": "time", "temporal_strategy": "last"}),
    "times of seeds": (of_nodes, {"time_attr": "time", "input_time": torch.arange(30) * 30}),
    "links": (of_links, {}),
    "links kept out": (of_links, {"exclude_edges": "self"}),
    "stores": (lambda **given: of_nodes((TYPED, TYPED), **given), {}),
    "dataset": (lambda **given: of_nodes(glt.data.Dataset.from_pyg(TYPED), **given), {}),
    "on a GPU": (
        lambda **given: of_nodes(glt.data.Dataset.from_pyg(TYPED).with_mode("ZERO_COPY"), **given),
        {"device": "host"},
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_what_is_left_is_what_was_missing(name):
    make, given = CASES[name]
    loader = make(random_seed=1, **given)
    whole = [plain(batch) for batch in loader]
    following = plain(next(iter(loader)))
    loader.set_epoch(0)
    list(islice(loader, 2))
    state = loader.state_dict()
    other = make(random_seed=2, **given)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert other.state_dict() == state
    assert [plain(batch) for batch in other] == whole[2:] and len(whole) > 3
    assert plain(next(iter(other))) == following


@pytest.mark.parametrize(
    ("make", "stopped", "other", "text"),
    [
        (of_nodes, {}, {"seeds": ("item", torch.arange(30))}, "seeds of type is 'user', but of this loader 'item'"),
        (of_nodes, {}, {"time_attr": "time"}, "disjoint is False, but of this loader True"),
        (of_nodes, {"time_attr": "time"}, {"time_attr": "time", "input_time": torch.full((30,), 99)}, "seeds_crc32"),
        (of_links, {}, {"exclude_edges": "self"}, "exclude_edges is None, but of this loader 'self'"),
    ],
)
def test_types_times_and_exclusions_must_agree(make, stopped, other, text):
    with pytest.raises(ValueError, match=text):
        make(**other).load_state_dict(make(**stopped).state_dict())


class Seeds(torch_geometric.sampler.BaseSampler):
    """A sampler of another make, which returns the seeds alone."""

    def sample_from_nodes(self, index):
        none = torch.empty(0, dtype=torch.int64)
        return torch_geometric.sampler.SamplerOutput(
            index.node, none, none, none, metadata=(index.input_id, index.time)
        )

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError("of nodes only")


def test_with_a_sampler_of_another_make_the_seeds_are_those_missing():
    def make(sampler, random_seed):
        return NeighborLoader(
            HOMO, [3], torch.arange(40), neighbor_sampler=sampler, batch_size=8, shuffle=True, random_seed=random_seed
        )

    whole = [batch.n_id.tolist() for batch in make(Seeds(), 1)]
    loader = make(Seeds(), 1)
    list(islice(loader, 3))
    other = make(Seeds(), 2)
    other.load_state_dict(loader.state_dict())
    assert [batch.n_id.tolist() for batch in other] == whole[3:]
    with pytest.raises(ValueError, match="neighbor_sampler is 'Seeds', but of this loader 'NeighborSampler'"):
        make(None, 1).load_state_dict(loader.state_dict())
