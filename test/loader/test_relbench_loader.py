"""The loader in the place of RelBench's: what its triples are around, their times, and that epochs repeat."""

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import glt
from glt.loader import LinkTable, NeighborLoader, RelBenchLinkNeighborLoader

NUM_USERS, NUM_ITEMS, NUM_ROWS = 30, 20, 47
TAKEN = [[(7 * i + j) % NUM_ITEMS for j in range(1 + i % 3)] for i in range(NUM_ROWS)]
USERS, TIMES = torch.arange(NUM_ROWS) * 11 % NUM_USERS, torch.arange(NUM_ROWS) % 4 * 100 + 500


def shop():
    random = np.random.default_rng(0)
    data = HeteroData()
    data["user"].x, data["item"].x = torch.arange(30.0).view(-1, 1), torch.arange(20.0).view(-1, 1)
    data["visit"].time = torch.from_numpy(random.integers(0, 900, 400))
    visits = torch.arange(400)
    for end, count in (("user", NUM_USERS), ("item", NUM_ITEMS)):
        edges = torch.stack([visits, torch.from_numpy(random.integers(0, count, 400))])
        data["visit", f"f2p_{end}", end].edge_index = edges
        data[end, f"rev_f2p_{end}", "visit"].edge_index = edges.flip(0)
    return data


def loader(data=None, **options):
    options = {"batch_size": 8, "random_seed": 3, "time_attr": "time", "src_time": TIMES} | options
    options = {"src_nodes": ("user", USERS), "dst_nodes": ("item", TAKEN), "num_dst_nodes": NUM_ITEMS} | options
    return RelBenchLinkNeighborLoader(shop() if data is None else data, [4, 2], **options)


def told(epoch):
    return [
        [(batch[t].n_id.tolist(), batch[t].input_id.tolist()) for batch, t in zip(triple, _TYPES, strict=True)]
        for triple in epoch
    ]


_TYPES = ("user", "item", "item")


@pytest.mark.parametrize("as_dataset", [False, True])
def test_triples_are_a_source_what_it_takes_and_one_of_all(as_dataset):
    data = shop()
    triples = list(loader(glt.Dataset.from_pyg(data, time_attr="time") if as_dataset else data))
    assert [len(src["user"].input_id) for src, _, _ in triples] == [8] * 5 + [7]
    rows = 0
    for src, dst, negative in triples:
        users, items = src["user"].n_id[: src["user"].batch_size], dst["item"].n_id[: dst["item"].batch_size]
        assert users.tolist() == USERS[rows : rows + 8].tolist() == src["user"].input_id.tolist()
        assert all(item in TAKEN[rows + i] for i, item in enumerate(items.tolist()))
        for batch, node_type in zip((src, dst, negative), _TYPES, strict=True):
            seeds = batch[node_type]
            assert torch.equal(seeds.seed_time, TIMES[rows : rows + 8])
            assert torch.equal(seeds.x.view(-1).long(), seeds.n_id)
            assert (batch["visit"].time <= seeds.seed_time[batch["visit"].batch]).all()
        rows += 8


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": "labor"},
        {"sampler": "labor", "batch_dependency": 6},
        {"time_bound": "<", "time_window": 300},
        {"time_window": {("visit", "f2p_user", "user"): 200}},
        {"temporal_strategy": "decay", "half_life": 90},
    ],
)
def test_each_of_a_triple_is_a_batch_of_its_own(options):
    """Of triple i the batches 3 i, 3 i + 1 and 3 i + 2 of a loader around the same seeds, one after another."""
    data = shop()
    triples = list(loader(data, **options))[:-1]  # of batches that are full
    for at, node_type in enumerate(_TYPES):
        seeds, times = (
            torch.cat([each[at][node_type][name].repeat(3) for each in triples]) for name in ("input_id", "seed_time")
        )
        same = {"input_time": times, "time_attr": "time", "batch_size": 8, "random_seed": 3, **options}
        alone = list(NeighborLoader(data, [4, 2], (node_type, seeds), **same))
        for i, triple in enumerate(triples):
            batch, expected = triple[at], alone[3 * i + at]
            assert all(torch.equal(batch[t].n_id, expected[t].n_id) for t in data.node_types)
            assert all(torch.equal(batch[t].edge_index, expected[t].edge_index) for t in data.edge_types)


def test_epochs_differ_and_repeat_whatever_the_workers():
    one, again = loader(shuffle=True), loader(shuffle=True, num_workers=2)
    first, second = told(one), told(one)
    assert first != second
    assert (told(again), told(again)) == (first, second)
    assert told(loader(shuffle=True, random_seed=4)) != first
    assert len(one) == 6 and "6 batches of 8, 47 links, user to item" in repr(one)


def test_batches_of_one_time():
    given = loader(share_same_time=True, batch_size=5)
    triples = list(given)
    assert len(triples) == len(given) == 8  # of 12, 12, 12 and 11 rows
    assert all(len(src["user"].seed_time.unique()) == 1 and len(src["user"].input_id) == 5 for src, _, _ in triples)
    assert len({int(src["user"].seed_time[0]) for src, _, _ in triples}) == 4


def test_links_are_drawn_evenly_from_what_each_source_takes():
    table = LinkTable(torch.zeros(30_000, dtype=torch.int64), [[3, 5, 9]] * 30_000, 10)
    drawn = table.draw(0, 0, 1, False, False)
    assert torch.bincount(drawn.dst)[[3, 5, 9]].sub(10_000).abs().max() < 400
    assert torch.bincount(drawn.negative, minlength=10).sub(3_000).abs().max() < 300


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size = 0"),
        ({"persistent_workers": True}, ValueError, "persistent_workers = True: links are drawn anew"),
        ({"src_time": TIMES[1:]}, ValueError, "src_time has shape"),
        ({"time_attr": None}, ValueError, "src_time is given and no time_attr"),
        ({"src_time": None, "share_same_time": True}, ValueError, "share_same_time = True and no src_time"),
        ({"random_seed": -1}, ValueError, "random_seed = -1"),
        ({"sampler": torch.utils.data.SequentialSampler([1])}, ValueError, "sampler = .*: links are drawn anew"),
        ({"sampler": "labor", "temporal_strategy": "last"}, ValueError, "sampler = 'labor' and temporal_strategy"),
        ({"batch_dependency": 3}, ValueError, "batch_dependency = 3 and sampler = 'neighbor'"),
        ({"time_window": -1}, ValueError, "time_window = -1"),
        ({"src_nodes": ("user", USERS + 1)}, IndexError, "src_nodes"),
        ({"src_nodes": ("user", USERS.tolist()), "src_time": TIMES.tolist()[1:]}, ValueError, "src_time has shape"),
        ({"num_dst_nodes": NUM_ITEMS + 1}, ValueError, "num_dst_nodes = 21: expected at most 20, the nodes of 'item'"),
    ],
)
def test_what_does_not_fit_is_named(options, error, message):
    with pytest.raises(error, match=message):
        loader(**options)


@pytest.mark.parametrize(
    ("dst", "num", "error", "message"),
    [
        ([[1], []], 3, ValueError, "no destination in row 1"),
        ([[1]], 3, ValueError, "dst_nodes has 1 rows: expected one per source, 2"),
        ([[1], [3]], 3, IndexError, "3"),
        (torch.eye(2), 3, TypeError, "layout torch.strided"),
    ],
)
def test_tables_that_do_not_fit(dst, num, error, message):
    with pytest.raises(error, match=message):
        LinkTable(torch.tensor([0, 1]), dst, num)
