"""Dividing items among trainers, from their numbers alone: properties, and small cases worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glt.distributed.graph.split import split_counts


@st.composite
def worlds(draw):
    """Counts of partitions, and hosts with some of the trainers and some of the partitions each."""
    num_partitions, num_hosts = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(0, 12), min_size=num_partitions, max_size=num_partitions))
    host_of = draw(st.lists(st.integers(-1, num_hosts - 1), min_size=num_partitions, max_size=num_partitions))
    trainers = draw(st.lists(st.integers(0, num_hosts - 1), min_size=1, max_size=7))
    homes = [[part for part, host in enumerate(host_of) if host == mine] for mine in trainers]
    return counts, homes


def items(share):
    return [(part, at) for part, begin, end in share for at in range(begin, end)]


def everything(counts):
    return [(part, at) for part, count in enumerate(counts) for at in range(count)]


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
    shares = split_counts(counts, homes)
    assert sorted(item for share in shares for item in items(share)) == everything(counts)
    sizes = [len(items(share)) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    local = [[part in home for part, _ in items(share)] for share, home in zip(shares, homes, strict=True)]
    assert sum(map(sum, local)) == most_local(counts, homes)
    assert all(flags == sorted(flags, reverse=True) for flags in local), "local first"
    assert all(begin < end for share in shares for _, begin, end in share)
    assert shares == split_counts(counts, homes)


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_equal_shares_by_leaving_out_or_by_repeating(world):
    counts, homes = world
    size, more = divmod(sum(counts), len(homes))
    dropped = [items(share) for share in split_counts(counts, homes, remainder="drop")]
    assert all(len(share) == size for share in dropped)
    kept = [item for share in dropped for item in share]
    assert len(set(kept)) == len(kept) == sum(counts) - more and set(kept) <= set(everything(counts))

    padded = [items(share) for share in split_counts(counts, homes, remainder="pad")]
    exact = [items(share) for share in split_counts(counts, homes)]
    assert {len(share) for share in padded} == {size + (more > 0)}
    for with_, without in zip(padded, exact, strict=True):
        assert with_[: len(without)] == without
        assert not without or set(with_) == set(without), "what is repeated is the trainer's own"


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_without_force_even_all_that_can_be_local_is(world):
    counts, homes = world
    shares = split_counts(counts, homes, force_even=False)
    assert sorted(item for share in shares for item in items(share)) == everything(counts)
    housed = set().union(*homes)
    for share, home in zip(shares, homes, strict=True):
        assert all(part in home for part, _ in items(share) if part in housed)
    if not housed:
        sizes = [len(items(share)) for share in shares]
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
