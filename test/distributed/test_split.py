"""Shares of nodes and edges: every selected one in one share, as many in each, local ones first."""

import random

import numpy as np
import pytest
import torch
from dist_world import standalone_job
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from glt.data.schema import PartitionBook
from glt.distributed import DistDataset, edge_split, node_split
from glt.distributed.context import enter, leave
from glt.distributed.graph.split import SelectedIds, default_homes, split_counts
from glt.distributed.job.worlds import StandaloneWorld
from glt.partition import RandomPartitioner, partition_graph

TYPES = {"paper": 40, "author": 25}

WRITES = ("author", "writes", "paper")


def book_of(owner):
    """A book whose rows do not matter."""
    owner = np.asarray(owner, np.uint8)
    return PartitionBook.of_arrays(owner, np.zeros(len(owner), np.uint32), int(owner.max(initial=0)) + 1)


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_the_result_does_not_depend_on_how_much_is_read_at_a_time(piece):
    rng = np.random.default_rng(0)
    mask, book = rng.random(100) < 0.4, book_of(rng.integers(0, 3, 100))
    selected = SelectedIds("nodes", mask, 100, book, piece)
    assert selected.counts.tolist() == np.bincount(book.owners(np.flatnonzero(mask)), minlength=3).tolist()
    for part in range(3):
        whole = np.flatnonzero(mask & (book.owners() == part))
        for begin, end in ((0, len(whole)), (2, 5), (4, 4)):
            assert selected.ids([(part, begin, end)]).tolist() == whole[begin:end].tolist()


class Counting:
    """A mask that says which rows were read, as one that lies elsewhere would."""

    def __init__(self, mask):
        self.mask, self.dtype, self.shape, self.read = mask, torch.bool, mask.shape, []

    def __len__(self):
        return len(self.mask)

    def __getitem__(self, rows):
        self.read.append((rows.start, rows.stop))
        return torch.from_numpy(self.mask[rows])


def test_a_mask_is_read_in_pieces_and_again_only_where_the_share_is():
    mask = Counting(np.ones(100, bool))
    selected = SelectedIds("nodes", mask, 100, PartitionBook.of_ranges([0, 50, 100]), piece=10)
    assert mask.read == [(at, at + 10) for at in range(0, 100, 10)]
    mask.read.clear()
    assert selected.ids([(1, 5, 12)]).tolist() == list(range(55, 62))
    assert mask.read == [(50, 60), (60, 70)]


def test_masks_and_ids_of_all_kinds_mean_the_same():
    mask = torch.rand(30, generator=torch.Generator().manual_seed(0)) < 0.5
    ids, book = mask.nonzero().view(-1), PartitionBook.of_ranges([0, 10, 30])
    expected = node_split(mask, book, rank=1, num_trainers=2)
    masks, backwards = (mask.numpy(), mask.to(torch.uint8)), ids.flip(0)
    for given_ in (*masks, ids, backwards, backwards.to(torch.int32), ids.tolist(), ids.numpy()):
        assert torch.equal(node_split(given_, book, rank=1, num_trainers=2), expected)
    assert torch.equal(node_split(mask, {"a": book}, rank=1, num_trainers=2), expected)
    assert torch.equal(node_split(mask, {"a": book, "b": None}, "a", rank=1, num_trainers=2), expected)


def test_nothing_is_drawn_from_the_users_generators():
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    node_split(torch.ones(50, dtype=torch.bool), PartitionBook.of_ranges([0, 10, 50]), rank=0, num_trainers=3)
    assert torch.equal(states[0], torch.get_rng_state())
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]


def test_equal_numbers_of_steps():
    mask, book = torch.ones(101, dtype=torch.bool), PartitionBook.of_ranges([0, 70, 101])
    for remainder, size in (("drop", 25), ("pad", 26)):
        shares = [node_split(mask, book, rank=r, num_trainers=4, remainder=remainder) for r in range(4)]
        assert [len(share) for share in shares] == [size] * 4
        assert len(torch.cat(shares).unique()) == (100 if remainder == "drop" else 101)


def test_nodes_of_a_partition_go_to_their_own_trainers():
    trainer = torch.tensor([1, 0, 1, 0, 1, 0, 3, 2, 3, 2])
    book, mask = PartitionBook.of_ranges([0, 6, 10]), torch.ones(10, dtype=torch.bool)
    homes = [[0], [0], [1], [1]]
    shares = [node_split(mask, book, rank=r, node_trainer_ids=trainer, homes=homes, force_even=False) for r in range(4)]
    assert [share.tolist() for share in shares] == [[1, 3, 5], [0, 2, 4], [7, 9], [6, 8]]
    even = [node_split(mask, book, rank=r, node_trainer_ids=trainer, homes=homes) for r in range(4)]
    assert sorted(torch.cat(even).tolist()) == list(range(10))


def test_default_homes():
    assert default_homes(2, 4) == [[0], [0], [1], [1]]
    assert default_homes(2, 3) == [[0], [0], [1]]
    assert default_homes(4, 2) == [[0, 1], [2, 3]]
    assert default_homes(3, 2) == [[0, 1], [2]]
    assert default_homes(1, 2) == [[0], [0]]


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, TYPES["author"], 90), rng.integers(0, TYPES["paper"], 90)])
    arguments = {"num_nodes": TYPES, "edge_index": {WRITES: edges}}
    root = tmp_path_factory.mktemp("split")
    RandomPartitioner(root / "ranges", 3, relabel=True, **arguments).partition()
    RandomPartitioner(root / "arrays", 3, **arguments).partition()
    return root


@pytest.mark.parametrize("name", ["ranges", "arrays"])
def test_types_have_books_of_their_own(typed, name):
    dataset = DistDataset().load(typed / name, 1)
    for ntype, total in TYPES.items():
        owner = dataset.node_books[dataset.schema.node_index(ntype)].owners()
        shares = [node_split(torch.ones(total, dtype=bool), dataset, ntype, r, num_trainers=3) for r in range(3)]
        assert sorted(torch.cat(shares).tolist()) == list(range(total))
        for rank, share in enumerate(shares):
            assert (owner[share.numpy()] == rank).sum() == min((owner == rank).sum(), len(share))
    shares = [edge_split(torch.arange(90), dataset, WRITES, r, num_trainers=3) for r in range(3)]
    assert sorted(torch.cat(shares).tolist()) == list(range(90)) and [len(share) for share in shares] == [30] * 3
    if name == "ranges":  # those of the arrays have no tables, and with them no book
        owner = dataset.edge_books[0].owners()
        assert all((owner[share.numpy()] == r).sum() == min(30, (owner == r).sum()) for r, share in enumerate(shares))


class Servers:
    """A world as it looks to one of four trainers of two hosts that serve two partitions each, crosswise."""

    num_trainers, num_servers = 4, 2

    def __init__(self, rank, data):
        self.rank, self.data = rank, data

    def owner_of(self, partition):
        return partition % 2


def test_the_world_knows_the_trainer_and_what_is_near(tmp_path):
    RandomPartitioner(tmp_path / "parts", 4, 40, np.zeros((2, 4), np.int64), relabel=True).partition()
    data = DistDataset().load(tmp_path / "parts", 0)
    shares = []
    for rank in range(4):
        enter(Servers(rank, data))
        try:
            shares.append(node_split(torch.ones(40, dtype=torch.bool)).tolist())
            if rank == 3:
                assert node_split(np.arange(40), rank=0).tolist() == shares[0]
                assert edge_split(np.arange(4), num_trainers=1, rank=0).tolist() == [0, 1, 2, 3]
        finally:
            leave()
    assert shares == [[*range(10)], [*range(20, 30)], [*range(10, 20)], [*range(30, 40)]]


def test_a_world_without_a_graph_is_told_from_one_with(tmp_path):
    enter(StandaloneWorld())
    try:
        with pytest.raises(RuntimeError, match="partition_book is None, and this process has joined no graph"):
            node_split([0])
        assert node_split([4, 0], PartitionBook.of_ranges([0, 5])).tolist() == [0, 4]
    finally:
        leave()


def test_masks_of_a_graph_that_servers_have(tmp_path):
    mask, kind = torch.arange(40) % 3 == 0, torch.arange(60) % 2 == 0
    edges = torch.randint(0, 40, (2, 60), generator=torch.Generator().manual_seed(0))
    data = Data(edge_index=edges, num_nodes=40, train_mask=mask, kind=kind)
    orig_nids, orig_eids = partition_graph(data, "toy", 2, tmp_path / "out", part_method="random", return_mapping=True)
    with standalone_job(tmp_path / "out" / "toy.json", "toy") as g:
        assert orig_nids[node_split(g.ndata["train_mask"])].sort().values.tolist() == list(range(0, 40, 3))
        for book in (None, g.get_partition_book()):
            shares = [node_split(g.ndata["train_mask"], book, rank=r, num_trainers=3) for r in range(3)]
            assert orig_nids[torch.cat(shares)].sort().values.tolist() == list(range(0, 40, 3))
            shares = [edge_split(g.edata["kind"], book, rank=r, num_trainers=3) for r in range(3)]
            assert orig_eids[torch.cat(shares)].sort().values.tolist() == list(range(0, 60, 2))


RANGES = PartitionBook.of_ranges([0, 10])

ONE = {"partition_book": RANGES, "rank": 0, "num_trainers": 1}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"nodes": torch.ones(9, dtype=torch.bool)}, ValueError, "nodes is a mask of 9: expected one value for each"),
        ({"nodes": torch.full((10,), 2).byte()}, ValueError, r"nodes\[0\] = 2: expected a mask of zeros and ones"),
        ({"nodes": torch.tensor([0, 10])}, IndexError, r"nodes\[1\] = 10 is outside \[0, 10\)"),
        ({"nodes": [3, 4, 3]}, ValueError, "nodes holds 3 twice"),
        ({"nodes": torch.ones(10)}, TypeError, "nodes is float32: expected a mask of bools, or integer ids"),
        ({"nodes": torch.ones(2, 5).bool()}, ValueError, r"nodes has shape \[2, 5\]: expected one dimension"),
        ({"nodes": "train"}, TypeError, "nodes is str: expected a mask"),
        ({"rank": None, "num_trainers": 2}, RuntimeError, "this process is no trainer .*: call .*initialize"),
        ({"rank": 2, "num_trainers": 2}, ValueError, "rank = 2: expected 0 to 1, one of 2 trainers"),
        ({"num_trainers": 2, "homes": [[0]]}, ValueError, "homes is of 1 trainers: expected 2"),
        ({"num_trainers": None, "homes": [0, 1]}, TypeError, r"homes\[0\] = 0: expected the partitions"),
        ({"num_trainers": None, "homes": [[0], "a"]}, TypeError, r"homes\[1\] = 'a': expected the partitions"),
        ({"rank": True, "num_trainers": 2}, TypeError, "rank = True: expected an integer"),
        ({"num_trainers": 0}, ValueError, "num_trainers = 0: expected 1 to"),
        ({"force_even": 1}, TypeError, "force_even = 1: expected True or False"),
        ({"partition_book": None}, RuntimeError, "partition_book is None, and this process has joined no graph"),
        ({"partition_book": 3}, TypeError, "partition_book has type int: expected a PartitionBook"),
        ({"node_trainer_ids": [0]}, ValueError, "node_trainer_ids has 1 rows: expected"),
        ({"partition_book": {"a": None, "b": None}, "ntype": "x"}, KeyError, "has no node type 'x': expected one of"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_it(arguments, error, message):
    with pytest.raises(error, match=message):
        node_split(**{"nodes": torch.ones(10, dtype=torch.bool), **ONE, **arguments})


def test_a_type_must_be_named_where_there_are_several(typed):
    with pytest.raises(KeyError, match="no node type is named: expected one of"):
        node_split([0], DistDataset().load(typed / "ranges", 0), rank=0, num_trainers=1)


@st.composite
def worlds(draw):
    """Counts of partitions, and hosts with some of the trainers and some of the partitions each."""
    num_partitions, num_hosts = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(0, 12), min_size=num_partitions, max_size=num_partitions))
    host_of = draw(st.lists(st.integers(-1, num_hosts - 1), min_size=num_partitions, max_size=num_partitions))
    trainers = draw(st.lists(st.integers(0, num_hosts - 1), min_size=1, max_size=7))
    homes = [[part for part, host in enumerate(host_of) if host == mine] for mine in trainers]
    return counts, homes


def shares_of(counts, homes, **options):
    """The shares of a mask that selects every other node, as pairs of partition and node."""
    ends = 2 * np.cumsum([0, *counts])
    book, mask = PartitionBook.of_ranges(ends.tolist()), np.arange(ends[-1]) % 2 == 0
    shares = [node_split(mask, book, rank=rank, homes=homes, **options) for rank in range(len(homes))]
    assert all(share.dtype == torch.int64 for share in shares)
    owner = book.owners()
    return [[(int(owner[node]), node) for node in share.tolist()] for share in shares]


def everything(counts):
    ends = 2 * np.cumsum([0, *counts])
    return [(part, node) for part in range(len(counts)) for node in range(ends[part], ends[part + 1], 2)]


def most_local(counts, homes):
    """How many items can be local where shares differ by one at most."""
    size, more = divmod(sum(counts), len(homes))
    hosts = {frozenset(home) for home in homes}
    found = 0
    for host in hosts:
        trainers, here = sum(frozenset(home) == host for home in homes), sum(counts[part] for part in host)
        extra = min(trainers, max(0, here - size * trainers), more)
        more -= extra
        found += min(here, size * trainers + extra)
    return found


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_every_item_goes_to_one_trainer_and_shares_are_even_and_as_local_as_can_be(world):
    counts, homes = world
    shares = shares_of(counts, homes)
    assert sorted(item for share in shares for item in share) == everything(counts)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    local = [[part in home for part, _ in share] for share, home in zip(shares, homes, strict=True)]
    assert sum(map(sum, local)) == most_local(counts, homes)
    assert all(flags == sorted(flags, reverse=True) for flags in local), "local first"
    assert shares == shares_of(counts, homes)


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_equal_shares_by_leaving_out_or_by_repeating(world):
    counts, homes = world
    size, more = divmod(sum(counts), len(homes))
    dropped = shares_of(counts, homes, remainder="drop")
    assert all(len(share) == size for share in dropped)
    kept = [item for share in dropped for item in share]
    assert len(set(kept)) == len(kept) == sum(counts) - more and set(kept) <= set(everything(counts))

    padded, exact = shares_of(counts, homes, remainder="pad"), shares_of(counts, homes)
    assert {len(share) for share in padded} == {size + (more > 0)}
    for with_, without in zip(padded, exact, strict=True):
        assert with_[: len(without)] == without
        assert not without or set(with_) == set(without), "what is repeated is the trainer's own"


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_without_force_even_all_that_can_be_local_is(world):
    counts, homes = world
    shares = shares_of(counts, homes, force_even=False)
    assert sorted(item for share in shares for item in share) == everything(counts)
    housed = set().union(*homes)
    for share, home in zip(shares, homes, strict=True):
        assert all(part in home for part, _ in share if part in housed)
    if not housed:
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


PAD, DROP, UNEVEN = {"remainder": "pad"}, {"remainder": "drop"}, {"force_even": False}


@pytest.mark.parametrize(
    ("counts", "homes", "options", "expected"),
    [
        # A host that is short gets the last items of one that has more, and an odd item stays where it is.
        ([10, 2], [[0], [1]], {}, [[(0, 0, 6)], [(1, 0, 2), (0, 6, 10)]]),
        ([2, 3], [[0], [1]], {}, [[(0, 0, 2)], [(1, 0, 3)]]),
        # Trainers of a host have adjacent pieces of all its partitions.
        ([3, 5, 4], [[0, 1], [0, 1], [2]], {}, [[(0, 0, 3), (1, 0, 1)], [(1, 1, 5)], [(2, 0, 4)]]),
        # Fewer items than trainers.
        ([0, 2], [[0], [0], [1], [1]], {}, [[], [], [(1, 0, 1)], [(1, 1, 2)]]),
        ([0, 0], [[0], [1]], PAD, [[], []]),
        ([0, 1], [[0], [1]], PAD, [[(1, 0, 1)], [(1, 0, 1)]]),
        ([0, 1], [[0], [1]], DROP, [[], []]),
        # What is local to none evens out.
        ([4, 1, 5], [[0], [1]], UNEVEN, [[(0, 0, 4), (2, 0, 1)], [(1, 0, 1), (2, 1, 5)]]),
    ],
)
def test_small_cases(counts, homes, options, expected):
    assert split_counts(counts, homes, **options) == expected


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1, -1], [[0]]), {}, r"counts = \[1, -1\]: expected one number of at least 0 per partition"),
        (([1], []), {}, "homes is empty"),
        (([1], [[0], [1]]), {}, r"homes\[1\] names partition 1: expected 0 to 0"),
        (([1, 1], [[0], [0, 1]]), {}, r"homes\[1\] = \[0, 1\] and homes\[0\] = \[0\] share partition 0"),
        (([1], [[0]]), {"remainder": "lose"}, r"remainder = 'lose': expected one of \['keep', 'drop', 'pad'\]"),
        (([1], [[0]]), PAD | UNEVEN, "remainder = 'pad' makes all shares equal, but force_even is False"),
    ],
)
def test_what_cannot_be_divided_is_an_error_that_names_it(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        split_counts(*arguments, **options)
