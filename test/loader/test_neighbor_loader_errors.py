"""What NeighborLoader refuses, and the words it does so with."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from glt.loader import NeighborLoader
from glt.sampler import NeighborSampler
from glt.testing import ring_graph

DATA = ring_graph(40, 3).to_data()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("input_time", torch.zeros(40, dtype=torch.int64)),
        ("time_attr", "time"),
        ("weight_attr", "edge_weight"),
        ("disjoint", True),
        ("subgraph_type", "induced"),
        ("subgraph_type", "bidirectional"),
        ("temporal_strategy", "last"),
        ("directed", False),
    ],
)
def test_options_that_do_not_work_yet_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} = "):
        NeighborLoader(DATA, [2], **{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("input_time", None),
        ("time_attr", None),
        ("weight_attr", None),
        ("disjoint", False),
        ("subgraph_type", "directional"),
        ("temporal_strategy", "uniform"),
        ("is_sorted", False),
        ("is_sorted", True),
        ("directed", True),
    ],
)
def test_options_at_their_defaults_are_accepted(option, value):
    """Scripts that spell PyG's defaults out must run; is_sorted only ever saved PyG a sort."""
    batch = next(iter(NeighborLoader(DATA, [2], **{option: value})))
    assert batch.batch_size == 1


def test_bad_arguments_are_named():
    for arguments, options, error, message in [
        ((HeteroData(), [2]), {}, TypeError, "data has type HeteroData"),
        ((Data(x=torch.zeros(3, 1)), [2]), {}, ValueError, "data has no edge_index"),
        ((DATA, 2), {}, TypeError, "num_neighbors = 2"),
        ((DATA, []), {}, ValueError, "num_neighbors has 0 hops"),
        ((DATA, [2, -2]), {}, ValueError, r"num_neighbors\[1\] = -2"),
        ((DATA, [2]), {"random_seed": -1}, ValueError, "random_seed = -1"),
        ((DATA, [2]), {"random_seed": 0.5}, TypeError, "random_seed = 0.5"),
        ((DATA, [2]), {"num_threads": 0}, ValueError, "num_threads = 0"),
        ((DATA, [2]), {"no_such_option": 1}, TypeError, "no_such_option"),
    ]:
        with pytest.raises(error, match=message):
            NeighborLoader(*arguments, **options)
    loader = NeighborLoader(DATA, [2])
    for epoch in (-1, 2**32 - 1):
        with pytest.raises(ValueError, match=f"epoch = {epoch}"):
            loader.set_epoch(epoch)


@pytest.mark.parametrize("bad", [-1, 40])
def test_seeds_outside_the_graph_are_named(bad):
    with pytest.raises(IndexError, match=rf"\[2\] = {bad} is outside \[0, 40\)"):
        list(NeighborLoader(DATA, [2], torch.tensor([1, 2, bad]), batch_size=3))


def test_edges_outside_the_graph_are_named():
    data = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0, 1], [1, 3]]), num_nodes=3)
    with pytest.raises(IndexError, match=r"edge_index\[1\]\[1\] = 3 is outside \[0, 3\)"):
        NeighborLoader(data, [2])


def test_too_few_edge_features_are_named():
    dataset = ring_graph(40, 3).to_dataset()
    dataset.edge_features.tensor.resize_(50, 2)
    loader = NeighborLoader(dataset, [-1], batch_size=40)
    with pytest.raises((IndexError, ValueError)):
        list(loader)


def test_a_fan_out_that_the_sampler_does_not_have_is_refused():
    sampler = NeighborSampler(DATA, [3, 2])
    with pytest.raises(ValueError, match=r"num_neighbors = \[3\], but neighbor_sampler was made with \[3, 2\]"):
        NeighborLoader(DATA, [3], neighbor_sampler=sampler)
    assert next(iter(NeighborLoader(DATA, [3, 2], neighbor_sampler=sampler))).batch_size == 1


@pytest.mark.parametrize("num_threads", [0, -1, True, 1.5, "2", None])
def test_num_threads_is_checked_when_given(num_threads):
    with pytest.raises(ValueError, match=f"num_threads = {num_threads!r}: expected an integer of at least 1"):
        NeighborLoader(DATA, [2], num_threads=num_threads)
